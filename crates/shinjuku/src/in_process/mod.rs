//! The in-process transport: requests from any thread of the same process, replies by [`Ticket`].
//!
//! ```text
//!  Handle::submit ──intake──▶ InProcess::poll ──▶ dispatcher ──▶ context ──conclude──▶ Ticket
//!   (any thread)                                     │ refuse                             ▲
//!                                                    └──discards──▶ completion thread ────┘
//! ```
//!
//! The submitting thread allocates all that the request needs until it is answered; the dispatcher
//! only moves it. A request that is turned away goes to the completion thread with everything that
//! has to be dropped. `discards` has room for every request that the core may hold, and for a full
//! intake besides. `poll` takes in no more requests than would fit if all of them were refused, so
//! the dispatcher never has to wait for the completion thread.
//!
//! Where several dispatchers serve, each has such a transport, with an intake of its own. A
//! request's flow selects the intake; if that is full, the request goes to the next one.

pub(crate) mod ring;
pub(crate) mod sleeper;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use shinjuku_net::{Arrival, Failure, Glance, Refusal, Replier, Transport, Wake};
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
    /// Submitted requests that the dispatcher has not taken in yet. Rounded up to a power of two.
    pub intake: usize,
    /// Requests between [`Transport::poll`] and their reply or refusal: those that the runtime
    /// admits to wait, and those that have started.
    pub outstanding: usize,
}

/// Makes a transport with these bounds for each of `dispatchers`, and a handle to submit to them
/// all, and starts the completion thread (`shinjuku-completion`).
///
/// The completion thread inherits the calling thread's affinity and scheduling class, so call this
/// before either is narrowed.
///
/// # Errors
/// The completion thread could not be started.
#[expect(clippy::type_complexity, reason = "a handle, and a transport for each")]
pub fn in_process<Request, Reply>(
    bounds: InProcessBounds,
    dispatchers: usize,
) -> std::io::Result<(Handle<Request, Reply>, Vec<InProcess<Request, Reply>>)>
where
    Request: Send + 'static,
    Reply: Send + 'static,
{
    let (intakes, intakes_out): (Vec<_>, Vec<_>) =
        (0..dispatchers).map(|_| ring(bounds.intake)).unzip();
    let room = |intake: &Producer<_>| ring(bounds.outstanding.saturating_add(intake.capacity()));
    let (discards, discards_out): (Vec<_>, Vec<_>) = intakes.iter().map(room).unzip();
    let wakers = discards.iter().map(Producer::capacity).sum();
    let gate = Arc::new(Gate {
        intakes: intakes.into_iter().map(Intake::new).collect(),
        clock: Clock::get(),
        closed: AtomicBool::new(false),
        refused: Arc::default(),
        completion_thread: Arc::new(CompletionThread::new(wakers)),
        heritage: Mutex::new(Vec::with_capacity(dispatchers)),
    });
    let mut thread = Some(gate.completion_thread.clone().start(Discards {
        discards: discards_out,
        gate: gate.clone(),
    })?);
    let ends = intakes_out.into_iter().zip(discards).enumerate();
    let transports = ends.map(|(number, (intake, discards))| InProcess {
        intake: Some(intake),
        discards,
        outstanding: bounds.outstanding,
        gate: gate.clone(),
        number,
        completion_join: thread.take(),
    });
    let transports = transports.collect();
    Ok((Handle(gate), transports))
}

/// A request on its way from the submitting thread to the dispatcher.
pub(crate) type Submitted<Request, Reply> = Arrival<Request, Route<Reply>>;

/// What both sides share.
struct Gate<Request, Reply: Send + 'static> {
    intakes: Box<[Intake<Submitted<Request, Reply>>]>,
    clock: Clock,
    closed: AtomicBool,
    refused: Arc<RefusedAtSubmit>,
    completion_thread: Arc<CompletionThread>,
    /// The intakes' other ends, left to the completion thread when the transports are dropped.
    heritage: Mutex<Vec<Consumer<Submitted<Request, Reply>>>>,
}

/// The way to one dispatcher.
struct Intake<T> {
    ring: Producer<T>,
    /// Where the dispatcher's thread sleeps, unless it left a `wake`.
    sleeper: Sleeper,
    wake: OnceLock<Wake>,
}

impl<T> Intake<T> {
    fn new(ring: Producer<T>) -> Self {
        Self {
            ring,
            sleeper: Sleeper::default(),
            wake: OnceLock::new(),
        }
    }

    fn wake(&self) {
        match self.wake.get() {
            Some(wake) => wake(),
            None => self.sleeper.wake(),
        }
    }
}

impl<T> fmt::Debug for Intake<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ring.fmt(formatter)
    }
}

impl<Request, Reply: Send + 'static> Gate<Request, Reply> {
    fn count(&self, cause: Refusal) {
        self.refused.count(cause);
    }

    /// Appends the arrival to the intake of its flow, or to the next one that is not full; gives it
    /// back if all are full.
    fn push(
        &self,
        mut arrival: Submitted<Request, Reply>,
    ) -> Result<(), Submitted<Request, Reply>> {
        let count = self.intakes.len();
        let first = (arrival.flow % count as u64) as usize;
        for turn in 0..count {
            let intake = &self.intakes[(first + turn) % count];
            match intake.ring.push(arrival) {
                Ok(()) => {
                    intake.wake();
                    return Ok(());
                }
                Err(back) => arrival = back,
            }
        }
        Err(arrival)
    }
}

/// Counts the refusals that are not the dispatcher's own, by [`Refusal::index`].
#[derive(Debug, Default)]
pub(crate) struct RefusedAtSubmit([AtomicU64; Refusal::ALL.len()]);

impl RefusedAtSubmit {
    pub(crate) fn count(&self, cause: Refusal) {
        self.0[cause.index()].fetch_add(1, Ordering::Relaxed);
    }

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

/// How a request is to be treated.
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

    /// Sets its flow, by which d-FCFS and work stealing place it. Default: each submitting thread
    /// is a flow.
    pub const fn flow(self, flow: FlowId) -> Self {
        Self {
            flow: Some(flow),
            ..self
        }
    }

    /// Sets how long after its submission the request is refused if it has not started. Default:
    /// the class's `deadline_us`.
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

    /// As [`submit`](Self::submit), with options.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_with(
        &self,
        options: SubmitOptions,
        request: Request,
    ) -> Result<Ticket<Reply>, SubmitError<Request>> {
        let gate = &*self.0;
        let arrived_nanos = gate.clock.now_nanos();
        let deadline_nanos = options.deadline.map(|deadline| {
            arrived_nanos.saturating_add(u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX))
        });
        let (ticket, route) = ticket(gate.completion_thread.clone());
        let arrival = Arrival::new(request, route, arrived_nanos)
            .class(options.class.0)
            .flow(options.flow.unwrap_or_else(flow_of_this_thread).0)
            .deadline_nanos(deadline_nanos);
        match self.bring(arrival) {
            Ok(()) => Ok(ticket),
            Err((Arrival { request, .. }, cause)) => Err(SubmitError { request, cause }),
        }
    }

    /// Submits a request with the route that it already has. A refused one is counted and given
    /// back.
    pub(crate) fn bring(
        &self,
        arrival: Submitted<Request, Reply>,
    ) -> Result<(), (Submitted<Request, Reply>, Refusal)> {
        let gate = &*self.0;
        let refused = if gate.closed.load(Ordering::Acquire) {
            (arrival, Refusal::ShuttingDown)
        } else {
            match gate.push(arrival) {
                Ok(()) => return Ok(()),
                Err(arrival) => (arrival, Refusal::QueueFull),
            }
        };
        gate.count(refused.1);
        Err(refused)
    }

    /// The thread that wakes tasks that await a reply.
    pub(crate) fn completion_thread(&self) -> Arc<CompletionThread> {
        Arc::clone(&self.0.completion_thread)
    }

    /// Requests refused before the dispatcher saw them: the intake was full, or closed.
    #[must_use]
    pub fn refusals(&self) -> Refusals {
        self.0.refused.refusals()
    }

    pub(crate) fn refused_at_submit(&self) -> Arc<RefusedAtSubmit> {
        Arc::clone(&self.0.refused)
    }

    /// Lets every ticket without an answer resolve to [`TicketError::RuntimeEnded`], now and later,
    /// since the contexts of these requests are leaked. Calls wakers on the calling thread.
    pub(crate) fn abandon(&self) {
        self.0.completion_thread.end();
    }
}

/// The calling thread's flow: threads are numbered as they first submit. A context counts as a
/// thread here, since the number is in thread-local storage.
pub(crate) fn flow_of_this_thread() -> FlowId {
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
            .field("intakes", &self.0.intakes)
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
    /// Runs on the completion thread. Answers before it drops the request, so that the ticket does
    /// not depend on that drop.
    fn settle(self) {
        self.route.answer(Err(TicketError::Refused(self.cause)));
        quietly(|| drop(self.request));
    }
}

/// What the completion thread does for the in-process transport.
struct Discards<Request, Reply: Send + 'static> {
    discards: Vec<Consumer<Discard<Request, Reply>>>,
    gate: Arc<Gate<Request, Reply>>,
}

impl<Request: Send + 'static, Reply: Send + 'static> Round for Discards<Request, Reply> {
    fn go(&mut self) {
        for discards in &mut self.discards {
            // The bound lets wakers have their turn when refusals keep coming.
            for _ in 0..64 {
                match discards.pop() {
                    Some(discard) => discard.settle(),
                    None => break,
                }
            }
        }
    }

    fn is_ready(&self) -> bool {
        self.discards.iter().any(Consumer::is_ready)
    }

    fn finish(mut self) {
        for discards in &mut self.discards {
            while let Some(discard) = discards.pop() {
                discard.settle();
            }
        }
        let mut intakes = std::mem::take(&mut *lock(&self.gate.heritage));
        for intake in &mut intakes {
            while let Some(Arrival { request, route, .. }) = intake.pop() {
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
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A dispatcher's side of the transport. Dropping it closes it. Dropping the last one lets the
/// completion thread answer the requests that are left, and end; [`finish`] waits for that. Drop it
/// only when all contexts have ended their requests.
pub struct InProcess<Request, Reply: Send + 'static> {
    /// `None` only in `drop`.
    intake: Option<Consumer<Submitted<Request, Reply>>>,
    discards: Producer<Discard<Request, Reply>>,
    outstanding: usize,
    gate: Arc<Gate<Request, Reply>>,
    /// Its place among the gate's intakes.
    number: usize,
    /// Joins the completion thread; the first transport has it.
    completion_join: Option<JoinHandle<()>>,
}

/// Closes and drops all of a gate's transports, and waits until the completion thread has answered
/// the requests that are left, and ended, for at most `patience`. Then abandons tickets without an
/// answer. Returns whether the thread has ended: a waker or a request's `drop` may block it, or a
/// transport may be missing.
pub fn finish<Request, Reply>(
    mut transports: Vec<InProcess<Request, Reply>>,
    patience: Duration,
) -> bool
where
    Request: Send + 'static,
    Reply: Send + 'static,
{
    let Some(handle) = (transports.first()).map(|transport| Handle(transport.gate.clone())) else {
        return true;
    };
    let joins = transports.iter_mut();
    let thread = joins.map(|transport| transport.completion_join.take());
    let thread = thread.fold(None, Option::or);
    drop(transports);
    let start = Instant::now();
    let has_ended = || thread.as_ref().is_none_or(JoinHandle::is_finished);
    while !has_ended() && start.elapsed() < patience {
        thread::sleep(Duration::from_micros(100));
    }
    let ended = has_ended();
    if ended && let Some(thread) = thread {
        // The thread catches the panics of the code that it calls, so it has not panicked.
        let _ = thread.join();
    }
    handle.abandon();
    ended
}

impl<Request: Send + 'static, Reply: Send + 'static> InProcess<Request, Reply> {
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
        for _ in 0..room.min(self.room()) {
            let Some(arrival) = self.intake.as_mut().and_then(Consumer::pop) else {
                return;
            };
            deliver(arrival);
        }
    }

    fn refuse(&mut self, request: Request, route: Route<Reply>, cause: Refusal) {
        self.discard(request, route, cause);
    }

    fn is_wanted(route: &Route<Reply>) -> bool {
        route.is_wanted()
    }

    fn conclude(route: Route<Reply>, result: Result<Reply, Failure>) {
        route.answer(result.map_err(TicketError::Failed));
    }

    fn replier(&mut self) -> std::io::Result<NoReplier> {
        Ok(NoReplier)
    }

    fn wait(&mut self, patience: Duration) {
        let intake = &self.intake;
        let sleeper = &self.gate.intakes[self.number].sleeper;
        sleeper.sleep(patience, || intake.as_ref().is_some_and(Consumer::is_ready));
    }

    fn attend(&mut self, wake: Wake) -> Option<Glance> {
        let intake = &self.gate.intakes[self.number];
        let is_first = intake.wake.set(wake).is_ok();
        debug_assert!(is_first, "a transport is attended once");
        let ring = intake.ring.clone();
        // Not by the ring's length: an unfinished push counts there, and loops under SCHED_FIFO
        // that find work in vain would keep the pushing thread off the cores.
        Some(Box::new(move || ring.is_ready()))
    }

    /// Requests that were accepted before are still delivered.
    fn close(&mut self) {
        self.gate.closed.store(true, Ordering::Release);
    }
}

impl<Request, Reply: Send + 'static> Drop for InProcess<Request, Reply> {
    fn drop(&mut self) {
        self.gate.closed.store(true, Ordering::Release);
        let mut heritage = lock(&self.gate.heritage);
        // The completion thread drops the values.
        heritage.extend(self.intake.take());
        if heritage.len() == self.gate.intakes.len() {
            drop(heritage);
            self.gate.completion_thread.finish();
        }
    }
}

impl<Request, Reply: Send + 'static> fmt::Debug for InProcess<Request, Reply> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("InProcess")
            .field("intake", &self.gate.intakes[self.number])
            .field("discards", &self.discards)
            .field("closed", &self.gate.closed)
            .finish_non_exhaustive()
    }
}

/// A replier with nothing to send: replies reach their tickets from the contexts.
#[derive(Clone, Copy, Debug)]
pub struct NoReplier;

impl Replier for NoReplier {
    type Outgoing = ();

    fn send(&mut self, (): ()) {}
}

#[cfg(test)]
pub(crate) mod tests;
