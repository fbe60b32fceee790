//! The slides' table: two busy loops, switched every 5 us. For how long does each run, and for how
//! long does it wait?

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use shinjuku_elevate::{Config, Elevation, Pattern, Report, Table, Target};
use shinjuku_preempt::guest::{Guest, GuestConfig};
use shinjuku_preempt::{Generation, Outcome, Pool, PoolConfig, Worker};

use super::turns::Turns;
use super::{AROUND, Bench, Moment, elevate, start_part};
use crate::harness::Runs;

/// The slides' switching period.
pub(super) const PERIOD: Duration = Duration::from_micros(5);
/// Shorter absences are interrupts, not turns of the other one.
const LEAST: Duration = Duration::from_nanos(2500);

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delay {
    /// Process, pthread or vCPU.
    pub entity: String,
    /// The slides' duration and interval, us.
    pub slides: [f64; 2],
    pub runs: Runs<Turns>,
    /// Why there are none.
    pub why_not: Option<String>,
}

/// What is scheduled.
#[derive(Clone, Copy)]
enum Entity {
    Process,
    Pthread,
    Vcpu,
}

/// The table of the slides: shared, then dedicated.
const ROWS: [(Entity, &str, [[f64; 2]; 2]); 3] = [
    (Entity::Process, "process", [[5.5, 9.6], [5.0, 5.0]]),
    (Entity::Pthread, "pthread", [[5.5, 9.2], [5.0, 5.0]]),
    (Entity::Vcpu, "vCPU", [[7.2, 14.4], [5.0, 5.0]]),
];

pub(super) fn measure(bench: &mut Bench<'_>) -> Result<Vec<Delay>> {
    let guest = Guest::install(crate::allow_signals(), GuestConfig::default());
    let mut delays = Vec::new();
    for (entity, name, slides) in ROWS {
        let mut patterns = patterns(bench);
        let guest = match (entity, &guest) {
            (Entity::Vcpu, Err(error)) => {
                for ((pattern, _), slides) in patterns.iter().zip(slides) {
                    delays.push(Delay {
                        entity: name.to_owned(),
                        slides,
                        runs: Runs::new(*pattern),
                        why_not: Some(error.to_string()),
                    });
                }
                continue;
            }
            (_, guest) => guest.as_ref().ok(),
        };
        let each = bench.length + AROUND;
        let (config, length) = (bench.config(Table::round_robin(2)?, PERIOD), bench.length);
        let (directory, stop) = (bench.session.directory.clone(), bench.session.stop.clone());
        let runs = bench.session.interleave(
            &format!("switching {name} every 5 us"),
            &mut patterns,
            |(name, _)| (*name).to_owned(),
            each,
            |(_, pattern), _| {
                let config = config.clone().pattern(*pattern);
                match (entity, guest) {
                    (Entity::Process, _) => processes(config, length, &directory, &stop),
                    (Entity::Pthread, _) => threads(config, length, None),
                    (Entity::Vcpu, guest) => threads(config, length, guest),
                }
                .map(Some)
            },
        )?;
        let rows = runs.into_iter().zip(slides);
        delays.extend(rows.map(|(runs, slides)| Delay {
            entity: name.to_owned(),
            slides,
            runs,
            why_not: None,
        }));
    }
    Ok(delays)
}

/// The patterns, by the slides' names.
pub(super) fn patterns(bench: &Bench<'_>) -> [(&'static str, Pattern); 2] {
    let core = bench.cores.other;
    [
        ("shared", Pattern::Shared),
        ("dedicated", Pattern::Dedicated { core }),
    ]
}

/// What is measured ends while it is scheduled; otherwise it has not run in its slots.
pub(super) struct Scheduled {
    until: Option<Instant>,
    /// How many take turns.
    all: u64,
}

impl Scheduled {
    /// From now on.
    pub(super) fn by(config: &Config) -> Self {
        Self {
            until: config.at_most.map(|length| Instant::now() + length),
            all: config.table.scheduled() as u64,
        }
    }

    /// Whether it still is.
    pub(super) fn check(&self) -> Result<()> {
        ensure!(
            self.until.is_none_or(|end| Instant::now() < end),
            "what was scheduled did not get to run: here a switch takes longer than the slice"
        );
        Ok(())
    }

    /// Whether each of them was let run, by what the scheduler did.
    pub(super) fn check_turns(&self, report: &Report) -> Result<()> {
        ensure!(
            report.switches >= self.all,
            "the scheduler switched {} times: not all of {} had a turn",
            report.switches,
            self.all
        );
        Ok(())
    }
}

fn processes(
    config: Config,
    length: Duration,
    directory: &Path,
    stop: &AtomicBool,
) -> Result<Turns> {
    let seconds = length.as_secs_f64();
    let (of_child, least) = (
        seconds.to_string(),
        (LEAST.as_nanos() as f64 / 1e3).to_string(),
    );
    let moment = Moment::soon();
    let at = moment.to_nanos();
    let arguments = [
        "busy",
        "--at",
        &at,
        "--seconds",
        &of_child,
        "--least-us",
        &least,
    ];
    let both = [
        start_part(directory, &arguments)?,
        start_part(directory, &arguments)?,
    ];
    let targets = both
        .each_ref()
        .map(|process| Target::Process(process.child.id()));
    let scheduled = Scheduled::by(&config);
    let elevation = elevate(config, &targets)?;
    moment.check()?;
    let [first, second] = both;
    let turns: Turns = first.result(seconds, stop)?;
    let _: Turns = second.result(seconds, stop)?;
    scheduled.check()?;
    let report = elevation.stop()?;
    scheduled.check_turns(&report)?;
    Ok(turns.scheduled_by(&report))
}

/// Threads of this process, or vCPUs: threads in guest mode.
fn threads(config: Config, length: Duration, guest: Option<&Guest>) -> Result<Turns> {
    let moment = Moment::soon();
    let start = |number| -> Result<_> {
        let (told, tid) = mpsc::channel();
        let guest = guest.cloned();
        let thread = thread::Builder::new().spawn(move || -> Result<Turns> {
            let tid = rustix::thread::gettid().as_raw_pid().cast_unsigned();
            // The receiver waits.
            let _ = told.send(tid);
            let note = move || Turns::note(length, LEAST, || moment.wait());
            match guest {
                None => Ok(note()),
                Some(guest) => in_guest_mode(number, &guest, note),
            }
        })?;
        Ok((tid.recv()?, thread))
    };
    let (first, second) = (start(0)?, start(1)?);
    let targets = [first.0, second.0].map(Target::Thread);
    let scheduled = Scheduled::by(&config);
    let elevation = Elevation::start(config, &targets, None)?;
    moment.check()?;
    let turns = [first.1, second.1].map(|thread| {
        let joined = thread.join();
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    scheduled.check()?;
    let report = elevation.stop()?;
    scheduled.check_turns(&report)?;
    let [turns, other] = turns;
    other?;
    Ok(turns?.scheduled_by(&report))
}

/// The busy loop, as the code of a virtual machine.
fn in_guest_mode(
    number: u32,
    guest: &Guest,
    note: impl Fn() -> Turns + Send + Sync + 'static,
) -> Result<Turns> {
    let config = PoolConfig::default().contexts(1);
    let mut pool = Pool::new(config, move |()| note())?;
    let idle = pool.idle.pop().context("there is one context")?;
    let mut worker = Worker::bind(number)?;
    worker.enter(guest)?;
    let Outcome::Finished(finished) = worker.run(idle.load(()).into(), Generation(1)) else {
        anyhow::bail!("no preemption was asked for");
    };
    let (idle, turns) = finished.take();
    drop(worker);
    pool.handles.hand_back(vec![idle], Duration::from_secs(1));
    turns.map_err(|panicked| anyhow::anyhow!("{panicked}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduler_that_never_switched_is_no_measurement() {
        let config = Config::new(0, Table::round_robin(2).unwrap());
        let scheduled = Scheduled::by(&config);
        let mut report = Report::default();
        for (switches, fine) in [(0, false), (1, false), (2, true)] {
            report.switches = switches;
            assert_eq!(scheduled.check_turns(&report).is_ok(), fine, "{switches}");
        }
    }

    #[test]
    fn what_outlasts_its_scheduler_is_no_measurement() {
        let config = Config::new(0, Table::round_robin(2).unwrap());
        let until = |length| Scheduled::by(&config.clone().at_most(length)).check();
        assert!(until(Duration::ZERO).is_err());
        until(Duration::from_secs(3600)).unwrap();
    }

    #[test]
    fn threads_and_vcpus_take_turns() {
        const TEST: &str = "threads_and_vcpus_take_turns";
        let skipped = |why: &dyn std::fmt::Display| println!("SKIPPED {TEST}: {why}");
        let guest = Guest::install(crate::allow_signals(), GuestConfig::default());
        let guests = match &guest {
            Ok(guest) => vec![None, Some(guest)],
            Err(error) => {
                skipped(error);
                vec![None]
            }
        };
        let core = core_affinity::get_core_ids().unwrap().pop().unwrap().id;
        for guest in guests {
            // Slices far longer than any switch.
            let config = Config::new(core, Table::round_robin(2).unwrap())
                .slice(Duration::from_millis(5))
                .at_most(Duration::from_secs(10));
            match threads(config, Duration::from_millis(100), guest) {
                Ok(turns) => assert!(turns.turns > 2, "{turns:?}"),
                Err(error) => match error.downcast_ref() {
                    Some(refused @ shinjuku_elevate::ElevateError::Refused(_)) => skipped(refused),
                    // It may be a busy one.
                    _ if error.to_string().contains("took too long") => skipped(&error),
                    _ => panic!("{error}"),
                },
            }
        }
    }
}
