//! Which requests have started and not ended: a note for each context, for readers that want to
//! know now, and not at the end.
//!
//! The code in the context writes its own note, three stores to a line of its own for a request.
//! A reader may find a note that is about to change, and takes what it says of one request or
//! nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use shinjuku_policy::{ClassId, Nanos};
use shinjuku_preempt::{Clock, ContextId, Cycles};

use crate::observer::{Arrangement, Observer};
use crate::request::Meta;

/// A note for each context.
#[derive(Debug)]
pub(crate) struct Started(Box<[CachePadded<Note>]>);

#[derive(Debug, Default)]
struct Note {
    arrival: AtomicU64,
    /// The class's number plus one; 0: no request. Written after `arrival`.
    class: AtomicU32,
}

impl Started {
    pub(crate) fn new(contexts: usize) -> Arc<Self> {
        Arc::new(Self(
            (0..contexts).map(|_| CachePadded::default()).collect(),
        ))
    }

    /// How many contexts there are.
    pub(crate) fn contexts(&self) -> usize {
        self.0.len()
    }

    /// The calling context begins a request.
    pub(crate) fn begins(&self, context: ContextId, meta: Meta) {
        let note = &self.0[usize::from(context.0)];
        note.arrival.store(meta.arrival.0, Ordering::Relaxed);
        note.class
            .store(u32::from(meta.class.0) + 1, Ordering::Release);
    }

    /// The calling context has ended its request.
    pub(crate) fn ends(&self, context: ContextId) {
        self.0[usize::from(context.0)]
            .class
            .store(0, Ordering::Release);
    }

    /// What has started in `context`.
    pub(crate) fn of(&self, context: ContextId) -> Option<Meta> {
        let note = self.0.get(usize::from(context.0))?;
        let class = note.class.load(Ordering::Acquire);
        let arrival = Nanos(note.arrival.load(Ordering::Acquire));
        if note.class.load(Ordering::Relaxed) != class {
            return None;
        }
        let class = ClassId(u16::try_from(class.checked_sub(1)?).ok()?);
        Some(Meta { class, arrival })
    }

    /// What has started and not ended, by its context.
    pub(crate) fn all(&self) -> impl Iterator<Item = (ContextId, Meta)> {
        let contexts = (0..=u16::MAX).map(ContextId).take(self.0.len());
        contexts.filter_map(|context| Some((context, self.of(context)?)))
    }
}

/// A request that has started and not ended; see [`Observer::oldest_requests`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StartedRequest {
    /// The name of its class.
    pub class: String,
    /// Since it arrived.
    pub age: Duration,
    /// The thread on which it runs, as timelines name it; `None`: it is preempted and waits.
    pub thread: Option<String>,
    /// Since it was started or resumed, if it runs.
    pub runs_for: Duration,
}

/// A thread that runs requests, as it is now; see [`Observer::threads`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ThreadState {
    /// As timelines name it.
    pub name: String,
    /// The class of the request that runs there; `None`: none does.
    pub class: Option<String>,
    /// Since that was started or resumed.
    pub runs_for: Duration,
    /// Requests that wait in the queue which this loop serves first, as told some milliseconds ago
    /// at the most. `None`: the thread has none of its own, and a dispatcher has the queue.
    pub waiting: Option<u64>,
}

impl Observer {
    /// The workers or loops as they are now, and the spares that run a request. Allocates; stops no
    /// thread.
    ///
    /// ```
    /// use shinjuku::Pool;
    ///
    /// let pool = Pool::builder(["batch"]).workers(1).start()?;
    /// let observer = pool.observer();
    /// let threads = pool.run("batch", move || observer.threads()).wait()?;
    /// assert!(threads.iter().any(|thread| thread.class.as_deref() == Some("batch")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn threads(&self) -> Vec<ThreadState> {
        let clock = Clock::get();
        let Arrangement {
            serving, are_loops, ..
        } = *self.arrangement;
        let running = self.recorder.running();
        let now = Cycles::now();
        let state = |(thread, slice): (usize, Option<(ContextId, Cycles)>)| {
            let runs = slice.and_then(|(context, start)| Some((self.started.of(context)?, start)));
            let home = thread % self.dispatchers.len();
            ThreadState {
                name: self.recorder.name(thread).to_owned(),
                class: runs.map(|(meta, _)| self.class_names[usize::from(meta.class.0)].clone()),
                runs_for: Duration::from_nanos(
                    runs.map_or(0, |(_, start)| clock.to_nanos(now.since(start))),
                ),
                waiting: (are_loops && thread < serving).then(|| self.dispatchers[home].waiting()),
            }
        };
        (running.into_iter().enumerate().map(state))
            .enumerate()
            .filter(|(thread, state)| *thread < serving || state.class.is_some())
            .map(|(_, state)| state)
            .collect()
    }

    /// How many requests have started, and wait now, of each class.
    pub(crate) fn suspended(&self) -> Vec<u64> {
        let mut classes = vec![0; self.class_names.len()];
        let running = self.recorder.running();
        for (context, meta) in self.started.all() {
            let runs = running.iter().flatten().any(|(other, _)| *other == context);
            classes[usize::from(meta.class.0)] += u64::from(!runs);
        }
        classes
    }

    /// The requests that have started and not ended now, the oldest first, `most` of them at the
    /// most. Allocates; stops no thread.
    ///
    /// ```
    /// use shinjuku::Pool;
    ///
    /// let pool = Pool::new(["batch"])?;
    /// let observer = pool.observer();
    /// let oldest = pool.run("batch", move || observer.oldest_requests(3)).wait()?;
    /// assert_eq!(oldest[0].class, "batch");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn oldest_requests(&self, most: usize) -> Vec<StartedRequest> {
        let clock = Clock::get();
        let running = self.recorder.running();
        let mut started: Vec<_> = self.started.all().collect();
        started.sort_by_key(|(_, meta)| meta.arrival);
        let (nanos, cycles) = (clock.now_nanos(), Cycles::now());
        let request = |(context, meta): (ContextId, Meta)| {
            let slice = running.iter().enumerate().find_map(|(thread, slice)| {
                let (running, start) = (*slice)?;
                (running == context).then_some((thread, start))
            });
            let runs_for = slice.map_or(0, |(_, start)| clock.to_nanos(cycles.since(start)));
            StartedRequest {
                class: self.class_names[usize::from(meta.class.0)].clone(),
                age: Duration::from_nanos(nanos.saturating_sub(meta.arrival.0)),
                thread: slice.map(|(thread, _)| self.recorder.name(thread).to_owned()),
                runs_for: Duration::from_nanos(runs_for),
            }
        };
        started.into_iter().take(most).map(request).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_there_from_start_to_end() {
        let started = Started::new(3);
        let meta = |class, arrival| Meta {
            class: ClassId(class),
            arrival: Nanos(arrival),
        };
        started.begins(ContextId(1), meta(0, 7));
        started.begins(ContextId(2), meta(u16::MAX, 5));
        let found: Vec<_> = started
            .all()
            .map(|(context, meta)| (context.0, meta.class.0, meta.arrival.0))
            .collect();
        assert_eq!(found, [(1, 0, 7), (2, u16::MAX, 5)]);
        started.ends(ContextId(1));
        assert!(started.of(ContextId(1)).is_none() && started.of(ContextId(9)).is_none());
    }
}
