//! A preemptive pool beside other code: closures of any type, submitted from ordinary threads.
//!
//! Run: `cargo run --release --example pool`
//!
//! Expect: a line for each way of waiting, and a table in which the short closures' p99 is far
//! below what a long one takes, though both share the same workers.
//!
//! In async code a job is awaited: `let primes = pool.run("long", || primes(1000)).await?`.
#![forbid(unsafe_code)]

use std::error::Error;
use std::thread;
use std::time::Duration;

use shinjuku::{Pool, RunOptions, cancellation_point, preemptible};

/// How many primes there are below `limit`.
#[preemptible]
fn primes(limit: u32) -> u32 {
    let mut count = 0;
    for n in 2..limit {
        let mut divisor = 2;
        while divisor * divisor <= n && n % divisor != 0 {
            divisor += 1;
        }
        count += u32::from(divisor * divisor > n);
    }
    count
}

fn main() -> Result<(), Box<dyn Error>> {
    let pool = Pool::new(["short", "long"])?;
    println!("{}", pool.description());

    thread::scope(|scope| {
        scope.spawn(|| {
            let jobs =
                [60_000, 80_000, 100_000].map(|limit| pool.run("long", move || primes(limit)));
            for job in jobs {
                println!(
                    "waited for it: {} primes",
                    job.wait().expect("it does not panic")
                );
            }
        });
        for _ in 0..1000 {
            let job = pool.run("short", || primes(100));
            assert_eq!(job.wait().expect("it does not panic"), 25);
            thread::sleep(Duration::from_micros(50));
        }
    });

    // Closures that borrow: all have returned when the scope ends.
    let limits = [10, 100, 1000];
    let mut counts = [0; 3];
    pool.scope(|scope| {
        for (count, limit) in counts.iter_mut().zip(&limits) {
            scope.run(RunOptions::new("short").priority(1), || {
                *count = primes(*limit)
            });
        }
    });
    println!("borrowed: {counts:?}");

    // Dropping the job asks the closure to stop, since it runs. A waiting closure would be dropped.
    let endless = pool.run("long", || while cancellation_point().is_ok() {});
    thread::sleep(Duration::from_millis(1));
    drop(endless);

    let report = pool.shutdown(Duration::from_secs(10));
    if let Some(statistics) = &report.statistics {
        println!("{statistics}");
    }
    println!("{report}");
    Ok(())
}
