//! The pool and tokio on the same cores: neither starves the other.
//!
//! Linux shares the cores among the threads of both. Two things could go wrong: threads of the pool
//! that spin or have a priority make tokio's timers late, or closures wait behind tokio's threads
//! for good.

use std::sync::atomic::AtomicU64;

use super::*;

/// How often the task ticks on an idle machine.
const TICK: Duration = Duration::from_millis(5);
/// How long ticks are counted, once without and once with closures.
const WINDOW: Duration = Duration::from_millis(400);
/// Together, each must reach what it reaches alone divided by this: the cores have other threads,
/// too.
const SHARE: u64 = 8;

/// Computes without a probe, so only Linux takes the core from it.
fn compute() {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(5) {
        std::hint::spin_loop();
    }
}

/// Keeps so many closures in the pool until it is told to stop; returns how many have finished.
fn saturate(pool: &Pool, stop: &AtomicBool, at_once: usize) -> u64 {
    let finished = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    pool.run("batch", compute).wait().unwrap();
                    finished.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    finished.into_inner()
}

/// How often a task of tokio's ticks within the window.
fn ticks(tokio: &tokio::runtime::Runtime) -> u64 {
    let ticking = async {
        let start = Instant::now();
        let mut ticks = 0;
        while start.elapsed() < WINDOW {
            tokio::time::sleep(TICK).await;
            ticks += 1;
        }
        ticks
    };
    // On one of its threads, as a server's tasks are.
    tokio.block_on(async { tokio::spawn(ticking).await.unwrap() })
}

/// How many ticks and closures there are in a window in which the pool has more closures than
/// cores.
fn together(tokio: &tokio::runtime::Runtime, pool: &Pool, cores: usize) -> (u64, u64) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let closures = scope.spawn(|| saturate(pool, &stop, 2 * cores + 2));
        let ticked = ticks(tokio);
        stop.store(true, Ordering::Relaxed);
        (ticked, closures.join().unwrap())
    })
}

/// The pool has a thread for each core, and so has tokio, as in a service.
#[test]
fn a_saturated_pool_leaves_tokio_its_time_and_has_its_own() {
    let cores = thread::available_parallelism().unwrap().get();
    let pool = Pool::new(["batch"]).unwrap();
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_time()
        .build()
        .unwrap();
    let start = Instant::now();
    // Other programs may keep the machine busy in one window and not in the next.
    loop {
        let alone = ticks(&tokio);
        let (ticked, finished) = together(&tokio, &pool, cores);
        let by_one_core = (WINDOW.as_millis() / 5) as u64;
        if ticked >= alone / SHARE && finished >= by_one_core / SHARE {
            break;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "{ticked} ticks, alone {alone}; {finished} closures; {}",
            pool.description()
        );
    }
    let report = pool.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
}
