//! The state that a [`Ticket`](crate::Ticket) or a [`Job`](crate::pool::Job) shares with its
//! request: the answer, and the waiter for it.
//!
//! The submitting thread allocates all of it. One side alone has the right to answer, and stores
//! the answer in place, so a context neither allocates nor waits for that:
//!
//! ```text
//!   IDLE ⇄ HELD ⇄ WAITING        the claim's owner registers a waiter (a thread or a waker) under HELD
//!     └──────┴───────┴──▶ DONE   the answer is there; if it was stored in WAITING, the waiter is woken
//! ```
//!
//! As in [`ring`](crate::in_process::ring) the mutexes only make the hand-over safe Rust. The state
//! says which side may use them, and no thread ever waits for one.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use shinjuku_preempt::give_way_until;

use crate::completion_thread::{CompletionThread, Waits};

/// There is no waiter.
const IDLE: u8 = 0;
/// A thread is changing the waiter.
const HELD: u8 = 1;
/// The waiter is to be woken.
const WAITING: u8 = 2;
/// The answer is there. Final.
const DONE: u8 = 3;

/// The shared state.
pub(crate) struct Answer<Out> {
    state: AtomicU8,
    out: Mutex<Option<Out>>,
    waiter: Mutex<Option<Waiter>>,
    completion_thread: Arc<CompletionThread>,
}

/// What a waiter finds.
pub(crate) enum Found<Out> {
    Answer(Out),
    /// The answer was handed out before.
    Taken,
    /// The runtime ended, and no answer will come.
    Ended,
}

enum Waiter {
    Thread(Thread),
    Task(Waker),
}

impl Waiter {
    /// Wakes a thread here. A waker is a user's code, so the completion thread calls it.
    fn wake(self, completion_thread: &CompletionThread) {
        match self {
            Self::Thread(thread) => thread.unpark(),
            Self::Task(waker) => completion_thread.carry(waker),
        }
    }
}

impl<Out> Answer<Out> {
    pub(crate) fn new(completion_thread: Arc<CompletionThread>) -> Self {
        Self {
            state: AtomicU8::new(IDLE),
            out: Mutex::new(None),
            waiter: Mutex::new(None),
            completion_thread,
        }
    }

    /// Answers. Neither allocates nor drops an answer; called once.
    pub(crate) fn answer(&self, out: Out) {
        put(&self.out, Some(out));
        if self.state.swap(DONE, Ordering::AcqRel) == WAITING
            && let Some(waiter) = put(&self.waiter, None)
        {
            waiter.wake(&self.completion_thread);
        }
    }

    pub(crate) fn completion_thread(&self) -> &Arc<CompletionThread> {
        &self.completion_thread
    }

    /// For `Debug`.
    pub(crate) fn state(&self) -> &'static str {
        match self.state.load(Ordering::Relaxed) {
            DONE => "answered",
            WAITING => "awaited",
            _ => "unanswered",
        }
    }

    /// What a waiter finds at this moment; `None`: it has to wait.
    fn look(&self) -> Option<Found<Out>> {
        // In this order, so that an answer from before the end counts.
        let ended = self.completion_thread.has_ended();
        if self.state.load(Ordering::Acquire) == DONE {
            return Some(put(&self.out, None).map_or(Found::Taken, Found::Answer));
        }
        ended.then_some(Found::Ended)
    }

    /// Has `waiter` woken when there is an outcome. If there is one already, the waiter is not
    /// woken, so look after this.
    fn register(&self, waiter: Waiter) {
        if !(self.advance(IDLE, HELD) || self.advance(WAITING, HELD)) {
            // Answered, or held by the end of the runtime.
            return;
        }
        let before = put(&self.waiter, Some(waiter));
        if !self.advance(HELD, WAITING) {
            // The answer came meanwhile, and has not woken the waiter.
            put(&self.waiter, None);
        }
        // It may be a waker, a user's code, so it is dropped while nothing is held.
        drop(before);
    }

    /// Drops the waiter of a claim that is dropped. The request may be on its way for long, so the
    /// waiter is not left to be dropped with it.
    fn forget_waiter(&self) {
        if self.advance(WAITING, HELD) {
            let waiter = put(&self.waiter, None);
            let _ = self.advance(HELD, IDLE);
            drop(waiter);
        }
    }

    /// Advances the state, sequentially consistent because of the end of the runtime: the end sets
    /// its flag and then looks for a waiter, and the claim's owner sets the waiter and then looks
    /// for the flag.
    fn advance(&self, from: u8, to: u8) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// The end of the runtime has come.
    pub(crate) fn wake_at_the_end(&self) {
        if !self.advance(WAITING, HELD) {
            return;
        }
        let waiter = put(&self.waiter, None);
        // This fails if the answer has come meanwhile. It has found HELD and woken no waiter, so
        // the waiter is woken here in that case, too.
        let _ = self.advance(HELD, IDLE);
        if let Some(waiter) = waiter {
            waiter.wake(&self.completion_thread);
        }
    }
}

/// Exchanges the content of a cell that, by some state, only the caller uses.
pub(crate) fn put<T>(cell: &Mutex<Option<T>>, value: Option<T>) -> Option<T> {
    std::mem::replace(
        &mut *cell.lock().unwrap_or_else(PoisonError::into_inner),
        value,
    )
}

/// Something that contains an answer.
pub(crate) trait Answers: Waits {
    type Out;

    fn answer(&self) -> &Answer<Self::Out>;

    /// The waiter that the end of the runtime wakes.
    fn waits(self: Arc<Self>) -> Weak<dyn Waits>;
}

impl<Out: Send> Waits for Answer<Out> {
    fn wake_at_the_end(&self) {
        Answer::wake_at_the_end(self);
    }
}

impl<Out: Send + 'static> Answers for Answer<Out> {
    type Out = Out;

    fn answer(&self) -> &Self {
        self
    }

    fn waits(self: Arc<Self>) -> Weak<dyn Waits> {
        Arc::downgrade(&(self as Arc<dyn Waits>))
    }
}

/// The side that waits.
pub(crate) struct Claim<A: Answers + ?Sized> {
    pub(crate) source: Arc<A>,
    /// Whether the completion thread lists the waiter, to wake it at the end of the runtime.
    listed: bool,
}

impl<A: Answers + ?Sized> Claim<A> {
    pub(crate) fn new(source: Arc<A>) -> Self {
        Self {
            source,
            listed: false,
        }
    }

    /// What the claim's owner finds at this moment; `None`: it has to wait.
    pub(crate) fn look(&self) -> Option<Found<A::Out>> {
        self.source.answer().look()
    }

    /// Blocks until there is an outcome, or `deadline` has come. A context gives way for a while
    /// before it blocks.
    pub(crate) fn wait_until(&mut self, deadline: Option<Instant>) -> Option<Found<A::Out>> {
        if let Some(found) = self.look() {
            return Some(found);
        }
        if let Some(found) = give_way_until(deadline, || self.look()) {
            return Some(found);
        }
        self.register(Waiter::Thread(thread::current()));
        loop {
            if let Some(found) = self.look() {
                return Some(found);
            }
            match deadline {
                None => thread::park(),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    thread::park_timeout(left);
                }
            }
        }
    }

    /// Looks for a task, and has it woken when there is an outcome.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Found<A::Out>> {
        if let Some(found) = self.look() {
            return Poll::Ready(found);
        }
        self.register(Waiter::Task(context.waker().clone()));
        self.look().map_or(Poll::Pending, Poll::Ready)
    }

    fn register(&mut self, waiter: Waiter) {
        let answer = self.source.answer();
        if !self.listed {
            let waits = Arc::clone(&self.source).waits();
            self.listed = answer.completion_thread.list(self.key(), waits);
        }
        answer.register(waiter);
    }

    /// A key that no other claim has while this one lives.
    fn key(&self) -> usize {
        Arc::as_ptr(&self.source).addr()
    }
}

impl<A: Answers + ?Sized> Drop for Claim<A> {
    fn drop(&mut self) {
        if self.listed {
            let answer = self.source.answer();
            answer.completion_thread.unlist(self.key());
            answer.forget_waiter();
        }
    }
}
