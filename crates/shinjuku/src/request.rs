//! A request within the runtime: what goes into a context and what comes out, and which requests
//! have started and not ended.
//!
//! The statistics tell of a request only when it has ended. Of the others each context has a note.
//! The code in the context writes the note, which costs a request three stores to a cache line of
//! its own. A reader that finds a note changing takes nothing from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use shinjuku_net::Transport;
use shinjuku_policy::{ClassId, Nanos};
use shinjuku_preempt::{Clock, ContextId, Cycles};

use crate::observer::Observer;

/// What the core needs to know of a request from arrival to reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    pub(crate) class: ClassId,
    pub(crate) arrival: Nanos,
}

/// Into a context: the request and the way back.
pub(crate) struct Job<Tr: Transport> {
    pub(crate) meta: Meta,
    pub(crate) request: Tr::Request,
    pub(crate) route: Tr::Route,
}

/// Out of a context: what the worker has to send.
pub(crate) struct Done<Tr: Transport> {
    pub(crate) meta: Meta,
    pub(crate) outgoing: Tr::Outgoing,
    pub(crate) failed: bool,
}

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

    /// The request that has started in `context`.
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

    /// The requests that have started and not ended, with their contexts.
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
    /// The thread on which it runs, as timelines name it; `None` if it is preempted and waits.
    pub thread: Option<String>,
    /// Since it was started or resumed, if it runs.
    pub runs_for: Duration,
}

impl Observer {
    /// The requests that have started and not ended, the oldest first, at most `most` of them.
    /// Allocates; stops no thread.
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
