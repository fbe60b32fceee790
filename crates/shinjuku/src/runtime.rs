//! A running runtime: its statistics, the handle for requests of this process, its shutdown and the
//! shutdown's report.

use std::time::Duration;

use shinjuku_net::Transport;
use shinjuku_policy::PolicyError;
use shinjuku_preempt::in_context;

use crate::builder::Builder;
use crate::handler::RequestHandler;
use crate::in_process::{Handle, InProcess, InProcessBounds, finish, in_process};
use crate::layout::Layout;
use crate::observer::Observer;
use crate::start_error::StartError;
use crate::statistics::Statistics;
use crate::threads::{DROP_DEADLINE, Threads};
use crate::timeline::{RecordError, Trace};
use crate::watch::WatchSocket;

/// How many submitted requests may wait until the dispatcher takes them in.
const INTAKE: usize = 4096;
/// How long a shutdown waits for the completion thread, which may be held up by a user's waker.
const COMPLETION_PATIENCE: Duration = Duration::from_secs(1);

/// A runtime that serves requests submitted in this process.
///
/// ```
/// use shinjuku::policy::ClassId;
/// use shinjuku::{Runtime, handler_fn};
/// use std::time::Duration;
///
/// let runtime = Runtime::builder(handler_fn(|n: u64| n * n)).start()?;
/// let ticket = runtime.handle().submit(ClassId(0), 12)?;
/// assert_eq!(ticket.wait()?, 144);
///
/// // Intake stops, and what was admitted has up to a second to finish.
/// let report = runtime.shutdown(Duration::from_secs(1));
/// assert!(report.is_clean(), "{report}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropping it shuts it down, with a deadline of one second. Dropped by a request handler of any
/// runtime, or by the waker of one of its own answers, it ends in the background: neither may wait
/// for what may wait for it.
pub struct Runtime<Request: Send + 'static, Reply: Send + 'static> {
    /// `None` only while it is dropped.
    threads: Option<Threads<InProcess<Request, Reply>>>,
    handle: Handle<Request, Reply>,
    _watch: Option<WatchSocket>,
}

impl<Request: Send + 'static, Reply: Send + 'static> std::fmt::Debug for Runtime<Request, Reply> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Runtime({:?})", self.threads())
    }
}

impl<Request: Send + 'static, Reply: Send + 'static> Runtime<Request, Reply> {
    /// Begins to configure a runtime for `handler`.
    pub fn builder<H>(handler: H) -> Builder<H>
    where
        H: RequestHandler<Request = Request, Reply = Reply>,
    {
        Builder::new(handler)
    }

    pub(crate) fn start<H>(mut builder: Builder<H>) -> Result<Self, StartError>
    where
        H: RequestHandler<Request = Request, Reply = Reply>,
    {
        builder.validate()?;
        let layout = Layout::plan(&builder.config)?;
        let workers = layout.workers.len();
        let dispatchers = layout.dispatchers();
        let share = builder.config.share_of(dispatchers);
        let bounds = InProcessBounds {
            intake: INTAKE,
            outstanding: share.task_capacity(workers),
        };
        let made = in_process(bounds, dispatchers);
        let (handle, transports) = made.map_err(|cause| StartError::Thread {
            name: "shinjuku-completion".to_owned(),
            cause,
        })?;
        let watch = builder.config.watch.take();
        let mut runtime = Self {
            threads: Some(Threads::start(builder, transports)?),
            handle,
            _watch: None,
        };
        if let Some(path) = watch {
            runtime._watch = Some(runtime.observer().listen(path)?);
        }
        Ok(runtime)
    }

    fn threads(&self) -> &Threads<InProcess<Request, Reply>> {
        self.threads.as_ref().expect("the runtime is not dropped")
    }

    /// Submits requests, from any thread.
    #[must_use]
    pub fn handle(&self) -> Handle<Request, Reply> {
        self.handle.clone()
    }

    /// What happened so far. The refusals include what [`Handle::submit`](crate::Handle::submit)
    /// refused at once.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.observer().statistics()
    }

    /// A view of the statistics that handlers and other threads can keep.
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer {
            at_submit: Some(self.handle.refused_at_submit()),
            ..self.threads().observer()
        }
    }

    /// Records which request runs where for `duration`, as [`Observer::record`] does, and blocks
    /// the calling thread meanwhile.
    ///
    /// ```
    /// use std::time::Duration;
    /// # use shinjuku::{Runtime, handler_fn};
    /// # let runtime = Runtime::builder(handler_fn(|n: u64| n)).start()?;
    /// let trace = runtime.record(Duration::from_millis(5))?;
    /// assert!(trace.duration() >= Duration::from_millis(5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`RecordError::Busy`](crate::error::RecordError::Busy) while another thread records.
    pub fn record(&self, duration: Duration) -> Result<Trace, RecordError> {
        self.observer().record(duration)
    }

    /// How the runtime preempts and why: the line that was logged at start, and the quanta that
    /// `auto` has in force now if it has changed them.
    #[must_use]
    pub fn description(&self) -> String {
        self.threads().observer().description()
    }

    /// Stops intake, lets admitted requests finish for at most `deadline`, and ends all threads. A
    /// request that has started and not finished by then is reported, and goes on in the
    /// background: its context is leaked, with its backing thread and the handler.
    #[must_use = "the report says what did not finish"]
    pub fn shutdown(mut self, deadline: Duration) -> ShutdownReport {
        let threads = self.threads.take().expect("the runtime is not dropped");
        end(threads, &self.handle, deadline)
    }
}

/// Admitted requests may finish until the deadline; then all threads end.
fn end<Request: Send + 'static, Reply: Send + 'static>(
    mut threads: Threads<InProcess<Request, Reply>>,
    handle: &Handle<Request, Reply>,
    deadline: Duration,
) -> ShutdownReport {
    let mut report = threads.shutdown(deadline);
    let transports = std::mem::take(&mut threads.transports);
    finish(transports, COMPLETION_PATIENCE);
    // A thread that still waits for a leaked request is told.
    handle.abandon();
    if let Some(statistics) = &mut report.statistics {
        statistics.add_refused_at_submit(handle.refusals());
    }
    report
}

impl<Request: Send + 'static, Reply: Send + 'static> Drop for Runtime<Request, Reply> {
    fn drop(&mut self) {
        let Some(threads) = self.threads.take() else {
            return;
        };
        let handle = self.handle.clone();
        let end = move || drop(end(threads, &handle, DROP_DEADLINE));
        if !in_context() && !self.handle.completion_thread().is_current() {
            return end();
        }
        // If the thread cannot be had, `spawn` drops `end`, and `Threads` ends where it is dropped.
        let name = "shinjuku-end".to_owned();
        drop(std::thread::Builder::new().name(name).spawn(end));
    }
}

/// A runtime that serves a transport.
///
/// ```
/// use shinjuku::net::udp::{Datagram, Udp, UdpConfig};
/// use shinjuku::{Runtime, handler_fn};
/// use std::net::UdpSocket;
/// use std::time::Duration;
///
/// let udp = Udp::bind(UdpConfig::new("127.0.0.1:0".parse()?))?;
/// let address = udp.local_addr();
/// let echo = handler_fn(|request: Datagram| Some(request.echo()));
/// let server = Runtime::builder(echo).serve(udp)?;
///
/// let client = UdpSocket::bind("127.0.0.1:0")?;
/// client.send_to(b"ping", address)?;
/// let mut reply = [0; 4];
/// client.recv(&mut reply)?;
/// assert_eq!(&reply, b"ping");
///
/// let (report, udp) = server.shutdown(Duration::from_secs(1));
/// assert!(report.is_clean(), "{report}");
/// # drop(udp);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropping it shuts it down, with a deadline of one second.
pub struct Server<Tr: Transport> {
    threads: Threads<Tr>,
    _watch: Option<WatchSocket>,
}

impl<Tr: Transport> std::fmt::Debug for Server<Tr> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Server({})", self.threads.description)
    }
}

impl<Tr: Transport> Server<Tr> {
    pub(crate) fn start<H>(mut builder: Builder<H>, transports: Vec<Tr>) -> Result<Self, StartError>
    where
        H: RequestHandler<Request = Tr::Request, Reply = Tr::Reply>,
    {
        builder.validate()?;
        let watch = builder.config.watch.take();
        let threads = Threads::start(builder, transports)?;
        let watch = watch.map(|path| threads.observer().listen(path));
        Ok(Self {
            _watch: watch.transpose()?,
            threads,
        })
    }

    /// What happened so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.threads.statistics()
    }

    /// A view of the statistics that handlers and other threads can keep.
    #[must_use]
    pub fn observer(&self) -> Observer {
        self.threads.observer()
    }

    /// As [`Runtime::record`].
    ///
    /// # Errors
    /// [`RecordError::Busy`](crate::error::RecordError::Busy) while another thread records.
    pub fn record(&self, duration: Duration) -> Result<Trace, RecordError> {
        self.observer().record(duration)
    }

    /// How the runtime preempts and why: the line that was logged at start, and the quanta that
    /// `auto` has in force now if it has changed them.
    #[must_use]
    pub fn description(&self) -> String {
        self.threads.observer().description()
    }

    /// As [`Runtime::shutdown`]. Gives the transport back as well, unless the dispatcher's thread
    /// has panicked.
    #[must_use = "the report says what did not finish"]
    pub fn shutdown(self, deadline: Duration) -> (ShutdownReport, Option<Tr>) {
        let (report, mut transports) = self.shutdown_each(deadline);
        transports.truncate(1);
        (report, transports.pop())
    }

    /// As [`shutdown`](Self::shutdown), for [`Builder::serve_each`]: gives back the transports of
    /// all dispatchers that have ended.
    #[must_use = "the report says what did not finish"]
    pub fn shutdown_each(mut self, deadline: Duration) -> (ShutdownReport, Vec<Tr>) {
        let report = self.threads.shutdown(deadline);
        (report, std::mem::take(&mut self.threads.transports))
    }
}

/// What a shutdown left.
///
/// ```
/// use shinjuku::policy::ClassId;
/// use shinjuku::{Runtime, handler_fn};
/// use std::time::Duration;
///
/// let runtime = Runtime::builder(handler_fn(|n: u64| n)).contexts(8).start()?;
/// runtime.handle().submit(ClassId(0), 1)?.wait()?;
/// let report = runtime.shutdown(Duration::from_secs(5));
/// assert!(report.is_clean(), "{report}");
/// assert_eq!(report.contexts_returned, 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Requests that started and did not finish by the deadline, by the name of their class.
    pub unfinished: Vec<String>,
    /// Contexts whose backing threads have ended.
    pub contexts_returned: usize,
    /// Contexts that are leaked, with their backing threads and the handler: those of the
    /// unfinished requests, which go on in the background until they finish. (Suspended for good,
    /// one could hold any lock, the allocator's included.)
    pub contexts_leaked: usize,
    /// Worker threads that were still within a request.
    pub workers_leaked: usize,
    /// All that was counted; taken after the last request that finished in time.
    pub statistics: Option<Statistics>,
    /// What the policy did wrong, if it did; the runtime went on first come, first served.
    pub policy_error: Option<PolicyError>,
}

impl ShutdownReport {
    /// Whether everything that was admitted finished, and every thread ended.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.unfinished.is_empty() && self.contexts_leaked == 0 && self.workers_leaked == 0
    }
}

impl std::fmt::Display for ShutdownReport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_clean() {
            write!(
                formatter,
                "everything finished; {} contexts returned",
                self.contexts_returned
            )?;
        } else {
            write!(
                formatter,
                "{} requests unfinished ({}); {} contexts and {} worker threads leaked, {} contexts returned",
                self.unfinished.len(),
                self.unfinished.join(", "),
                self.contexts_leaked,
                self.workers_leaked,
                self.contexts_returned
            )?;
        }
        match &self.policy_error {
            Some(error) => write!(formatter, "; the policy was set aside: {error}"),
            None => Ok(()),
        }
    }
}
