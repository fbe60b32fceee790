//! How many allocations a closure takes. The test has a process of its own, since it counts all
//! allocations of the process.
#![allow(missing_docs)]

use std::time::Duration;

use shinjuku::{Config, LayoutKind, Pool};
use shinjuku_preempt::stress::{CountingAllocator, blocks_taken};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const CLOSURES: u64 = 1_000;

/// Allocations of the process while so many closures go through the pool.
fn allocations(pool: &Pool) -> u64 {
    let before = blocks_taken();
    for n in 0..CLOSURES {
        let (left, right) = ([n; 16], [n; 8]);
        let job = pool.run("batch", move || [left[0] + right[0]; 12]);
        assert_eq!(job.wait().unwrap()[11], 2 * n);
        // This closure is cancelled, or runs, or has run.
        drop(pool.run("batch", move || left[0] + right[0]));
    }
    blocks_taken() - before
}

#[test]
fn a_closure_takes_one_allocation() {
    for layout in [
        LayoutKind::Threads,
        LayoutKind::Inline,
        LayoutKind::Symmetric,
    ] {
        let mut config = Config::default().layout(layout).contexts(4);
        config.cores.share = true;
        let pool = Pool::builder(["batch"]).config(config).start().unwrap();
        // The first closures allocate thread-locals, those of each context, and grow lists to their
        // size.
        let counted = (0..5).map(|_| allocations(&pool)).min().unwrap();
        assert_eq!(counted, 2 * CLOSURES, "{layout:?}");
        assert!(pool.shutdown(Duration::from_secs(30)).is_clean());
    }
}
