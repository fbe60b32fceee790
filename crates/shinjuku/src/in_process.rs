//! The in-process transport: requests from any thread of the same process, replies by [`Ticket`].
//!
//! ```text
//!  Handle::submit ──intake──▶ InProcess::poll ──▶ dispatcher ──▶ context ──conclude──▶ Ticket
//!   (any thread)                                     │ refuse                           ▲
//!                                                    └──discards──▶ completion thread ────────────┘
//! ```
//!
//! Who submits allocates all that the request needs until it is answered; the dispatcher only moves
//! it. What is turned away goes to the completion thread with everything that has to be dropped.
//! `discards` has room for every request that the core may hold and for a full intake besides;
//! `poll` takes in no more than what would still fit if all of it were refused, so the dispatcher
//! never has to wait for the completion thread.

pub(crate) mod ring;
pub(crate) mod sleeper;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use shinjuku_net::{Arrival, Failure, Refusal, Replier, Transport};
use shinjuku_policy::{ClassId, FlowId};
use shinjuku_preempt::Clock;

use crate::completion_thread::{CompletionThread, Round, quietly};
use crate::statistics::Refusals;
use crate::ticket::{Route, Ticket, TicketError, ticket};

use ring::{Consumer, Producer, ring};
use sleeper::Sleeper;

/// How much the in-process transport holds; all of it is allocated at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InProcessBounds {
    /// Submitted requests that the dispatcher has not looked at yet. Rounded up to a power of two.
    pub intake: usize,
    /// Requests between [`Transport::poll`] and their reply or refusal: those that the runtime
    /// admits to wait, and those that have started.
    pub outstanding: usize,
}

/// Makes the transport and a handle to submit with, and starts the completion thread thread
/// (`shinjuku-completion`).
///
/// The completion thread inherits the calling thread's affinity and scheduling class, so call this
/// before either is narrowed.
///
/// # Errors
/// The completion thread's thread could not be started.
pub fn in_process<Request, Reply>(
    bounds: InProcessBounds,
) -> std::io::Result<(Handle<Request, Reply>, InProcess<Request, Reply>)>
where
    Request: Send + 'static,
    Reply: Send + 'static,
{
    let (intake, intake_out) = ring(bounds.intake);
    let (discards, discards_out) = ring(bounds.outstanding.saturating_add(intake.capacity()));
    let gate = Arc::new(Gate {
        intake,
        clock: Clock::get(),
        closed: AtomicBool::new(false),
        refused: Arc::default(),
        dispatcher: Sleeper::default(),
        completion_thread: Arc::new(CompletionThread::new(discards.capacity())),
        heritage: Mutex::new(None),
    });
    let thread = gate.completion_thread.clone().start(Discards {
        discards: discards_out,
        gate: gate.clone(),
    })?;
    let transport = InProcess {
        intake: Some(intake_out),
        discards,
        outstanding: bounds.outstanding,
        closed: false,
        gate: gate.clone(),
        completion_join: Some(thread),
    };
    Ok((Handle(gate), transport))
}

/// A request on its way from who submits to the dispatcher.
type Submitted<Request, Reply> = Arrival<Request, Route<Reply>>;

/// What both sides share.
struct Gate<Request, Reply: Send + 'static> {
    intake: Producer<Submitted<Request, Reply>>,
    clock: Clock,
    closed: AtomicBool,
    refused: Arc<RefusedAtSubmit>,
    dispatcher: Sleeper,
    completion_thread: Arc<CompletionThread>,
    /// The intake's other end, left to the completion thread when the transport is dropped.
    heritage: Mutex<Option<Consumer<Submitted<Request, Reply>>>>,
}

impl<Request, Reply: Send + 'static> Gate<Request, Reply> {
    fn count(&self, cause: Refusal) {
        self.refused.0[cause.index()].fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts what the dispatcher did not refuse itself, by [`Refusal::index`].
#[derive(Debug, Default)]
pub(crate) struct RefusedAtSubmit([AtomicU64; Refusal::ALL.len()]);

impl RefusedAtSubmit {
    pub(crate) fn refusals(&self) -> Refusals {
        let by_cause = self.0.each_ref();
        Refusals::new(by_cause.map(|number| number.load(Ordering::Relaxed)))
    }
}

/// Submits requests to a runtime. Cheap to clone, usable from any thread, within request handlers
/// too.
///
/// ```
/// use shinjuku::policy::ClassId;
/// use shinjuku::{Runtime, SubmitOptions, handler_fn};
/// use std::time::Duration;
///
/// let runtime = Runtime::builder(handler_fn(|text: String| text.len())).start()?;
/// let handle = runtime.handle();
/// let clients = ["a", "bc"].map(|text| {
///     let handle = handle.clone();
///     std::thread::spawn(move || {
///         // Refused, unless it starts within a minute.
///         let options = SubmitOptions::new(ClassId(0)).deadline(Duration::from_secs(60));
///         let ticket = handle.submit_with(options, text.to_owned());
///         ticket.expect("the queue is not full").wait()
///     })
/// });
/// let lengths = clients.map(|client| client.join().unwrap());
/// assert_eq!(lengths, [Ok(1), Ok(2)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Handle<Request, Reply: Send + 'static>(Arc<Gate<Request, Reply>>);

/// How a request is to be treated; what is not said is the default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct SubmitOptions {
    class: ClassId,
    flow: Option<FlowId>,
    deadline: Option<Duration>,
}

impl SubmitOptions {
    /// A request of this class.
    pub const fn new(class: ClassId) -> Self {
        Self {
            class,
            flow: None,
            deadline: None,
        }
    }

    /// Its flow, by which d-FCFS and work stealing place it. Default: every submitting thread is a
    /// flow.
    pub const fn flow(self, flow: FlowId) -> Self {
        Self {
            flow: Some(flow),
            ..self
        }
    }

    /// If it has not started this long from now it is refused. Default: the class's rule.
    pub const fn deadline(self, deadline: Duration) -> Self {
        Self {
            deadline: Some(deadline),
            ..self
        }
    }
}

/// The request could not be submitted. It is not lost: [`into_request`](Self::into_request).
#[derive(thiserror::Error)]
#[error("not submitted: {cause}")]
pub struct SubmitError<Request> {
    request: Request,
    cause: Refusal,
}

impl<Request> SubmitError<Request> {
    /// [`Refusal::QueueFull`] (the dispatcher does not keep up: try later, or submit less), or
    /// [`Refusal::ShuttingDown`].
    #[must_use]
    pub fn cause(&self) -> Refusal {
        self.cause
    }

    /// The request, as it was submitted.
    #[must_use]
    pub fn into_request(self) -> Request {
        self.request
    }
}

impl<Request> fmt::Debug for SubmitError<Request> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SubmitError")
            .field("cause", &self.cause)
            .finish_non_exhaustive()
    }
}

impl<Request, Reply> Handle<Request, Reply>
where
    Request: Send + 'static,
    Reply: Send + 'static,
{
    /// Submits a request of `class` and does not wait. Its latency counts from now.
    ///
    /// # Errors
    /// [`SubmitError`] with the request, if too many are submitted already or the runtime shuts
    /// down.
    pub fn submit(
        &self,
        class: ClassId,
        request: Request,
    ) -> Result<Ticket<Reply>, SubmitError<Request>> {
        self.submit_with(SubmitOptions::new(class), request)
    }

    /// Like [`submit`](Self::submit), with more to say.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_with(
        &self,
        options: SubmitOptions,
        request: Request,
    ) -> Result<Ticket<Reply>, SubmitError<Request>> {
        let gate = &*self.0;
        let refuse = |request, cause| {
            gate.count(cause);
            Err(SubmitError { request, cause })
        };
        if gate.closed.load(Ordering::Acquire) {
            return refuse(request, Refusal::ShuttingDown);
        }
        let arrived_nanos = gate.clock.now_nanos();
        let deadline_nanos = options.deadline.map(|deadline| {
            arrived_nanos.saturating_add(u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX))
        });
        let (ticket, route) = ticket(gate.completion_thread.clone());
        let arrival = Arrival {
            request,
            route,
            class: options.class.0,
            flow: options.flow.unwrap_or_else(flow_of_this_thread).0,
            arrived_nanos,
            deadline_nanos,
        };
        match gate.intake.push(arrival) {
            Ok(()) => {
                gate.dispatcher.wake();
                Ok(ticket)
            }
            Err(arrival) => refuse(arrival.request, Refusal::QueueFull),
        }
    }

    /// Requests refused before the dispatcher saw them: the intake was full, or closed.
    #[must_use]
    pub fn refusals(&self) -> Refusals {
        self.0.refused.refusals()
    }

    pub(crate) fn refused_at_submit(&self) -> Arc<RefusedAtSubmit> {
        Arc::clone(&self.0.refused)
    }

    /// Nothing will be answered any more: every ticket without an answer resolves to
    /// [`TicketError::RuntimeEnded`], now and later. For requests whose context is given up. Calls
    /// wakers on the calling thread.
    pub(crate) fn abandon(&self) {
        self.0.completion_thread.end();
    }
}

/// Threads are numbered as they first submit. A context is a thread in this: its number lives in
/// thread-local storage.
fn flow_of_this_thread() -> FlowId {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local!(static FLOW: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    FlowId(FLOW.with(|flow| *flow))
}

impl<Request, Reply: Send + 'static> Clone for Handle<Request, Reply> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<Request, Reply: Send + 'static> fmt::Debug for Handle<Request, Reply> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Handle")
            .field("intake", &self.0.intake)
            .field("closed", &self.0.closed)
            .finish_non_exhaustive()
    }
}

struct Discard<Request, Reply: Send + 'static> {
    request: Request,
    route: Route<Reply>,
    cause: Refusal,
}

impl<Request, Reply: Send + 'static> Discard<Request, Reply> {
    /// The completion thread's: answers first, so that the ticket does not depend on what dropping
    /// the request does.
    fn settle(self) {
        self.route.answer(Err(TicketError::Refused(self.cause)));
        quietly(|| drop(self.request));
    }
}

/// What the completion thread does for the in-process transport.
struct Discards<Request, Reply: Send + 'static> {
    discards: Consumer<Discard<Request, Reply>>,
    gate: Arc<Gate<Request, Reply>>,
}

impl<Request: Send + 'static, Reply: Send + 'static> Round for Discards<Request, Reply> {
    fn go(&mut self) {
        // Under a storm of refusals wakers get their turn, too.
        for _ in 0..64 {
            match self.discards.pop() {
                Some(discard) => discard.settle(),
                None => return,
            }
        }
    }

    fn is_ready(&self) -> bool {
        self.discards.is_ready()
    }

    fn finish(mut self) {
        while let Some(discard) = self.discards.pop() {
            discard.settle();
        }
        let heritage = &self.gate.heritage;
        let mut intake = heritage
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        while let Some(Arrival { request, route, .. }) = intake.as_mut().and_then(Consumer::pop) {
            let cause = Refusal::ShuttingDown;
            self.gate.count(cause);
            Discard {
                request,
                route,
                cause,
            }
            .settle();
        }
    }
}

/// The transport's side of the dispatcher. Dropping it closes it and lets the completion thread
/// answer what is left and end; [`finish`](Self::finish) waits for that. Drop it only when no
/// context runs any more.
pub struct InProcess<Request, Reply: Send + 'static> {
    /// `None` only in `drop`.
    intake: Option<Consumer<Submitted<Request, Reply>>>,
    discards: Producer<Discard<Request, Reply>>,
    outstanding: usize,
    closed: bool,
    gate: Arc<Gate<Request, Reply>>,
    completion_join: Option<JoinHandle<()>>,
}

impl<Request: Send + 'static, Reply: Send + 'static> InProcess<Request, Reply> {
    /// Closes and drops the transport, and waits until the completion thread has answered what is
    /// left and ended, `patience` at most. `false`: it has not (a waker or a request's `drop`
    /// blocks), and tickets without an answer are abandoned.
    pub fn finish(mut self, patience: Duration) -> bool {
        let handle = Handle(self.gate.clone());
        let thread = self.completion_join.take();
        drop(self);
        let start = Instant::now();
        let has_ended = || thread.as_ref().is_none_or(JoinHandle::is_finished);
        while !has_ended() && start.elapsed() < patience {
            thread::sleep(Duration::from_micros(100));
        }
        let ended = has_ended();
        if ended && let Some(thread) = thread {
            // It catches what it calls, so it has not panicked.
            let _ = thread.join();
        }
        handle.abandon();
        ended
    }

    /// How many requests may be taken in, each of which might have to be discarded.
    fn room(&self) -> usize {
        (self.discards.capacity() - self.discards.len()).saturating_sub(self.outstanding)
    }

    fn discard(&mut self, request: Request, route: Route<Reply>, cause: Refusal) {
        let discard = Discard {
            request,
            route,
            cause,
        };
        assert!(
            self.discards.push(discard).is_ok(),
            "more than {} requests are outstanding: the transport was made for fewer than the runtime admits",
            self.outstanding
        );
        self.gate.completion_thread.wake();
    }
}

impl<Request: Send + 'static, Reply: Send + 'static> Transport for InProcess<Request, Reply> {
    type Request = Request;
    type Reply = Reply;
    type Route = Route<Reply>;
    type Outgoing = ();
    type Replier = NoReplier;

    fn poll(
        &mut self,
        _now_nanos: u64,
        room: usize,
        mut deliver: impl FnMut(Arrival<Request, Route<Reply>>),
    ) {
        let room = if self.closed {
            self.room()
        } else {
            room.min(self.room())
        };
        for _ in 0..room {
            let Some(arrival) = self.intake.as_mut().and_then(Consumer::pop) else {
                return;
            };
            if self.closed {
                self.gate.count(Refusal::ShuttingDown);
                self.discard(arrival.request, arrival.route, Refusal::ShuttingDown);
            } else {
                deliver(arrival);
            }
        }
    }

    fn refuse(&mut self, request: Request, route: Route<Reply>, cause: Refusal) {
        self.discard(request, route, cause);
    }

    fn conclude(route: Route<Reply>, result: Result<Reply, Failure>) {
        route.answer(result.map_err(TicketError::Failed));
    }

    fn replier(&mut self) -> std::io::Result<NoReplier> {
        Ok(NoReplier)
    }

    fn wait(&mut self, patience: Duration) {
        let intake = &self.intake;
        self.gate
            .dispatcher
            .sleep(patience, || intake.as_ref().is_some_and(Consumer::is_ready));
    }

    fn close(&mut self) {
        self.closed = true;
        self.gate.closed.store(true, Ordering::Release);
    }
}

impl<Request, Reply: Send + 'static> Drop for InProcess<Request, Reply> {
    fn drop(&mut self) {
        self.gate.closed.store(true, Ordering::Release);
        // Its values are the completion thread's to drop.
        *self
            .gate
            .heritage
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = self.intake.take();
        self.gate.completion_thread.finish();
    }
}

impl<Request, Reply: Send + 'static> fmt::Debug for InProcess<Request, Reply> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("InProcess")
            .field("intake", &self.gate.intake)
            .field("discards", &self.discards)
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}

/// Replies reach their tickets from the contexts: nothing is left for the worker to send.
#[derive(Clone, Copy, Debug)]
pub struct NoReplier;

impl Replier for NoReplier {
    type Outgoing = ();

    fn send(&mut self, (): ()) {}
}

#[cfg(test)]
pub(crate) mod tests;
