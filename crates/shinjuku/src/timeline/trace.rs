//! The recorded timeline, and its file for Perfetto and chrome://tracing, in the [Trace Event
//! Format](https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
//!
//! ```text
//!   worker 0   ▕ range ▏▕get▏     ▕ range ▏        a lane per thread, a slice per run
//!                     └──────────▶┘                an arrow to where a preempted request goes on
//!            ▲ taken from worker 1                 a mark where a loop helped another
//!   requests   ▁▁▂▃▂▁▁▁                            counters: waiting, started, running
//! ```

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use shinjuku_policy::ClassId;
use shinjuku_preempt::{Clock, ContextId, Cycles};

use super::away::Blocks;
use super::{Event, Record};
use crate::change_log::Changing;
use crate::observer::Observer;
use crate::request::Meta;

/// Why a request stopped running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Stop {
    /// It has its reply.
    Finished,
    /// Its handler panicked, or its reply counts as a failure.
    Failed,
    /// The transport's code panicked. Nothing is known of such a request.
    Lost,
    /// It gave way at a probe.
    Probe,
    /// It gave way at a probe that the compiler had inserted.
    CompiledProbe,
    /// It was interrupted.
    Interrupt,
    /// It gave way at the end of a section that held preemption off.
    Guard,
    /// It gave way, and the recording began too late to tell how.
    Preempted,
    /// Its thread was found blocked in the kernel, by a look each millisecond. It goes on later.
    Blocked,
    /// It had not stopped when the recording ended.
    Running,
}

impl Stop {
    /// The reasons that a worker's thread writes.
    pub(super) const ENDS: [Self; 8] = [
        Self::Finished,
        Self::Failed,
        Self::Lost,
        Self::Probe,
        Self::CompiledProbe,
        Self::Interrupt,
        Self::Guard,
        Self::Preempted,
    ];

    /// Whether it gave way to others, and goes on later.
    #[must_use]
    pub const fn is_preempted(self) -> bool {
        matches!(
            self,
            Self::Probe | Self::CompiledProbe | Self::Interrupt | Self::Guard | Self::Preempted
        )
    }
}

impl Display for Stop {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Lost => "lost",
            Self::Probe => "preempted at a probe",
            Self::CompiledProbe => "preempted at a compiled probe",
            Self::Interrupt => "interrupted",
            Self::Guard => "preempted at a guard",
            Self::Preempted => "preempted",
            Self::Blocked => "blocked in the kernel",
            Self::Running => "still running",
        })
    }
}

/// One run of a request, from the moment when the worker took it until it stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Slice {
    /// The thread, by its place in [`Trace::lanes`].
    pub lane: usize,
    /// The request: the same number in all of its slices. Requests are numbered as they first ran
    /// in this recording.
    pub request: u64,
    /// When the request arrived, by a clock in nanoseconds that is the same for all recordings of
    /// the process; a pool's span has it in the field `arrived_ns`. `None` where `class` is.
    pub arrived_nanos: Option<u64>,
    /// `None` where nothing is known of the request: it was lost, or had begun at the very end.
    pub class: Option<ClassId>,
    /// Since the recording's start; 0 for a request that ran before.
    pub start: Duration,
    /// Since the recording's start; the recording's end for a request that still runs.
    pub end: Duration,
    /// Why the request stopped.
    pub stop: Stop,
    /// How long before this slice the request had arrived. `None` where `class` is `None`.
    pub age: Option<Duration>,
    /// Layout `symmetric`: the loop, by its place in [`Trace::lanes`], from whose queue this
    /// thread took the request. `None`: from its own, or the request still runs.
    pub taken_from: Option<usize>,
}

/// The queues at a moment, and some counts until then.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Sample {
    /// Since the recording's start.
    pub at: Duration,
    /// Requests that wait for a worker.
    pub waiting: u64,
    /// Requests between their start and their end.
    pub started: u64,
    /// Requests that run.
    pub running: u64,
    /// How often a worker was found blocked, since the runtime's start.
    pub workers_blocked: u64,
    /// Requests that were sent to a spare, since the runtime's start.
    pub rescued: u64,
    /// Requests that idle loops took from others' queues, since the runtime's start.
    pub helped: u64,
    /// How often `auto` has changed a quantum, since the runtime's start.
    pub quanta_changed: u64,
    /// The time that the hypervisor has taken from all of the machine's cores together, since the
    /// machine's start, in units of 10 ms; zero where the kernel does not tell.
    pub taken_by_hypervisor: Duration,
}

/// What the workers did during a recording; see [`Observer::record`].
///
/// ```no_run
/// use std::time::Duration;
/// # use shinjuku::{Runtime, handler_fn};
/// # let runtime = Runtime::builder(handler_fn(|n: u64| n)).start()?;
///
/// let trace = runtime.observer().record(Duration::from_millis(100))?;
/// trace.save("trace.json")?; // open in https://ui.perfetto.dev
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Trace {
    pub(super) slices: Vec<Slice>,
    pub(super) samples: Vec<Sample>,
    pub(super) duration: Duration,
    pub(super) dropped: u64,
    pub(super) lanes: Vec<String>,
    /// How many lanes, the first ones, are of threads that run requests often.
    pub(super) workers: usize,
    pub(super) classes: Vec<String>,
}

impl Observer {
    pub(super) fn sample(&self, at: Duration, taken_by_hypervisor: Duration) -> Sample {
        let mut sample = Sample {
            at,
            taken_by_hypervisor,
            ..Sample::default()
        };
        for dispatcher in self.dispatchers.iter() {
            let levels = dispatcher.levels();
            sample.waiting += levels.waiting;
            sample.started += levels.started;
            sample.running += levels.running;
            sample.workers_blocked += levels.workers_blocked;
            sample.rescued += levels.rescued;
        }
        sample.helped = self
            .workers
            .iter()
            .map(|worker| worker.helped_others())
            .sum();
        let in_force = self.in_force.as_ref();
        sample.quanta_changed = in_force.map_or(0, |in_force| in_force.changes());
        sample
    }
}

/// A slice whose request is not put together yet.
struct Piece {
    lane: usize,
    event: Event,
}

impl Trace {
    /// Every slice, by its start.
    #[must_use]
    pub fn slices(&self) -> &[Slice] {
        &self.slices
    }

    /// The queues, about every millisecond.
    #[must_use]
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// How long the recording lasted.
    #[must_use]
    pub const fn duration(&self) -> Duration {
        self.duration
    }

    /// Slices that found no room. The trace ends where the first of a worker's began, since what
    /// came later has gaps; where only spares had no room, their lanes end so. Of a request that
    /// may have run there then, the parts are told as requests of their own, the first of them
    /// without a class.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The threads' names.
    #[must_use]
    pub fn lanes(&self) -> &[String] {
        &self.lanes
    }

    /// Puts requests together from the slices that each thread wrote, and the times for which it
    /// was blocked. `start` is the recording's start by `clock`; `open` has the request of each
    /// context that had started and not ended right before the recording's end.
    pub(super) fn take_up(
        &mut self,
        records: &[Record],
        open: &HashMap<ContextId, Meta>,
        blocks: &Blocks,
        (start, clock): (u64, Clock),
    ) {
        self.dropped = records.iter().map(|record| record.dropped).sum();
        let (of_workers, of_spares) = records.split_at(self.workers.min(records.len()));
        let dropped = of_workers.iter().filter_map(|record| record.first_dropped);
        let cut = dropped.min();
        if let Some(cut) = cut {
            let end = clock.nanos_at(cut).saturating_sub(start);
            self.duration = self.duration.min(Duration::from_nanos(end));
            self.samples.retain(|sample| sample.at <= self.duration);
        }
        let mut contexts = HashMap::<ContextId, Vec<Piece>>::new();
        for (lane, record) in records.iter().enumerate() {
            let is_whole = |event: &&Event| cut.is_none_or(|cut| event.start < cut);
            for &event in record.events.iter().filter(is_whole) {
                let pieces = contexts.entry(event.context).or_default();
                pieces.push(Piece { lane, event });
            }
        }
        let from_start = |nanos: u64| Duration::from_nanos(nanos.saturating_sub(start));
        let mut request = 0;
        for (context, mut pieces) in contexts {
            pieces.sort_by_key(|piece| piece.event.start);
            let gap = of_spares.iter().filter_map(|spare| spare.gap(context));
            let gap = gap.min();
            // What came after a cut was another request, perhaps.
            let open = open.get(&context).filter(|_| cut.is_none());
            let open = open.filter(|open| !pieces.iter().any(|piece| piece.event.ends(open)));
            for of_one in requests(&pieces, gap) {
                let last = of_one.last().expect("a request has a slice").event;
                let meta = match last.stop {
                    Stop::Finished | Stop::Failed => Some(last.meta()),
                    Stop::Lost => None,
                    // Likewise what came after a gap.
                    _ if gap.is_some() && last.stop != Stop::Running => None,
                    _ => open.copied(),
                };
                let cut = |&Piece { lane, event }: &Piece| {
                    let parts = blocks.cut(lane, event).into_iter();
                    parts.map(move |event| (lane, event))
                };
                let mut free_from = 0;
                let slices = of_one.iter().flat_map(cut).map(|(lane, event)| {
                    // A loop reads the clock before it finds the request that another has left.
                    let begin = clock.nanos_at(event.start).max(free_from);
                    free_from = clock.nanos_at(event.end).max(begin);
                    let age = |meta: Meta| begin.saturating_sub(meta.arrival.0);
                    Slice {
                        lane,
                        request,
                        arrived_nanos: meta.map(|meta| meta.arrival.0),
                        class: meta.map(|meta| meta.class),
                        start: from_start(begin),
                        end: from_start(free_from),
                        stop: event.stop,
                        age: meta.map(|meta| Duration::from_nanos(age(meta))),
                        taken_from: event.taken_from.map(usize::from),
                    }
                });
                self.slices.extend(slices);
                request += 1;
            }
        }
        self.slices.sort_by_key(|slice| (slice.start, slice.lane));
        let mut numbers = HashMap::new();
        for slice in &mut self.slices {
            let next = numbers.len() as u64;
            slice.request = *numbers.entry(slice.request).or_insert(next);
        }
    }

    /// Writes a file for <https://ui.perfetto.dev> or chrome://tracing.
    ///
    /// # Errors
    /// The errors of writing, with the file's name.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let mut file = io::BufWriter::new(std::fs::File::create(path).map_err(named)?);
        self.write_json(&mut file)
            .and_then(|()| file.flush())
            .map_err(named)
    }

    /// Writes the file's text.
    ///
    /// # Errors
    /// The errors of writing.
    pub fn write_json(&self, to: &mut impl Write) -> io::Result<()> {
        writeln!(to, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        write!(to, "{}", metadata("process_name", 0, "shinjuku"))?;
        let mut used = vec![false; self.lanes.len()];
        self.slices.iter().for_each(|slice| used[slice.lane] = true);
        let lanes = self.lanes.iter().enumerate();
        for (lane, name) in lanes.filter(|&(lane, _)| used[lane] || lane < self.workers) {
            write!(to, ",\n{}", metadata("thread_name", lane, name))?;
        }
        for slice in &self.slices {
            write!(to, ",\n{}", self.slice_event(slice))?;
        }
        self.write_arrows(to)?;
        self.write_taken(to)?;
        self.write_samples(to)?;
        writeln!(to, "\n]}}")
    }

    fn slice_event(&self, slice: &Slice) -> String {
        let name = match slice
            .class
            .map(|class| self.classes.get(usize::from(class.0)))
        {
            Some(Some(name)) => name,
            Some(None) => "unknown class",
            None => "unknown",
        };
        let age = slice
            .age
            .map_or_else(String::new, |age| format!(",\"age_us\":{}", Micros(age)));
        // As text: viewers have numbers of 53 bits.
        let arrived = slice
            .arrived_nanos
            .map_or_else(String::new, |nanos| format!(",\"arrived_ns\":\"{nanos}\""));
        format!(
            "{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"ts\":{},\"dur\":{},\"name\":{},\
             \"args\":{{\"request\":{},\"stop\":{}{age}{arrived}}}}}",
            slice.lane,
            Micros(slice.start),
            Micros(slice.end.saturating_sub(slice.start)),
            Quoted(name),
            slice.request,
            Quoted(&slice.stop.to_string()),
        )
    }

    /// Writes an arrow from each slice of a request to its next one.
    fn write_arrows(&self, to: &mut impl Write) -> io::Result<()> {
        let mut last = HashMap::<u64, &Slice>::new();
        let mut number = 0;
        for slice in &self.slices {
            if let Some(before) = last.insert(slice.request, slice) {
                for (phase, lane, at) in [
                    ("\"s\"", before.lane, before.end),
                    ("\"f\",\"bp\":\"e\"", slice.lane, slice.start),
                ] {
                    write!(
                        to,
                        ",\n{{\"ph\":{phase},\"pid\":1,\"tid\":{lane},\"ts\":{},\"id\":{number},\
                         \"cat\":\"resumed\",\"name\":\"resumed\"}}",
                        Micros(at)
                    )?;
                }
                number += 1;
            }
        }
        Ok(())
    }

    /// Writes a mark where a loop took a request from another's queue.
    fn write_taken(&self, to: &mut impl Write) -> io::Result<()> {
        for slice in &self.slices {
            let Some(from) = slice.taken_from.and_then(|queue| self.lanes.get(queue)) else {
                continue;
            };
            let name = format!("taken from {from}");
            write!(
                to,
                ",\n{{\"ph\":\"i\",\"s\":\"t\",\"pid\":1,\"tid\":{},\"ts\":{},\"name\":{},\
                 \"args\":{{\"request\":{}}}}}",
                slice.lane,
                Micros(slice.start),
                Quoted(&name),
                slice.request
            )?;
        }
        Ok(())
    }

    fn write_samples(&self, to: &mut impl Write) -> io::Result<()> {
        let mut last: Option<&Sample> = None;
        for sample in &self.samples {
            let at = Micros(sample.at);
            write!(
                to,
                ",\n{{\"ph\":\"C\",\"pid\":1,\"ts\":{at},\"name\":\"requests\",\
                 \"args\":{{\"waiting\":{},\"started\":{},\"running\":{}}}}}",
                sample.waiting, sample.started, sample.running
            )?;
            let last = last.replace(sample).unwrap_or(sample);
            for (name, happened) in [
                (
                    "a worker is blocked",
                    sample.workers_blocked > last.workers_blocked,
                ),
                ("rescued at a spare", sample.rescued > last.rescued),
                (
                    "auto changes a quantum",
                    sample.quanta_changed > last.quanta_changed,
                ),
                (
                    "the hypervisor had a core",
                    sample.taken_by_hypervisor > last.taken_by_hypervisor,
                ),
            ] {
                if happened {
                    write!(
                        to,
                        ",\n{{\"ph\":\"i\",\"s\":\"p\",\"pid\":1,\"tid\":0,\"ts\":{at},\"name\":\"{name}\"}}"
                    )?;
                }
            }
        }
        Ok(())
    }
}

/// What each request of a context ran for, one after the other. From `gap` on, slices may be
/// missing between two, which then count as of two requests.
fn requests(pieces: &[Piece], gap: Option<Cycles>) -> impl Iterator<Item = &[Piece]> {
    pieces.chunk_by(move |one, next| {
        let is_next = gap.is_none_or(|gap| next.event.start < gap);
        one.event.stop.is_preempted() && is_next
    })
}

fn metadata(what: &str, lane: usize, name: &str) -> String {
    format!(
        "{{\"ph\":\"M\",\"pid\":1,\"tid\":{lane},\"name\":\"{what}\",\"args\":{{\"name\":{}}}}}",
        Quoted(name)
    )
}

/// Microseconds, to the nanosecond.
struct Micros(Duration);

impl Display for Micros {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        write!(formatter, "{}.{:03}", nanos / 1_000, nanos % 1_000)
    }
}

/// A string of JSON.
pub(crate) struct Quoted<'a>(pub(crate) &'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("\"")?;
        for symbol in self.0.chars() {
            match symbol {
                '"' | '\\' => write!(formatter, "\\{symbol}")?,
                ' '.. => write!(formatter, "{symbol}")?,
                control => write!(formatter, "\\u{:04x}", u32::from(control))?,
            }
        }
        formatter.write_str("\"")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use shinjuku_policy::Nanos;

    use super::*;

    const GET: ClassId = ClassId(0);
    const SCAN: ClassId = ClassId(1);

    /// So many times a thousand cycles after these tests began.
    fn moment(thousands: u64) -> Cycles {
        static BEGIN: OnceLock<Cycles> = OnceLock::new();
        Cycles(BEGIN.get_or_init(Cycles::now).0 + 1_000 * thousands)
    }

    fn event(context: u16, start: u64, stop: Stop, class: ClassId) -> Event {
        Event {
            start: moment(start),
            end: moment(start + 50),
            context: ContextId(context),
            stop,
            class,
            arrival: Nanos(start - 10),
            taken_from: None,
        }
    }

    /// Of a worker and a spare that wrote these.
    fn taken_up(worker: Record, spare: Record) -> Trace {
        let mut trace = Trace {
            slices: Vec::new(),
            samples: Vec::new(),
            duration: Duration::from_secs(1),
            dropped: 0,
            lanes: vec!["worker".to_owned(), "spare".to_owned()],
            workers: 1,
            classes: vec!["get".to_owned(), "scan".to_owned()],
        };
        let records = [worker, spare];
        let (open, blocks) = (HashMap::new(), Blocks::default());
        let clock = Clock::get();
        let start = clock.nanos_at(moment(0));
        trace.take_up(&records, &open, &blocks, (start, clock));
        trace
    }

    fn record(events: Vec<Event>) -> Record {
        Record {
            events,
            ..Record::default()
        }
    }

    /// A request of context 1 is preempted, ends at the spare, which has no room for that, and
    /// another one follows in its context. What context 2 does is not the spare's.
    #[test]
    fn a_full_spare_cuts_its_own_lane_only() {
        let worker = record(vec![
            event(1, 1_000, Stop::Probe, GET),
            event(2, 2_000, Stop::Probe, GET),
            event(1, 5_000, Stop::Finished, SCAN),
            event(2, 6_000, Stop::Finished, GET),
        ]);
        let spare = Record {
            dropped: 1,
            first_dropped: Some(moment(3_000)),
            dropped_of: super::super::bit(ContextId(1)),
            ..record(Vec::new())
        };
        let trace = taken_up(worker, spare);
        assert_eq!(
            (trace.dropped(), trace.duration()),
            (1, Duration::from_secs(1))
        );
        let told = trace
            .slices()
            .iter()
            .map(|slice| (slice.request, slice.class));
        assert_eq!(
            told.collect::<Vec<_>>(),
            [(0, None), (1, Some(GET)), (2, Some(SCAN)), (1, Some(GET))]
        );
    }

    #[test]
    fn a_request_is_nowhere_before_it_was_left() {
        let worker = record(vec![event(1, 1_000, Stop::Probe, GET)]);
        let spare = record(vec![event(1, 1_040, Stop::Finished, GET)]);
        let trace = taken_up(worker, spare);
        let [before, after] = trace.slices() else {
            panic!("{:?}", trace.slices())
        };
        assert_eq!((before.request, before.end), (after.request, after.start));
        assert!(after.start < after.end);
    }

    #[test]
    fn a_full_worker_ends_the_trace() {
        let worker = Record {
            dropped: 1,
            first_dropped: Some(moment(1_500)),
            ..record(vec![event(1, 1_000, Stop::Finished, GET)])
        };
        let trace = taken_up(worker, record(vec![event(2, 2_000, Stop::Finished, GET)]));
        assert_eq!(trace.slices().len(), 1);
        assert!(trace.duration() < Duration::from_secs(1));
    }

    /// However often it is recorded, a request has the same moment of arrival, and in one recording
    /// the number by which it ran.
    #[test]
    fn requests_are_numbered_as_they_run_and_known_by_their_arrival() {
        let events = (0..40).map(|n| event(n, 1_000 + 100 * u64::from(n), Stop::Finished, GET));
        let trace = taken_up(record(events.collect()), Record::default());
        let numbers = trace.slices().iter().map(|slice| slice.request);
        assert!(numbers.eq(0..40));
        assert_eq!(trace.slices()[3].arrived_nanos, Some(1_290));
        let mut file = Vec::new();
        trace.write_json(&mut file).unwrap();
        let file = String::from_utf8(file).unwrap();
        assert!(file.contains("\"arrived_ns\":\"1290\""), "{file}");
    }
}
