//! A server in twenty lines: a long request gives way to the short ones behind it.
//!
//! Run: `cargo run --release --example hello`
//!
//! Expect: the short requests' replies, usually within a millisecond on an idle machine, though the
//! long request came first and there is one worker; then the long request's reply; then the
//! statistics. Without `#[preemptible]` all replies would come at the end: nothing could stop the
//! long request.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::{Duration, Instant};

use shinjuku::{Runtime, handler_fn, policy::ClassId, preemptible};

#[preemptible(every = 64)]
fn triangle(n: u64) -> u64 {
    let mut sum = 0_u64;
    for i in 1..=n {
        sum = std::hint::black_box(sum.wrapping_add(i));
    }
    sum
}

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::builder(handler_fn(triangle)).workers(1).start()?;
    println!("{}", runtime.description());
    let start = Instant::now();
    let long = runtime.handle().submit(ClassId(0), 10_000_000)?;
    for n in 1..=5 {
        let short = runtime.handle().submit(ClassId(0), n)?.wait()?;
        println!("{:8.3?}  1 + ... + {n} = {short}", start.elapsed());
    }
    let long = long.wait()?;
    println!("{:8.3?}  1 + ... + 10000000 = {long}", start.elapsed());
    // The report has the final statistics: the last request is counted after its ticket is
    // answered.
    let report = runtime.shutdown(Duration::from_secs(1));
    if let Some(statistics) = &report.statistics {
        println!("{statistics}");
    }
    println!("{report}");
    Ok(())
}
