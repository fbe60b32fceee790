//! A closure with its state and its result, in one allocation.
//!
//! ```text
//!   QUEUED ──a token──▶ STARTED ──cancelled──▶ STOPPING      runs; looks at a cancellation point
//!      ├───cancelled──▶ CANCELLED                            dropped by who cancels
//!      └────refused───▶ REFUSED                              dropped by who refuses, in a context or
//!                                                            on the completion thread
//! ```
//!
//! The one that takes it out of QUEUED has the closure, and the right to answer.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use shinjuku_policy::ClassId;
use shinjuku_preempt::{Clock, preemptions};
use tracing::Span;

use super::cancellation::Cancelled;
use super::error::{Panic, RunError};
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
    Returned,
    /// It panicked, or unwound since it was cancelled.
    Failed,
    /// Nothing was run.
    TurnedAway,
}

/// What can be said of a closure without its type.
pub(crate) struct Order {
    phase: AtomicU8,
    pub(crate) class: ClassId,
    pub(crate) priority: u8,
    pub(crate) arrived_nanos: u64,
    /// Refused from then on.
    pub(crate) deadline_nanos: Option<u64>,
    span: Option<Span>,
    /// Where it stands in order of priority, if it does: other tokens than its own may start it.
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

    /// It stands in this order of priority from now on; told before it does, and once.
    pub(crate) fn joins(&self, urgent: &Arc<Urgent>) {
        let is_first = self.urgent.set(Arc::downgrade(urgent)).is_ok();
        debug_assert!(is_first, "a closure joins once");
        // Between this and `take_away`, one at least sees what the other has done.
        fence(Ordering::SeqCst);
    }

    /// Whether the caller is the one to start it.
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

    /// Takes it out of the queue, and out of the order of priority, not to run.
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

    /// Where it stands in order of priority, if it ever did.
    fn urgent(&self) -> Option<Arc<Urgent>> {
        self.urgent.get().and_then(Weak::upgrade)
    }

    fn advance(&self, from: u8, to: u8) -> bool {
        self.phase
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Calls `body` within the span, and tells the span what it cost.
    fn within_span<Out>(&self, body: impl FnOnce() -> Out) -> Out {
        let Some(span) = &self.span else {
            return body();
        };
        let queued = Clock::get().now_nanos().saturating_sub(self.arrived_nanos);
        span.record("queue_us", queued / 1_000);
        span.record("arrived_ns", self.arrived_nanos);
        let _told_at_the_end = TellsPreemptions {
            span,
            before: preemptions(),
        };
        span.in_scope(body)
    }
}

/// Tells the span how often the closure was preempted, also if it panics.
struct TellsPreemptions<'a> {
    span: &'a Span,
    before: u64,
}

impl Drop for TellsPreemptions<'_> {
    fn drop(&mut self) {
        self.span.record("preemptions", preemptions() - self.before);
    }
}

/// A closure on its way, whatever its type.
pub(crate) trait Call: Deliver<Ended> {
    fn order(&self) -> &Order;

    /// Its pool's.
    fn completion_thread(&self) -> &Arc<CompletionThread>;

    /// Runs and answers; once, by who started it, in a context.
    fn run(&self) -> Ended;

    /// Drops it unrun, and answers; once, by who took it out of the queue. Drops a user's value.
    fn refuse(&self, error: RunError);
}

/// What a job resolves to.
pub(crate) type Outcome<R> = Result<R, RunError>;

/// A closure as its job sees it.
pub(crate) trait Cancel: Answers {
    /// Drops the closure here if it has not started, having answered that it was cancelled; else
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

    /// The caller took it out of the queue.
    fn take(&self) -> F {
        put(&self.closure, None).expect("there is one until it is taken out of the queue")
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
        // First, so that the job does not depend on what dropping the closure does.
        self.answer.answer(Err(error));
        quietly(|| drop(closure));
    }
}

/// The end of a token. What ran has been answered, so this is about what did not run.
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
        // Another token has started or refused it, whose own closure waits and now has none.
        let is_cancelled = self.order.phase.load(Ordering::Acquire) == CANCELLED;
        if !is_cancelled && let Some(urgent) = self.order.urgent() {
            urgent.refuse_least(why);
        }
    }

    /// One that has started at another's token has a closure in its place, which needs this one.
    fn is_wanted(&self) -> bool {
        self.order.phase.load(Ordering::Relaxed) != CANCELLED
    }
}

/// Refuses a closure that others may still start. Tells whether it was the one.
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
            // First, so that the job does not depend on what dropping the closure does.
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
    /// What the context runs.
    static CURRENT: RefCell<Option<Arc<dyn Call>>> = const { RefCell::new(None) };
}

/// Runs it as what the calling context is about.
pub(crate) fn run_as_current(call: Arc<dyn Call>) -> Ended {
    CURRENT.set(Some(Arc::clone(&call)));
    let ended = call.run();
    drop(call);
    // With the result, if no one wants it: a user's value.
    let call = CURRENT.take();
    quietly(|| drop(call));
    ended
}

/// Whether what the caller runs in was asked to stop. Nothing is asked of other threads.
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
