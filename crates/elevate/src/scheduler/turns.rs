//! The scheduler's loop.
//!
//! Between two looks at which threads there are (each 100 ms) a switch takes no memory and no lock:
//! its system calls are the two that set priorities for each thread of the two groups, and in the
//! shared pattern the sleep until the slice is over.

use std::hint;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use shinjuku_preempt::SchedulingClass;

use super::group::Group;
use super::sentinel::Shared;
use super::{Config, OnSleep, Pattern, Report};
use crate::member::pin_current;
use crate::supervisor::{BEAT, STANDSTILL, Supervisor};
use crate::target::SchedulerThread;
use crate::{ElevateError, Target};

/// Beyond the time that was asked for, when the supervisor ends what the scheduler has not ended.
const GRACE: Duration = Duration::from_millis(500);
/// While all sleep, the scheduler looks again at least so often.
const LONGEST_IDLE: Duration = Duration::from_millis(1);

/// How often, and for how long, the scheduler sleeps to see what that costs.
const SLEEPS: usize = 65;
const ONE_SLEEP: Duration = Duration::from_micros(100);

/// The priorities in use.
#[derive(Clone, Copy)]
struct Classes {
    low: SchedulingClass,
    sentinel: SchedulingClass,
    middle: SchedulingClass,
    high: SchedulingClass,
}

/// Why a slot ended.
#[derive(Clone, Copy, PartialEq)]
enum Ended {
    Over,
    Asleep,
    Stopped,
}

pub(super) struct Turns {
    config: Config,
    classes: Classes,
    shared: Arc<Shared>,
    groups: Vec<Group>,
    /// Whose threads are there.
    there: Vec<bool>,
    supervisor: Option<Supervisor>,
    sentinel: Option<JoinHandle<()>>,
    /// The one that may run.
    current: Option<usize>,
    /// What the scheduler's sleep takes from a slot.
    lost: Duration,
    begun: Instant,
    last_beat: Instant,
    report: Report,
    _registered: SchedulerThread,
}

impl Turns {
    /// On the scheduler's own thread: gives this its class, tells the supervisor, and then gives
    /// all of the scheduled theirs.
    pub(super) fn begin(
        config: Config,
        targets: &[Target],
        supervisor: Option<Command>,
        shared: Arc<Shared>,
    ) -> Result<Self, ElevateError> {
        let lowest = config.lowest_priority;
        let fifo = |above| SchedulingClass::fifo(lowest + above);
        let classes = Classes {
            low: fifo(0),
            sentinel: fifo(1),
            middle: fifo(2),
            high: fifo(3),
        };
        let registered = SchedulerThread::enter();
        let groups = targets.iter().map(|target| Group::of(*target));
        let groups = groups.collect::<Result<Vec<_>, _>>()?;
        check_apart(&groups, targets)?;
        if supervisor.is_none() {
            let own = std::process::id();
            for (group, target) in groups.iter().zip(targets) {
                let looking = ElevateError::system("look at this process's own threads");
                if !group.is_of(own).map_err(looking)? {
                    let target = target.to_string();
                    return Err(ElevateError::Unsupervised { target });
                }
            }
        }
        // The answer to whether this is permitted comes before anything else is begun. The
        // supervisor inherits the cores that this thread has until it is bound to one.
        classes.high.give_to(0).map_err(ElevateError::class)?;
        let deadline = config.at_most.map(|most| most + GRACE);
        let supervisor = supervisor
            .map(|command| Supervisor::start(command, lowest + 4, deadline))
            .transpose()?;
        let core = config.scheduler_core();
        pin_current(core).map_err(|cause| ElevateError::Core { core, cause })?;
        let now = Instant::now();
        let mut turns = Self {
            there: vec![true; groups.len()],
            config,
            classes,
            shared,
            groups,
            supervisor,
            sentinel: None,
            current: None,
            lost: Duration::ZERO,
            begun: now,
            last_beat: now,
            report: Report::default(),
            _registered: registered,
        };
        // The sentinel begins without a priority: once the first of them has one, it could not.
        turns.start_sentinel()?;
        if turns.config.pattern == Pattern::Shared {
            turns.lost = turns.lost_by_sleeping();
            turns.report.added = turns.lost;
        }
        let (core, low) = (turns.config.core, turns.classes.low);
        for group in &mut turns.groups {
            group.take(turns.supervisor.as_mut(), core, &low)?;
        }
        Ok(turns)
    }

    fn start_sentinel(&mut self) -> Result<(), ElevateError> {
        let (shared, class) = (Arc::clone(&self.shared), self.classes.sentinel);
        let (core, scheduler) = (self.config.core, thread::current());
        let (ready, answer) = mpsc::channel();
        // It parks until one of the scheduled may run.
        shared.idle.store(true, Ordering::Release);
        let thread = thread::Builder::new()
            .name("elevate-sentinel".to_owned())
            .spawn(move || {
                let _registered = SchedulerThread::enter();
                let pinned = pin_current(core).map_err(|cause| ElevateError::Core { core, cause });
                let begun = pinned.and_then(|()| class.give_to(0).map_err(ElevateError::class));
                let goes_on = begun.is_ok();
                // The receiver waits.
                let _ = ready.send(begun);
                if goes_on {
                    shared.watch(&scheduler);
                }
            });
        self.sentinel = Some(thread.map_err(ElevateError::system("start a thread"))?);
        // It has no way to end without an answer.
        answer.recv().unwrap_or(Ok(()))
    }

    /// What a sleep of the scheduler takes from the thread that runs meanwhile: arming the timer,
    /// both switches, the timer's interrupt. A microsecond on bare metal; on a virtual machine more
    /// than a short slice, of which nothing would be left.
    fn lost_by_sleeping(&self) -> Duration {
        let Some(sentinel) = &self.sentinel else {
            return Duration::ZERO;
        };
        self.shared.measures.store(true, Ordering::Release);
        sentinel.thread().unpark();
        let ran = || Duration::from_nanos(self.shared.has_run.load(Ordering::Relaxed));
        let mut lost = [(); SLEEPS].map(|()| {
            let before = ran();
            thread::park_timeout(ONE_SLEEP);
            ONE_SLEEP.saturating_sub(ran() - before)
        });
        self.shared.measures.store(false, Ordering::Release);
        lost.sort_unstable();
        lost[SLEEPS / 2]
    }

    /// Schedules until it is told to stop, its time is over, or all the scheduled have ended.
    pub(super) fn run(mut self) -> Result<Report, ElevateError> {
        let outcome = self.turns();
        let given_back = self.give_back();
        given_back.and(outcome).map(|()| self.report)
    }

    fn turns(&mut self) -> Result<(), ElevateError> {
        let started = Instant::now();
        let slots = self.config.table.slots().len();
        let mut slot = slots - 1;
        // Slots in a row that ended because their owners slept.
        let mut asleep = 0;
        let mut idle = self.config.slice;
        loop {
            slot = (slot + 1) % slots;
            let next = self.config.table.slots()[slot];
            if self.there[next] && !(asleep > 0 && self.current == Some(next)) {
                self.switch(next)?;
                match self.wait(self.config.slice + self.lost) {
                    Ended::Stopped => return Ok(()),
                    Ended::Over => (asleep, idle) = (0, self.config.slice),
                    Ended::Asleep => {
                        self.report.slept += 1;
                        asleep += 1;
                    }
                }
            } else {
                asleep += usize::from(asleep > 0);
            }
            if asleep > slots {
                if self.idle(idle)? == Ended::Stopped {
                    return Ok(());
                }
                idle = (2 * idle).min(LONGEST_IDLE.max(self.config.slice));
                asleep = 0;
            }
            let over = self
                .config
                .at_most
                .is_some_and(|most| started.elapsed() >= most);
            if over || !self.there.contains(&true) {
                return Ok(());
            }
            self.look_after()?;
        }
    }

    /// Lets `next` run, and the one that ran before no more.
    fn switch(&mut self, next: usize) -> Result<(), ElevateError> {
        self.report.slots += 1;
        if self.current != Some(next) {
            self.report.switches += 1;
            // In this order, so that no other thread runs in between: in the dedicated pattern the
            // scheduled go on meanwhile.
            self.there[next] = self.groups[next].raise(&self.classes.middle)?;
            if let Some(before) = self.current.replace(next) {
                self.there[before] = self.groups[before].give(&self.classes.low)?;
            }
        } else {
            let Classes { low, middle, .. } = &self.classes;
            self.there[next] = self.groups[next].rotate(low, middle)?;
        }
        self.begun = Instant::now();
        self.wake_sentinel();
        Ok(())
    }

    fn wake_sentinel(&self) {
        // What was said of the one before is answered.
        self.shared.asleep.store(false, Ordering::Release);
        if self.config.on_sleep == OnSleep::Next
            && self.shared.idle.swap(false, Ordering::AcqRel)
            && let Some(sentinel) = &self.sentinel
        {
            sentinel.thread().unpark();
        }
    }

    /// Waits for the end of a slot, or of a pause.
    fn wait(&mut self, length: Duration) -> Ended {
        let ended = loop {
            if self.shared.stop.load(Ordering::Acquire) {
                break Ended::Stopped;
            }
            if self.shared.asleep.load(Ordering::Acquire) {
                break Ended::Asleep;
            }
            let left = length.saturating_sub(self.begun.elapsed());
            if left.is_zero() {
                break Ended::Over;
            }
            match self.config.pattern {
                Pattern::Shared => thread::park_timeout(left),
                Pattern::Dedicated { .. } => hint::spin_loop(),
            }
        };
        // The way back from a sleep takes no longer than all that the sleep takes.
        let late = self.begun.elapsed().saturating_sub(length + self.lost);
        self.report.late += u64::from(late > self.config.slice);
        self.report.latest = self.report.latest.max(late);
        ended
    }

    /// All sleep: for a moment all may run, and the first to wake does.
    fn idle(&mut self, length: Duration) -> Result<Ended, ElevateError> {
        self.report.all_slept += 1;
        self.shared.idle.store(true, Ordering::Release);
        self.shared.asleep.store(false, Ordering::Release);
        for (group, there) in self.groups.iter_mut().zip(&mut self.there) {
            *there = *there && group.give(&self.classes.middle)?;
        }
        self.begun = Instant::now();
        let ended = self.wait(length);
        for (group, there) in self.groups.iter_mut().zip(&mut self.there) {
            *there = *there && group.give(&self.classes.low)?;
        }
        self.current = None;
        Ok(ended)
    }

    /// Each 100 ms: the supervisor hears of us, and targets that have changed are noticed.
    fn look_after(&mut self) -> Result<(), ElevateError> {
        let since = self.last_beat.elapsed();
        if since < BEAT {
            return Ok(());
        }
        if since > STANDSTILL && self.supervisor.is_some() {
            return Err(ElevateError::StoodStill(since));
        }
        self.last_beat = Instant::now();
        if let Some(supervisor) = &mut self.supervisor {
            supervisor.alive()?;
        }
        for (one, group) in self.groups.iter_mut().enumerate() {
            let class = match self.current == Some(one) {
                true => self.classes.middle,
                false => self.classes.low,
            };
            self.there[one] =
                group.look_again(self.supervisor.as_mut(), self.config.core, &class)?;
        }
        Ok(())
    }

    /// Ends all. What this cannot give back, the supervisor tries to.
    fn give_back(&mut self) -> Result<(), ElevateError> {
        // The sentinel is ready whenever the scheduled are not above it.
        self.shared.over.store(true, Ordering::Release);
        let groups = std::mem::take(&mut self.groups);
        let given = groups.iter().map(Group::give_back);
        let given = given.fold(Ok(()), Result::and);
        if let Some(supervisor) = self.supervisor.take()
            && given.is_ok()
        {
            supervisor.done();
        }
        given
    }
}

/// A thread in two groups would be given two priorities at a time, and get back one of them.
fn check_apart(groups: &[Group], targets: &[Target]) -> Result<(), ElevateError> {
    for (second, group) in groups.iter().enumerate() {
        for (first, other) in groups[..second].iter().enumerate() {
            if let Some(tid) = other.shares_with(group) {
                let [first, second] = [first, second].map(|one| targets[one].to_string());
                return Err(ElevateError::Twice { first, second, tid });
            }
        }
    }
    Ok(())
}

impl Drop for Turns {
    fn drop(&mut self) {
        // After `run` there is nothing left to give back. Elsewhere an error is under way already.
        let _ = self.give_back();
        if let Some(sentinel) = self.sentinel.take() {
            sentinel.thread().unpark();
            // It has nothing to panic about.
            let _ = sentinel.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use shinjuku_preempt::stress::allocations_of_this_thread;

    use super::*;
    use crate::Table;

    #[test]
    fn between_two_looks_nothing_is_allocated() {
        const TEST: &str = "between_two_looks_nothing_is_allocated";
        let core = rustix::thread::sched_getaffinity(None).unwrap();
        let core = (0..1024).rev().find(|number| core.is_set(*number));
        let sleeper = || {
            let (told, tid) = mpsc::channel();
            let thread = thread::spawn(move || {
                let tid = rustix::thread::gettid().as_raw_pid().cast_unsigned();
                told.send(tid).unwrap();
                thread::park();
            });
            (Target::Thread(tid.recv().unwrap()), thread)
        };
        let (first, second) = (sleeper(), sleeper());
        let config = Config::new(core.unwrap(), Table::round_robin(2).unwrap())
            .slice(Duration::from_micros(50));
        let targets = [first.0, second.0];
        // On a thread of its own, which has the class and the core only then.
        let measured = thread::spawn(move || {
            let mut turns = Turns::begin(config, &targets, None, Arc::default())?;
            let allocations = allocations_of_this_thread();
            let before = allocations.count();
            for turn in 0..500 {
                turns.switch(turn % 2)?;
                turns.wait(Duration::from_micros(50));
                if turn % 50 == 0 {
                    turns.idle(Duration::from_micros(50))?;
                }
            }
            Ok::<_, ElevateError>((turns.report.switches, allocations.count() - before))
        });
        match measured.join().unwrap() {
            Ok((switches, allocations)) => {
                assert!(switches >= 500);
                assert_eq!(allocations, 0);
            }
            Err(error @ ElevateError::Refused(_)) => println!("SKIPPED {TEST}: {error}"),
            Err(error) => panic!("{error}"),
        }
        for thread in [first.1, second.1] {
            thread.thread().unpark();
            thread.join().unwrap();
        }
    }
}
