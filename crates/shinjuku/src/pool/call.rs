//! A closure with its state and its result, in one allocation.
//!
//! ```text
//!   QUEUED ──a token──▶ STARTED ──cancelled──▶ STOPPING      runs; looks at a cancellation point
//!      ├───cancelled──▶ CANCELLED                            dropped by the thread that cancels
//!      └────refused───▶ REFUSED                              dropped by the thread that refuses: a
//!                                                            context, or the completion thread
//! ```
//!
//! The thread that takes it out of QUEUED has the closure, and the right to answer.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use shinjuku_policy::ClassId;
use shinjuku_preempt::{Clock, preemptions};
use tracing::Span;

use super::error::{Panic, RunError};
use super::job::Cancelled;
use super::urgent::Urgent;
use crate::answer::{Answer, Answers, put};
use crate::completion_thread::{CompletionThread, Waits, quietly};
use crate::ticket::{Deliver, TicketError};

const QUEUED: u8 = 0;
const STARTED: u8 = 1;
const STOPPING: u8 = 2;
const CANCELLED: u8 = 3;
const REFUSED: u8 = 4;

/// How a token was used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// The closure returned.
    Returned,
    /// The closure panicked, or unwound since it was cancelled.
    Failed,
    /// No closure ran.
    TurnedAway,
}

/// What is known of a closure without its type.
pub(crate) struct Order {
    phase: AtomicU8,
    pub(crate) class: ClassId,
    pub(crate) priority: u8,
    pub(crate) arrived_nanos: u64,
    /// When it has to have started, or it is refused.
    pub(crate) deadline_nanos: Option<u64>,
    span: Option<Span>,
    /// The order of priority that it has joined, if any: other tokens than its own may start it.
    urgent: OnceLock<Weak<Urgent>>,
}

impl Order {
    pub(crate) fn new(class: ClassId, priority: u8, arrived_nanos: u64) -> Self {
        Self {
            phase: AtomicU8::new(QUEUED),
            class,
            priority,
            arrived_nanos,
            deadline_nanos: None,
            span: None,
            urgent: OnceLock::new(),
        }
    }

    pub(crate) fn deadline(self, deadline_nanos: Option<u64>) -> Self {
        Self {
            deadline_nanos,
            ..self
        }
    }

    pub(crate) fn span(self, span: Option<Span>) -> Self {
        Self { span, ..self }
    }

    /// Notes that the closure is about to join this order of priority. Called once.
    pub(crate) fn joins(&self, urgent: &Arc<Urgent>) {
        let is_first = self.urgent.set(Arc::downgrade(urgent)).is_ok();
        debug_assert!(is_first, "a closure joins once");
        // Of this and `take_away`, at least one sees what the other has done.
        fence(Ordering::SeqCst);
    }

    /// Takes it out of the queue to run it; returns whether the caller is the one that has.
    pub(crate) fn start(&self) -> bool {
        self.take(STARTED)
    }

    pub(crate) fn is_queued(&self) -> bool {
        self.phase.load(Ordering::Acquire) == QUEUED
    }

    pub(crate) fn is_asked_to_stop(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == STOPPING
    }

    pub(crate) fn is_late(&self) -> bool {
        let is_past = |deadline| Clock::get().now_nanos() > deadline;
        self.deadline_nanos.is_some_and(is_past)
    }

    fn take(&self, phase: u8) -> bool {
        self.advance(QUEUED, phase)
    }

    /// Takes it out of the queue, and out of the order of priority, so that it never runs.
    fn take_away(&self, phase: u8) -> bool {
        let taken = self.take(phase);
        if taken {
            fence(Ordering::SeqCst);
            if let Some(urgent) = self.urgent() {
                urgent.leave(self);
            }
        }
        taken
    }

    /// The order of priority that it has joined, if any.
    fn urgent(&self) -> Option<Arc<Urgent>> {
        self.urgent.get().and_then(Weak::upgrade)
    }

    fn advance(&self, from: u8, to: u8) -> bool {
        self.phase
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Calls `body` within the span, and records there how long the closure had waited and how
    /// often it was preempted.
    fn within_span<Out>(&self, body: impl FnOnce() -> Out) -> Out {
        let Some(span) = &self.span else {
            return body();
        };
        let queued = Clock::get().now_nanos().saturating_sub(self.arrived_nanos);
        span.record("queue_us", queued / 1_000);
        span.record("arrived_ns", self.arrived_nanos);
        let _at_the_end = RecordsPreemptions {
            span,
            before: preemptions(),
        };
        span.in_scope(body)
    }
}

/// Dropped, records in the span how often the closure was preempted, even if it panics.
struct RecordsPreemptions<'a> {
    span: &'a Span,
    before: u64,
}

impl Drop for RecordsPreemptions<'_> {
    fn drop(&mut self) {
        self.span.record("preemptions", preemptions() - self.before);
    }
}

/// A closure of any type, on its way.
pub(crate) trait Call: Deliver<Ended> {
    fn order(&self) -> &Order;

    /// The completion thread of the call's pool.
    fn completion_thread(&self) -> &Arc<CompletionThread>;

    /// Runs the closure and answers. Called once, in a context, after [`Order::start`].
    fn run(&self) -> Ended;

    /// Drops the closure, a user's value, and answers. Called once, by the thread that took it out
    /// of the queue.
    fn refuse(&self, error: RunError);
}

/// What a job resolves to.
pub(crate) type Outcome<R> = Result<R, RunError>;

/// A closure as its job sees it.
pub(crate) trait Cancel: Answers {
    /// If the closure has not started, answers that it was cancelled, and drops it here. Otherwise
    /// asks it to stop.
    fn cancel(&self);
}

pub(crate) struct Closure<F, R> {
    order: Order,
    closure: Mutex<Option<F>>,
    answer: Answer<Outcome<R>>,
}

impl<F, R> Closure<F, R> {
    pub(crate) fn new(order: Order, closure: F, completion: Arc<CompletionThread>) -> Self {
        Self {
            order,
            closure: Mutex::new(Some(closure)),
            answer: Answer::new(completion),
        }
    }

    /// Takes the closure, which the caller has taken out of the queue.
    fn take(&self) -> F {
        put(&self.closure, None).expect("it is taken out of the queue once")
    }
}

impl<F, R> Call for Closure<F, R>
where
    F: FnOnce() -> R + Send,
    R: Send,
{
    fn order(&self) -> &Order {
        &self.order
    }

    fn completion_thread(&self) -> &Arc<CompletionThread> {
        self.answer.completion_thread()
    }

    fn run(&self) -> Ended {
        let closure = self.take();
        let result = catch_unwind(AssertUnwindSafe(|| self.order.within_span(closure)));
        let (outcome, ended) = match result {
            Ok(value) => (Ok(value), Ended::Returned),
            Err(payload) if payload.is::<Cancelled>() => (Err(RunError::Cancelled), Ended::Failed),
            Err(payload) => {
                let error = RunError::Panicked(Panic::new(payload));
                (Err(error), Ended::Failed)
            }
        };
        self.answer.answer(outcome);
        ended
    }

    fn refuse(&self, error: RunError) {
        let closure = self.take();
        // The answer comes first, so that the job does not depend on the drop of the closure.
        self.answer.answer(Err(error));
        quietly(|| drop(closure));
    }
}

/// The end of a token. A closure that ran has been answered, so this acts on those that did not.
impl<F, R> Deliver<Ended> for Closure<F, R>
where
    F: FnOnce() -> R + Send,
    R: Send,
{
    fn deliver(&self, outcome: Result<Ended, TicketError>) {
        let Err(why) = outcome else {
            return;
        };
        if refuse_queued(self, why) {
            return;
        }
        // Another token has started or refused this closure. That token's own closure waits, and
        // now has no token.
        let is_cancelled = self.order.phase.load(Ordering::Acquire) == CANCELLED;
        if !is_cancelled && let Some(urgent) = self.order.urgent() {
            urgent.refuse_least(why);
        }
    }

    /// A token is wanted even if its closure has started by another's: the closure in its place
    /// needs the token.
    fn is_wanted(&self) -> bool {
        self.order.phase.load(Ordering::Relaxed) != CANCELLED
    }
}

/// Refuses a closure that other threads may start or cancel at the same time. Returns whether it
/// was refused here.
pub(crate) fn refuse_queued(call: &dyn Call, why: TicketError) -> bool {
    let taken = call.order().take_away(REFUSED);
    if taken {
        call.refuse(match why {
            TicketError::Refused(cause) => RunError::Refused(cause),
            _ => RunError::RuntimeEnded,
        });
    }
    taken
}

impl<F, R> Cancel for Closure<F, R>
where
    F: Send + 'static,
    R: Send + 'static,
{
    fn cancel(&self) {
        if self.order.take_away(CANCELLED) {
            let closure = self.take();
            // The answer comes first, so that the job does not depend on the drop of the closure.
            self.answer.answer(Err(RunError::Cancelled));
            quietly(|| drop(closure));
        } else {
            self.order.advance(STARTED, STOPPING);
        }
    }
}

impl<F: Send, R: Send> Waits for Closure<F, R> {
    fn wake_at_the_end(&self) {
        self.answer.wake_at_the_end();
    }
}

impl<F: Send + 'static, R: Send + 'static> Answers for Closure<F, R> {
    type Out = Outcome<R>;

    fn answer(&self) -> &Answer<Outcome<R>> {
        &self.answer
    }

    fn waits(self: Arc<Self>) -> Weak<dyn Waits> {
        Arc::downgrade(&(self as Arc<dyn Waits>))
    }
}

thread_local! {
    /// The closure that the context runs.
    static CURRENT: RefCell<Option<Arc<dyn Call>>> = const { RefCell::new(None) };
}

/// Runs a closure as the one that the calling context runs.
pub(crate) fn run_as_current(call: Arc<dyn Call>) -> Ended {
    CURRENT.set(Some(Arc::clone(&call)));
    let ended = call.run();
    drop(call);
    // If the job is gone, this drops the result, a user's value.
    let call = CURRENT.take();
    quietly(|| drop(call));
    ended
}

/// Whether the closure that the calling context runs was asked to stop. On other threads the answer
/// is always no.
pub(crate) fn current_is_asked_to_stop() -> bool {
    of_current(|call| call.order().is_asked_to_stop())
}

/// Whether the caller runs in a closure of the pool that has this completion thread.
pub(crate) fn current_is_of(completion_thread: &Arc<CompletionThread>) -> bool {
    of_current(|call| Arc::ptr_eq(call.completion_thread(), completion_thread))
}

fn of_current(is_so: impl FnOnce(&dyn Call) -> bool) -> bool {
    let asked = |call: &RefCell<Option<Arc<dyn Call>>>| call.borrow().as_deref().is_some_and(is_so);
    CURRENT.try_with(asked).unwrap_or(false)
}
