//! Request affinity: all packets of a request go to the server of its first.
//!
//! The switch has a request table of several stages; a request may sit in one slot of each stage,
//! chosen by a hash that differs from stage to stage. The first packet inserts the request, the
//! reply clears it. When all its slots are taken, a hash of the request's number chooses the
//! server, which later packets find without the table.
//!
//! Source: Zhu et al., *RackSched*, OSDI 2020, whose switch ensures request affinity; the table is
//! that of its published code (3 stages of 65,536 slots).

use crate::machine::spread;

#[derive(Clone, Copy)]
struct Entry {
    request: u64,
    server: u32,
}

const FREE: u64 = u64::MAX;

/// The switch's request table.
pub(super) struct RequestTable {
    stages: Vec<Box<[Entry]>>,
}

impl RequestTable {
    pub(super) fn new(stages: usize, slots: usize) -> Self {
        let free = Entry {
            request: FREE,
            server: 0,
        };
        let stage = || vec![free; slots.max(1)].into_boxed_slice();
        Self {
            stages: (0..stages).map(|_| stage()).collect(),
        }
    }

    fn slot(stage: usize, slots: usize, request: u64) -> usize {
        let salt = (stage as u64 + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        spread(request.wrapping_mul(0xA24B_AED4_963E_E407) ^ salt, slots)
    }

    /// Notes the server of a request; `false`: no slot is free.
    pub(super) fn insert(&mut self, request: u64, server: usize) -> bool {
        for (stage, slots) in self.stages.iter_mut().enumerate() {
            let entry = &mut slots[Self::slot(stage, slots.len(), request)];
            if entry.request == FREE {
                *entry = Entry {
                    request,
                    server: server as u32,
                };
                return true;
            }
        }
        false
    }

    /// Forgets all requests.
    pub(super) fn empty(&mut self) {
        for slots in &mut self.stages {
            slots.iter_mut().for_each(|entry| entry.request = FREE);
        }
    }

    /// The server of a request.
    pub(super) fn find(&self, request: u64) -> Option<usize> {
        self.stages.iter().enumerate().find_map(|(stage, slots)| {
            let entry = slots[Self::slot(stage, slots.len(), request)];
            (entry.request == request).then_some(entry.server as usize)
        })
    }

    /// Forgets a request.
    pub(super) fn clear(&mut self, request: u64) {
        for (stage, slots) in self.stages.iter_mut().enumerate() {
            let entry = &mut slots[Self::slot(stage, slots.len(), request)];
            if entry.request == request {
                entry.request = FREE;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_found_until_cleared_and_a_full_table_says_so() {
        let mut table = RequestTable::new(3, 4);
        let inserted: Vec<u64> = (0..100)
            .filter(|n| table.insert(*n, *n as usize % 5))
            .collect();
        assert!((4..=12).contains(&inserted.len()), "{inserted:?}");
        for &request in &inserted {
            assert_eq!(table.find(request), Some(request as usize % 5));
            table.clear(request);
            assert_eq!(table.find(request), None);
        }
        assert!(table.insert(1000, 1));
    }
}
