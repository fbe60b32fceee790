//! What each core did and when, as a file that Perfetto and chrome://tracing open.
//!
//! Run: `cargo run --release --example timeline -- trace.json`, and open the file in
//! <https://ui.perfetto.dev>.
//!
//! Expect: a lane for each thread; long slices cut into pieces by short ones, with arrows from one
//! piece of a request to the next; and the number of waiting requests below them.
#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shinjuku::{MechanismKind, PolicyConfig, Pool, PreemptionConfig, preemptible};

#[preemptible]
fn triangle(n: u64) -> u64 {
    let mut sum = 0;
    for i in 1..=n {
        sum = std::hint::black_box(sum + i);
    }
    sum
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args()
        .nth(1)
        .ok_or("say where to: timeline FILE")?;
    // A mechanism that is named has the quantum as it is given. `auto` would raise it where the
    // workers have no time to spare, as here.
    let pool = Pool::builder(["short", "long"])
        .preemption(PreemptionConfig::new(MechanismKind::Probe))
        .policy(PolicyConfig::new("c-pre-sq").quantum_us(100.0))
        .start()?;
    let is_over = AtomicBool::new(false);
    let trace = std::thread::scope(|scope| {
        for (class, length) in [("long", 1_000_000), ("long", 500_000), ("short", 1_000)] {
            let (pool, is_over) = (&pool, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let job = pool.run(class, move || triangle(length));
                    if let Err(error) = job.wait() {
                        eprintln!("{class}: {error}");
                    }
                }
            });
        }
        let trace = pool.observer().record(Duration::from_millis(200));
        is_over.store(true, Ordering::Relaxed);
        trace
    })?;
    trace.save(&path)?;
    let preempted = trace
        .slices()
        .iter()
        .filter(|slice| slice.stop.is_preempted());
    println!(
        "{path}: {} slices on {} threads in {:?}, {} of them preempted",
        trace.slices().len(),
        trace.lanes().len(),
        trace.duration(),
        preempted.count()
    );
    Ok(())
}
