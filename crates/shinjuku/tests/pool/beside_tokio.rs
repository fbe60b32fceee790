//! The pool and tokio on the same cores: neither starves the other.
//!
//! Linux shares the cores among the threads of both. What could go wrong is a pool whose threads
//! spin or have a priority, so that tokio's timers come late; or closures that wait behind tokio's
//! threads for good.

use std::sync::atomic::AtomicU64;

use super::*;

/// How often the task ticks where nothing keeps it from that.
const TICK: Duration = Duration::from_millis(5);
/// How long ticks are counted, once without and once with closures.
const WINDOW: Duration = Duration::from_millis(400);
/// One part in so many of what it reaches alone is what each must reach: the cores have other
/// threads, too.
const SHARE: u64 = 8;

/// It gives way nowhere, so only Linux takes the core from it.
fn compute() {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(5) {
        std::hint::spin_loop();
    }
}

/// Keeps so many closures in the pool until it is told to stop; tells how many have finished.
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

/// Ticks of a task of tokio's within the window.
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

/// Ticks and closures in a window in which the pool has more to do than cores.
fn together(tokio: &tokio::runtime::Runtime, pool: &Pool, cores: usize) -> (u64, u64) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let closures = scope.spawn(|| saturate(pool, &stop, 2 * cores + 2));
        let ticked = ticks(tokio);
        stop.store(true, Ordering::Relaxed);
        (ticked, closures.join().unwrap())
    })
}

/// As a service starts them: the pool with a thread for each core, tokio likewise.
#[test]
fn a_saturated_pool_leaves_tokio_its_time_and_has_its_own() {
    let cores = thread::available_parallelism().unwrap().get();
    let pool = Pool::new(["batch"]).unwrap();
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_time()
        .build()
        .unwrap();
    let start = Instant::now();
    // A machine that is busy with something else may be so in one window and not in the next.
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
