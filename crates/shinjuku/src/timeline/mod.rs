//! Recording what each worker does when: a slice for each time that a request runs.
//!
//! ```text
//!   Observer::record ──▶ epoch = n ─────────── samples the queues ──────────▶ epoch = 0 ──▶ reads
//!   worker:    slice ends while epoch = n: writes it to its own ring        slice ends: one load
//! ```
//!
//! A slice says which context ran, from when to when, why it stopped, and, where the request
//! finished, its class and its arrival. A context belongs to one request from its start to its end.
//! So the reader puts a request together from its context's slices, the last one first. A request
//! that has not finished by the end has left a note (`Started`).
//!
//! Each ring has one writer. The writer itself begins the ring anew when it meets a new epoch, and
//! never overwrites slices of the epoch: a full ring counts the slices that it drops. So a reader
//! needs no lock once the epoch is over, and a worker that is late by then writes beyond the slices
//! that are read.
//!
//! No thread writes that a request is blocked in the kernel: the reader asks the kernel (`away`).
//!
//! A request that runs while the recording ends has written no slice yet. So each thread always
//! notes what it runs as well: three stores to a cache line of its own for each slice. The reader
//! makes open slices of these notes.
//!
//! The recording thread allocates the rings at the first recording, and they are kept. Without a
//! recording a slice costs one load of a line that is only read, and the three stores. With one it
//! costs some more stores. Nothing here allocates, locks or makes a system call on a worker's
//! thread.

mod away;
#[cfg(feature = "stub-workers")]
#[doc(hidden)]
pub mod measured;
mod trace;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use shinjuku_policy::{ClassId, Nanos};
use shinjuku_preempt::{Clock, ContextId, CountersSnapshot, Cycles};

use crate::observer::Observer;
use crate::request::Meta;
use away::Blocks;
pub(crate) use trace::Quoted;
pub use trace::{Sample, Slice, Stop, Trace};

/// How many slices a worker's ring holds, in 2 MiB.
const WORKER_ROOM: usize = 1 << 16;
/// How many slices a spare's ring holds: a spare runs little.
const SPARE_ROOM: usize = 1 << 10;
/// How often the reader samples the queues, and asks the kernel whether threads are blocked.
const SAMPLE_EVERY: Duration = Duration::from_millis(1);
/// How often the kernel is asked what the hypervisor took, which it tells in units of this.
const ASK_OF_HYPERVISOR_EVERY: Duration = Duration::from_millis(10);
/// The epoch while nothing is recorded.
const OFF: u32 = 0;
/// The length of a slice in words.
const WORDS: usize = 4;

/// Why nothing was recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// There is one recording of a runtime at a time.
    #[error("the runtime is being recorded already: try again when that has ended")]
    Busy,
}

/// What the threads of a runtime share.
#[derive(Debug)]
pub(crate) struct Recorder {
    epoch: CachePadded<AtomicU32>,
    rings: OnceLock<Box<[Ring]>>,
    /// What each thread runs.
    running: Box<[CachePadded<Running>]>,
    /// The last epoch. Locked during a recording.
    last_epoch: Mutex<u32>,
    /// How many threads run requests often; the spares have the numbers after these.
    workers: usize,
    /// The names of all threads.
    names: Box<[String]>,
}

/// What a thread runs now.
#[derive(Debug, Default)]
struct Running {
    start: AtomicU64,
    /// The context's number plus one; 0: the thread runs nothing. Written after `start`.
    context: AtomicU64,
}

impl Running {
    fn read(&self) -> Option<(ContextId, Cycles)> {
        let context = self.context.load(Ordering::Acquire);
        let start = Cycles(self.start.load(Ordering::Acquire));
        if self.context.load(Ordering::Relaxed) != context {
            // The request has ended meanwhile, and the start may be the next one's.
            return None;
        }
        let context = context.checked_sub(1)?;
        Some((ContextId(context as u16), start))
    }
}

/// A thread's own slices.
#[derive(Debug)]
struct Ring {
    /// The epoch, and how many slices it has.
    state: AtomicU64,
    dropped: AtomicU64,
    /// When the first dropped slice began.
    first_dropped: AtomicU64,
    /// Whose those were, by [`bit`].
    dropped_of: AtomicU64,
    words: Box<[AtomicU64]>,
}

/// A slice, as a worker writes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Event {
    start: Cycles,
    end: Cycles,
    context: ContextId,
    stop: Stop,
    /// Class and arrival are set only where the request finished or failed.
    class: ClassId,
    arrival: Nanos,
    /// The other loop from whose queue the thread took the request.
    taken_from: Option<u16>,
}

impl Event {
    fn meta(&self) -> Meta {
        Meta {
            class: self.class,
            arrival: self.arrival,
        }
    }

    /// Whether this is the end of such a request.
    fn ends(&self, request: &Meta) -> bool {
        let is_end = matches!(self.stop, Stop::Finished | Stop::Failed);
        is_end && self.arrival == request.arrival
    }

    fn to_words(self) -> [u64; WORDS] {
        let stop = Stop::ENDS.iter().position(|&stop| stop == self.stop);
        let stop = stop.expect("a slice that is written has ended") as u64;
        let taken_from = self.taken_from.map_or(0, |queue| u64::from(queue) + 1);
        let packed = u64::from(self.context.0)
            | u64::from(self.class.0) << 16
            | stop << 32
            | taken_from << 40;
        [self.start.0, self.end.0, packed, self.arrival.0]
    }

    fn from_words([start, end, packed, arrival]: [u64; WORDS]) -> Self {
        Self {
            start: Cycles(start),
            end: Cycles(end),
            context: ContextId(packed as u16),
            class: ClassId((packed >> 16) as u16),
            stop: Stop::ENDS[usize::from((packed >> 32) as u8)],
            arrival: Nanos(arrival),
            taken_from: (packed >> 40).checked_sub(1).map(|queue| queue as u16),
        }
    }
}

impl Ring {
    fn new(room: usize) -> Self {
        Self {
            state: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            first_dropped: AtomicU64::new(0),
            dropped_of: AtomicU64::new(0),
            words: (0..room * WORDS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Appends a slice. Only the ring's own thread calls this.
    fn push(&self, epoch: u32, event: Event) {
        let state = self.state.load(Ordering::Relaxed);
        let (its_epoch, count) = ((state >> 32) as u32, state as u32);
        let count = if its_epoch == epoch {
            count
        } else {
            self.dropped.store(0, Ordering::Relaxed);
            self.dropped_of.store(0, Ordering::Relaxed);
            0
        };
        let at = count as usize * WORDS;
        let Some(words) = self.words.get(at..at + WORDS) else {
            let dropped = self.dropped.load(Ordering::Relaxed);
            if dropped == 0 {
                self.first_dropped.store(event.start.0, Ordering::Relaxed);
            }
            let of = self.dropped_of.load(Ordering::Relaxed);
            self.dropped_of
                .store(of | bit(event.context), Ordering::Relaxed);
            return self.dropped.store(dropped + 1, Ordering::Release);
        };
        for (word, value) in words.iter().zip(event.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        let state = u64::from(epoch) << 32 | u64::from(count + 1);
        self.state.store(state, Ordering::Release);
    }

    /// The slices of an epoch that is over.
    fn read(&self, epoch: u32) -> Record {
        let state = self.state.load(Ordering::Acquire);
        if (state >> 32) as u32 != epoch {
            return Record::default();
        }
        let words = &self.words[..state as u32 as usize * WORDS];
        let event = |words: &[AtomicU64]| {
            let word = |place: usize| words[place].load(Ordering::Relaxed);
            Event::from_words([word(0), word(1), word(2), word(3)])
        };
        let dropped = self.dropped.load(Ordering::Acquire);
        let first_dropped = Cycles(self.first_dropped.load(Ordering::Relaxed));
        Record {
            events: words.chunks_exact(WORDS).map(event).collect(),
            dropped,
            first_dropped: (dropped > 0).then_some(first_dropped),
            dropped_of: self.dropped_of.load(Ordering::Relaxed),
        }
    }
}

/// A context's bit, which others may share.
fn bit(context: ContextId) -> u64 {
    1 << (context.0 % 64)
}

/// What a thread did while something was recorded.
#[derive(PartialEq, Eq, Default, Debug)]
struct Record {
    events: Vec<Event>,
    dropped: u64,
    first_dropped: Option<Cycles>,
    /// Whose slices were dropped, by [`bit`], with others at times.
    dropped_of: u64,
}

impl Record {
    /// From when on slices of this context may be missing.
    fn gap(&self, context: ContextId) -> Option<Cycles> {
        self.first_dropped
            .filter(|_| self.dropped_of & bit(context) != 0)
    }
}

impl Recorder {
    /// Makes a recorder for threads of these names, of which the first `workers` run requests
    /// often.
    pub(crate) fn new(workers: usize, names: impl IntoIterator<Item = String>) -> Arc<Self> {
        let names: Box<[String]> = names.into_iter().collect();
        Arc::new(Self {
            epoch: CachePadded::new(AtomicU32::new(OFF)),
            rings: OnceLock::new(),
            running: names.iter().map(|_| CachePadded::default()).collect(),
            last_epoch: Mutex::new(OFF),
            workers,
            names,
        })
    }

    /// Thread `number`'s way to record.
    pub(crate) fn lane(self: &Arc<Self>, number: usize) -> Lane {
        Lane {
            recorder: Arc::clone(self),
            number,
            takes_from: None,
        }
    }

    /// What each thread runs now, and since when.
    pub(crate) fn running(&self) -> Vec<Option<(ContextId, Cycles)>> {
        self.running.iter().map(|running| running.read()).collect()
    }

    /// A thread's name in timelines.
    pub(crate) fn name(&self, thread: usize) -> &str {
        &self.names[thread]
    }

    /// Makes the workers record from now on, in the epoch after `last`.
    fn begin(&self, last: &mut u32) -> &[Ring] {
        let rings = self.rings.get_or_init(|| {
            let room = |thread| match thread < self.workers {
                true => WORKER_ROOM,
                false => SPARE_ROOM,
            };
            let threads = 0..self.names.len();
            threads.map(|thread| Ring::new(room(thread))).collect()
        });
        *last = last.wrapping_add(1).max(1);
        self.epoch.store(*last, Ordering::Release);
        rings
    }

    /// Makes the workers record until `wait` returns.
    fn record(&self, wait: impl FnOnce()) -> Result<Vec<Record>, RecordError> {
        let mut last = self.last_epoch.try_lock().map_err(|_| RecordError::Busy)?;
        let rings = self.begin(&mut last);
        wait();
        // This is read before the epoch is over, so that a slice that ends in between is in the
        // ring.
        let running = self.running();
        let end = Cycles::now();
        self.epoch.store(OFF, Ordering::Release);
        let mut records: Vec<_> = rings.iter().map(|ring| ring.read(*last)).collect();
        for (record, running) in records.iter_mut().zip(running) {
            let Some((context, start)) = running else {
                continue;
            };
            let has_ended = |event: &Event| (event.context, event.start) == (context, start);
            if record.dropped == 0 && !record.events.iter().rev().any(has_ended) {
                record.events.push(Event {
                    start: start.min(end),
                    end,
                    context,
                    stop: Stop::Running,
                    class: ClassId(0),
                    arrival: Nanos(0),
                    taken_from: None,
                });
            }
        }
        Ok(records)
    }
}

/// A thread's way to record.
#[derive(Debug)]
pub(crate) struct Lane {
    recorder: Arc<Recorder>,
    number: usize,
    takes_from: Option<u16>,
}

impl Lane {
    /// Notes that the requests that run from now on were taken from another loop's queue, with this
    /// number; `None`: from the thread's own.
    #[inline]
    pub(crate) fn takes_from(&mut self, queue: Option<usize>) {
        self.takes_from = queue.map(|queue| queue as u16);
    }

    /// Whether a slice that ends now is recorded.
    #[inline]
    pub(crate) fn is_recording(&self) -> bool {
        self.recorder.epoch.load(Ordering::Relaxed) != OFF
    }

    /// A context begins to run.
    #[inline]
    pub(crate) fn begins(&self, context: ContextId, start: Cycles) {
        let running = &self.recorder.running[self.number];
        running.start.store(start.0, Ordering::Relaxed);
        let number = u64::from(context.0) + 1;
        running.context.store(number, Ordering::Release);
    }

    /// The thread runs no request.
    #[inline]
    pub(crate) fn idles(&self) {
        let running = &self.recorder.running[self.number];
        running.context.store(0, Ordering::Release);
    }

    /// A request ended: that of `meta`, with whether it failed, or a lost one, of which nothing is
    /// known.
    #[inline]
    pub(crate) fn ended(
        &self,
        context: ContextId,
        (start, end): (Cycles, Cycles),
        meta: Option<(Meta, bool)>,
    ) {
        if self.is_recording() {
            let (class, arrival, stop) = match meta {
                Some((meta, false)) => (meta.class, meta.arrival, Stop::Finished),
                Some((meta, true)) => (meta.class, meta.arrival, Stop::Failed),
                None => (ClassId(0), Nanos(0), Stop::Lost),
            };
            self.push(Event {
                start,
                end,
                context,
                stop,
                class,
                arrival,
                taken_from: self.takes_from,
            });
        }
    }

    /// A request was preempted. The worker's counters `before` it ran, if they were read, and
    /// `after` tell how.
    #[inline]
    pub(crate) fn preempted(
        &self,
        context: ContextId,
        (start, end): (Cycles, Cycles),
        before: Option<CountersSnapshot>,
        after: impl FnOnce() -> CountersSnapshot,
    ) {
        if self.is_recording() {
            let stop = before.map_or(Stop::Preempted, |before| {
                let after = after();
                if after.taken_by_interrupt > before.taken_by_interrupt {
                    Stop::Interrupt
                } else if after.taken_by_compiled_probe > before.taken_by_compiled_probe {
                    Stop::CompiledProbe
                } else if after.taken_at_guard > before.taken_at_guard {
                    Stop::Guard
                } else {
                    Stop::Probe
                }
            });
            self.push(Event {
                start,
                end,
                context,
                stop,
                class: ClassId(0),
                arrival: Nanos(0),
                taken_from: self.takes_from,
            });
        }
    }

    #[cold]
    fn push(&self, event: Event) {
        let epoch = self.recorder.epoch.load(Ordering::Acquire);
        if let (Some(rings), true) = (self.recorder.rings.get(), epoch != OFF) {
            rings[self.number].push(epoch, event);
        }
    }
}

impl Observer {
    /// Records what every worker does for `duration`, during which the calling thread sleeps, and
    /// looks at the queues and at what blocks every millisecond. A worker has room for 65,536
    /// slices (a spare for 1,024). Where the first slice found no room the trace ends, or of a
    /// spare its lane; [`Trace::dropped`] tells how many did not. The room, 2 MiB a worker and 32
    /// KiB a spare, is taken at the first recording and kept until the runtime's end.
    ///
    /// # Errors
    /// [`RecordError::Busy`] while another thread records.
    pub fn record(&self, duration: Duration) -> Result<Trace, RecordError> {
        self.record_unless(duration, || false)
    }

    /// As [`record`](Self::record), but ends early once `is_over`.
    pub(crate) fn record_unless(
        &self,
        duration: Duration,
        is_over: impl Fn() -> bool,
    ) -> Result<Trace, RecordError> {
        let clock = Clock::get();
        let (mut samples, mut open) = (Vec::<Sample>::new(), HashMap::new());
        let (mut blocks, mut ask_again) = (Blocks::default(), Duration::ZERO);
        let mut taken_by_hypervisor = Duration::ZERO;
        let start = clock.nanos_at(Cycles::now());
        let records = self.recorder.record(|| {
            let begin = Instant::now();
            while let Some(left) = duration.checked_sub(begin.elapsed()) {
                let now = Cycles::now();
                let at = Duration::from_nanos(clock.nanos_at(now).saturating_sub(start));
                if at >= ask_again {
                    ask_again = at + ASK_OF_HYPERVISOR_EVERY;
                    taken_by_hypervisor = away::taken_by_hypervisor();
                }
                samples.push(self.sample(at, taken_by_hypervisor));
                let is_blocked = |lane: usize| self.links[lane].is_blocked();
                blocks.look(now, || self.recorder.running(), is_blocked);
                std::thread::sleep(SAMPLE_EVERY.min(left));
                if is_over() {
                    break;
                }
            }
            open.extend(self.started.all());
        })?;
        let end = clock.nanos_at(Cycles::now());
        let mut trace = Trace {
            slices: Vec::new(),
            samples,
            duration: Duration::from_nanos(end.saturating_sub(start)),
            dropped: 0,
            lanes: self.recorder.names.to_vec(),
            workers: self.recorder.workers,
            classes: self.class_names.to_vec(),
        };
        trace.take_up(&records, &open, &blocks, (start, clock));
        Ok(trace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(start: u64, context: u16, stop: Stop) -> Event {
        Event {
            start: Cycles(start),
            end: Cycles(start + 10),
            context: ContextId(context),
            stop,
            class: ClassId(3),
            arrival: Nanos(start / 2),
            taken_from: None,
        }
    }

    #[test]
    fn words_keep_all_of_an_event() {
        for stop in Stop::ENDS {
            let event = Event {
                context: ContextId(u16::MAX),
                class: ClassId(u16::MAX),
                ..event(u64::MAX - 10, 1, stop)
            };
            for taken_from in [None, Some(0), Some(u16::MAX)] {
                let event = Event {
                    taken_from,
                    ..event
                };
                assert_eq!(Event::from_words(event.to_words()), event);
            }
        }
    }

    #[test]
    fn a_ring_keeps_one_epoch_and_counts_what_finds_no_room() {
        let ring = Ring::new(3);
        for start in 0..5 {
            ring.push(1, event(start, 1, Stop::Probe));
        }
        let record = ring.read(1);
        assert_eq!((record.events.len(), record.dropped), (3, 2));
        assert_eq!(record.first_dropped, Some(Cycles(3)));
        assert_eq!(record.gap(ContextId(1)), Some(Cycles(3)));
        assert_eq!(record.gap(ContextId(2)), None);
        assert_eq!(record.events[2], event(2, 1, Stop::Probe));
        assert_eq!(ring.read(2), Record::default());
        ring.push(2, event(9, 2, Stop::Finished));
        let record = ring.read(2);
        assert_eq!(record.events, [event(9, 2, Stop::Finished)]);
        assert_eq!((record.dropped, record.first_dropped), (0, None));
        assert_eq!(ring.read(1), Record::default());
    }

    #[test]
    fn nothing_is_recorded_outside_of_a_recording() {
        let recorder = Recorder::new(1, ["a".to_owned(), "b".to_owned()]);
        let (lane, spare) = (recorder.lane(0), recorder.lane(1));
        let ends = |lane: &Lane| lane.ended(ContextId(7), (Cycles(1), Cycles(2)), None);
        ends(&lane);
        for round in 1..3 {
            let rings = recorder.record(|| {
                (0..round).for_each(|_| ends(&lane));
                ends(&spare);
                let again = recorder.record(|| ());
                assert_eq!(again.unwrap_err(), RecordError::Busy);
            });
            let counts = rings
                .unwrap()
                .iter()
                .map(|record| record.events.len())
                .collect::<Vec<_>>();
            assert_eq!(counts, [round, 1]);
            ends(&lane);
        }
    }

    #[test]
    fn what_runs_at_the_end_is_an_open_slice_unless_it_ended_in_time() {
        let recorder = Recorder::new(2, ["a".to_owned(), "b".to_owned()]);
        let (open, ended) = (recorder.lane(0), recorder.lane(1));
        open.begins(ContextId(4), Cycles(100));
        ended.begins(ContextId(5), Cycles(200));
        let records = recorder.record(|| {
            ended.ended(ContextId(5), (Cycles(200), Cycles(300)), None);
        });
        let stops = records.unwrap().into_iter().map(|record| {
            let event = record.events.first().copied().unwrap();
            assert_eq!(record.events.len(), 1);
            (event.context.0, event.start.0, event.stop)
        });
        assert_eq!(
            stops.collect::<Vec<_>>(),
            [(4, 100, Stop::Running), (5, 200, Stop::Lost)]
        );
        open.idles();
        ended.idles();
        let records = recorder.record(|| ()).unwrap();
        assert!(records.iter().all(|record| record.events.is_empty()));
    }
}
