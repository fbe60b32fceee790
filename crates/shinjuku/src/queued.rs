//! Which requests wait and never ran, for readers that want to know now.
//!
//! ```text
//!   reader ──asks──▶ Queued ◀──tells── dispatcher, at its next look, if somebody has asked
//!      └───reads, once that has happened─┘
//! ```
//!
//! What waits is its dispatcher's own, and nobody else can look at it. So a reader asks, and the
//! dispatcher goes through its queue when it looks around the next time: some nanoseconds for each
//! request, and through [`LOOKED_AT`] of them at most, the oldest: a queue may hold millions, and
//! meanwhile nobody is served. While nobody asks, it costs a load at each look.
//!
//! The version is odd while the dispatcher writes. A reader that meets that reads again.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use shinjuku_policy::{ClassId, Nanos};
use shinjuku_preempt::Clock;

use crate::observer::Observer;
use crate::request::Meta;

/// So many are told one by one.
const TOLD: usize = 8;
/// So many are looked at for an answer: some microseconds.
const LOOKED_AT: usize = 1024;
/// A dispatcher that serves looks around more often than this, also if it is idle.
const PATIENCE: Duration = Duration::from_millis(60);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// What one dispatcher tells.
#[derive(Debug)]
pub(crate) struct Queued {
    is_asked: AtomicBool,
    version: AtomicU64,
    /// How many of those that were looked at wait, by class.
    classes: Box<[AtomicU64]>,
    /// How many more wait.
    beyond: AtomicU64,
    oldest: [Note; TOLD],
}

#[derive(Debug, Default)]
struct Note {
    arrival: AtomicU64,
    /// The class's number plus one; 0: no request.
    class: AtomicU32,
}

/// What was read of it.
#[derive(PartialEq, Eq, Default, Debug)]
struct Told {
    classes: Vec<u64>,
    beyond: u64,
    oldest: Vec<Meta>,
}

impl Queued {
    pub(crate) fn new(classes: usize) -> Self {
        Self {
            is_asked: AtomicBool::new(false),
            version: AtomicU64::new(0),
            classes: (0..classes).map(|_| AtomicU64::new(0)).collect(),
            beyond: AtomicU64::new(0),
            oldest: Default::default(),
        }
    }

    /// By the dispatcher: whether somebody wants to know.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }

    /// By the dispatcher: these wait and never ran, about the oldest first; `all` in number.
    pub(crate) fn tell(&self, fresh: impl Iterator<Item = Meta>, all: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.is_asked.store(false, Ordering::Relaxed);
        for class in &self.classes {
            class.store(0, Ordering::Relaxed);
        }
        let (mut oldest, mut looked_at) = ([None; TOLD], 0);
        for meta in fresh.take(LOOKED_AT) {
            looked_at += 1;
            if let Some(class) = self.classes.get(usize::from(meta.class.0)) {
                class.store(class.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
            keep_oldest(&mut oldest, meta);
        }
        let beyond = all.saturating_sub(looked_at) as u64;
        self.beyond.store(beyond, Ordering::Relaxed);
        for (note, meta) in self.oldest.iter().zip(oldest) {
            let class = meta.map_or(0, |meta| u32::from(meta.class.0) + 1);
            let arrival = meta.map_or(0, |meta| meta.arrival.0);
            note.arrival.store(arrival, Ordering::Relaxed);
            note.class.store(class, Ordering::Relaxed);
        }
        self.version.store(version + 2, Ordering::Release);
    }

    /// Wants to know; gives the version before the answer.
    fn ask(&self) -> u64 {
        let version = self.version.load(Ordering::Acquire);
        self.is_asked.store(true, Ordering::Release);
        version
    }

    /// What was told after `version`; `None`: nothing yet.
    fn read_after(&self, version: u64) -> Option<Told> {
        let before = self.version.load(Ordering::Acquire);
        if before <= version || before % 2 == 1 {
            return None;
        }
        let count = |class: &AtomicU64| class.load(Ordering::Relaxed);
        let meta = |note: &Note| {
            let class = note.class.load(Ordering::Relaxed).checked_sub(1)?;
            Some(Meta {
                class: ClassId(class as u16),
                arrival: Nanos(note.arrival.load(Ordering::Relaxed)),
            })
        };
        let told = Told {
            classes: self.classes.iter().map(count).collect(),
            beyond: count(&self.beyond),
            oldest: self.oldest.iter().filter_map(meta).collect(),
        };
        fence(Ordering::Acquire);
        (self.version.load(Ordering::Relaxed) == before).then_some(told)
    }
}

/// Puts `meta` among the oldest, which are in their order, if it is one of them.
fn keep_oldest(oldest: &mut [Option<Meta>; TOLD], meta: Meta) {
    let is_later = |place: &Option<Meta>| place.is_none_or(|kept| kept.arrival > meta.arrival);
    if let Some(place) = oldest.iter().position(is_later) {
        oldest[place..].rotate_right(1);
        oldest[place] = Some(meta);
    }
}

/// The requests that wait and never ran; see [`Observer::queued`].
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct QueuedRequests {
    /// How many of each class, by number, of the 1,024 first in each queue.
    pub by_class: Vec<u64>,
    /// How many more wait, whose classes were not looked at.
    pub beyond: u64,
    /// The oldest ones, the oldest first: eight of each queue at the most.
    pub oldest: Vec<QueuedRequest>,
}

/// A request that waits and never ran.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QueuedRequest {
    /// The name of its class.
    pub class: String,
    /// Since it arrived.
    pub age: Duration,
}

impl Observer {
    /// The requests that wait now and never ran. Those that have run before and wait again are
    /// among the [started ones](Self::oldest_requests), and those that no loop has taken from the
    /// transport yet are known to nobody.
    ///
    /// Asks the dispatchers, and waits until each has looked at its queue: some milliseconds, 60 at
    /// most. What one does not tell by then is left out, as after the runtime's end. Allocates;
    /// stops no thread, but each dispatcher looks at up to 1,024 requests, some microseconds.
    ///
    /// ```
    /// use shinjuku::Pool;
    ///
    /// let pool = Pool::new(["interactive", "batch"])?;
    /// assert_eq!(pool.observer().queued().by_class, [0, 0]);
    /// # Ok::<(), shinjuku::StartError>(())
    /// ```
    #[must_use]
    pub fn queued(&self) -> QueuedRequests {
        let asked: Vec<_> = self
            .dispatchers
            .iter()
            .map(|one| one.queued.ask())
            .collect();
        let mut told: Vec<_> = asked.iter().map(|_| None).collect();
        let begin = Instant::now();
        loop {
            for ((dispatcher, version), told) in self.dispatchers.iter().zip(&asked).zip(&mut told)
            {
                if told.is_none() {
                    *told = dispatcher.queued.read_after(*version);
                }
            }
            if told.iter().all(Option::is_some) || begin.elapsed() > PATIENCE {
                break;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        self.put_together(told.into_iter().flatten())
    }

    fn put_together(&self, told: impl Iterator<Item = Told>) -> QueuedRequests {
        let mut by_class = vec![0; self.class_names.len()];
        let (mut beyond, mut oldest) = (0, Vec::new());
        for one in told {
            beyond += one.beyond;
            for (sum, number) in by_class.iter_mut().zip(one.classes) {
                *sum += number;
            }
            oldest.extend(one.oldest);
        }
        oldest.sort_by_key(|meta| meta.arrival);
        let now = Clock::get().now_nanos();
        let request = |meta: Meta| QueuedRequest {
            class: self.class_names[usize::from(meta.class.0)].clone(),
            age: Duration::from_nanos(now.saturating_sub(meta.arrival.0)),
        };
        QueuedRequests {
            by_class,
            beyond,
            oldest: oldest.into_iter().map(request).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(class: u16, arrival: u64) -> Meta {
        Meta {
            class: ClassId(class),
            arrival: Nanos(arrival),
        }
    }

    #[test]
    fn the_oldest_and_the_numbers_are_told_once_somebody_asks() {
        let queued = Queued::new(2);
        assert!(!queued.is_wanted());
        let version = queued.ask();
        assert!(queued.is_wanted() && queued.read_after(version).is_none());
        let arrivals = [9, 3, 7, 1, 8, 2, 6, 4, 5, 10];
        queued.tell(arrivals.iter().map(|&at| meta((at % 2) as u16, at)), 10);
        let told = queued.read_after(version).unwrap();
        assert_eq!((told.classes, told.beyond), (vec![5, 5], 0));
        let oldest: Vec<_> = told.oldest.iter().map(|meta| meta.arrival.0).collect();
        assert_eq!(oldest, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(!queued.is_wanted(), "it was answered");
        assert_eq!(
            queued.read_after(queued.ask()),
            None,
            "what was told is of before"
        );
    }

    #[test]
    fn what_waits_no_longer_is_not_told() {
        let queued = Queued::new(1);
        queued.tell([meta(0, 1), meta(0, 2)].into_iter(), 2);
        let version = queued.ask();
        queued.tell([meta(0, 2)].into_iter(), 1);
        let told = queued.read_after(version).unwrap();
        assert_eq!((told.classes, told.oldest), (vec![1], vec![meta(0, 2)]));
    }

    /// The dispatcher serves nobody while it goes through its queue.
    #[test]
    fn of_a_long_queue_only_the_oldest_are_looked_at() {
        let queued = Queued::new(2);
        let version = queued.ask();
        let mut looked_at = 0;
        let all = 1 << 20;
        let waiting = (0..all as u64).map(|at| meta((at % 2) as u16, at));
        queued.tell(waiting.inspect(|_| looked_at += 1), all);
        assert_eq!(looked_at, LOOKED_AT);
        let told = queued.read_after(version).unwrap();
        assert_eq!(told.classes, [512, 512]);
        assert_eq!(told.beyond, (all - LOOKED_AT) as u64);
        assert_eq!(told.oldest.len(), TOLD);
    }
}
