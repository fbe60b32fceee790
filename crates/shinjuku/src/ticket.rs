//! The two ends of a reply: the [`Ticket`] that who submitted holds, and the [`Route`] that travels with the request.
//!
//! Everything is allocated when the pair is made, by who submits. The answer is stored in place and by nobody but the
//! route's owner, so a context neither allocates nor waits for it:
//!
//! ```text
//!   IDLE ⇄ HELD ⇄ WAITING        the ticket's owner registers a waiter (a thread or a waker) under HELD
//!     └──────┴───────┴──▶ DONE   the route's owner: the answer is there; whoever found WAITING wakes the waiter
//! ```
//!
//! As in [`ring`](crate::in_process::ring) the mutexes only make the hand-over safe Rust; the state says whose turn it
//! is, and nobody ever waits for one.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use shinjuku_net::{Failure, Refusal};
use shinjuku_preempt::in_context;

use crate::courier::{Courier, Waits, quietly};

/// Why there is no reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TicketError {
    /// The request was turned away before it started.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The request started but did not come to a reply.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// Waiting within a request handler: it would hold up the worker that may have to run what is waited for. Reply
    /// from the handler and let who submitted put the parts together, or look with [`Ticket::try_take`].
    #[error(
        "waiting for a reply within a request handler is not allowed: it would block the worker"
    )]
    InsideHandler,
    /// The runtime ended with the request unfinished.
    #[error("the runtime ended before the request was finished")]
    RuntimeEnded,
    /// The reply was handed out before.
    #[error("the reply of this ticket has been taken already")]
    Taken,
}

/// The claim to the reply of a submitted request.
///
/// Wait for it ([`wait`](Self::wait), [`wait_timeout`](Self::wait_timeout)), look for it ([`try_take`](Self::try_take)),
/// or await it: a ticket is a `Future` that needs no particular async runtime. Dropping the ticket lets the request
/// go on without anyone caring for its reply.
///
/// Waiting in any form inside a request handler resolves to [`TicketError::InsideHandler`] at once.
#[must_use = "without its ticket a request's reply is dropped"]
pub struct Ticket<Reply: Send + 'static> {
    answer: Arc<Answer<Reply>>,
    /// Whether the courier knows of it, so that it is woken at the end of the runtime.
    listed: bool,
}

/// The way back to a [`Ticket`]. Dropped without an answer, it answers [`TicketError::RuntimeEnded`].
pub struct Route<Reply: Send + 'static>(Option<Arc<Answer<Reply>>>);

/// Makes both ends.
pub(crate) fn ticket<Reply: Send + 'static>(
    courier: Arc<Courier>,
) -> (Ticket<Reply>, Route<Reply>) {
    let answer = Arc::new(Answer {
        state: AtomicU8::new(IDLE),
        result: Mutex::new(None),
        waiter: Mutex::new(None),
        courier,
    });
    let ticket = Ticket {
        answer: answer.clone(),
        listed: false,
    };
    (ticket, Route(Some(answer)))
}

/// Nobody waits.
const IDLE: u8 = 0;
/// Someone is changing the waiter.
const HELD: u8 = 1;
/// The waiter is to be woken.
const WAITING: u8 = 2;
/// The answer is there. Final.
const DONE: u8 = 3;

struct Answer<Reply> {
    state: AtomicU8,
    result: Mutex<Option<Result<Reply, TicketError>>>,
    waiter: Mutex<Option<Waiter>>,
    courier: Arc<Courier>,
}

enum Waiter {
    Thread(Thread),
    Task(Waker),
}

impl Waiter {
    /// A thread is woken here; a waker is a user's code, hence the courier's business.
    fn wake(self, courier: &Courier) {
        match self {
            Self::Thread(thread) => thread.unpark(),
            Self::Task(waker) => courier.carry(waker),
        }
    }
}

impl<Reply> Answer<Reply> {
    /// What there is to say to the ticket's owner now.
    fn outcome(&self) -> Option<Result<Reply, TicketError>> {
        // In this order: what was answered before the end counts.
        let ended = self.courier.has_ended();
        if self.state.load(Ordering::Acquire) == DONE {
            return Some(put(&self.result, None).unwrap_or(Err(TicketError::Taken)));
        }
        ended.then_some(Err(TicketError::RuntimeEnded))
    }

    /// Has `waiter` woken when there is an outcome. There may be one already, with nobody to wake: look after it.
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

    fn answer(&self, result: Result<Reply, TicketError>) {
        put(&self.result, Some(result));
        if self.state.swap(DONE, Ordering::AcqRel) == WAITING
            && let Some(waiter) = put(&self.waiter, None)
        {
            waiter.wake(&self.courier);
        }
    }

    /// Sequentially consistent because of the end: it sets its flag and looks for a waiter, the ticket's owner sets
    /// the waiter and looks for the flag.
    fn advance(&self, from: u8, to: u8) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}

impl<Reply: Send> Waits for Answer<Reply> {
    fn wake_at_the_end(&self) {
        if !self.advance(WAITING, HELD) {
            return;
        }
        let waiter = put(&self.waiter, None);
        // Fails if it was answered meanwhile; then, too, we are the one to wake.
        let _ = self.advance(HELD, IDLE);
        if let Some(waiter) = waiter {
            waiter.wake(&self.courier);
        }
    }
}

/// Exchanges the content of a cell that is the caller's alone, by the state.
fn put<T>(cell: &Mutex<Option<T>>, value: Option<T>) -> Option<T> {
    std::mem::replace(
        &mut *cell.lock().unwrap_or_else(PoisonError::into_inner),
        value,
    )
}

impl<Reply: Send + 'static> Route<Reply> {
    /// Answers the ticket. Does not allocate; what it frees or drops is dropped here.
    pub(crate) fn answer(mut self, result: Result<Reply, TicketError>) {
        self.deliver(result);
    }

    fn deliver(&mut self, result: Result<Reply, TicketError>) {
        if let Some(answer) = self.0.take() {
            answer.answer(result);
            // Without a ticket this drops the reply, a user's value.
            quietly(|| drop(answer));
        }
    }
}

impl<Reply: Send + 'static> Drop for Route<Reply> {
    fn drop(&mut self) {
        self.deliver(Err(TicketError::RuntimeEnded));
    }
}

impl<Reply: Send + 'static> fmt::Debug for Route<Reply> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Route")
    }
}

impl<Reply: Send + 'static> Ticket<Reply> {
    /// Blocks the calling thread until the request has its reply.
    ///
    /// # Errors
    /// [`TicketError`]: why there is none.
    pub fn wait(mut self) -> Result<Reply, TicketError> {
        self.wait_until(None)
            .unwrap_or_else(|| unreachable!("waiting without a deadline ends with an outcome"))
    }

    /// Like [`wait`](Self::wait) for `patience` at most. `None`: not yet, and the ticket is as good as before.
    ///
    /// # Errors
    /// [`TicketError`]: why there is no reply.
    pub fn wait_timeout(&mut self, patience: Duration) -> Option<Result<Reply, TicketError>> {
        // A patience beyond what the clock can hold is no deadline.
        self.wait_until(Instant::now().checked_add(patience))
    }

    /// The reply if it is there. Allowed everywhere, within request handlers too.
    ///
    /// # Errors
    /// [`TicketError`]: why there is none and none will come; [`TicketError::Taken`] after the reply was handed out.
    pub fn try_take(&mut self) -> Option<Result<Reply, TicketError>> {
        self.answer.outcome()
    }

    fn wait_until(&mut self, deadline: Option<Instant>) -> Option<Result<Reply, TicketError>> {
        if in_context() {
            return Some(Err(TicketError::InsideHandler));
        }
        if let Some(outcome) = self.answer.outcome() {
            return Some(outcome);
        }
        self.register(Waiter::Thread(thread::current()));
        loop {
            if let Some(outcome) = self.answer.outcome() {
                return Some(outcome);
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

    fn register(&mut self, waiter: Waiter) {
        if !self.listed {
            let ticket = Arc::downgrade(&self.answer);
            self.listed = self
                .answer
                .courier
                .list(self.key(), ticket as Weak<dyn Waits>);
        }
        self.answer.register(waiter);
    }

    /// Nobody else's while this ticket lives.
    fn key(&self) -> usize {
        Arc::as_ptr(&self.answer).addr()
    }
}

/// Resolves to the reply, or the reason why there is none; woken by the runtime's courier thread. Polled again after
/// that, it resolves to [`TicketError::Taken`].
impl<Reply: Send + 'static> Future for Ticket<Reply> {
    type Output = Result<Reply, TicketError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if in_context() {
            return Poll::Ready(Err(TicketError::InsideHandler));
        }
        if let Some(outcome) = self.answer.outcome() {
            return Poll::Ready(outcome);
        }
        self.register(Waiter::Task(context.waker().clone()));
        self.answer.outcome().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<Reply: Send + 'static> Drop for Ticket<Reply> {
    fn drop(&mut self) {
        if self.listed {
            self.answer.courier.unlist(self.key());
        }
    }
}

impl<Reply: Send + 'static> fmt::Debug for Ticket<Reply> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.answer.state.load(Ordering::Relaxed) {
            DONE => "answered",
            WAITING => "awaited",
            _ => "unanswered",
        };
        formatter
            .debug_struct("Ticket")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
