//! The event list of the simulator: when each of a fixed number of slots has its next event, and
//! which event is first.
//!
//! A worker, a server or a link has at most one next event, so the list is a tournament tree over
//! slots: each inner node holds the earlier of its two children, and a change propagates up from
//! the leaf. Nothing is allocated after construction. Of events at the same time, that of the lower
//! slot comes first, so runs are reproducible.
//!
//! ```text
//!                 [1: 40 @ slot 2]
//!         [2: 70 @ 1]         [3: 40 @ 2]
//!      slot 0   slot 1      slot 2   slot 3
//!       none      70          40       90
//! ```

/// No event.
pub(crate) const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy)]
struct Node {
    at_ns: u64,
    slot: u32,
}

/// The next event of each slot, and the first of them all.
pub(crate) struct Calendar {
    /// A heap-shaped tree: children of `i` at `2 i` and `2 i + 1`, leaves in the second half.
    nodes: Box<[Node]>,
}

impl Calendar {
    /// A calendar of `slots` slots without an event.
    pub(crate) fn new(slots: usize) -> Self {
        let leaves = slots.next_power_of_two().max(2);
        let mut nodes = vec![
            Node {
                at_ns: NEVER,
                slot: 0
            };
            2 * leaves
        ];
        for (slot, node) in (0..).zip(&mut nodes[leaves..]) {
            node.slot = slot;
        }
        for parent in (1..leaves).rev() {
            nodes[parent] = nodes[2 * parent];
        }
        Self {
            nodes: nodes.into_boxed_slice(),
        }
    }

    /// The time of the first event; [`NEVER`] if there is none.
    pub(crate) fn first_ns(&self) -> u64 {
        self.nodes[1].at_ns
    }

    /// The slot of the first event.
    pub(crate) fn first_slot(&self) -> usize {
        self.nodes[1].slot as usize
    }

    /// The time of the next event of `slot`; [`NEVER`] if there is none.
    pub(crate) fn at_ns(&self, slot: usize) -> u64 {
        self.nodes[self.nodes.len() / 2 + slot].at_ns
    }

    /// Sets the time of the next event of `slot`; [`NEVER`] for none.
    pub(crate) fn set(&mut self, slot: usize, at_ns: u64) {
        let mut node = self.nodes.len() / 2 + slot;
        self.nodes[node].at_ns = at_ns;
        while node > 1 {
            let (left, right) = (self.nodes[node & !1], self.nodes[node | 1]);
            node /= 2;
            self.nodes[node] = if right.at_ns < left.at_ns {
                right
            } else {
                left
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_first_event_is_the_earliest_of_the_lowest_slot(
            slots in 1_usize..20,
            changes in prop::collection::vec((0_usize..20, 0_u64..30), 0..100),
        ) {
            let mut calendar = Calendar::new(slots);
            let mut model = vec![NEVER; slots];
            for (slot, at_ns) in changes {
                let slot = slot % slots;
                let at_ns = if at_ns == 0 { NEVER } else { at_ns };
                calendar.set(slot, at_ns);
                model[slot] = at_ns;
                let earliest = *model.iter().min().expect("there is a slot");
                prop_assert_eq!(calendar.first_ns(), earliest);
                if earliest != NEVER {
                    let first = model.iter().position(|&at_ns| at_ns == earliest);
                    prop_assert_eq!(Some(calendar.first_slot()), first);
                }
            }
        }
    }
}
