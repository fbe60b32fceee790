//! What is asked for on the command line, and what of it is measured.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};

use super::contender::Contender;
use super::mechanisms::Mechanisms;
use super::mixes::{self, BenchMix};
use crate::report::results::distinct;

/// Options of `cargo xtask bench`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Options {
    /// Something else than the runtime in its own process.
    #[command(subcommand)]
    pub(super) of: Option<Of>,
    /// hi, mid, fixed and store at three loads: under three minutes.
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Every mix at every load, more and longer repetitions: over an hour.
    #[arg(long)]
    pub(super) full: bool,
    /// Only this mix (may be given several times).
    #[arg(long, value_name = "NAME", value_parser = mixes::NAMES)]
    mix: Vec<String>,
    /// Only this load in per cent (may be given several times).
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=200))]
    load: Vec<u32>,
    /// Only contenders whose name contains this, besides c-FCFS (may be given several times).
    #[arg(long, value_name = "TEXT")]
    contender: Vec<String>,
    /// Repetitions of each point.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    repetitions: Option<u32>,
    /// Seconds of one repetition.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// First seed; repetitions count up from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// SLO that c-PRE-MQ is given for a class, in microseconds, instead of the class's simulated
    /// p99 alone (may be given several times).
    #[arg(long, value_name = "CLASS=US", value_parser = slo)]
    slo: Vec<(String, f64)>,
    /// Leave the cost table out.
    #[arg(long)]
    pub(super) no_costs: bool,
    /// Leave the sweep over quanta out.
    #[arg(long)]
    no_sweep: bool,
    /// Also write results.json here.
    #[arg(long, value_name = "PATH")]
    pub(super) json: Option<PathBuf>,
}

/// What else there is to measure.
#[derive(Debug, Subcommand)]
pub enum Of {
    /// The key-value server beside redis-server, over TCP.
    Kv(super::kv::Options),
    /// The network path without the kernel: over DPDK's virtual devices, beside the bare device and
    /// the kernel's UDP.
    Dataplane(super::dataplane::Options),
}

/// What is measured.
#[derive(Debug)]
pub struct Scope {
    /// `quick`, `default`, `full`, or `custom` where the command line changed what these stand for.
    pub mode: &'static str,
    /// Names of mixes.
    pub mixes: Vec<String>,
    /// Offered loads, 1 being the workers' capacity.
    pub loads: Vec<f64>,
    /// One seed a repetition.
    pub seeds: Vec<u64>,
    /// Length of a repetition.
    pub length: Duration,
    /// SLOs asked for: class to microseconds.
    pub slos_us: BTreeMap<String, f64>,
    /// For how long the host's stalls are watched, before and after.
    pub watch: Duration,
    /// Whether the sweep over quanta is wanted.
    pub sweep: bool,
    /// Parts of contenders' names; empty: all compete.
    only: Vec<String>,
}

/// A mode before the other options change it.
struct Preset {
    mode: &'static str,
    mixes: &'static [&'static str],
    loads: &'static [u32],
    repetitions: u32,
    seconds: f64,
}

const QUICK: Preset = Preset {
    mode: "quick",
    mixes: &["hi", "mid", "fixed", "store"],
    loads: &[40, 60, 80],
    repetitions: 3,
    seconds: 0.35,
};
const DEFAULT: Preset = Preset {
    mode: "default",
    mixes: &mixes::NAMES,
    loads: &[20, 40, 60, 80],
    repetitions: 5,
    seconds: 0.4,
};
const FULL: Preset = Preset {
    mode: "full",
    mixes: &mixes::NAMES,
    loads: &[10, 20, 30, 40, 50, 60, 70, 80, 90],
    repetitions: 7,
    seconds: 0.6,
};

impl Scope {
    /// What `options` ask for.
    ///
    /// # Errors
    /// If they ask for what there is not; the message says what there is.
    pub fn of(options: &Options, workers: usize, here: &Mechanisms) -> Result<Self> {
        let preset = match (options.quick, options.full) {
            (true, _) => QUICK,
            (_, true) => FULL,
            _ => DEFAULT,
        };
        let custom = !options.mix.is_empty()
            || !options.load.is_empty()
            || !options.contender.is_empty()
            || !options.slo.is_empty()
            || options.repetitions.is_some()
            || options.seconds.is_some();
        let mixes = match options.mix.as_slice() {
            [] => preset.mixes.iter().map(|&name| name.to_owned()).collect(),
            wanted => distinct(wanted.iter().cloned()),
        };
        let loads = match options.load.as_slice() {
            [] => preset.loads.to_vec(),
            wanted => distinct(wanted.iter().copied()),
        };
        for text in &options.contender {
            check_contender(text, workers, here)?;
        }
        for (class, _) in &options.slo {
            check_class(class, &mixes)?;
        }
        let seconds = options.seconds.unwrap_or(preset.seconds);
        ensure!(
            (0.01..=10.0).contains(&seconds),
            "--seconds is {seconds}, but must be 0.01 to 10"
        );
        let repetitions = u64::from(options.repetitions.unwrap_or(preset.repetitions));
        let end = options.seed.checked_add(repetitions).with_context(|| {
            format!(
                "--seed is {}, but {repetitions} repetitions counted up from it must stay below 2^64",
                options.seed
            )
        })?;
        Ok(Self {
            mode: if custom { "custom" } else { preset.mode },
            mixes,
            loads: loads
                .iter()
                .map(|&percent| f64::from(percent) / 100.0)
                .collect(),
            seeds: (options.seed..end).collect(),
            length: Duration::from_secs_f64(seconds),
            watch: Duration::from_secs(if options.quick { 1 } else { 3 }),
            slos_us: options.slo.iter().cloned().collect(),
            sweep: !options.no_sweep,
            only: options.contender.clone(),
        })
    }

    /// Who competes on a mix.
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
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    pub fn scope(line: &str) -> Result<Scope, String> {
        let line = Line::try_parse_from(line.split_whitespace()).map_err(|e| e.to_string())?;
        Scope::of(&line.options, 1, &Mechanisms::signals_alone()).map_err(|error| error.to_string())
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
            assert_eq!(scope(line).unwrap().mode, mode, "{line}");
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
            ("bench --seconds 11", "0.01 to 10"),
            ("bench --seconds NaN", "0.01 to 10"),
            ("bench --seed 18446744073709551615", "below 2^64"),
        ] {
            let error = scope(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }

    #[test]
    fn the_baseline_competes_whoever_else_does() {
        let mix = BenchMix::spinning("hi", 1.0).unwrap();
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
