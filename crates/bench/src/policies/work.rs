//! What the bench's requests do: spin for a given time, or query the store of examples/store.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use shinjuku::{RequestContext, RequestHandler};
use shinjuku_examples::store::Store;
use shinjuku_examples::work::{spin, spin_with_probes};
use shinjuku_workload::repeat::median;

/// One arrival: when, whose, and the work it brings.
pub type Planned = shinjuku_workload::injector::Planned<Work>;

/// One request.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Spins.
    Spin {
        /// For so many steps.
        steps: u64,
        /// Whether the code has probes.
        probes: bool,
    },
    /// Looks a key up.
    Get {
        /// The key.
        key: u64,
    },
    /// Reads keys in order.
    Range {
        /// The first.
        from: u64,
        /// How many.
        count: usize,
    },
}

/// Serves [`Work`].
#[derive(Debug)]
pub struct Worker {
    /// Needed for `Get` and `Range`.
    pub store: Option<Arc<Store>>,
    /// Once set, requests that start do nothing: what they would measure is not waited for.
    pub over: Arc<AtomicBool>,
}

impl RequestHandler for Worker {
    type Request = Work;
    type Reply = ();
    type PerCore = ();

    fn init_per_core(&self, _: usize) {}

    fn handle_request(&self, work: Work, _: &RequestContext<'_, ()>) {
        self.serve_unless_over(work);
    }
}

impl Worker {
    fn serve_unless_over(&self, work: Work) {
        if !self.over.load(Ordering::Relaxed) {
            self.serve(work);
        }
    }

    /// Does the work on the calling thread.
    pub fn serve(&self, work: Work) {
        match work {
            Work::Spin {
                steps,
                probes: false,
            } => spin(steps),
            Work::Spin {
                steps,
                probes: true,
            } => spin_with_probes(steps),
            Work::Get { key } => {
                black_box(self.store().get(key).expect("the store's own key"));
            }
            Work::Range { from, count } => {
                black_box(
                    self.store()
                        .range(from, count)
                        .expect("the store's own keys"),
                );
            }
        }
    }

    fn store(&self) -> &Store {
        self.store
            .as_ref()
            .expect("mixes with queries come with a store")
    }
}

/// What a step of spinning takes on this core now, ns: the median of 2 ms of short runs.
pub fn nanos_per_step() -> f64 {
    const STEPS: u64 = 20_000;
    let run = |_| {
        let start = Instant::now();
        spin(STEPS);
        start.elapsed().as_nanos() as f64 / STEPS as f64
    };
    median(&(0..50).map(run).collect::<Vec<_>>()).expect("fifty runs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_starts_when_all_is_over_does_nothing() {
        let worker = Worker {
            store: None,
            over: Arc::new(AtomicBool::new(true)),
        };
        // Without a store it would panic.
        worker.serve_unless_over(Work::Get { key: 0 });
    }

    #[test]
    #[should_panic(expected = "come with a store")]
    fn before_that_it_is_served() {
        let worker = Worker {
            store: None,
            over: Arc::default(),
        };
        worker.serve_unless_over(Work::Get { key: 0 });
    }
}
