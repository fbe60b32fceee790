//! The shared state of a stress test's contexts.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::{JoinHandle, Thread};

use super::Config;
use super::job::{Operation, operations};

/// The scheduler's checks, beside the operations' own.
#[derive(Clone, Copy)]
pub(super) enum Check {
    /// A context was entered while another worker ran it.
    RunTwice,
    /// A dispatch was preempted without a request.
    Unrequested,
    /// A worker's alternate signal stack had changed after a run.
    AlternateStack,
    /// A worker's rounding modes had changed after a run.
    WorkersControlWords,
    /// A job panicked.
    JobPanicked,
    /// An interrupt could not be sent.
    InterruptRefused,
    /// A context made no progress.
    Hang,
    /// A context was not idle at the end.
    NotHandedBack,
}

const CHECKS: [&str; 8] = [
    "run-twice",
    "unrequested-preemption",
    "alternate-stack",
    "workers-control-words",
    "job-panicked",
    "interrupt-refused",
    "hang",
    "not-handed-back",
];

/// Slots for boxes that another context frees than the one that made them.
const EXCHANGE: usize = 64;

/// Two counters that differ only within a critical section. They use plain loads and stores: two
/// threads at once lose counts.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Pair(AtomicU64, AtomicU64);

impl Pair {
    /// Runs one critical section, with `during` within it. True if no other thread was in it
    /// meanwhile.
    pub(super) fn pass(&self, during: impl FnOnce()) -> bool {
        let before = self.0.load(Ordering::Relaxed);
        let alone = before == self.1.load(Ordering::Relaxed);
        self.0.store(before.wrapping_add(1), Ordering::Relaxed);
        during();
        let still = self.1.load(Ordering::Relaxed) == before;
        self.1.store(before.wrapping_add(1), Ordering::Relaxed);
        alone && still && self.0.load(Ordering::Relaxed) == before.wrapping_add(1)
    }
}

/// Two blocks of memory, one within the other, with the same number throughout.
pub(super) struct Parcel(pub(super) Vec<u64>);

/// The line between a context and the echo thread, which answers in one of two ways.
pub(super) struct Line {
    pub(super) from_echo: PipeReader,
    to_context: PipeWriter,
    pub(super) answer: AtomicU64,
    pub(super) thread: OnceLock<Thread>,
}

/// How the echo thread shall answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    Write = 0,
    Unpark = 1,
}

const END: u8 = 2;

pub(super) struct World {
    pub(super) operations: Vec<Operation>,
    runs: Vec<AtomicU64>,
    operation_errors: Vec<AtomicU64>,
    check_errors: [AtomicU64; CHECKS.len()],
    /// Operations done, per context.
    pub(super) progress: Vec<AtomicU64>,
    pub(super) requests: AtomicU64,
    /// No more jobs are started.
    pub(super) stopping: AtomicBool,
    /// A context hangs: workers are interrupted seldom, to see whether it then makes progress.
    pub(super) interrupt_seldom: AtomicBool,
    /// Workers shall end.
    pub(super) workers_stop: AtomicBool,

    pub(super) std_mutex: Mutex<()>,
    pub(super) std_pair: Pair,
    pub(super) parking_lot_mutex: parking_lot::Mutex<()>,
    pub(super) parking_lot_pair: Pair,
    pub(super) condvar_mutex: Mutex<u64>,
    pub(super) condvar: Condvar,
    pub(super) stdout_pair: Pair,
    pub(super) write_stdout: bool,
    /// Guarded by `without_preemption` alone.
    pub(super) worker_pairs: Vec<Pair>,
    exchange: [AtomicPtr<Parcel>; EXCHANGE],

    pub(super) lines: Vec<Line>,
    to_echo: PipeWriter,
    at_echo: Mutex<Option<PipeReader>>,
}

fn zeroes(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl World {
    pub(super) fn new(config: &Config) -> std::io::Result<Self> {
        let operations = operations();
        let lines = (0..config.contexts).map(|_| {
            let (from_echo, to_context) = std::io::pipe()?;
            Ok(Line {
                from_echo,
                to_context,
                answer: AtomicU64::new(0),
                thread: OnceLock::new(),
            })
        });
        let lines = lines.collect::<std::io::Result<_>>()?;
        let (at_echo, to_echo) = std::io::pipe()?;
        Ok(Self {
            runs: zeroes(operations.len()),
            operation_errors: zeroes(operations.len()),
            operations,
            check_errors: std::array::from_fn(|_| AtomicU64::new(0)),
            progress: zeroes(config.contexts),
            requests: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            interrupt_seldom: AtomicBool::new(false),
            workers_stop: AtomicBool::new(false),
            std_mutex: Mutex::new(()),
            std_pair: Pair::default(),
            parking_lot_mutex: parking_lot::Mutex::new(()),
            parking_lot_pair: Pair::default(),
            condvar_mutex: Mutex::new(0),
            condvar: Condvar::new(),
            stdout_pair: Pair::default(),
            write_stdout: config.write_stdout,
            worker_pairs: (0..config.workers).map(|_| Pair::default()).collect(),
            exchange: std::array::from_fn(|_| AtomicPtr::default()),
            lines,
            to_echo,
            at_echo: Mutex::new(Some(at_echo)),
        })
    }

    /// A check of the scheduler failed. Allocates nothing.
    pub(super) fn wrong(&self, check: Check) {
        count(&self.check_errors[check as usize]);
    }

    /// Operation number `number` was done in context `context`.
    pub(super) fn done(&self, context: usize, number: usize, right: bool) {
        count(&self.runs[number]);
        if !right {
            count(&self.operation_errors[number]);
        }
        count(&self.progress[context]);
    }

    pub(super) fn operations_run(&self) -> Vec<(&'static str, u64)> {
        self.by_name(&self.runs)
    }

    pub(super) fn errors(&self) -> Vec<(&'static str, u64)> {
        let mut errors = self.by_name(&self.operation_errors);
        let checks = CHECKS.iter().zip(&self.check_errors);
        errors.extend(checks.map(|(name, count)| (*name, count.load(Ordering::Relaxed))));
        errors
    }

    fn by_name(&self, counts: &[AtomicU64]) -> Vec<(&'static str, u64)> {
        let named = self.operations.iter().zip(counts);
        named
            .map(|(operation, count)| (operation.name, count.load(Ordering::Relaxed)))
            .collect()
    }

    /// Leaves `new` for another context and takes the box that an earlier one left.
    pub(super) fn exchange(&self, slot: u64, new: Option<Box<Parcel>>) -> Option<Box<Parcel>> {
        let new = new.map_or(std::ptr::null_mut(), Box::into_raw);
        let old = self.exchange[slot as usize % EXCHANGE].swap(new, Ordering::AcqRel);
        // SAFETY: not null, it came from `Box::into_raw` above, and the swap gives it to one taker.
        (!old.is_null()).then(|| unsafe { Box::from_raw(old) })
    }

    /// Asks the echo thread to answer context `context` with `nonce`.
    pub(super) fn ask_echo(&self, context: usize, reply: Reply, nonce: u8) -> bool {
        // A write of a few bytes to a pipe is atomic.
        let question = [context as u8, reply as u8, nonce];
        (&self.to_echo).write_all(&question).is_ok()
    }

    /// An ordinary thread that answers contexts which block on it.
    pub(super) fn start_echo(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let world = Arc::clone(self);
        let questions = world
            .at_echo
            .lock()
            .map_or(None, |mut reader| reader.take());
        std::thread::Builder::new()
            .name("stress-echo".into())
            .spawn(move || {
                let mut questions = questions.expect("the echo thread is started once");
                let mut question = [0; 3];
                while questions.read_exact(&mut question).is_ok() {
                    let [context, reply, nonce] = question;
                    if reply == END {
                        return;
                    }
                    let line = &world.lines[usize::from(context)];
                    if reply == Reply::Write as u8 {
                        // On failure the context finds out by itself.
                        let _ = (&line.to_context).write_all(&[nonce]);
                    } else if let Some(thread) = line.thread.get() {
                        line.answer.store(u64::from(nonce), Ordering::Release);
                        thread.unpark();
                    }
                }
            })
    }

    pub(super) fn stop_echo(&self, echo: JoinHandle<()>) {
        if (&self.to_echo).write_all(&[0, END, 0]).is_ok() {
            let _ = echo.join();
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for slot in 0..EXCHANGE {
            drop(self.exchange(slot as u64, None));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_sees_a_second_one_within() {
        let pair = Pair::default();
        assert!(pair.pass(|| ()));
        assert!(!pair.pass(|| assert!(!pair.pass(|| ()))));
    }

    #[test]
    fn every_check_has_its_name() {
        assert_eq!(CHECKS.len(), Check::NotHandedBack as usize + 1);
        let world = World::new(&Config::default()).unwrap();
        world.wrong(Check::Hang);
        let wrong: Vec<_> = world.errors().into_iter().filter(|e| e.1 > 0).collect();
        assert_eq!(wrong, [("hang", 1)]);
    }
}
