//! The client: hyper over connections that stay open, on one thread.
//!
//! ```text
//!   due ──▶ a free connection ──▶ request ──▶ the whole reply ──▶ the connection is free again
//!            └─ none: waits for one, and its latency counts from when it was due all the same
//! ```
//!
//! A timer of the kernel's (timerfd) says when a request is due: tokio's own counts in
//! milliseconds. The thread is under SCHED_FIFO where it may be, so that requests leave when they
//! are due although the server wants all cores.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http_body_util::BodyExt;
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustix::thread::CpuSet;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use shinjuku_preempt::Realtime;
use shinjuku_workload::{Arrival, Record};
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, LocalSet, spawn_local, yield_now};
use tokio::time::timeout;

use super::routes::{ROUTES, Route};

/// Connections, so as many requests under way at the most.
pub const CONNECTIONS: usize = 128;
/// The same at saturation.
pub const BUSY_CONNECTIONS: usize = 32;
/// What may be under way when the last request was due has this long.
const PATIENCE: Duration = Duration::from_secs(10);
/// Above the server's threads, below the kernel's own.
const PRIORITY: i32 = 1;

/// When a request ends that has no answer, in ns: later than any that has.
pub const NEVER: u64 = u64::MAX / 2;

/// What became of a run's requests.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Those that were answered as they should be.
    pub answered: Vec<Record>,
    /// All others: refused, broken off, answered wrongly or not at all. They end at [`NEVER`].
    pub lost: Vec<Record>,
    /// How long after its moment the client came to each request, in ns. A wait for a connection,
    /// which is the server's doing, is not in it.
    pub late: Vec<u64>,
    /// Those that were refused or answered wrongly, or whose connection broke.
    pub failed: u64,
    /// Why the first of them was.
    pub reason: Option<String>,
    /// Those without an answer when there was no more waiting.
    pub unanswered: u64,
    /// From the first moment to the last answer.
    pub elapsed: Duration,
    /// What the client's thread used.
    pub cpu: Duration,
    /// Whether it was under SCHED_FIFO.
    pub realtime: bool,
}

/// How the client sends.
#[derive(Debug, Clone, Copy)]
pub enum Sending {
    /// Each request at its moment, whatever the server does.
    OpenLoop,
    /// One after the other on each of [`BUSY_CONNECTIONS`], for so long, in the order given.
    Saturating(Duration),
}

/// Sends `arrivals`, in which a class is a place in [`ROUTES`], from a thread of its own on
/// `cores`; any if there are none.
///
/// # Errors
/// The server cannot be reached.
pub fn run(
    server: SocketAddr,
    arrivals: &[Arrival],
    sending: Sending,
    cores: Option<&CpuSet>,
    stop: &AtomicBool,
) -> Result<Outcome> {
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            if let Some(cores) = cores {
                rustix::thread::sched_setaffinity(None, cores).context("the client's cores")?;
            }
            let realtime = Realtime::enter(PRIORITY).ok();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let before = cpu_time();
            let local = LocalSet::new();
            let sent = local.block_on(&runtime, send(server, arrivals, sending, stop));
            Ok(Outcome {
                cpu: cpu_time().saturating_sub(before),
                realtime: realtime.is_some(),
                ..sent?
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

async fn send(
    server: SocketAddr,
    arrivals: &[Arrival],
    sending: Sending,
    stop: &AtomicBool,
) -> Result<Outcome> {
    let (connections, window) = match sending {
        Sending::OpenLoop => (CONNECTIONS, Duration::MAX),
        Sending::Saturating(window) => (BUSY_CONNECTIONS, window),
    };
    let mut free = Vec::new();
    for _ in 0..connections {
        free.push(connect(server).await.context("cannot connect")?);
    }
    let client = Rc::new(Client {
        server,
        permits: Semaphore::new(connections),
        free: RefCell::new(free),
        start: Instant::now(),
        under_way: RefCell::default(),
        outcome: RefCell::default(),
    });
    let alarm = Alarm::new()?;
    let mut under_way = JoinSet::new();
    for (number, &arrival) in arrivals.iter().enumerate() {
        if stop.load(Relaxed) || client.start.elapsed() >= window {
            break;
        }
        let due = match sending {
            Sending::OpenLoop => {
                alarm
                    .wait_until(client.start + Duration::from_nanos(arrival.at_ns))
                    .await?;
                arrival.at_ns
            }
            Sending::Saturating(_) => {
                // As soon as a connection is free.
                drop(client.permits.acquire().await?);
                client.start.elapsed().as_nanos() as u64
            }
        };
        let client = Rc::clone(&client);
        let class = arrival.class;
        let late = client.nanos().saturating_sub(due);
        client.outcome.borrow_mut().late.push(late);
        (client.under_way.borrow_mut()).insert(number, (due, class));
        under_way.spawn_local(async move { client.request(number, due, class).await });
        while under_way.try_join_next().is_some() {}
        if matches!(sending, Sending::Saturating(_)) {
            // It takes its connection before the next is looked for.
            yield_now().await;
        }
    }
    let ends = async { while under_way.join_next().await.is_some() {} };
    let _ = timeout(PATIENCE, ends).await;
    let mut outcome = client.outcome.take();
    let unanswered = client.under_way.take();
    outcome.unanswered = unanswered.len() as u64;
    let never = unanswered.into_values();
    (outcome.lost).extend(never.map(|(due, class)| record(due, NEVER, class)));
    // Not until now: one request without an answer would make the server seem slow to all others.
    let last = outcome.answered.iter().map(|one| one.finish_ns).max();
    outcome.elapsed = Duration::from_nanos(last.unwrap_or_default());
    Ok(outcome)
}

/// What all requests share.
struct Client {
    server: SocketAddr,
    permits: Semaphore,
    /// As many as there are permits, or less where one broke.
    free: RefCell<Vec<SendRequest<String>>>,
    start: Instant,
    /// When each was due, and its class.
    under_way: RefCell<BTreeMap<usize, (u64, u16)>>,
    outcome: RefCell<Outcome>,
}

fn record(due: u64, finish_ns: u64, class: u16) -> Record {
    Record {
        arrival_ns: due,
        service_ns: 1,
        finish_ns: finish_ns.max(due),
        class,
    }
}

impl Client {
    /// A request that is due at `due` ns.
    async fn request(&self, number: usize, due: u64, class: u16) {
        let Ok(_permit) = self.permits.acquire().await else {
            return;
        };
        let route = &ROUTES[usize::from(class)];
        let answer = self.ask(route).await;
        let now = self.nanos();
        let outcome = &mut *self.outcome.borrow_mut();
        self.under_way.borrow_mut().remove(&number);
        match answer {
            Ok(()) => outcome.answered.push(record(due, now, class)),
            Err(error) => {
                outcome.failed += 1;
                outcome.lost.push(record(due, NEVER, class));
                let reason = || format!("{}: {error:#}", route.name);
                outcome.reason.get_or_insert_with(reason);
            }
        }
    }

    /// Asks over a connection that is free, and has the whole reply.
    async fn ask(&self, route: &Route) -> Result<()> {
        let free = self.free.borrow_mut().pop();
        let mut connection = match free {
            Some(connection) if !connection.is_closed() => connection,
            _ => connect(self.server).await?,
        };
        connection.ready().await?;
        let method = if route.form.is_some() { "POST" } else { "GET" };
        let request = Request::builder()
            .method(method)
            .uri(route.path)
            .header("host", self.server.to_string())
            .header("content-type", "application/x-www-form-urlencoded")
            .body(route.form.unwrap_or_default().to_owned())?;
        let reply = connection.send_request(request).await?;
        let status = reply.status();
        let body = reply.into_body().collect().await?.to_bytes();
        self.free.borrow_mut().push(connection);
        ensure!(status.is_success(), "the server answers {status}");
        ensure!(
            (route.is_right)(&body),
            "the server answers {status} with a wrong body of {} bytes",
            body.len()
        );
        Ok(())
    }

    fn nanos(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

async fn connect(server: SocketAddr) -> Result<SendRequest<String>> {
    let stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    // Its errors come with the request that they meet.
    spawn_local(async move { drop(connection.await) });
    Ok(sender)
}

/// Wakes at a moment, within microseconds.
struct Alarm(AsyncFd<OwnedFd>);

impl Alarm {
    fn new() -> Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)
            .context("cannot make a timer")?;
        // `new` is deprecated for types whose descriptor may change or close, and what is to take
        // its place is unsafe. An `OwnedFd` does neither.
        #[allow(deprecated)]
        Ok(Self(AsyncFd::new(timer)?))
    }

    async fn wait_until(&self, moment: Instant) -> Result<()> {
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            // The others have their turn even if this one is late for good.
            yield_now().await;
            return Ok(());
        }
        let time = |time: Duration| Timespec {
            tv_sec: time.as_secs() as _,
            tv_nsec: time.subsec_nanos().into(),
        };
        let once = Itimerspec {
            it_interval: time(Duration::ZERO),
            it_value: time(left),
        };
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.0.readable().await?;
            let read = ready.try_io(|timer| {
                let mut expirations = [0; 8];
                Ok(rustix::io::read(timer.get_ref(), &mut expirations)?)
            });
            // Else it was not ready after all.
            if let Ok(read) = read {
                read?;
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Answers every request with `status` and `body`, on as many connections as come; if the
    /// status is empty, never.
    fn server(status: &'static str, body: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                std::thread::spawn(move || {
                    let mut told = [0; 4096];
                    // A request is one packet here.
                    while connection.read(&mut told).is_ok_and(|read| read > 0) {
                        if status.is_empty() {
                            continue;
                        }
                        let length = body.len();
                        let reply =
                            format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}");
                        connection.write_all(reply.as_bytes()).unwrap();
                    }
                });
            }
        });
        address
    }

    fn arrivals(count: u64) -> Vec<Arrival> {
        let arrival = |n: u64| Arrival {
            at_ns: n * 500_000,
            service_ns: 1,
            flow: 0,
            class: 0,
        };
        (0..count).map(arrival).collect()
    }

    #[test]
    fn all_requests_are_sent_when_they_are_due_and_counted() {
        let stop = AtomicBool::new(false);
        let arrivals = arrivals(200);
        let sent = run(
            server("200 OK", "ok\n"),
            &arrivals,
            Sending::OpenLoop,
            None,
            &stop,
        )
        .unwrap();
        assert_eq!(
            (sent.answered.len(), sent.late.len()),
            (200, 200),
            "{sent:?}"
        );
        assert!(sent.elapsed >= Duration::from_nanos(arrivals[199].at_ns));
        let mut due: Vec<_> = sent.answered.iter().map(|one| one.arrival_ns).collect();
        due.sort_unstable();
        assert!(
            due.iter()
                .zip(&arrivals)
                .all(|(due, arrival)| *due == arrival.at_ns)
        );
    }

    #[test]
    fn refusals_are_failures_and_saturation_ends() {
        let (stop, arrivals) = (AtomicBool::new(false), arrivals(50));
        let refuses = server("503 Service Unavailable", "ok\n");
        let sent = run(refuses, &arrivals, Sending::OpenLoop, None, &stop).unwrap();
        assert_eq!((sent.answered.len(), sent.failed), (0, 50));
        assert!(sent.reason.unwrap().contains("503"));
        assert!(sent.lost.len() == 50 && sent.lost.iter().all(|one| one.finish_ns == NEVER));
        // Long enough for a first request even if this thread is held up at once.
        let window = Sending::Saturating(Duration::from_secs(1));
        let sent = run(server("200 OK", "ok\n"), &arrivals, window, None, &stop).unwrap();
        assert!(!sent.answered.is_empty() && sent.failed == 0);
    }

    /// The first is answered, and then none: nobody was answered while the client waited for those.
    #[test]
    fn the_time_is_that_of_the_last_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut connections: Vec<_> = (0..CONNECTIONS)
                .map(|_| listener.accept().unwrap().0)
                .collect();
            // Whichever connection the client takes first.
            for connection in &mut connections {
                connection.set_nonblocking(true).unwrap();
            }
            let mut told = [0; 4096];
            let asked = loop {
                let is_asked = |connection: &mut std::net::TcpStream| {
                    connection.read(&mut told).is_ok_and(|read| read > 0)
                };
                if let Some(asked) = connections.iter_mut().position(is_asked) {
                    break asked;
                }
            };
            let reply = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n";
            connections[asked].write_all(reply).unwrap();
            std::thread::sleep(2 * PATIENCE);
        });
        let (stop, arrivals) = (AtomicBool::new(false), arrivals(2));
        let sent = run(address, &arrivals, Sending::OpenLoop, None, &stop).unwrap();
        assert_eq!((sent.answered.len(), sent.unanswered), (1, 1));
        assert!(sent.elapsed < PATIENCE / 2, "{:?}", sent.elapsed);
    }

    #[test]
    fn a_wrong_body_is_a_failure() {
        let (stop, arrivals) = (AtomicBool::new(false), arrivals(5));
        let wrong = server("200 OK", "no\n");
        let sent = run(wrong, &arrivals, Sending::OpenLoop, None, &stop).unwrap();
        assert_eq!(
            (sent.answered.len(), sent.failed, sent.lost.len()),
            (0, 5, 5)
        );
        assert!(sent.reason.unwrap().contains("wrong body"));
    }
}
