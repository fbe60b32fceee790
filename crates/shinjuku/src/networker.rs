//! The networker: polls a transport on a thread of its own, and passes on what comes.
//!
//! ```text
//!              networker's thread                            dispatcher's thread
//!   poll ──▶ inner transport ──▶ arrivals, a ring ──▶ Networker::poll ──▶ dispatcher
//!                    ▲                                                        │
//!                    └─ refuse ── refusals, a ring ◀── Networker::refuse ◀────┘
//!   workers' replies go the inner transport's own way, past both
//! ```
//!
//! A full ring is back-pressure: the networker polls the inner transport for no more requests than
//! the ring has room for, and further ones wait in the kernel. Nothing is lost between the two
//! threads.
//!
//! ```text
//!   (here) ── first poll, refuse, wait or close ──▶ (polled by its thread) ── drop, into_inner ──▶ (given back)
//! ```
//!
//! The inner transport stays with the [`Networker`] until the first poll, since workers first get
//! their repliers from it. From then on neither side allocates, frees, locks or drops a user's
//! value. The networker never waits for the dispatcher. The dispatcher waits for the networker only
//! if more requests are refused at once than the ring holds, as in a shutdown, or when many miss a
//! deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rtrb::{Consumer, Producer, PushError, RingBuffer};
use shinjuku_net::{Arrival, Failure, Refusal, Transport};
use shinjuku_preempt::Clock;

use crate::config::{ConfigError, setters};
use crate::in_process::sleeper::Sleeper;
use crate::layout;
use crate::start_error::StartError;

const NAME: &str = "shinjuku-networker";
/// Requests taken from the inner transport in one turn.
const BATCH: usize = 64;
/// How long an idle networker sleeps at most. The dispatcher cannot wake it from its transport's
/// wait.
const LONGEST_SLEEP: Duration = Duration::from_millis(5);
/// How long the dispatcher sleeps before it looks again whether a refusal fits into the ring.
const REFUSAL_PAUSE: Duration = Duration::from_micros(20);
/// How long the thread may take to end. It wakes at least every [`LONGEST_SLEEP`], if its transport
/// waits for no longer than it is told.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// Settings of a [`Networker`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NetworkerConfig {
    /// The core that its thread is pinned to. `None`: any that the calling thread may use. The
    /// runtime's layout does not know of this core, so leave it out of
    /// [`Config::cores`](crate::Config::cores).
    pub core: Option<usize>,
    /// How long the networker polls without finding work before it sleeps until the transport has
    /// something; zero where it shares its core. `None`: it never sleeps.
    pub idle_backoff: Option<Duration>,
    /// How many requests can be on their way to the dispatcher, and how many refusals on their way
    /// back, 64 to 2^20.
    pub ring: usize,
}

impl Default for NetworkerConfig {
    /// Any core, 100 us, 1024 requests.
    fn default() -> Self {
        Self {
            core: None,
            idle_backoff: Some(Duration::from_micros(100)),
            ring: 1024,
        }
    }
}

impl NetworkerConfig {
    setters! {
        NetworkerConfig:
        core: impl Into<Option<usize>> => core.into();
        idle_backoff: impl Into<Option<Duration>> => idle_backoff.into();
        ring: usize => ring;
    }
}

/// A transport that is polled on a thread of its own (`shinjuku-networker`), so that receiving
/// costs the dispatcher a queue's pop instead of system calls. It is a [`Transport`] itself: serve
/// it in place of the inner one.
///
/// ```no_run
/// use shinjuku::net::udp::{Datagram, Udp, UdpConfig};
/// use shinjuku::{Networker, NetworkerConfig, Runtime, handler_fn};
///
/// let udp = Udp::bind(UdpConfig::new("127.0.0.1:9000".parse()?))?;
/// let networker = Networker::new(udp, NetworkerConfig::default())?;
/// let handler = handler_fn(|request: Datagram| Some(request.echo()));
/// let server = Runtime::builder(handler).serve(networker)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A networker is worth its core where requests are many: the dispatcher's turns become shorter,
/// while each request takes one more hand-over between cores. Over UDP on the loopback interface
/// (two cores of a virtual machine, Linux 6.18) a poll in vain costs the dispatcher 3 ns instead of
/// 220, and a request 50 to 140 ns instead of 510 to 1100. A request reaches the dispatcher 700 ns
/// after the networker began to receive it.
pub struct Networker<Tr: Transport> {
    /// The inner transport, until the runtime first polls.
    transport: Option<Tr>,
    handover: Producer<Tr>,
    arrivals: Consumer<Arrival<Tr::Request, Tr::Route>>,
    refusals: Producer<Refused<Tr>>,
    closed: bool,
    shared: Arc<Shared>,
    /// Gives the transport back. `None` only in `finish`.
    thread: Option<JoinHandle<Option<Tr>>>,
}

type Refused<Tr> = (
    <Tr as Transport>::Request,
    <Tr as Transport>::Route,
    Refusal,
);

/// What both sides share.
#[derive(Default, Debug)]
struct Shared {
    /// 0, [`CLOSE`](Self::CLOSE) or [`END`](Self::END); 0: serve.
    orders: AtomicU8,
    /// Where the networker sleeps while the ring of arrivals is full. Otherwise it sleeps in its
    /// transport.
    networker: Sleeper,
    dispatcher: Sleeper,
}

impl Shared {
    const CLOSE: u8 = 1;
    const END: u8 = 2;

    fn orders(&self) -> u8 {
        self.orders.load(Ordering::Acquire)
    }
}

impl<Tr: Transport> Networker<Tr> {
    /// Takes the rings' memory and starts the thread, which polls `transport` once the runtime has
    /// polled this one.
    ///
    /// The thread inherits the calling thread's affinity and scheduling class, unless `config`
    /// names a core.
    ///
    /// # Errors
    /// [`StartError::Config`] for a ring out of its range, [`StartError::Layout`] if the thread
    /// cannot have its core, [`StartError::Thread`] if the system gives no thread.
    pub fn new(transport: Tr, config: NetworkerConfig) -> Result<Self, StartError> {
        if !(BATCH..=1 << 20).contains(&config.ring) {
            return Err(ConfigError::invalid(
                "networker.ring",
                config.ring,
                format!("between {BATCH} and {}", 1 << 20),
                "as many requests as may come while the dispatcher is busy, 1024 for instance",
            )
            .into());
        }
        let (handover, handed) = RingBuffer::new(1);
        let (arrivals_in, arrivals) = RingBuffer::new(config.ring);
        let (refusals, refusals_out) = RingBuffer::new(config.ring);
        let shared: Arc<Shared> = Arc::default();
        let (ready, readiness) = std::sync::mpsc::channel();
        let theirs = Arc::clone(&shared);
        let body = move || {
            let pinned = config.core.map_or(Ok(()), layout::pin_current);
            let failed = pinned.is_err();
            drop(ready.send(pinned));
            drop(ready);
            if failed {
                return None;
            }
            let transport = await_handover(handed, &theirs)?;
            let rounds = Rounds {
                transport,
                arrivals: arrivals_in,
                refusals: refusals_out,
                closed: false,
                shared: theirs,
            };
            Some(rounds.run(config.idle_backoff))
        };
        let thread = std::thread::Builder::new()
            .name(NAME.to_owned())
            .spawn(body)
            .map_err(|cause| StartError::Thread {
                name: NAME.to_owned(),
                cause,
            })?;
        if let Ok(pinned) = readiness.recv() {
            pinned?;
        }
        Ok(Self {
            transport: Some(transport),
            handover,
            arrivals,
            refusals,
            closed: false,
            shared,
            thread: Some(thread),
        })
    }

    /// Ends the thread and gives the transport back. `None`: the transport panicked on it, or has
    /// kept it for more than a second; then the thread is left to end when it can.
    #[must_use]
    pub fn into_inner(mut self) -> Option<Tr> {
        self.finish()
    }

    fn finish(&mut self) -> Option<Tr> {
        self.shared.orders.store(Shared::END, Ordering::Release);
        let thread = self.thread.take()?;
        // It may be parked before the hand-over.
        thread.thread().unpark();
        let start = Instant::now();
        while !thread.is_finished() {
            if start.elapsed() > END_PATIENCE {
                return None;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let returned = thread.join().ok().flatten();
        let mut transport = self.transport.take().or(returned)?;
        // Arrivals that the dispatcher has not taken.
        while let Ok(Arrival { request, route, .. }) = self.arrivals.pop() {
            transport.refuse(request, route, Refusal::ShuttingDown);
        }
        Some(transport)
    }

    /// Hands the transport to the thread, once.
    fn hand_over(&mut self) {
        // The check comes first: every poll calls this, and `take` moves a large value.
        if self.transport.is_some()
            && let Some(transport) = self.transport.take()
        {
            // There is room, since it is handed over once.
            let _ = self.handover.push(transport);
            if let Some(thread) = &self.thread {
                thread.thread().unpark();
            }
        }
    }
}

impl<Tr: Transport> Transport for Networker<Tr> {
    type Request = Tr::Request;
    type Reply = Tr::Reply;
    type Route = Tr::Route;
    type Outgoing = Tr::Outgoing;
    type Replier = Tr::Replier;

    fn poll(
        &mut self,
        _now_nanos: u64,
        room: usize,
        mut deliver: impl FnMut(Arrival<Tr::Request, Tr::Route>),
    ) {
        self.hand_over();
        // If the dispatcher refused all of them, the refusals would fit.
        let room = room.min(self.refusals.slots());
        let mut taken = 0;
        while taken < room
            && let Ok(arrival) = self.arrivals.pop()
        {
            taken += 1;
            if self.closed {
                self.refuse(arrival.request, arrival.route, Refusal::ShuttingDown);
            } else {
                deliver(arrival);
            }
        }
        if taken > 0 {
            self.shared.networker.wake();
        }
    }

    fn refuse(&mut self, request: Tr::Request, route: Tr::Route, cause: Refusal) {
        self.hand_over();
        let mut refused = (request, route, cause);
        while let Err(PushError::Full(back)) = self.refusals.push(refused) {
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                // The transport has panicked, so no thread can turn this away, and the dispatcher
                // must not drop it.
                return std::mem::forget(back);
            }
            self.shared.networker.wake();
            std::thread::sleep(REFUSAL_PAUSE);
            refused = back;
        }
    }

    fn is_wanted(route: &Tr::Route) -> bool {
        Tr::is_wanted(route)
    }

    fn conclude(route: Tr::Route, result: Result<Tr::Reply, Failure>) -> Tr::Outgoing {
        Tr::conclude(route, result)
    }

    fn replier(&mut self) -> std::io::Result<Tr::Replier> {
        let transport = self.transport.as_mut().ok_or_else(|| {
            std::io::Error::other("repliers can be had before the first poll only")
        })?;
        transport.replier()
    }

    fn wait(&mut self, patience: Duration) {
        self.hand_over();
        let arrivals = &self.arrivals;
        self.shared
            .dispatcher
            .sleep(patience, || !arrivals.is_empty());
    }

    fn close(&mut self) {
        self.hand_over();
        self.closed = true;
        self.shared
            .orders
            .fetch_max(Shared::CLOSE, Ordering::Release);
    }
}

impl<Tr: Transport> Drop for Networker<Tr> {
    fn drop(&mut self) {
        drop(self.finish());
    }
}

impl<Tr: Transport> std::fmt::Debug for Networker<Tr> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Networker")
            .field("waiting", &self.arrivals.slots())
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}

/// Waits for the transport; `None` if the end comes first.
fn await_handover<Tr>(mut handed: Consumer<Tr>, shared: &Shared) -> Option<Tr> {
    loop {
        // The orders are read first, so that a transport handed over before the end is not missed.
        let ends = shared.orders() == Shared::END;
        match handed.pop() {
            Ok(transport) => return Some(transport),
            Err(_) if ends => return None,
            Err(_) => std::thread::park(),
        }
    }
}

/// The thread's side.
struct Rounds<Tr: Transport> {
    transport: Tr,
    arrivals: Producer<Arrival<Tr::Request, Tr::Route>>,
    refusals: Consumer<Refused<Tr>>,
    closed: bool,
    shared: Arc<Shared>,
}

impl<Tr: Transport> Rounds<Tr> {
    /// Polls until it is told to end. By then it has turned away all that was refused.
    fn run(mut self, idle_backoff: Option<Duration>) -> Tr {
        let clock = Clock::get();
        let mut worked_at = clock.now_nanos();
        loop {
            let now = clock.now_nanos();
            let orders = self.shared.orders();
            let mut worked = self.turn_away();
            if orders == Shared::END {
                return self.transport;
            }
            if orders == Shared::CLOSE && !std::mem::replace(&mut self.closed, true) {
                self.transport.close();
            }
            worked |= self.poll(now);
            if worked {
                worked_at = now;
                continue;
            }
            let quiet = Duration::from_nanos(now.saturating_sub(worked_at));
            if idle_backoff.is_some_and(|backoff| quiet >= backoff) {
                self.rest(quiet);
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Turns away what the dispatcher has refused; returns whether there was anything.
    fn turn_away(&mut self) -> bool {
        let refused = self.refusals.slots();
        for _ in 0..refused {
            if let Ok((request, route, cause)) = self.refusals.pop() {
                self.transport.refuse(request, route, cause);
            }
        }
        refused > 0
    }

    /// Takes what has come, as far as there is room; returns whether there was anything.
    fn poll(&mut self, now_nanos: u64) -> bool {
        // The transport is polled with no room, too, since it has replies to send.
        let room = self.arrivals.slots().min(BATCH);
        let arrivals = &mut self.arrivals;
        let mut received = false;
        self.transport.poll(now_nanos, room, |arrival| {
            received = true;
            let passed_on = arrivals.push(arrival);
            assert!(
                passed_on.is_ok(),
                "a transport delivers no more than there is room for"
            );
        });
        if received {
            self.shared.dispatcher.wake();
        }
        received
    }

    /// Sleeps for at most as long as nothing has happened. Only its own arrivals wake a transport's
    /// wait, so this bounds how long a refusal lies: for no longer than the quiet before it.
    fn rest(&mut self, quiet: Duration) {
        let patience = quiet.clamp(Duration::from_micros(10), LONGEST_SLEEP);
        if !self.arrivals.is_full() {
            return self.transport.wait(patience);
        }
        // The transport may have arrivals, and its wait would return at once.
        let Self {
            arrivals, refusals, ..
        } = self;
        self.shared.networker.sleep(patience, || {
            !arrivals.is_full() || !refusals.is_empty() || self.shared.orders() == Shared::END
        });
    }
}
