//! What one side answers and the other waits for: the state that a [`Ticket`](crate::Ticket) or a
//! [`Job`](crate::pool::Job) shares with the request on its way.
//!
//! Everything is allocated by who submits. The answer is stored in place, by the one that owns the
//! right to answer, so a context neither allocates nor waits for it:
//!
//! ```text
//!   IDLE ⇄ HELD ⇄ WAITING        the claim's owner registers a waiter (a thread or a waker) under HELD
//!     └──────┴───────┴──▶ DONE   who answers: the answer is there; whoever found WAITING wakes the waiter
//! ```
//!
//! As in [`ring`](crate::in_process::ring) the mutexes only make the hand-over safe Rust; the state
//! says whose turn it is, and no thread ever waits for one.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use shinjuku_preempt::give_way_until;

use crate::completion_thread::{CompletionThread, Waits};

/// No one waits.
const IDLE: u8 = 0;
/// Someone is changing the waiter.
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

/// What there is to say to who waits.
pub(crate) enum Found<Out> {
    Answer(Out),
    /// The answer was handed out before.
    Taken,
    /// The runtime ended, and no answer comes any more.
    Ended,
}

enum Waiter {
    Thread(Thread),
    Task(Waker),
}

impl Waiter {
    /// A thread is woken here; a waker is a user's code, hence the completion thread's business.
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

    /// What there is to say now.
    fn look(&self) -> Option<Found<Out>> {
        // In this order: what was answered before the end counts.
        let ended = self.completion_thread.has_ended();
        if self.state.load(Ordering::Acquire) == DONE {
            return Some(put(&self.out, None).map_or(Found::Taken, Found::Answer));
        }
        ended.then_some(Found::Ended)
    }

    /// Has `waiter` woken when there is an outcome. There may be one already, with no one to wake:
    /// look after it.
    fn register(&self, waiter: Waiter) {
        if !(self.advance(IDLE, HELD) || self.advance(WAITING, HELD)) {
            // Answered, or held by the end of the runtime.
            return;
        }
        let before = put(&self.waiter, Some(waiter));
        if !self.advance(HELD, WAITING) {
            // Answered meanwhile, by someone who leaves the waiter to us.
            put(&self.waiter, None);
        }
        // A waker, so a user's code: dropped with nothing held.
        drop(before);
    }

    /// No one waits any more. The waiter is dropped here and not with the request, which may be on
    /// its way for long.
    fn forget_waiter(&self) {
        if self.advance(WAITING, HELD) {
            let waiter = put(&self.waiter, None);
            let _ = self.advance(HELD, IDLE);
            drop(waiter);
        }
    }

    /// Sequentially consistent because of the end: it sets its flag and looks for a waiter, the
    /// claim's owner sets the waiter and looks for the flag.
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
        // Fails if it was answered meanwhile; then, too, we are the one to wake.
        let _ = self.advance(HELD, IDLE);
        if let Some(waiter) = waiter {
            waiter.wake(&self.completion_thread);
        }
    }
}

/// Exchanges the content of a cell that is the caller's alone, by some state.
pub(crate) fn put<T>(cell: &Mutex<Option<T>>, value: Option<T>) -> Option<T> {
    std::mem::replace(
        &mut *cell.lock().unwrap_or_else(PoisonError::into_inner),
        value,
    )
}

/// Something with an answer within.
pub(crate) trait Answers: Waits {
    type Out;

    fn answer(&self) -> &Answer<Self::Out>;

    /// As the end of the runtime sees it.
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
    /// Whether the completion thread knows of it, so that it is woken at the end of the runtime.
    listed: bool,
}

impl<A: Answers + ?Sized> Claim<A> {
    pub(crate) fn new(source: Arc<A>) -> Self {
        Self {
            source,
            listed: false,
        }
    }

    /// What there is to say now.
    pub(crate) fn look(&self) -> Option<Found<A::Out>> {
        self.source.answer().look()
    }

    /// Blocks until there is something to say, or `deadline` has come. A context gives way for a
    /// while before it blocks.
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

    /// The same for a task, which is woken.
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

    /// No other claim's while this one lives.
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
