//! Keys and values in memory: a hash map for one key, a skip list for many in order.
//!
//! Both can be read without a lock. With a lock, a request that is preempted while it holds it (a SCAN in a reader's lock,
//! say) would make all others wait until it runs again, and short requests would be as slow as long ones, which is what
//! preemption is there to prevent. Here a suspended reader only keeps some memory from being freed until it goes on.
//!
//! Why two: of 100,000 keys in random order, the map finds one in 0.4 us, the list in 1.6 us (one core of the machine this
//! was written on). And the map replaces a value in one step, where ordered maps without locks remove the key first, so that
//! a GET could miss it. So the values are in the map. The list has the keys, with their expiry, so that SCAN need not look
//! further. A new key enters the map first, and leaves it last.
//!
//! Why a skip list: `scc`'s B+ tree shows the next key in 0.04 us where keys came in random order, the list in 0.2 us; but
//! where they came in ascending order, a step of 5000 keys took the tree more than a second.

use std::borrow::Cow;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_skiplist::SkipMap;
use shinjuku::preempt_point;
use smallvec::SmallVec;

use super::{Engine, EngineError, Entry, Expiry, Visit};

/// Keys of so many bytes are kept in place, which saves a look elsewhere at each comparison.
type Key = SmallVec<[u8; 24]>;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct MemoryEngine {
    values: papaya::HashMap<Key, Kept>,
    /// With the bits of their expiry.
    order: SkipMap<Key, AtomicU64>,
}

#[derive(Debug)]
struct Kept {
    value: Box<[u8]>,
    expiry: Expiry,
}

impl Kept {
    fn entry(&self) -> Entry<'_> {
        Entry {
            value: &self.value,
            expiry: self.expiry,
        }
    }
}

impl MemoryEngine {
    /// Nothing in it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Engine for MemoryEngine {
    fn get(&self, key: &[u8], read: &mut dyn FnMut(Entry<'_>)) -> Result<(), EngineError> {
        if let Some(kept) = self.values.pin().get(key) {
            read(kept.entry());
        }
        Ok(())
    }

    fn put(&self, key: &[u8], value: Cow<'_, [u8]>, expiry: Expiry) -> Result<(), EngineError> {
        let value = value.into_owned().into_boxed_slice();
        let values = self.values.pin();
        match values.insert(Key::from_slice(key), Kept { value, expiry }) {
            None => {
                let expiry = AtomicU64::new(expiry.to_bits());
                self.order.insert(Key::from_slice(key), expiry);
            }
            Some(before) if before.expiry != expiry => {
                let place = self.order.get(key);
                debug_assert!(place.is_some(), "map and list have the same keys");
                if let Some(place) = place {
                    place.value().store(expiry.to_bits(), Ordering::Release);
                }
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn remove(&self, key: &[u8]) -> Result<(), EngineError> {
        self.order.remove(key);
        self.values.pin().remove(key);
        Ok(())
    }

    fn walk(&self, from: &[u8], values: bool, visit: &mut Visit<'_>) -> Result<(), EngineError> {
        let from = (Bound::Included(from), Bound::Unbounded);
        for place in self.order.range::<[u8], _>(from) {
            preempt_point();
            let (key, expiry) = (place.key(), place.value());
            let flow = if values {
                let pinned = self.values.pin();
                // It may be leaving.
                let Some(kept) = pinned.get(key) else {
                    continue;
                };
                visit(key, kept.entry())
            } else {
                let expiry = Expiry::from_bits(expiry.load(Ordering::Acquire));
                visit(key, Entry { value: &[], expiry })
            };
            if flow.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn name(&self) -> &'static str {
        "memory"
    }
}
