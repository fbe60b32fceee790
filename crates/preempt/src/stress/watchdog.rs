//! Notices when a context makes no progress, and finds out why: interrupts leave it no time, a
//! wake-up was lost, or a lock is not released.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::world::World;
use super::{Config, Report};

/// Contexts that made no progress for longer than they may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hang {
    /// Their numbers; none if contexts did not end when they should.
    pub contexts: Vec<usize>,
    /// How long the first of them made no progress.
    pub time: Duration,
    /// The quantum that they were interrupted at.
    pub quantum: Duration,
    /// Interrupts that workers took meanwhile.
    pub interrupts: u64,
    /// Preemptions that workers took meanwhile.
    pub preemptions: u64,
    /// Whether all made progress once interrupts came seldom: then they lacked only time.
    pub got_on: bool,
}

impl Hang {
    /// Whether the machine was busy with interrupts alone: contexts are interrupted again and
    /// again, and finish no operation.
    #[must_use]
    pub fn is_livelock(&self) -> bool {
        self.got_on && self.interrupts + self.preemptions > 0
    }
}

impl fmt::Display for Hang {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            time,
            quantum,
            interrupts,
            preemptions,
            ..
        } = self;
        let numbers: Vec<_> = self.contexts.iter().map(usize::to_string).collect();
        let numbers = numbers.join(", ");
        let what = match self.contexts.len() {
            0 => "the contexts did not come to their end".to_owned(),
            1 => format!("context {numbers} finished no operation"),
            _ => format!("contexts {numbers} finished no operation"),
        };
        let counts = format!(
            "in {:.1} s workers took {interrupts} interrupts and {preemptions} preemptions, and {what}",
            time.as_secs_f64()
        );
        let slowly = SELDOM.as_millis();
        if self.is_livelock() {
            write!(
                formatter,
                "a livelock: {counts}; interrupted every {slowly} ms only, they get on. A quantum of {} us is too short for \
                 what a preemption costs here",
                quantum.as_micros()
            )
        } else if self.got_on {
            write!(formatter, "a standstill that ended by itself: {counts}")
        } else {
            write!(
                formatter,
                "a standstill: {counts}, nor when interrupted every {slowly} ms only: a wake-up was lost, or a lock is not \
                 given back"
            )
        }
    }
}

/// How often workers are interrupted during the search for the cause. They still are interrupted: a
/// context may wait for another that has no worker.
pub(super) const SELDOM: Duration = Duration::from_millis(50);

/// Checks that every context makes progress.
pub(super) struct Watchdog {
    world: Arc<World>,
    patience: Duration,
    quantum: Duration,
    seen: Vec<Seen>,
}

/// The counts when a context last finished an operation.
#[derive(Clone, Copy)]
struct Seen {
    operations: u64,
    at: Instant,
    interrupts: u64,
    preemptions: u64,
}

impl Watchdog {
    pub(super) fn new(config: &Config, world: &Arc<World>) -> Self {
        let nothing = Seen {
            operations: 0,
            at: Instant::now(),
            interrupts: 0,
            preemptions: 0,
        };
        Self {
            world: Arc::clone(world),
            patience: config.patience,
            quantum: config.quantum,
            seen: vec![nothing; config.contexts],
        }
    }

    /// Contexts that finished no operation for longer than they may, if there are any. `now` is the
    /// run's present state.
    pub(super) fn sees_a_hang(&mut self, now: &Report) -> Option<Hang> {
        let at = Instant::now();
        for (seen, progress) in self.seen.iter_mut().zip(&self.world.progress) {
            let operations = progress.load(Ordering::Relaxed);
            if seen.operations != operations {
                *seen = Seen {
                    operations,
                    at,
                    interrupts: now.interrupts(),
                    preemptions: now.counters.taken(),
                };
            }
        }
        let seen = self.seen.iter().enumerate();
        let hanging = seen.filter(|(_, seen)| at.duration_since(seen.at) > self.patience);
        let (contexts, since): (Vec<_>, Vec<&Seen>) = hanging.unzip();
        let first = since.into_iter().min_by_key(|seen| seen.at)?;
        Some(Hang {
            contexts,
            time: at.duration_since(first.at),
            quantum: self.quantum,
            interrupts: now.interrupts() - first.interrupts,
            preemptions: now.counters.taken() - first.preemptions,
            got_on: false,
        })
    }

    /// Makes interrupts seldom, and waits until every context of `hang` has finished an operation,
    /// or `patience` ends. Records in `hang` which it was.
    pub(super) fn find_out(&self, hang: &mut Hang, patience: Duration) {
        self.world.interrupt_seldom.store(true, Ordering::Relaxed);
        let got_on = |context: &usize| {
            self.world.progress[*context].load(Ordering::Relaxed) != self.seen[*context].operations
        };
        let start = Instant::now();
        while !hang.got_on && start.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(1));
            hang.got_on = hang.contexts.iter().all(got_on);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CountersSnapshot;

    /// A watchdog with little patience, and a run in which no operation finished but `late`
    /// interrupts came.
    fn stage(late: u64) -> (Watchdog, Arc<World>, Report) {
        let config = Config {
            patience: Duration::from_millis(20),
            ..Config::default()
        };
        let world = Arc::new(World::new(&config).unwrap());
        let counters = CountersSnapshot {
            late,
            ..CountersSnapshot::default()
        };
        let report = Report {
            counters,
            ..Report::default()
        };
        (Watchdog::new(&config, &world), world, report)
    }

    const LIMIT: Duration = Duration::from_secs(60);

    fn wait_for_a_hang(watchdog: &mut Watchdog, report: &Report) -> Hang {
        let start = Instant::now();
        while start.elapsed() < LIMIT {
            if let Some(hang) = watchdog.sees_a_hang(report) {
                return hang;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("no hang is seen");
    }

    #[test]
    fn contexts_that_get_on_once_interrupts_are_few_were_in_a_livelock() {
        let (mut watchdog, world, report) = stage(77_633);
        let mut hang = wait_for_a_hang(&mut watchdog, &report);
        let contexts = std::thread::spawn({
            let world = Arc::clone(&world);
            move || {
                let start = Instant::now();
                while !world.interrupt_seldom.load(Ordering::Relaxed) {
                    if start.elapsed() > LIMIT {
                        return;
                    }
                    std::thread::yield_now();
                }
                (0..world.progress.len()).for_each(|context| world.done(context, 0, true));
            }
        });
        watchdog.find_out(&mut hang, LIMIT);
        contexts.join().unwrap();
        assert!(hang.is_livelock(), "{hang:?}");
        let said = hang.to_string();
        assert!(said.starts_with("a livelock: in "), "{said}");
        assert!(
            said.contains("77633 interrupts and 0 preemptions")
                && said.contains("A quantum of 50 us"),
            "{said}"
        );
    }

    #[test]
    fn one_context_that_still_gets_nowhere_is_a_standstill() {
        let (mut watchdog, world, report) = stage(500);
        let mut hang = wait_for_a_hang(&mut watchdog, &report);
        // All contexts but one.
        (1..world.progress.len()).for_each(|context| world.done(context, 0, true));
        watchdog.find_out(&mut hang, Duration::from_millis(20));
        assert!(!hang.is_livelock(), "{hang:?}");
        let said = hang.to_string();
        assert!(
            said.contains("a standstill") && said.contains("lost"),
            "{said}"
        );
    }

    #[test]
    fn without_interrupts_nothing_is_called_a_livelock() {
        let (mut watchdog, world, report) = stage(0);
        let mut hang = wait_for_a_hang(&mut watchdog, &report);
        (0..world.progress.len()).for_each(|context| world.done(context, 0, true));
        watchdog.find_out(&mut hang, LIMIT);
        assert!(hang.got_on && !hang.is_livelock(), "{hang:?}");
        assert!(hang.to_string().contains("ended by itself"));
    }

    #[test]
    fn who_gets_on_does_not_hang() {
        let (mut watchdog, world, report) = stage(500);
        wait_for_a_hang(&mut watchdog, &report);
        (0..world.progress.len()).for_each(|context| world.done(context, 0, true));
        assert_eq!(watchdog.sees_a_hang(&report), None);
    }
}
