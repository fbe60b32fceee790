//! A preemptive pool beside other code: ordinary threads submit work, and wait for it in three
//! ways.
//!
//! Run: `cargo run --release --example pool`
//!
//! Expect: a line for each way of waiting, and a table in which the short requests' p99 is far
//! below what a long one takes, though both share the same workers.
//!
//! A ticket is a plain `Future`, so it can be awaited under any async runtime
//! (`let reply = handle.submit(..)?.await?` in an axum handler, say); the few lines of `block_on`
//! here stand in for one.
#![forbid(unsafe_code)]

use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use shinjuku::policy::ClassId;
use shinjuku::{ClassConfig, Runtime, handler_fn, preemptible};

const SHORT: ClassId = ClassId(0);
const LONG: ClassId = ClassId(1);

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
    let runtime = Runtime::builder(handler_fn(primes))
        .class(["short", "long"].map(ClassConfig::new).to_vec())
        .start()?;
    println!("{}", runtime.description());

    // Any thread submits, through its own clone of the handle.
    thread::scope(|scope| {
        for limit in [60_000, 80_000, 100_000] {
            let handle = runtime.handle();
            scope.spawn(move || {
                let ticket = handle.submit(LONG, limit).expect("the queue is not full");
                println!(
                    "blocked for it: {} primes below {limit}",
                    ticket.wait().expect("it does not panic")
                );
            });
        }
        let handle = runtime.handle();
        scope.spawn(move || {
            for _ in 0..1000 {
                let ticket = handle.submit(SHORT, 100).expect("the queue is not full");
                assert_eq!(ticket.wait(), Ok(25));
                thread::sleep(Duration::from_micros(50));
            }
        });
    });

    let mut ticket = runtime.handle().submit(LONG, 60_000)?;
    let mut looks = 0;
    let reply = loop {
        match ticket.try_take() {
            Some(reply) => break reply?,
            None => looks += 1,
        }
        // Here a program does something else.
        thread::sleep(Duration::from_micros(100));
    };
    println!("looked {looks} times in vain: {reply} primes");

    let ticket = runtime.handle().submit(LONG, 60_000)?;
    println!("awaited: {} primes", block_on(ticket)?);

    let report = runtime.shutdown(Duration::from_secs(1));
    if let Some(statistics) = &report.statistics {
        println!("{statistics}");
    }
    println!("{report}");
    Ok(())
}

/// The smallest async runtime: one future, one thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
