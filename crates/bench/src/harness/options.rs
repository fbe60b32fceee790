//! What every bench can be asked for, and how much it then measures.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

/// Options of every bench.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Options {
    /// Fewer and shorter points: some three minutes.
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,
    /// More and longer repetitions, of all that there is to measure.
    #[arg(long)]
    pub full: bool,
    /// Repetitions of each point.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repetitions: Option<u32>,
    /// Seconds of one repetition.
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<f64>,
    /// First seed; repetitions count up from it.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Also write results.json here.
    #[arg(long, value_name = "PATH")]
    pub json: Option<PathBuf>,
    /// Exit with 1 if a target is missed.
    #[arg(long)]
    pub check: bool,
}

/// A bench's effort in each mode: repetitions of each point, and seconds of each repetition.
#[derive(Debug, Clone)]
pub struct Efforts {
    pub quick: (u32, f64),
    /// With neither.
    pub default: (u32, f64),
    pub full: (u32, f64),
    /// What `--seconds` may be.
    pub seconds: RangeInclusive<f64>,
}

/// How a bench ran, as it stands in results.json.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// `quick`, `default`, `full`, or `custom` where other options changed what these stand for.
    pub mode: String,
    /// The command line.
    pub command: String,
    /// Repetitions of every point; figures are medians over them.
    pub repetitions: u32,
    /// Length of one repetition of one point, seconds.
    pub seconds_per_point: f64,
    /// One seed a repetition, the same for all contenders.
    pub seeds: Vec<u64>,
}

impl Options {
    /// What the mode stands for.
    pub fn pick<T>(&self, quick: T, default: T, full: T) -> T {
        match (self.quick, self.full) {
            (true, _) => quick,
            (_, true) => full,
            _ => default,
        }
    }

    /// What is measured; `custom`: options of the bench's own have changed the mode's points.
    ///
    /// # Errors
    /// If `--seconds` or `--seed` is out of range; the message says what the range is.
    pub fn settings(&self, efforts: &Efforts, custom: bool) -> Result<Settings> {
        let (repetitions, seconds) = self.pick(efforts.quick, efforts.default, efforts.full);
        let custom = custom || self.repetitions.is_some() || self.seconds.is_some();
        let seconds = self.seconds.unwrap_or(seconds);
        let (least, most) = (efforts.seconds.start(), efforts.seconds.end());
        ensure!(
            efforts.seconds.contains(&seconds),
            "--seconds is {seconds}, but must be {least} to {most}"
        );
        let repetitions = self.repetitions.unwrap_or(repetitions);
        let end = self.seed.checked_add(repetitions.into()).with_context(|| {
            let seed = self.seed;
            format!("--seed is {seed}, but {repetitions} repetitions counted up from it must stay below 2^64")
        })?;
        let mode = if custom {
            "custom"
        } else {
            self.pick("quick", "default", "full")
        };
        let arguments = std::env::args().skip(1);
        Ok(Settings {
            mode: mode.to_owned(),
            command: arguments.fold("cargo xtask".to_owned(), |line, word| line + " " + &word),
            repetitions,
            seconds_per_point: seconds,
            seeds: (self.seed..end).collect(),
        })
    }
}

/// The options in a command line.
///
/// # Errors
/// What is wrong with the line.
#[cfg(test)]
pub fn parse<O: Args>(line: &str) -> Result<O, String> {
    #[derive(clap::Parser)]
    struct Line<O: Args> {
        #[command(flatten)]
        options: O,
    }
    let line: Result<Line<O>, _> = clap::Parser::try_parse_from(line.split_whitespace());
    line.map(|line| line.options)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EFFORTS: Efforts = Efforts {
        quick: (3, 0.3),
        default: (5, 0.5),
        full: (7, 0.5),
        seconds: 0.05..=10.0,
    };

    fn settings(line: &str) -> Result<Settings, String> {
        let settings = parse::<Options>(line)?.settings(&EFFORTS, false);
        settings.map_err(|error| error.to_string())
    }

    #[test]
    fn a_mode_stands_for_repetitions_and_seconds() {
        for (line, mode, repetitions, seconds) in [
            ("bench", "default", 5, 0.5),
            ("bench --quick --check", "quick", 3, 0.3),
            ("bench --full --seed 7", "full", 7, 0.5),
            ("bench --quick --seconds 1", "custom", 3, 1.0),
            ("bench --repetitions 2", "custom", 2, 0.5),
        ] {
            let found = settings(line).unwrap();
            let effort = (found.repetitions, found.seconds_per_point);
            assert_eq!(
                (found.mode.as_str(), effort),
                (mode, (repetitions, seconds))
            );
        }
        assert_eq!(
            settings("bench --full --seed 7").unwrap().seeds[..2],
            [7, 8]
        );
    }

    #[test]
    fn wrong_options_are_refused_in_words() {
        for (line, words) in [
            ("bench --seconds 11", "0.05 to 10"),
            ("bench --seconds NaN", "0.05 to 10"),
            ("bench --seconds 0", "0.05 to 10"),
            ("bench --repetitions 0", "1..=100"),
            ("bench --seed 18446744073709551615", "below 2^64"),
            ("bench --quick --full", "cannot be used with"),
        ] {
            let error = settings(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
