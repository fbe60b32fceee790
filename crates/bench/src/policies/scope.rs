//! What is asked for on the command line, and what of it is measured.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;

use super::contender::Contender;
use super::mechanisms::Mechanisms;
use super::mixes::{self, BenchMix};
use super::{QUANTA_US, QUICK_QUANTA_US};
use crate::harness::{self, Efforts, Settings, distinct};

/// Options of `cargo xtask bench`.
#[derive(Debug, Args)]
#[group(skip)]
pub struct Options {
    #[command(flatten)]
    pub(crate) common: harness::Options,
    /// Only this mix (may be given several times).
    #[arg(long, value_name = "NAME", value_parser = mixes::NAMES)]
    mix: Vec<String>,
    /// Only this load in per cent (may be given several times).
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=200))]
    load: Vec<u32>,
    /// Only contenders whose name contains this, besides c-FCFS (may be given several times).
    #[arg(long, value_name = "TEXT")]
    contender: Vec<String>,
    /// SLO that c-PRE-MQ is given for a class, in microseconds, instead of the class's simulated
    /// p99 alone (may be given several times).
    #[arg(long, value_name = "CLASS=US", value_parser = slo)]
    slo: Vec<(String, f64)>,
    /// Leave the cost table out.
    #[arg(long)]
    no_costs: bool,
    /// Leave the sweep over quanta out.
    #[arg(long)]
    no_sweep: bool,
}

/// What is measured.
#[derive(Debug)]
pub struct Scope {
    /// Repetitions, their length and seeds.
    pub settings: Settings,
    /// Names of mixes.
    pub mixes: Vec<String>,
    /// Offered loads, 1 being the workers' capacity.
    pub loads: Vec<f64>,
    /// SLOs asked for: class to microseconds.
    pub slos_us: BTreeMap<String, f64>,
    /// For how long the host's stalls are watched, before and after.
    pub watch: Duration,
    /// Whether the sweep over quanta is wanted.
    pub sweep: bool,
    /// Over which, where one queue serves all.
    pub quanta_us: &'static [f64],
    /// Whether the cost table is wanted.
    pub costs: bool,
    /// Whether that is measured in fewer rounds.
    pub quick: bool,
    /// Parts of contenders' names; empty: all compete.
    only: Vec<String>,
}

const EFFORTS: Efforts = Efforts {
    quick: (3, 0.35),
    default: (5, 0.4),
    full: (7, 0.6),
    seconds: 0.01..=10.0,
};

/// The mixes of `--quick`.
const QUICK_MIXES: [&str; 4] = ["hi", "mid", "fixed", "store"];

/// The loads of each mode, in per cent. At 80 % nearly everything is saturated on two cores, which
/// says little and takes long; `--quick` leaves that out.
const LOADS: [&[u32]; 3] = [
    &[40, 60],
    &[20, 40, 60, 80],
    &[10, 20, 30, 40, 50, 60, 70, 80, 90],
];

impl Scope {
    /// What `options` ask for.
    ///
    /// # Errors
    /// If they ask for what there is not; the message says what there is.
    pub fn of(options: &Options, workers: usize, here: &Mechanisms) -> Result<Self> {
        let common = &options.common;
        let custom = !options.mix.is_empty()
            || !options.load.is_empty()
            || !options.contender.is_empty()
            || !options.slo.is_empty();
        let [quick, default, full] = LOADS;
        let mixes: &[&str] = common.pick(&QUICK_MIXES, &mixes::NAMES, &mixes::NAMES);
        let mixes = match options.mix.as_slice() {
            [] => mixes.iter().map(|&name| name.to_owned()).collect(),
            wanted => distinct(wanted.iter().cloned()),
        };
        let loads = match options.load.as_slice() {
            [] => common.pick(quick, default, full).to_vec(),
            wanted => distinct(wanted.iter().copied()),
        };
        for text in &options.contender {
            check_contender(text, workers, here)?;
        }
        for (class, _) in &options.slo {
            check_class(class, &mixes)?;
        }
        let as_share = |&percent: &u32| f64::from(percent) / 100.0;
        Ok(Self {
            settings: common.settings(&EFFORTS, custom)?,
            mixes,
            loads: loads.iter().map(as_share).collect(),
            watch: Duration::from_secs(common.pick(1, 3, 3)),
            slos_us: options.slo.iter().cloned().collect(),
            sweep: !options.no_sweep,
            quanta_us: common.pick(QUICK_QUANTA_US, QUANTA_US, QUANTA_US),
            costs: !options.no_costs,
            quick: !common.full,
            only: options.contender.clone(),
        })
    }

    /// The contenders on a mix.
    pub fn contenders(&self, mix: &BenchMix, workers: usize, here: &Mechanisms) -> Vec<Contender> {
        let wanted = |one: &Contender| {
            self.only.is_empty()
                || *one == Contender::FCFS
                || self.only.iter().any(|text| one.name().contains(text))
        };
        mix.contenders(workers, here)
            .into_iter()
            .filter(wanted)
            .collect()
    }
}

/// An SLO on the command line: a class's name and microseconds.
fn slo(text: &str) -> Result<(String, f64), String> {
    let wanted = || format!("\"{text}\" is not CLASS=US, such as short=20");
    let (class, us) = text.split_once('=').ok_or_else(wanted)?;
    let us: f64 = us.parse().map_err(|_| wanted())?;
    if us > 0.0 && us.is_finite() {
        Ok((class.to_owned(), us))
    } else {
        Err(format!(
            "an SLO of {us} us cannot be kept: it must be above 0"
        ))
    }
}

/// Refuses a class that no mix of several classes has.
fn check_class(class: &str, mixes: &[String]) -> Result<()> {
    let names = mixes.iter().map(|mix| mixes::class_names(mix));
    let names: Vec<String> = names
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .filter(|names| names.len() > 1)
        .flatten()
        .collect();
    ensure!(
        names.iter().any(|name| name == class),
        "--slo {class}=...: no mix that is measured has c-PRE-MQ and such a class; their classes are {}",
        distinct(names.iter())
            .into_iter()
            .cloned()
            .collect::<Vec<_>>()
            .join(", ")
    );
    Ok(())
}

/// Refuses a text that is part of no contender's name.
fn check_contender(text: &str, workers: usize, here: &Mechanisms) -> Result<()> {
    let all = Contender::all(workers, here)
        .into_iter()
        .chain(Contender::without_probes(workers, here));
    let names = distinct(all.map(|one| one.name()));
    ensure!(
        names.iter().any(|name| name.contains(text)),
        "--contender \"{text}\" is part of no contender's name; with {workers} workers they are {}. {}",
        names.join(", "),
        here.lines(&Contender::all(workers, here)).join(" ")
    );
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use shinjuku::LayoutKind;

    use super::super::swept_contenders;
    use super::*;

    pub fn scope(line: &str) -> Result<Scope, String> {
        let scope = Scope::of(&harness::parse(line)?, 1, &Mechanisms::signals_alone());
        scope.map_err(|error| error.to_string())
    }

    #[test]
    fn whatever_changes_the_points_makes_it_custom() {
        for (line, mode) in [
            ("bench", "default"),
            ("bench --quick", "quick"),
            ("bench --full --seed 7 --no-costs", "full"),
            ("bench --mix hi", "custom"),
            ("bench --load 40", "custom"),
            ("bench --quick --seconds 0.1", "custom"),
            ("bench --repetitions 2", "custom"),
            ("bench --contender probe", "custom"),
            ("bench --mix store --slo GET=30", "custom"),
        ] {
            assert_eq!(scope(line).unwrap().settings.mode, mode, "{line}");
        }
    }

    #[test]
    fn what_is_asked_for_twice_is_measured_once() {
        let scope =
            scope("bench --mix hi --mix mid --mix hi --load 40 --load 20 --load 40").unwrap();
        assert_eq!(scope.mixes, ["hi", "mid"]);
        assert_eq!(scope.loads, [0.4, 0.2]);
    }

    #[test]
    fn wrong_options_are_refused_in_words() {
        for (line, words) in [
            ("bench --mix nosuch", "lognormal"),
            ("bench --contender nosuch", "c-PRE-SQ escalation 5"),
            ("bench --contender stealing", "with 1 workers they are"),
            (
                "bench --contender guest",
                "guest, not run: there is no /dev/kvm",
            ),
            ("bench --load 0", "1..=200"),
            ("bench --slo short", "CLASS=US"),
            ("bench --slo short=0", "above 0"),
            ("bench --mix hi --slo medium=3", "classes are short, long"),
            ("bench --mix fixed --slo all=3", "no mix that is measured"),
        ] {
            let error = scope(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }

    /// The contenders that `--quick` compares take less than four minutes, the symmetric layout and
    /// the default configuration among them.
    #[test]
    fn a_quick_run_takes_less_than_four_minutes() {
        // What a burst took beside its arrivals where that was slowest, and the table of costs
        // with both watches of the host's stalls.
        const AROUND: f64 = 0.5;
        const BESIDE: f64 = 10.0;
        let here = Mechanisms::signals_alone();
        let scope = scope("bench --quick").unwrap();
        let mut bursts = 0;
        for name in &scope.mixes {
            let several = mixes::class_names(name).unwrap().len() > 1;
            let contenders = match name.starts_with("store") {
                true => Contender::without_probes(1, &here),
                false => BenchMix::spinning(name).unwrap().contenders(1, &here),
            };
            for layout in [LayoutKind::Symmetric, LayoutKind::Auto] {
                assert!(contenders.iter().any(|one| one.layout == layout), "{name}");
            }
            let swept = match several {
                true => swept_contenders(name, scope.quanta_us, &here).len(),
                false => 0,
            };
            bursts += contenders.len() * scope.loads.len() + swept;
        }
        let each = scope.settings.seconds_per_point + AROUND;
        let seconds = bursts as f64 * f64::from(scope.settings.repetitions) * each + BESIDE;
        assert!((150.0..240.0).contains(&seconds), "{seconds}");
    }

    #[test]
    fn the_baseline_competes_whoever_else_does() {
        let mix = BenchMix::spinning("hi").unwrap();
        let names = |line| -> Vec<String> {
            let here = Mechanisms::signals_alone();
            let contenders = scope(line).unwrap().contenders(&mix, 1, &here);
            contenders.iter().map(Contender::name).collect()
        };
        let two = ["c-FCFS", "c-PRE-SQ probe 10 µs"];
        assert_eq!(names("bench --contender c-FCFS"), two[..1]);
        assert_eq!(names("bench --contender 10"), two);
    }
}
