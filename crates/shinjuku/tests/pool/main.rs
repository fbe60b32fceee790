//! The pool from outside: closures of any kind, in every layout.
#![allow(missing_docs)]

mod beside_tokio;
mod blocking;
mod cancelling;
mod ending;
mod order;
mod quota;
mod results;
mod scopes;
mod soak;
mod spans;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use shinjuku::net::Refusal;
use shinjuku::{
    Config, CoresConfig, Job, LayoutKind, MechanismKind, PolicyConfig, Pool, PoolBuilder,
    PreemptionConfig,
};
use shinjuku_tests_support::{PATIENCE, wait_for};

const LAYOUTS: [LayoutKind; 3] = [
    LayoutKind::Threads,
    LayoutKind::Inline,
    LayoutKind::Symmetric,
];

/// Two classes, and one worker where the layout has workers.
fn builder(layout: LayoutKind) -> PoolBuilder {
    let inline = layout == LayoutKind::Inline;
    let mut config = Config::default()
        .layout(layout)
        .workers((!inline).then_some(1))
        .contexts(16)
        .preemption(PreemptionConfig::new(MechanismKind::Probe));
    config.cores.share = true;
    Pool::builder(["interactive", "batch"]).config(config)
}

/// As [`builder`], but no thread takes the place of a worker that computes, however slow the
/// machine is.
fn without_rescue(layout: LayoutKind) -> PoolBuilder {
    builder(layout).rescue_after_ms(60_000.0)
}

/// Runs a test in every layout. A test that hangs fails.
fn in_each_layout(test: fn(LayoutKind)) {
    for layout in LAYOUTS {
        let (done, is_done) = mpsc::channel();
        let thread = thread::spawn(move || {
            test(layout);
            let _ = done.send(());
        });
        match is_done.recv_timeout(PATIENCE * 2) {
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs in layout {layout:?}"),
            _ => thread.join().unwrap(),
        }
    }
}

fn with_pool(test: fn(&Pool)) {
    for layout in LAYOUTS {
        let pool = builder(layout).start().unwrap();
        test(&pool);
        let report = pool.shutdown(PATIENCE);
        assert!(report.is_clean(), "{layout:?}: {report}");
        let statistics = report.statistics.unwrap();
        assert_eq!(statistics.in_system(), 0, "{layout:?}: {statistics}");
    }
}

/// Holds a worker up until it is opened. It computes and never gives way.
struct Gate(Arc<[AtomicBool; 2]>);

impl Gate {
    fn close(pool: &Pool) -> (Self, Job<()>) {
        let gate = Self(Arc::default());
        let states = gate.0.clone();
        let job = pool.run("interactive", move || {
            states[0].store(true, Ordering::Release);
            let start = Instant::now();
            while !states[1].load(Ordering::Acquire) && start.elapsed() < PATIENCE {
                std::hint::spin_loop();
            }
        });
        wait_for("the gate's start", || gate.0[0].load(Ordering::Acquire));
        (gate, job)
    }

    fn open(&self) {
        self.0[1].store(true, Ordering::Release);
    }
}

/// The smallest async runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let start = Instant::now();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park_timeout(PATIENCE);
        assert!(start.elapsed() < PATIENCE, "a wake-up was lost");
    }
}

/// Dropped, it tells on which thread.
struct Tells(mpsc::Sender<String>);

impl Drop for Tells {
    fn drop(&mut self) {
        let name = thread::current().name().unwrap_or("").to_owned();
        let _ = self.0.send(name);
    }
}

fn refused(pool: &Pool, cause: Refusal) -> u64 {
    pool.statistics().refused.of(cause)
}

/// A pool shares its process: unless asked to, it pins no thread and gives the dispatcher no core.
#[test]
fn a_pool_serves_on_every_core_and_pins_nothing() {
    let description = |pool: PoolBuilder| {
        let pool = pool.start().unwrap();
        let cores = pool.run("batch", allowed_cores).wait().unwrap();
        (pool.description().to_owned(), cores)
    };
    let (automatic, cores) = description(Pool::builder(["interactive", "batch"]));
    assert!(automatic.contains("symmetric"), "{automatic}");
    assert_eq!(cores, allowed_cores(), "{automatic}");
    let threads = Pool::builder(["interactive", "batch"]).layout(LayoutKind::Threads);
    let (asked_for, _) = description(threads.cores(CoresConfig::default().share(true)).workers(1));
    assert!(!asked_for.contains("symmetric"), "{asked_for}");
}

/// How many cores the calling thread may use.
fn allowed_cores() -> usize {
    std::thread::available_parallelism().unwrap().get()
}
