//! Everything at once: each closure runs once or is dropped once, and each job resolves.

use std::sync::atomic::AtomicU64;

use shinjuku::{RunError, RunOptions, cancellation_point};

use super::*;

/// Dropped, it counts that.
struct Counts(Arc<AtomicU64>);

impl Drop for Counts {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A generator that needs no crate.
fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

const EACH: u64 = 2_000;

fn submit(pool: &Pool, seed: u64, dropped: &Arc<AtomicU64>, ran: &Arc<AtomicU64>) -> u64 {
    let mut random = 0x9E37_79B9_7F4A_7C15u64.wrapping_mul(seed + 1);
    let mut refusals = 0;
    for n in 0..EACH {
        let dice = next(&mut random);
        let (counts, ran) = (Counts(dropped.clone()), ran.clone());
        let mut options = RunOptions::new(if dice & 1 == 0 {
            "interactive"
        } else {
            "batch"
        });
        if dice & 6 == 0 {
            options = options.priority((dice >> 8) as u8 % 4);
        }
        if dice & 0x30 == 0 {
            options = options.deadline(Duration::from_micros(dice >> 16 & 0xFF));
        }
        let mut job = pool.run(options, move || {
            let _counts = counts;
            ran.fetch_add(1, Ordering::Relaxed);
            for _ in 0..dice >> 20 & 0x3FF {
                if cancellation_point().is_err() {
                    break;
                }
            }
            n
        });
        let outcome = match dice >> 40 & 7 {
            0 => continue,
            1 => {
                job.detach();
                continue;
            }
            2 => {
                job.cancel();
                job.wait()
            }
            3 => match job.wait_timeout(Duration::from_micros(dice >> 32 & 0x7F)) {
                Some(outcome) => outcome,
                None => continue,
            },
            4 => block_on(job),
            _ => job.wait(),
        };
        match outcome {
            Ok(result) => assert_eq!(result, n),
            Err(RunError::Refused(Refusal::QueueFull | Refusal::DeadlinePassed)) => refusals += 1,
            Err(RunError::Cancelled) => {}
            Err(other) => panic!("{other}"),
        }
    }
    refusals
}

#[test]
fn nothing_is_lost_and_nothing_runs_twice() {
    in_each_layout(|layout| {
        let workers = match layout {
            LayoutKind::Inline => None,
            _ => Some(2),
        };
        let pool = builder(layout).queue(64).workers(workers);
        let pool = pool.start().unwrap();
        let (dropped, ran) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        thread::scope(|scope| {
            for seed in 0..4 {
                let (pool, dropped, ran) = (&pool, &dropped, &ran);
                scope.spawn(move || submit(pool, seed, dropped, ran));
            }
        });
        let report = pool.shutdown(PATIENCE);
        assert!(report.is_clean(), "{layout:?}: {report}");
        let statistics = report.statistics.unwrap();
        assert_eq!(
            dropped.load(Ordering::Relaxed),
            4 * EACH,
            "{layout:?}: each has one end"
        );
        assert_eq!(
            statistics.finished(),
            ran.load(Ordering::Relaxed),
            "{statistics}"
        );
        let accounted = statistics.finished() + statistics.refused.total();
        assert_eq!(accounted, 4 * EACH, "{layout:?}: {statistics}");
        assert_eq!((statistics.failed(), statistics.in_system()), (0, 0));
    });
}
