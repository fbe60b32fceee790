//! What is asked for on the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::contender::Contender;
use super::scenario::{self, Scenario};

/// Options of `cargo xtask bench kv`.
#[derive(Debug, Args)]
pub struct Options {
    /// Fewer and shorter points: some three minutes.
    #[arg(long)]
    pub(super) quick: bool,
    /// Only this scenario (may be given several times).
    #[arg(long, value_name = "NAME", value_parser = scenario::NAMES)]
    scenario: Vec<String>,
    /// Only contenders whose name contains this, besides the first of each scenario (may be given
    /// several times).
    #[arg(long, value_name = "TEXT")]
    contender: Vec<String>,
    /// Repetitions of each point [default: 5, quick 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    repetitions: Option<u32>,
    /// Seconds of one repetition [default: 2, quick 0.8].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<f64>,
    /// First seed; repetitions count up from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The bound on GET's p99 for which the highest load is sought, in us.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 100.0)]
    pub(super) slo_us: f64,
    /// This server instead of one built from here.
    #[arg(long, value_name = "PATH")]
    pub(super) kv: Option<PathBuf>,
    /// Options for it besides each contender's own, such as "--slo get=20us,scan=10ms".
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    kv_options: Option<String>,
    /// Also write results.json here.
    #[arg(long, value_name = "PATH")]
    pub(super) json: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let valid = |seconds: &f64| (0.1..=600.0).contains(seconds);
    text.parse()
        .ok()
        .filter(valid)
        .ok_or_else(|| "it must lie between 0.1 and 600".to_owned())
}

impl Options {
    pub(super) fn kv_options(&self) -> Vec<String> {
        let options = self.kv_options.as_deref().unwrap_or_default();
        options.split_whitespace().map(str::to_owned).collect()
    }

    pub(super) fn repetitions(&self) -> u32 {
        self.repetitions.unwrap_or(if self.quick { 3 } else { 5 })
    }

    pub(super) fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(if self.quick { 0.8 } else { 2.0 })
    }

    /// A point with what stands around it: connecting, draining.
    pub(super) fn point(&self) -> Duration {
        Duration::from_secs_f64(self.seconds() + 0.05)
    }

    pub(super) fn seeds(&self) -> Vec<u64> {
        (0..u64::from(self.repetitions()))
            .map(|one| self.seed.wrapping_add(one))
            .collect()
    }

    pub(super) fn scenarios(&self) -> Vec<Scenario> {
        let wanted = |one: &Scenario| {
            self.scenario.is_empty() || self.scenario.iter().any(|name| name == one.name)
        };
        Scenario::all().into_iter().filter(wanted).collect()
    }

    /// Who competes; the first sets the loads, so it always does.
    pub(super) fn contenders(&self, scenario: &Scenario) -> Vec<Contender> {
        let wanted = |(at, one): &(usize, Contender)| {
            *at == 0
                || self.contender.is_empty()
                || self
                    .contender
                    .iter()
                    .any(|text| one.name.contains(text.as_str()))
        };
        let all = scenario.contenders.iter().copied().enumerate();
        all.filter(wanted).map(|(_, one)| one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn options(line: &str) -> Result<Options, String> {
        let line = Line::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        Ok(line.options)
    }

    #[test]
    fn the_first_contender_always_competes() {
        let options = options("kv --contender sq --scenario get-scan").unwrap();
        let scenarios = options.scenarios();
        let [scenario] = &scenarios[..] else {
            panic!("one scenario");
        };
        let names: Vec<_> = options
            .contenders(scenario)
            .iter()
            .map(|one| one.name)
            .collect();
        assert_eq!(names, ["redis", "sq"]);
    }

    #[test]
    fn wrong_options_are_refused_in_words() {
        for (line, words) in [
            ("kv --scenario everything", "get-scan"),
            ("kv --seconds 0", "between 0.1 and 600"),
            ("kv --repetitions 0", "1..=100"),
        ] {
            let error = options(line).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_quick_run_takes_some_three_minutes() {
        let quick = options("kv --quick").unwrap();
        let points: usize = (quick.scenarios().iter())
            .map(|one| {
                let kinds = one.saturations.len() + one.loads(true).len();
                kinds * quick.contenders(one).len() + 1
            })
            .sum();
        let seconds = quick.point().as_secs_f64() * points as f64 * f64::from(quick.repetitions());
        assert!((100.0..210.0).contains(&seconds), "{seconds}");
    }
}
