//! A preemptive server of ordinary threads on one core, by priorities: short requests do not wait
//! for long ones.
//!
//! ```text
//!    priority (above the lowest)
//!    3   the switcher: asleep; a timer wakes it when a request has run for the threshold
//!    2   the worker that the dispatcher lets run
//!    1   the dispatcher: takes requests in, gives each to an idle worker
//!    0   workers that were preempted: they run while the dispatcher sleeps
//! ```
//!
//! The slides call these priorities 4 to 1. A request that is given to a worker runs at once, since
//! the worker is above the dispatcher, and the dispatcher goes on when the worker has finished. A
//! request that runs longer than the threshold loses its priority, and so the dispatcher runs,
//! takes in what has come, and gives it to other workers. When nothing is left to take in, the
//! dispatcher sleeps in the kernel, and the preempted requests go on until a packet wakes it.
//!
//! All of these are the kernel's own threads. So a handler can do whatever a thread can, with no
//! rule to keep. What that costs is a switch by the kernel for each request, twice.
//!
//! ```no_run
//! use std::sync::mpsc::{self, Receiver};
//! use std::time::Duration;
//! use shinjuku_elevate::server::{Server, ServerConfig, Source};
//!
//! struct Numbers(Receiver<u64>); // or a socket
//!
//! impl Source for Numbers {
//!     type Request = u64;
//!     fn poll(&mut self) -> Option<u64> {
//!         self.0.try_recv().ok()
//!     }
//!     fn wait(&mut self) -> Option<u64> {
//!         self.0.recv_timeout(Duration::from_millis(20)).ok()
//!     }
//! }
//!
//! let (numbers, source) = mpsc::channel();
//! let handler = |number: u64| println!("{}", (0..number).sum::<u64>());
//! let server = Server::start(ServerConfig::new(1), Numbers(source), handler)?;
//! numbers.send(1_000_000_000)?; // Others pass this one.
//! numbers.send(1)?;
//! println!("{:?}", server.stop());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | |
//! |---|---|
//! | `dispatcher` | the dispatcher's loop |
//! | `worker` | a worker's loop, and what dispatcher, switcher and workers share |
//! | `switcher` | the switcher's loop, and its timer |

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use shinjuku_preempt::SchedulingClass;

use crate::ElevateError;
use crate::member::pin_current;

mod dispatcher;
mod switcher;
mod worker;

use dispatcher::{Dispatcher, Worker};
use switcher::Timer;
use worker::{Control, Slots};

/// Where requests come from: the dispatcher's part of a server.
pub trait Source: Send {
    /// A request.
    type Request: Send;

    /// A request that has come, if there is one.
    fn poll(&mut self) -> Option<Self::Request>;

    /// Sleeps until a request comes, or for some milliseconds: so often the dispatcher looks
    /// whether it is to end. Preempted requests run meanwhile.
    fn wait(&mut self) -> Option<Self::Request>;
}

/// How a server is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct ServerConfig {
    /// The core of all its threads.
    pub core: usize,
    /// Workers: so many requests can be under way at once. 1 to 1024.
    pub workers: usize,
    /// How long a request runs before others pass it; `None`: until it has finished.
    pub threshold: Option<Duration>,
    /// The lowest of four priorities in a row.
    pub lowest_priority: u32,
}

impl ServerConfig {
    /// Sixteen workers, 50 us, priorities from 1 on.
    pub fn new(core: usize) -> Self {
        Self {
            core,
            workers: 16,
            threshold: Some(Duration::from_micros(50)),
            lowest_priority: 1,
        }
    }

    /// Sets [`workers`](field@Self::workers).
    pub fn workers(self, workers: usize) -> Self {
        Self { workers, ..self }
    }

    /// Sets [`threshold`](field@Self::threshold).
    pub fn threshold(self, threshold: impl Into<Option<Duration>>) -> Self {
        let threshold = threshold.into();
        Self { threshold, ..self }
    }

    /// Sets [`lowest_priority`](field@Self::lowest_priority).
    pub fn lowest_priority(self, lowest_priority: u32) -> Self {
        Self {
            lowest_priority,
            ..self
        }
    }

    fn check(&self) -> Result<(), ElevateError> {
        const WORKERS: usize = 1024;
        const HIGHEST: u32 = 99 - 3;
        if !(1..=WORKERS).contains(&self.workers) {
            return Err(ElevateError::Workers {
                workers: self.workers,
                most: WORKERS,
            });
        }
        match self.threshold {
            Some(slice) if slice.is_zero() || slice > Duration::from_millis(100) => {
                return Err(ElevateError::Slice { slice });
            }
            _ => {}
        }
        match (1..=HIGHEST).contains(&self.lowest_priority) {
            true => Ok(()),
            false => Err(ElevateError::Priority {
                lowest: self.lowest_priority,
                most: HIGHEST,
            }),
        }
    }
}

/// What a server did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerReport {
    /// Requests given to workers.
    pub requests: u64,
    /// Times that a worker lost its priority before it had finished.
    pub preemptions: u64,
    /// Times that one got it back, since no idle worker was left.
    pub resumed: u64,
    /// Requests whose handler panicked.
    pub panics: u64,
}

/// A server at work. Dropped, it ends; requests that have begun are finished.
#[derive(Debug)]
pub struct Server {
    control: Arc<Control>,
    timer: Option<Arc<Timer>>,
    dispatcher: Option<JoinHandle<Option<ServerReport>>>,
    others: Vec<JoinHandle<Option<()>>>,
}

impl Server {
    /// Starts to serve what comes from `source` by `handler`.
    ///
    /// # Errors
    /// [`ElevateError`]: a setting out of range, SCHED_FIFO refused, a core that cannot be used.
    pub fn start<S, H>(config: ServerConfig, source: S, handler: H) -> Result<Self, ElevateError>
    where
        S: Source + 'static,
        H: Fn(S::Request) + Send + Sync + 'static,
    {
        config.check()?;
        let ServerConfig { core, workers, .. } = config;
        let fifo = |above| SchedulingClass::fifo(config.lowest_priority + above);
        let [preempted, taking_in, allowed, switching] = [0, 1, 2, 3].map(fifo);
        let control = Arc::new(Control::new(workers));
        let timer = config.threshold.map(Timer::new).transpose();
        let timer = timer.map_err(ElevateError::system("make a timer"))?;
        let mut server = Self {
            control: Arc::clone(&control),
            timer: timer.map(Arc::new),
            dispatcher: None,
            others: Vec::new(),
        };
        let slots = Arc::new(Slots::new(workers));
        let handler = Arc::new(handler);
        let mut staff = Vec::new();
        for number in 0..workers {
            let (control, slots) = (Arc::clone(&control), Arc::clone(&slots));
            let (name, handler) = (format!("elevate-w{number}"), Arc::clone(&handler));
            let work = move || slots.work(number, &control, &*handler);
            let (tid, thread) = start(&name, core, allowed, work)?;
            staff.push(Worker::new(tid, thread.thread().clone()));
            server.others.push(thread);
        }
        if let Some(timer) = server.timer.clone() {
            let tids: Vec<_> = staff.iter().map(|worker| worker.tid).collect();
            let watch = move || timer.watch(&control, &tids, &preempted);
            let (_, thread) = start("elevate-switch", core, switching, watch)?;
            server.others.push(thread);
        }
        let dispatcher = Dispatcher {
            control: Arc::clone(&server.control),
            timer: server.timer.clone(),
            idle: (0..workers).collect(),
            outstanding: VecDeque::with_capacity(workers),
            workers: staff,
            slots,
            classes: [preempted, allowed],
            source,
            report: ServerReport::default(),
        };
        let serve = move || dispatcher.serve();
        let (_, thread) = start("elevate-dispatch", core, taking_in, serve)?;
        server.dispatcher = Some(thread);
        Ok(server)
    }

    /// Ends the server, after the requests that have begun.
    #[must_use]
    pub fn stop(mut self) -> ServerReport {
        self.end()
    }

    fn end(&mut self) -> ServerReport {
        self.control.dispatcher_ends.store(true, Ordering::Release);
        let report = self.dispatcher.take().map(JoinHandle::join);
        self.control.others_end.store(true, Ordering::Release);
        if let Some(timer) = &self.timer {
            timer.ring();
        }
        for thread in self.others.drain(..) {
            thread.thread().unpark();
            // Handlers' panics are caught; the loops around them have none.
            let _ = thread.join();
        }
        let report = report.and_then(|joined| joined.ok().flatten());
        ServerReport {
            panics: self.control.panics.load(Ordering::Relaxed),
            ..report.unwrap_or_default()
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts a thread on a core with a class. Its number, and its handle; what it returns is `None`
/// only if it could not begin.
fn start<T: Send + 'static>(
    name: &str,
    core: usize,
    class: SchedulingClass,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<(u32, JoinHandle<Option<T>>), ElevateError> {
    let (ready, answer) = mpsc::channel();
    let begin = move || {
        pin_current(core).map_err(|cause| ElevateError::Core { core, cause })?;
        class.give_to(0).map_err(ElevateError::class)?;
        Ok(rustix::thread::gettid().as_raw_pid().cast_unsigned())
    };
    let thread = thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let begun: Result<u32, ElevateError> = begin();
            let goes_on = begun.is_ok();
            // The receiver waits.
            let _ = ready.send(begun);
            goes_on.then(run)
        })
        .map_err(ElevateError::system("start a thread"))?;
    let gone = |_| ElevateError::system("start a thread")(io::ErrorKind::Other.into());
    Ok((answer.recv().map_err(gone)??, thread))
}
