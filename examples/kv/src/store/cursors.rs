//! The places where scans resume.
//!
//! Redis's cursors are places in its hash table. Here keys are in order, and a cursor stands for
//! the next key, which is stored. Only the keys of the last steps are stored, but so many that most
//! clients finish or give up their scan before. An unknown cursor is refused, since a scan that
//! resumed elsewhere could miss keys.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use shinjuku::without_preemption;

/// How many cursors are known at most.
const MOST: usize = 1 << 16;
/// How many bytes their keys have together at most, 64 MiB.
const MOST_BYTES: usize = 64 << 20;

/// The cursors. The lock is held for a few instructions, with preemption held off.
#[derive(Debug)]
pub(super) struct Cursors(Mutex<Known>);

#[derive(Debug)]
struct Known {
    /// The cursor of the first key; the following keys have the following numbers.
    first: u64,
    keys: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl Cursors {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Known {
            first: 1,
            keys: VecDeque::new(),
            bytes: 0,
        }))
    }

    /// A cursor for a scan that resumes at `key`.
    pub(super) fn open(&self, key: &[u8]) -> u64 {
        let key = Box::from(key);
        self.with(|known| known.open(key))
    }

    /// Where the scan with this cursor resumes. The same cursor can be used more than once.
    pub(super) fn find(&self, cursor: u64) -> Option<Box<[u8]>> {
        self.with(|known| known.find(cursor))
    }

    fn with<Out>(&self, body: impl FnOnce(&mut Known) -> Out) -> Out {
        without_preemption(|| body(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Known {
    fn open(&mut self, key: Box<[u8]>) -> u64 {
        self.bytes += key.len();
        self.keys.push_back(key);
        // The new key stays, however long it is.
        while self.keys.len() > MOST || self.bytes > MOST_BYTES && self.keys.len() > 1 {
            self.first += 1;
            self.bytes -= self.keys.pop_front().map_or(0, |key| key.len());
        }
        self.first + self.keys.len() as u64 - 1
    }

    fn find(&self, cursor: u64) -> Option<Box<[u8]>> {
        let at = usize::try_from(cursor.checked_sub(self.first)?).ok()?;
        self.keys.get(at).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_cursors_are_known_and_no_other() {
        let cursors = Cursors::new();
        let opened: Vec<u64> = (0..MOST as u64 + 10)
            .map(|key| cursors.open(&key.to_le_bytes()))
            .collect();
        for (key, &cursor) in (0_u64..).zip(&opened) {
            let expected = (key >= 10).then(|| Box::from(key.to_le_bytes()));
            assert_ne!(cursor, 0);
            assert_eq!(cursors.find(cursor), expected, "{key}");
        }
        for unknown in [0, opened[opened.len() - 1] + 1, u64::MAX] {
            assert_eq!(cursors.find(unknown), None);
        }
    }

    #[test]
    fn long_keys_have_fewer_cursors() {
        let cursors = Cursors::new();
        let first = cursors.open(&vec![0; MOST_BYTES]);
        assert!(cursors.find(first).is_some());
        let second = cursors.open(b"k");
        assert_eq!(cursors.find(first), None);
        assert_eq!(cursors.find(second).as_deref(), Some(&b"k"[..]));
    }
}
