//! Threads that take the dispatcher over from each other, seen from inside of the process.

use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::mpsc;
use std::thread::{self, ThreadId};

use crossbeam_utils::atomic::AtomicCell;

use shinjuku_net::{Arrival, Failure, Refusal};
use shinjuku_policy::ClassId;

use super::*;
use crate::in_process::tests::{bounded, in_process};
use crate::in_process::{InProcess, InProcessBounds, NoReplier, finish};
use crate::ticket::Route;
use crate::{Config, LayoutKind, MechanismKind, Runtime, handler_fn};

const PATIENCE: Duration = Duration::from_secs(20);
/// An idle dispatcher's rest is lengthened to this, so that a lost wake-up is a hang.
const OVERSLEPT: Duration = Duration::from_secs(3600);
/// A rest that is shorter than this has another reason than an idle dispatcher.
const SHORT_REST: Duration = Duration::from_millis(5);

type Job = Box<dyn FnOnce() -> u64 + Send>;

/// What the test sees of the dispatcher's rests.
#[derive(Default)]
struct Rests {
    /// The thread that rests, or rested last.
    thread: AtomicCell<Option<ThreadId>>,
    /// How many rests there were, the present one included.
    number: AtomicU64,
    /// Not 0: rests are as long as the dispatcher asks for.
    are_short: AtomicU8,
}

/// The in-process transport under a dispatcher that rests for hours unless it is woken.
struct SoundAsleep {
    inner: InProcess<Job, u64>,
    rests: Arc<Rests>,
}

impl Transport for SoundAsleep {
    type Request = Job;
    type Reply = u64;
    type Route = Route<u64>;
    type Outgoing = ();
    type Replier = NoReplier;

    fn poll(&mut self, now: u64, room: usize, deliver: impl FnMut(Arrival<Job, Route<u64>>)) {
        self.inner.poll(now, room, deliver);
    }

    fn refuse(&mut self, request: Job, route: Route<u64>, cause: Refusal) {
        self.inner.refuse(request, route, cause);
    }

    fn conclude(route: Route<u64>, result: Result<u64, Failure>) {
        InProcess::<Job, u64>::conclude(route, result);
    }

    fn replier(&mut self) -> std::io::Result<NoReplier> {
        self.inner.replier()
    }

    fn wait(&mut self, patience: Duration) {
        if patience < SHORT_REST || self.rests.are_short.load(Ordering::Acquire) != 0 {
            return self.inner.wait(patience);
        }
        self.rests.thread.store(Some(thread::current().id()));
        self.rests.number.fetch_add(1, Ordering::Release);
        self.inner.wait(OVERSLEPT);
    }

    fn close(&mut self) {
        self.inner.close();
    }
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what} never came");
        thread::sleep(Duration::from_micros(200));
    }
}

fn config() -> Config {
    let mut config = Config::default()
        .layout(LayoutKind::Inline)
        .workers(None)
        .contexts(8)
        .spare_workers(2)
        .idle_backoff_us(1.0);
    config.cores.share = true;
    config.preemption.mechanism = MechanismKind::Probe;
    config
}

#[test]
fn beside_others_a_loop_spins_where_that_finds_something() {
    let longest = Cycles(1600);
    let mut spin = Spin::new(longest, true);
    for expected in [800, 400, 200, 100, 100] {
        spin.learn(Cycles(5000));
        assert_eq!(spin.now, Cycles(expected));
    }
    // Work came after the loop had parked, and soon enough for a longer spin to find it.
    for expected in [200, 400, 800, 1600, 1600] {
        spin.learn(longest);
        assert_eq!(spin.now, Cycles(expected));
    }
    let mut own = Spin::new(longest, false);
    own.learn(Cycles(5000));
    assert_eq!(own.now, longest, "a core of its own is nobody else's");
}

/// Whichever thread has the dispatcher when it rests, an arrival wakes that one.
#[test]
fn arrivals_wake_the_thread_that_took_the_dispatcher_over() {
    bounded(|| {
        let bounds = InProcessBounds {
            intake: 64,
            outstanding: 64,
        };
        let (handle, inner) = in_process(bounds).unwrap();
        let rests = Arc::new(Rests::default());
        let transport = SoundAsleep {
            inner,
            rests: Arc::clone(&rests),
        };
        let server = Runtime::builder(handler_fn(|job: Job| job()))
            .config(config().queue(32))
            .serve(transport)
            .unwrap();
        let submit = |job: Job| handle.submit(ClassId(0), job).unwrap();
        let rested = || rests.number.load(Ordering::Acquire);
        wait_for("the first rest", || rested() == 1);
        let first = rests.thread.load();

        let (release, released) = mpsc::channel();
        let mut blocked = submit(Box::new(move || {
            u64::from(released.recv_timeout(PATIENCE).is_ok())
        }));
        wait_for("the takeover", || server.statistics().rescued == 1);
        release.send(()).unwrap();
        assert_eq!(blocked.wait_timeout(PATIENCE), Some(Ok(1)));
        wait_for("a rest elsewhere", || rests.thread.load() != first);

        for n in 0..50 {
            let before = rested();
            let mut ticket = submit(Box::new(move || n));
            let reply = ticket.wait_timeout(PATIENCE);
            assert_eq!(reply, Some(Ok(n)), "the dispatcher slept on");
            wait_for("the next rest", || rested() > before);
        }
        rests.are_short.store(1, Ordering::Release);
        assert_eq!(submit(Box::new(|| 7)).wait(), Ok(7));
        let (report, transport) = server.shutdown(PATIENCE);
        assert!(report.is_clean(), "{report}");
        assert!(transport.is_some_and(|transport| finish(vec![transport.inner], PATIENCE)));
    });
}
