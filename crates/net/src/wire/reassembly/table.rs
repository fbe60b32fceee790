//! A bounded table: found by key, and in the order in which they came. All memory is taken at
//! construction.
//!
//! Places are linked twice by index: with others of the same hash, and with those that came before
//! and after.

use std::hash::{BuildHasher, Hash, RandomState};

/// No place.
const NONE: u32 = u32::MAX;

/// Which places of an array are in use, and for which key.
#[derive(Debug)]
pub(super) struct Table<Key> {
    /// Seeded at random, so that a remote sender cannot choose keys that collide.
    hasher: RandomState,
    /// For each hash, the first of its places.
    heads: Box<[u32]>,
    places: Box<[Place<Key>]>,
    /// First of the free places, linked by `next`.
    free: u32,
    oldest: u32,
    newest: u32,
}

#[derive(Clone, Debug)]
struct Place<Key> {
    key: Option<Key>,
    /// Another one of the same hash; of the free, another free one.
    next: u32,
    older: u32,
    newer: u32,
}

impl<Key: Copy + Eq + Hash> Table<Key> {
    /// With `capacity` places, fewer than `u32::MAX`.
    pub(super) fn new(capacity: usize) -> Self {
        let count = u32::try_from(capacity).expect("checked with the configuration");
        let place = |at: u32| Place {
            key: None,
            next: if at + 1 < count { at + 1 } else { NONE },
            older: NONE,
            newer: NONE,
        };
        Self {
            hasher: RandomState::new(),
            heads: vec![NONE; capacity.next_power_of_two()].into(),
            places: (0..count).map(place).collect(),
            free: if count == 0 { NONE } else { 0 },
            oldest: NONE,
            newest: NONE,
        }
    }

    /// The place that `key` has.
    pub(super) fn find(&self, key: &Key) -> Option<usize> {
        let mut at = self.heads[self.bucket(key)];
        while at != NONE {
            let place = &self.places[at as usize];
            if place.key.as_ref() == Some(key) {
                return Some(at as usize);
            }
            at = place.next;
        }
        None
    }

    /// Gives a place to `key`, which has none. `None`: all are taken.
    pub(super) fn insert(&mut self, key: Key) -> Option<usize> {
        let at = self.free;
        if at == NONE {
            return None;
        }
        let bucket = self.bucket(&key);
        let place = &mut self.places[at as usize];
        self.free = place.next;
        place.key = Some(key);
        place.next = std::mem::replace(&mut self.heads[bucket], at);
        place.older = self.newest;
        place.newer = NONE;
        match self.newest {
            NONE => self.oldest = at,
            newest => self.places[newest as usize].newer = at,
        }
        self.newest = at;
        Some(at as usize)
    }

    /// The place in use for longest.
    pub(super) fn oldest(&self) -> Option<usize> {
        (self.oldest != NONE).then_some(self.oldest as usize)
    }

    /// Takes the place back, if it is in use.
    pub(super) fn remove(&mut self, at: usize) {
        let Some(key) = self.places[at].key.take() else {
            return;
        };
        let Place {
            next, older, newer, ..
        } = self.places[at];
        let at = at as u32;

        let bucket = self.bucket(&key);
        let mut before = self.heads[bucket];
        if before == at {
            self.heads[bucket] = next;
        } else {
            while self.places[before as usize].next != at {
                before = self.places[before as usize].next;
            }
            self.places[before as usize].next = next;
        }

        match older {
            NONE => self.oldest = newer,
            older => self.places[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.places[newer as usize].older = older,
        }
        self.places[at as usize].next = std::mem::replace(&mut self.free, at);
    }

    fn bucket(&self, key: &Key) -> usize {
        self.hasher.hash_one(key) as usize & (self.heads.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_is_a_queue_that_can_be_searched(
            capacity in 1..9_usize,
            steps in prop::collection::vec((0..12_u8, 0..3_u8), 0..200),
        ) {
            let mut table = Table::new(capacity);
            let mut model: VecDeque<(u8, usize)> = VecDeque::new();
            for (key, what) in steps {
                let known = model.iter().position(|(known, _)| *known == key);
                prop_assert_eq!(table.find(&key), known.map(|at| model[at].1));
                match (what, known) {
                    (0, Some(known)) => {
                        let (_, at) = model.remove(known).unwrap();
                        table.remove(at);
                        // Not in use any more: nothing happens.
                        table.remove(at);
                    }
                    (1, _) => {
                        prop_assert_eq!(table.oldest(), model.front().map(|(_, at)| *at));
                        if let Some((_, at)) = model.pop_front() {
                            table.remove(at);
                        }
                    }
                    (2, None) => {
                        let at = table.insert(key);
                        prop_assert_eq!(at.is_some(), model.len() < capacity);
                        if let Some(at) = at {
                            prop_assert!(at < capacity && model.iter().all(|(_, taken)| *taken != at));
                            model.push_back((key, at));
                        }
                    }
                    _ => {}
                }
                prop_assert_eq!(table.oldest(), model.front().map(|(_, at)| *at));
            }
        }
    }
}
