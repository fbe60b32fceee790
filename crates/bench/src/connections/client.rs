//! The client: one thread, many connections, an open loop.
//!
//! A request leaves when it is due, on the connection that was drawn for it, whatever the server
//! does; behind others, if that connection has requests under way. A timer of the kernel's
//! (timerfd) wakes the thread, which has real-time priority where that is granted: it shares the
//! servers' cores if there are no others.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::net::sockopt;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use shinjuku_preempt::Realtime;
use shinjuku_workload::{Arrival, Record};

use super::work::{REPLY, REQUEST, number};

/// The timer's name in the epoll set.
const TIMER: u64 = u64::MAX;
const EVENTS: usize = 256;
/// What is under way after the last request was due has so long.
const PATIENCE: Duration = Duration::from_secs(1);
/// Above the servers' threads, below the kernel's own.
const PRIORITY: i32 = 1;

/// When a request ends that has no answer, in ns: later than any that has.
pub const NEVER: u64 = u64::MAX / 2;

/// A request that is to be sent.
#[derive(Debug, Clone, Copy)]
pub struct Planned {
    /// When, on which connection.
    pub arrival: Arrival,
    pub bytes: [u8; REQUEST],
}

/// What became of a run's requests.
#[derive(Debug, Default)]
pub struct Outcome {
    /// All of them; those without an answer end at [`NEVER`].
    pub records: Vec<Record>,
    /// How many have an answer.
    pub answered: u64,
    /// How long after its moment each was sent, in ns.
    pub late: Vec<u64>,
    /// From the first moment to the last answer.
    pub elapsed: Duration,
    /// What the client's thread used meanwhile.
    pub cpu: Duration,
    /// Whether it had real-time priority.
    pub realtime: bool,
}

/// Opens so many connections, sends what is planned from a thread of its own on `cores`, and waits
/// for the answers.
///
/// # Errors
/// A connection cannot be opened or breaks, or an answer is not the one that is due.
pub fn run(
    server: SocketAddr,
    connections: usize,
    plan: &[Planned],
    cores: &CpuSet,
    stop: &AtomicBool,
) -> Result<Outcome> {
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            sched_setaffinity(None, cores).context("the client's cores")?;
            let mut client = Client::connect(server, connections)?;
            let realtime = Realtime::enter(PRIORITY).ok();
            let before = cpu_time();
            let outcome = client.send(plan, stop)?;
            Ok(Outcome {
                cpu: cpu_time().saturating_sub(before),
                realtime: realtime.is_some(),
                ..outcome
            })
        });
        let ended = client.join();
        ended.map_err(|_| anyhow::anyhow!("the client panicked"))?
    })
}

/// What the calling thread has used.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

struct Client {
    connections: Vec<Connection>,
    epoll: OwnedFd,
    timer: OwnedFd,
}

struct Connection {
    stream: TcpStream,
    /// Numbers of the requests under way, in order.
    under_way: VecDeque<u32>,
    /// The beginning of a reply.
    rest: Vec<u8>,
}

impl Client {
    fn connect(server: SocketAddr, connections: usize) -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        let open = |number| {
            let stream = TcpStream::connect(server)
                .with_context(|| format!("cannot open connection {number}"))?;
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            // Closed at once: thousands a turn would wait for a minute in the kernel's tables.
            sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
            epoll::add(&epoll, &stream, EventData::new_u64(number), EventFlags::IN)?;
            Ok(Connection {
                stream,
                under_way: VecDeque::new(),
                rest: Vec::new(),
            })
        };
        let connections = (0..connections as u64).map(open);
        Ok(Self {
            connections: connections.collect::<Result<_>>()?,
            epoll,
            timer,
        })
    }

    fn send(&mut self, plan: &[Planned], stop: &AtomicBool) -> Result<Outcome> {
        let never = |planned: &Planned| Record {
            arrival_ns: planned.arrival.at_ns,
            service_ns: planned.arrival.service_ns,
            finish_ns: NEVER,
            class: planned.arrival.class,
        };
        let mut outcome = Outcome {
            records: plan.iter().map(never).collect(),
            ..Outcome::default()
        };
        let last = plan.last().context("nothing is to be sent")?.arrival.at_ns;
        let end_ns = last + PATIENCE.as_nanos() as u64;
        let start = Instant::now();
        let now_ns = || start.elapsed().as_nanos() as u64;
        let (mut sent, all) = (0, plan.len() as u64);
        while outcome.answered < all && now_ns() < end_ns && !stop.load(Relaxed) {
            while let Some(planned) = plan.get(sent) {
                let late = now_ns().checked_sub(planned.arrival.at_ns);
                let Some(late) = late else {
                    break;
                };
                outcome.late.push(late);
                self.connections[planned.arrival.flow as usize].submit(planned, sent as u32)?;
                sent += 1;
            }
            let next_ns = plan.get(sent).map_or(end_ns, |next| next.arrival.at_ns);
            self.wait(next_ns.saturating_sub(now_ns()), &now_ns, &mut outcome)?;
        }
        outcome.elapsed = start.elapsed();
        Ok(outcome)
    }

    /// Waits for answers or for so many ns, and takes the answers.
    fn wait(
        &mut self,
        patience_ns: u64,
        now_ns: &impl Fn() -> u64,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let patience = Timespec {
            tv_sec: (patience_ns / 1_000_000_000) as _,
            // A timer of 0 is none.
            tv_nsec: (patience_ns % 1_000_000_000).max(1) as _,
        };
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: patience,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS];
        // An interrupted wait is one of no events.
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events[..], None) else {
            return Ok(());
        };
        for event in ready {
            match event.data.u64() {
                // It is set anew before the next wait, which makes it unreadable.
                TIMER => {}
                one => self.connections[one as usize].receive(now_ns, outcome)?,
            }
        }
        Ok(())
    }
}

impl Connection {
    /// Sends a request. One that the kernel has no room for stays unanswered.
    fn submit(&mut self, planned: &Planned, number: u32) -> Result<()> {
        match self.stream.write(&planned.bytes) {
            Ok(length) => ensure!(length == REQUEST, "a part of a request was sent"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error).context("a connection broke"),
        }
        self.under_way.push_back(number);
        Ok(())
    }

    /// Takes the answers that have come.
    fn receive(&mut self, now_ns: &impl Fn() -> u64, outcome: &mut Outcome) -> Result<()> {
        let mut input = [0; 256 * REPLY];
        let held = self.rest.len();
        input[..held].copy_from_slice(&self.rest);
        let length = match self.stream.read(&mut input[held..]) {
            Ok(0) => anyhow::bail!("the server has closed a connection"),
            Ok(length) => held + length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error).context("a connection broke"),
        };
        let finish_ns = now_ns();
        let (replies, rest) = input[..length].as_chunks::<REPLY>();
        for reply in replies {
            let wanted = self.under_way.pop_front();
            let wanted = wanted.context("an answer to nothing")?;
            let found = number(reply);
            // A refused request is one without an answer.
            if found == u32::MAX {
                continue;
            }
            ensure!(found == wanted, "answer {found} came in place of {wanted}");
            outcome.records[wanted as usize].finish_ns = finish_ns;
            outcome.answered += 1;
        }
        self.rest.clear();
        self.rest.extend_from_slice(rest);
        Ok(())
    }
}
