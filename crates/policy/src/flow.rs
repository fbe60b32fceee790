//! Flows: which worker a flow belongs to, and the flows that have requests in the system.
//!
//! [`FlowTable`] is a hash table with chaining over two arrays, both allocated at construction:
//! buckets point to entries, and an entry points to the next in its bucket or, if free, to the next
//! free one. A flow keeps its entry number while it is present, so that other arrays can be indexed
//! by it.

use alloc::boxed::Box;
use alloc::vec;

use crate::FlowId;

/// End of a chain.
const NONE: u32 = u32::MAX;

/// Spreads the bits of `x` over the whole word, so that sequential numbers look random.
///
/// This is the finaliser of SplitMix64 (Steele, Lea and Flood, *Fast Splittable Pseudorandom Number
/// Generators*, OOPSLA 2014): a bijection. It has no key: a client that chooses flow numbers freely
/// can choose colliding ones, so let the server number its connections.
pub(crate) const fn scramble(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Maps a random word evenly onto `0..n`.
pub(crate) const fn scale(random: u64, n: usize) -> usize {
    ((random as u128 * n as u128) >> 64) as usize
}

/// The worker, of `workers`, that `flow` hashes to.
pub(crate) const fn home(flow: FlowId, workers: usize) -> usize {
    scale(scramble(flow.0), workers)
}

#[derive(Clone, Copy)]
struct Entry {
    flow: FlowId,
    next: u32,
    /// Requests of the flow that do not wait behind another of it: at most one, unless one was
    /// removed by name.
    ahead: u32,
}

pub(crate) struct FlowTable {
    buckets: Box<[u32]>,
    entries: Box<[Entry]>,
    free: u32,
}

impl FlowTable {
    /// Room for `capacity` flows; `capacity` has passed
    /// [`ParameterError::check_capacity`](crate::ParameterError).
    pub(crate) fn new(capacity: usize) -> Self {
        let buckets = vec![NONE; capacity.next_power_of_two()];
        let last = capacity as u32 - 1;
        let entries = (0..=last).map(|entry| Entry {
            flow: FlowId(0),
            next: if entry == last { NONE } else { entry + 1 },
            ahead: 0,
        });
        Self {
            buckets: buckets.into_boxed_slice(),
            entries: entries.collect(),
            free: 0,
        }
    }

    /// The entry of `flow`, if it is present.
    pub(crate) fn find(&self, flow: FlowId) -> Option<usize> {
        let mut at = self.buckets[self.bucket(flow)];
        while let Some(entry) = self.entries.get(at as usize) {
            if entry.flow == flow {
                return Some(at as usize);
            }
            at = entry.next;
        }
        None
    }

    /// Adds `flow`, which is not present, with one request ahead. `None`: the table is full.
    pub(crate) fn insert(&mut self, flow: FlowId) -> Option<usize> {
        let bucket = self.bucket(flow);
        let at = self.free;
        let entry = self.entries.get_mut(at as usize)?;
        self.free = entry.next;
        *entry = Entry {
            flow,
            next: self.buckets[bucket],
            ahead: 1,
        };
        self.buckets[bucket] = at;
        Some(at as usize)
    }

    /// Forgets the flow of entry `gone`, which is present.
    pub(crate) fn remove(&mut self, gone: usize) {
        let Entry { flow, next, .. } = self.entries[gone];
        let bucket = self.bucket(flow);
        let mut at = self.buckets[bucket];
        if at as usize == gone {
            self.buckets[bucket] = next;
        } else {
            while self.entries[at as usize].next as usize != gone {
                at = self.entries[at as usize].next;
            }
            self.entries[at as usize].next = next;
        }
        self.entries[gone].next = self.free;
        self.free = gone as u32;
    }

    /// The count of requests of the flow that do not wait behind another, to be changed.
    pub(crate) fn ahead(&mut self, entry: usize) -> &mut u32 {
        &mut self.entries[entry].ahead
    }

    fn bucket(&self, flow: FlowId) -> usize {
        scramble(flow.0) as usize & (self.buckets.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn behaves_like_a_map(flows in prop::collection::vec(0_u64..24, 0..200), capacity in 1_usize..16) {
            let mut table = FlowTable::new(capacity);
            let mut model = BTreeMap::new();
            for flow in flows {
                if let Some(entry) = model.remove(&flow) {
                    table.remove(entry);
                } else if let Some(entry) = table.insert(FlowId(flow)) {
                    model.insert(flow, entry);
                } else {
                    prop_assert_eq!(model.len(), capacity);
                }
                for flow in 0..24 {
                    prop_assert_eq!(table.find(FlowId(flow)), model.get(&flow).copied());
                }
                let mut entries: Vec<_> = model.values().collect();
                entries.sort();
                entries.dedup();
                prop_assert_eq!(entries.len(), model.len());
            }
        }
    }

    #[test]
    fn sequential_flows_spread_evenly() {
        for workers in [2, 3, 7, 16] {
            let mut flows = [0_u32; 16];
            for flow in 0..16_000 {
                flows[home(FlowId(flow), workers)] += 1;
            }
            let mean = 16_000.0 / workers as f64;
            // Five standard deviations of a binomial count.
            let tolerance = 5.0 * f64::from(mean as u32).powf(0.5);
            for (worker, &n) in flows.iter().enumerate() {
                if worker < workers {
                    assert!(
                        (f64::from(n) - mean).abs() < tolerance,
                        "{workers} workers: {flows:?}"
                    );
                } else {
                    assert_eq!(n, 0);
                }
            }
        }
    }
}
