//! The trait between dispatcher and network.

use std::time::Duration;

/// A request on its way in.
///
/// Class, flow and times are plain numbers, with their units in the names: transports know nothing
/// of policies, whose types the dispatcher makes of them in one place.
///
/// ```
/// use shinjuku_net::Arrival;
///
/// let now_nanos = 1_000;
/// let arrival = Arrival::new("what is asked", 7, now_nanos).class(2).due_nanos(now_nanos + 50_000);
/// assert_eq!((arrival.route, arrival.class, arrival.deadline_nanos), (7, 2, None));
/// ```
#[derive(Debug)]
#[non_exhaustive]
#[must_use]
pub struct Arrival<Request, Route> {
    /// What the handler gets.
    pub request: Request,
    /// The way back to its sender.
    pub route: Route,
    /// Request class; classes the runtime was not configured with are refused.
    pub class: u16,
    /// Flow (connection, client): d-FCFS and work stealing place requests by it.
    pub flow: u64,
    /// When it arrived, in nanoseconds of the clock that [`Transport::poll`] is given. Latency
    /// counts from here.
    pub arrived_nanos: u64,
    /// If it has not started by this moment (same clock) it is refused; `None`: the class's rule.
    pub deadline_nanos: Option<u64>,
    /// The moment (same clock) by which policies that go by deadlines order it; `None`: its arrival
    /// and its class's budget. It is served all the same when the moment has passed.
    pub due_nanos: Option<u64>,
}

impl<Request, Route> Arrival<Request, Route> {
    /// A request of class 0 and flow 0 that arrived at `arrived_nanos` and says nothing of a
    /// deadline.
    pub fn new(request: Request, route: Route, arrived_nanos: u64) -> Self {
        Self {
            request,
            route,
            class: 0,
            flow: 0,
            arrived_nanos,
            deadline_nanos: None,
            due_nanos: None,
        }
    }

    setters! {
        /// Sets [`class`](field@Self::class).
        class: u16;
        /// Sets [`flow`](field@Self::flow).
        flow: u64;
        /// Sets [`deadline_nanos`](field@Self::deadline_nanos).
        deadline_nanos: impl Into<Option<u64>>;
        /// Sets [`due_nanos`](field@Self::due_nanos).
        due_nanos: impl Into<Option<u64>>;
    }
}

/// Why a request was turned away before it started.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// As many requests wait as the runtime (or the class's or worker's queue) admits.
    #[error("refused: the queue is full")]
    QueueFull,
    /// It had not started by its deadline.
    #[error("refused: not started by its deadline")]
    DeadlinePassed,
    /// Its class is not one of the runtime's.
    #[error("refused: no such request class")]
    UnknownClass,
    /// The runtime shuts down.
    #[error("refused: the server is shutting down")]
    ShuttingDown,
    /// Its sender no longer waits for the reply.
    #[error("refused: cancelled before it started")]
    Cancelled,
}

impl Refusal {
    /// All causes, in the order of [`index`](Self::index).
    pub const ALL: [Self; 5] = [
        Self::QueueFull,
        Self::DeadlinePassed,
        Self::UnknownClass,
        Self::ShuttingDown,
        Self::Cancelled,
    ];

    /// Its place in [`ALL`](Self::ALL), for counters by cause.
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::QueueFull => 0,
            Self::DeadlinePassed => 1,
            Self::UnknownClass => 2,
            Self::ShuttingDown => 3,
            Self::Cancelled => 4,
        }
    }
}

/// Why a request that started has no reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The handler panicked; the panic hook has reported it.
    #[error("the request handler panicked")]
    Panicked,
}

/// Brings requests in and replies out. See the [crate] for which side may do what.
///
/// A transport that brings a list of numbers, and collects what is answered:
///
/// ```
/// use std::sync::mpsc::Sender;
/// use std::time::Duration;
///
/// use shinjuku_net::{Arrival, Failure, Refusal, Replier, Transport};
///
/// struct Numbers {
///     left: Vec<u64>,
///     replies: Sender<u64>,
/// }
///
/// impl Transport for Numbers {
///     type Request = u64;
///     type Reply = u64;
///     type Route = ();
///     type Outgoing = Option<u64>;
///     type Replier = Replies;
///
///     fn poll(&mut self, now: u64, room: usize, mut deliver: impl FnMut(Arrival<u64, ()>)) {
///         for number in self.left.drain(..room.min(self.left.len())) {
///             deliver(Arrival::new(number, (), now));
///         }
///     }
///
///     fn refuse(&mut self, _number: u64, _route: (), _cause: Refusal) {}
///
///     fn conclude(_route: (), result: Result<u64, Failure>) -> Option<u64> {
///         result.ok()
///     }
///
///     fn replier(&mut self) -> std::io::Result<Replies> {
///         Ok(Replies(self.replies.clone()))
///     }
///
///     fn wait(&mut self, patience: Duration) {
///         std::thread::sleep(patience);
///     }
///
///     fn close(&mut self) {
///         self.left.clear();
///     }
/// }
///
/// struct Replies(Sender<u64>);
///
/// impl Replier for Replies {
///     type Outgoing = Option<u64>;
///
///     // A real one must not allocate here, as a channel may.
///     fn send(&mut self, reply: Option<u64>) {
///         if let Some(reply) = reply {
///             let _ = self.0.send(reply);
///         }
///     }
/// }
///
/// let (replies, collected) = std::sync::mpsc::channel();
/// let mut numbers = Numbers { left: vec![1, 2, 3], replies };
/// let mut replier = numbers.replier()?;
/// // What a runtime does of it:
/// numbers.poll(0, 2, |arrival| {
///     replier.send(Numbers::conclude(arrival.route, Ok(10 * arrival.request)));
/// });
/// assert_eq!(collected.try_iter().collect::<Vec<_>>(), [10, 20]);
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait Transport: Send + Sized + 'static {
    /// What the handler gets.
    type Request: Send + 'static;
    /// What the handler answers.
    type Reply: Send + 'static;
    /// The way back to the request's sender. Must not need dropping on the dispatcher's or a
    /// worker's thread.
    type Route: Send + 'static;
    /// What [`conclude`](Self::conclude) leaves for the worker to send.
    type Outgoing: Send + 'static;
    /// The worker's side.
    type Replier: Replier<Outgoing = Self::Outgoing>;

    /// Hands at most `room` requests (perhaps none) that are there to `deliver`, and does what else
    /// is to be done on this side, without waiting. `now_nanos` is the runtime's clock.
    fn poll(
        &mut self,
        now_nanos: u64,
        room: usize,
        deliver: impl FnMut(Arrival<Self::Request, Self::Route>),
    );

    /// A request that was delivered is turned away.
    fn refuse(&mut self, request: Self::Request, route: Self::Route, cause: Refusal);

    /// Whether its sender still waits for the reply; asked of requests that wait, while the queue
    /// is full. What is not wanted is turned away as [`Refusal::Cancelled`] and makes room. Costs a
    /// load or two. Default: yes.
    fn is_wanted(route: &Self::Route) -> bool {
        let _ = route;
        true
    }

    /// The handler is done. Runs in the request's context, so it may allocate, lock and be
    /// preempted; what is to be sent when the context has ended is the answer.
    fn conclude(route: Self::Route, result: Result<Self::Reply, Failure>) -> Self::Outgoing;

    /// The sending side for one more worker. Called at start, before the first
    /// [`poll`](Self::poll).
    ///
    /// # Errors
    /// What the operating system says.
    fn replier(&mut self) -> std::io::Result<Self::Replier>;

    /// Nothing is running and nothing waits: sleeps until requests may be there, `patience` at
    /// most. May return early for no reason.
    fn wait(&mut self, patience: Duration);

    /// Offered at start, before the first [`poll`](Self::poll), where several threads serve: from
    /// now on the transport calls `wake`, from any thread, when requests are there to be polled,
    /// also while all loops are busy, and the runtime never calls [`wait`](Self::wait). What is
    /// given back tells any thread, at the price of a load or two, whether requests seem to be
    /// there.
    ///
    /// `None`, the default: only polling tells. Then one thread at a time waits in `wait`, for a
    /// millisecond at most where there are others.
    fn attend(&mut self, wake: Wake) -> Option<Glance> {
        drop(wake);
        None
    }

    /// Whether `wake` is called also while all loops are within requests. Then a request beside
    /// which nobody waits has no timer of its own: what comes has it set.
    const WAKES_THE_BUSY: bool = true;

    /// No request is wanted any more: what comes is turned away by the transport. From now on
    /// `poll` delivers what the transport had accepted before, if it tells senders that, and
    /// nothing else.
    fn close(&mut self);
}

/// Wakes a thread that serves, if one is needed. Neither allocates nor locks.
pub type Wake = Box<dyn Fn() + Send + Sync>;

/// Whether requests seem to be there. Neither allocates nor locks, and calls no kernel.
pub type Glance = Box<dyn Fn() -> bool + Send + Sync>;

/// A worker's sending side.
pub trait Replier: Send + 'static {
    /// What it sends.
    type Outgoing;

    /// Sends a reply: no allocation, no lock that a handler could hold, no waiting. Runs on the
    /// worker's own stack, or between two requests on a context's, preemption held off, with that
    /// context's thread-locals: so none of its own.
    fn send(&mut self, outgoing: Self::Outgoing);
}
