//! What the bench's requests do: spin for a given time, or query the store of examples/store.

use std::hint::black_box;
use std::sync::Arc;

use shinjuku::{RequestContext, RequestHandler, preemptible};
use shinjuku_examples::store::Store;
use shinjuku_preempt::Cycles;

/// One request.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Multiplies so many times.
    Spin {
        /// Multiplications.
        steps: u64,
        /// Whether the code has probes.
        probes: bool,
    },
    /// Looks a key up.
    Get {
        /// Which.
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
}

impl RequestHandler for Worker {
    type Request = Work;
    type Reply = ();
    type PerCore = ();

    fn init_per_core(&self, _: usize) {}

    fn handle_request(&self, work: Work, _: &RequestContext<'_, ()>) {
        self.serve(work);
    }
}

impl Worker {
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

#[inline(always)]
fn step(value: u64) -> u64 {
    black_box(
        value
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1),
    )
}

#[inline(never)]
fn spin(steps: u64) {
    let mut value = 1;
    for _ in 0..steps {
        value = step(value);
    }
    black_box(value);
}

#[preemptible(every = 16)]
#[inline(never)]
fn spin_with_probes(steps: u64) {
    let mut value = 1;
    for _ in 0..steps {
        value = step(value);
    }
    black_box(value);
}

/// Nanoseconds that one step without probes takes on the calling core: the quickest of many runs.
pub fn nanos_per_step(cycles_per_nano: f64) -> f64 {
    const STEPS: u64 = 20_000;
    (0..400)
        .map(|_| {
            let start = Cycles::now();
            spin(STEPS);
            Cycles::now().since(start).0
        })
        .min()
        .map_or(1.0, |cycles| cycles as f64 / STEPS as f64 / cycles_per_nano)
}
