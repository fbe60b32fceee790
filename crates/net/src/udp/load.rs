//! How many requests the server has, by class: what RackSched's replies carry back.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Two numbers for each class, which only grow: the networker's and the workers', on cache lines of
/// their own.
#[derive(Debug)]
pub(crate) struct Load(Box<[ClassLoad]>);

#[derive(Default, Debug)]
struct ClassLoad {
    arrived: Line,
    left: Line,
}

#[derive(Default, Debug)]
#[repr(align(128))]
struct Line(AtomicU64);

impl Load {
    pub(crate) fn new(classes: usize) -> Self {
        Self((0..classes).map(|_| ClassLoad::default()).collect())
    }

    /// A request of `class` is handed to the dispatcher. Others than those it was made for do not
    /// count.
    pub(crate) fn arrived(&self, class: u16) {
        if let Some(load) = self.0.get(usize::from(class)) {
            load.arrived.0.fetch_add(1, Relaxed);
        }
    }

    /// One is answered or turned away: how many more of its class there are.
    pub(crate) fn left(&self, class: u16) -> u32 {
        let Some(load) = self.0.get(usize::from(class)) else {
            return 0;
        };
        let left = load.left.0.fetch_add(1, Relaxed) + 1;
        let there = load.arrived.0.load(Relaxed).saturating_sub(left);
        u32::try_from(there).unwrap_or(u32::MAX)
    }
}
