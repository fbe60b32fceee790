//! What is asked for on the command line.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::contender::Contender;
use super::scenario::{self, Scenario};
use crate::harness::{self, Efforts, Settings};

/// Options of `cargo xtask bench kv`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) common: harness::Options,
    /// Only this scenario (may be given several times).
    #[arg(long, value_name = "NAME", value_parser = scenario::NAMES)]
    scenario: Vec<String>,
    /// Only contenders whose name contains this, besides the first of each scenario (may be given
    /// several times).
    #[arg(long, value_name = "TEXT")]
    contender: Vec<String>,
    /// The bound on GET's p99 for which the highest load is sought, in us.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 100.0)]
    pub(super) slo_us: f64,
    /// This server instead of one built from here.
    #[arg(long, value_name = "PATH")]
    pub(super) kv: Option<PathBuf>,
    /// Options for it besides each contender's own, such as "--slo get=20us,scan=10ms".
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    kv_options: Option<String>,
}

const EFFORTS: Efforts = Efforts {
    quick: (3, 0.8),
    default: (5, 2.0),
    full: (9, 2.0),
    seconds: 0.1..=600.0,
};

impl Options {
    pub(super) fn kv_options(&self) -> Vec<String> {
        let options = self.kv_options.as_deref().unwrap_or_default();
        options.split_whitespace().map(str::to_owned).collect()
    }

    /// # Errors
    /// If they are out of range.
    pub(super) fn settings(&self) -> Result<Settings> {
        let chosen = [&self.scenario, &self.contender];
        let custom = chosen.iter().any(|chosen| !chosen.is_empty());
        self.common.settings(&EFFORTS, custom)
    }

    pub(super) fn scenarios(&self) -> Vec<Scenario> {
        let wanted = |one: &Scenario| {
            self.scenario.is_empty() || self.scenario.iter().any(|name| name == one.name)
        };
        Scenario::all().into_iter().filter(wanted).collect()
    }

    /// The contenders that compete. The first always does, since it sets the loads.
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

    fn options(line: &str) -> Result<Options, String> {
        harness::parse(line)
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
    fn a_quick_run_takes_some_three_minutes() {
        let quick = options("kv --quick").unwrap();
        let points: usize = (quick.scenarios().iter())
            .map(|one| {
                let kinds = one.saturations.len() + one.loads(true).len();
                kinds * quick.contenders(one).len() + 1
            })
            .sum();
        let settings = quick.settings().unwrap();
        let seconds = settings.seconds_per_point * points as f64 * f64::from(settings.repetitions);
        assert!((100.0..210.0).contains(&seconds), "{seconds}");
    }

    #[test]
    fn an_unknown_scenario_is_refused_in_words() {
        let error = options("kv --scenario everything").unwrap_err();
        assert!(error.contains("get-scan"), "{error}");
    }
}
