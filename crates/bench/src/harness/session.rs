//! One run of a bench, from its first note to its report.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use core_affinity::CoreId;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::compare::Runs;
use super::options::{Options, Settings};
use super::results::{Measured, Results, SCHEMA};
use super::target::passes;
use crate::machine::{self, Machine};
use crate::paths;
use crate::report::{self, Progress};

/// A run.
#[derive(Debug)]
pub struct Session {
    /// How much is measured.
    pub settings: Settings,
    /// The cores that this process may use, two or more.
    pub cores: Vec<CoreId>,
    /// Where results go; it exists.
    pub directory: PathBuf,
    /// What a reader must know.
    pub notes: Vec<String>,
    /// How far it is.
    pub progress: Progress,
    /// Set once the run is to end.
    pub stop: Arc<AtomicBool>,
    stamp: String,
    json: Option<PathBuf>,
    check: bool,
    started: Instant,
    stolen_before: Option<u64>,
}

impl Session {
    /// Begins, and makes sure that results can be written, before minutes are spent on them.
    ///
    /// # Errors
    /// There are no two cores, or results cannot be written.
    pub fn begin<M: Measured>(options: &Options, settings: Settings) -> Result<Self> {
        let cores = core_affinity::get_core_ids()
            .context("the cores this process may use cannot be told")?;
        if cores.len() < 2 {
            bail!(
                "the bench needs two cores, one for each side of what is measured; this process may use {}",
                cores.len()
            );
        }
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop))
                .context("cannot catch SIGINT and SIGTERM")?;
        }
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let stamp = stamp(since_epoch.unwrap_or_default());
        let directory = paths::target_dir().join(M::DIRECTORY).join(&stamp);
        reserve(&directory, options.json.as_deref())?;
        let mut notes = Vec::new();
        if let Some(load) = machine::busy() {
            notes.push(format!(
                "Other programs were running when it began (load average {load:.1}): expect noise."
            ));
        }
        Ok(Self {
            settings,
            cores,
            directory,
            notes,
            progress: Progress::new(Duration::ZERO),
            stop,
            stamp,
            json: options.json.clone(),
            check: options.check,
            started: Instant::now(),
            stolen_before: machine::stolen_ms(),
        })
    }

    /// Says on what machine it runs and what there is to know already; the measurements are
    /// expected to take so long.
    pub fn expect(&mut self, machine: &Machine, measurements: Duration) {
        self.progress = Progress::new(measurements);
        self.progress.say(&machine.summary());
        for note in &self.notes {
            self.progress.say(note);
        }
    }

    /// Length of a repetition.
    pub fn length(&self) -> Duration {
        Duration::from_secs_f64(self.settings.seconds_per_point)
    }

    /// How long attempts take that take so long each, one for each repetition and contender.
    pub fn all(&self, each: Duration, contenders: usize) -> Duration {
        each * self.settings.repetitions * contenders as u32
    }

    /// Measures one point: all contenders in turn, repetition by repetition, with the same seed for
    /// each. So a drift of the machine's speed meets all alike. An attempt is expected to take so
    /// long; one that fails is missing, which the notes say, and one without a figure
    /// (`Ok(None)`) is missing without a word.
    ///
    /// # Errors
    /// It was interrupted.
    pub fn interleave<C, T>(
        &mut self,
        point: &str,
        contenders: &mut [C],
        name: impl Fn(&C) -> String,
        each: Duration,
        mut measure: impl FnMut(&mut C, u64) -> Result<Option<T>>,
    ) -> Result<Vec<Runs<T>>> {
        self.progress.begin(point);
        let mut all: Vec<_> = contenders.iter().map(|one| Runs::new(name(one))).collect();
        for &seed in &self.settings.seeds {
            for (contender, runs) in contenders.iter_mut().zip(&mut all) {
                let detail = format!("{point}: {}, seed {seed}", runs.name);
                self.progress.detail(&detail);
                let outcome = measure(contender, seed);
                self.progress.end(each);
                // What was cut short is no measurement.
                if self.stop.load(Relaxed) {
                    bail!("interrupted");
                }
                runs.runs.push(outcome.unwrap_or_else(|error| {
                    self.notes.push(format!("failed: {detail}: {error:#}"));
                    None
                }));
            }
        }
        Ok(all)
    }

    /// Publishes what was measured, all of it or until `outcome`'s error. The exit status is 1 if
    /// targets are to be checked and one is missed.
    ///
    /// # Errors
    /// `outcome`'s, or results cannot be written.
    pub fn end<M: Measured>(
        mut self,
        machine: Machine,
        measured: M,
        outcome: Result<()>,
    ) -> Result<ExitCode> {
        self.progress.finish();
        if let Err(error) = &outcome {
            self.notes.push(format!("The bench ended early: {error:#}"));
        }
        let stolen = machine::stolen_ms().zip(self.stolen_before);
        let stolen = stolen.map_or(0, |(now, before)| now - before);
        self.notes.push(format!(
            "The bench took {:.0} s; the hypervisor took {stolen} ms from the cores meanwhile: what they fell into stands out in the \
             spreads.",
            self.started.elapsed().as_secs_f64()
        ));
        let results = Results {
            schema: SCHEMA,
            bench: M::BENCH.to_owned(),
            stamp: self.stamp,
            commit: machine::commit(),
            machine,
            settings: self.settings,
            notes: self.notes,
            targets: measured.targets(),
            measured,
        };
        report::publish(&results, &self.directory)?;
        if let Some(path) = &self.json {
            results.write(path)?;
        }
        outcome?;
        Ok(match passes(&results.targets, self.check) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

/// What is in `json` stays until there is better.
fn reserve(directory: &Path, json: Option<&Path>) -> Result<()> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let open = |path: &Path| -> std::io::Result<File> {
        OpenOptions::new().create(true).append(true).open(path)
    };
    if let Some(path) = json {
        open(path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// A moment, given as time since the Unix epoch, as `YYYYMMDD-HHMMSS` in UTC: names that sort.
fn stamp(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

/// The Gregorian date of a day counted from 1970-01-01.
fn date(day: u64) -> (u64, u64, u64) {
    let leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let (mut year, mut left) = (1970, day);
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use super::super::{Goal, Section, Target};
    use super::*;

    fn session() -> Session {
        Session {
            settings: Settings {
                mode: "custom".to_owned(),
                command: String::new(),
                repetitions: 2,
                seconds_per_point: 0.1,
                seeds: vec![7, 8],
            },
            cores: Vec::new(),
            directory: PathBuf::new(),
            notes: Vec::new(),
            progress: Progress::new(Duration::ZERO),
            stop: Arc::default(),
            stamp: String::new(),
            json: None,
            check: false,
            started: Instant::now(),
            stolen_before: None,
        }
    }

    #[test]
    fn contenders_take_turns_with_the_same_seeds() {
        let mut session = session();
        let mut turns = Vec::new();
        let name = |one: &&str| (*one).to_owned();
        let measured =
            session.interleave("p", &mut ["a", "b"], name, Duration::ZERO, |one, seed| {
                turns.push((*one, seed));
                Ok(Some(seed))
            });
        assert_eq!(turns, [("a", 7), ("b", 7), ("a", 8), ("b", 8)]);
        let measured = measured.unwrap();
        assert_eq!(measured[1].name, "b");
        assert_eq!(measured[1].runs, [Some(7), Some(8)]);
        assert!(session.notes.is_empty());
    }

    #[test]
    fn an_attempt_that_fails_is_missing_and_told() {
        let mut session = session();
        let name = |one: &&str| (*one).to_owned();
        let measured =
            session.interleave("p", &mut ["a", "b"], name, Duration::ZERO, |one, seed| {
                anyhow::ensure!((*one, seed) != ("a", 7), "no such luck");
                Ok((*one == "a").then_some(seed))
            });
        let measured = measured.unwrap();
        assert_eq!(measured[0].runs, [None, Some(8)]);
        assert_eq!(measured[1].runs, [None, None]);
        assert_eq!(session.notes, ["failed: p: a, seed 7: no such luck"]);
    }

    #[test]
    fn what_was_cut_short_is_no_measurement() {
        let mut session = session();
        let stop = Arc::clone(&session.stop);
        let name = |one: &&str| (*one).to_owned();
        let measured = session.interleave("p", &mut ["a"], name, Duration::ZERO, |_, seed| {
            stop.store(true, Relaxed);
            Ok(Some(seed))
        });
        assert_eq!(measured.unwrap_err().to_string(), "interrupted");
    }

    /// What a bench with one target, which is missed, would have measured.
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Missing {}

    impl Measured for Missing {
        const BENCH: &'static str = "missing";
        const TITLE: &'static str = "missing";
        const DIRECTORY: &'static str = "missing";

        fn facts(&self) -> Vec<(&'static str, String)> {
            Vec::new()
        }

        fn targets(&self) -> Vec<Target> {
            let absent = Target::not_shown("gain", Goal::AtLeast(1.0), "");
            vec![absent.missed("it is saturated")]
        }

        fn sections(&self) -> Vec<Section> {
            Vec::new()
        }
    }

    #[test]
    fn a_missed_target_ends_a_checked_run_with_1() {
        for (check, status) in [(true, ExitCode::FAILURE), (false, ExitCode::SUCCESS)] {
            let directory = tempfile::tempdir().unwrap();
            let session = Session {
                directory: directory.path().to_owned(),
                check,
                ..session()
            };
            let machine = Machine::detect(false);
            let ended = session.end(machine, Missing {}, Ok(())).unwrap();
            assert_eq!(format!("{ended:?}"), format!("{status:?}"));
            let written = std::fs::read_to_string(directory.path().join("results.json"));
            assert!(written.unwrap().contains("\"verdict\": \"missed\""));
        }
    }

    #[test]
    fn results_that_cannot_be_written_are_noticed_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let json = directory.path().join("results.json");
        std::fs::write(&json, "what is better than nothing").unwrap();
        reserve(&directory.path().join("a/b"), Some(&json)).unwrap();
        assert!(std::fs::read_to_string(&json).unwrap().starts_with("what"));
        let nowhere = directory.path().join("none/results.json");
        let error = reserve(directory.path(), Some(&nowhere)).unwrap_err();
        assert!(error.to_string().contains("cannot write"), "{error}");
    }

    #[test]
    fn known_moments() {
        for (seconds, stamp) in [
            (0, "19700101-000000"),
            (951_782_400, "20000229-000000"),
            (951_868_799, "20000229-235959"),
            (1_735_689_599, "20241231-235959"),
            (1_735_689_600, "20250101-000000"),
            (4_107_542_400, "21000301-000000"),
        ] {
            assert_eq!(super::stamp(Duration::from_secs(seconds)), stamp);
        }
    }
}
