//! What recording costs a thread, for the table of costs: its lane alone, without requests.
//!
//! It is not part of the API: the feature `stub-workers` has it for `benches/`.

use std::hint::black_box;
use std::sync::{Arc, PoisonError};
use std::thread;

use shinjuku_policy::{ClassId, Nanos};
use shinjuku_preempt::{ContextId, Cycles, Worker, WorkerLink};

use super::{Lane, OFF, Recorder, WORKER_ROOM};
use crate::request::Meta;

/// How many slices a recording has room for.
pub const ROOM: u64 = WORKER_ROOM as u64;

/// A thread's lane.
#[derive(Debug)]
pub struct MeasuredLane {
    recorder: Arc<Recorder>,
    lane: Lane,
    /// A worker that has ended, for its counters.
    worker: WorkerLink,
}

impl Default for MeasuredLane {
    fn default() -> Self {
        let recorder = Recorder::new(1, ["measured".to_owned()]);
        let link = || Worker::bind(0).map(|worker| worker.link());
        let bound = thread::spawn(link).join().expect("it does not panic");
        Self {
            lane: recorder.lane(0),
            recorder,
            worker: bound.expect("who measures costs has workers"),
        }
    }
}

impl MeasuredLane {
    /// Records that `count` requests begin and end, as a worker's loop does, without reading the
    /// clock.
    pub fn slices(&self, count: u64) {
        for number in 0..count {
            let (context, start) = black_box((ContextId(7), Cycles(number)));
            self.lane.begins(context, start);
            self.lane.idles();
            let meta = Meta {
                class: ClassId(0),
                arrival: Nanos(number),
            };
            let slice = (start, Cycles(number + 1));
            self.lane
                .ended(context, slice, black_box(Some((meta, false))));
        }
    }

    /// So many times a request begins to run and is preempted, its worker's counters read before
    /// and after as a worker does.
    pub fn preempted_slices(&self, count: u64) {
        for number in 0..count {
            let (context, start) = black_box((ContextId(7), Cycles(number)));
            let read = || self.worker.counters();
            let before = self.lane.is_recording().then(read);
            self.lane.begins(context, start);
            self.lane.idles();
            let slice = (start, Cycles(number + 1));
            self.lane.preempted(context, slice, before, read);
        }
    }

    /// Slices are recorded from now on, the ring being empty.
    pub fn record(&self) {
        let last = self.recorder.last_epoch.lock();
        let mut last = last.unwrap_or_else(PoisonError::into_inner);
        self.recorder.begin(&mut last);
    }

    /// Ends the recording. Gives how many slices it has, and how many found no room.
    pub fn end(&self) -> (u64, u64) {
        let last = self.recorder.last_epoch.lock();
        let last = last.unwrap_or_else(PoisonError::into_inner);
        self.recorder.epoch.store(OFF, super::Ordering::Release);
        let rings = self.recorder.rings.get();
        let record = rings.map(|rings| rings[0].read(*last)).unwrap_or_default();
        (record.events.len() as u64, record.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_what_is_recorded() {
        let lane = MeasuredLane::default();
        lane.slices(5);
        assert_eq!(lane.end(), (0, 0), "nothing was to be recorded");
        for _ in 0..2 {
            lane.record();
            lane.slices(ROOM - 5);
            lane.preempted_slices(8);
            assert_eq!(lane.end(), (ROOM, 3));
        }
    }
}
