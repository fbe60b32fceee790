//! Starting a runtime, talking to it, shutting it down.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shinjuku_net::{Failure, Transport};
use shinjuku_policy::{Policy, PolicyError, Verified, WorkerId};
use shinjuku_preempt::{
    Clock, Handles, HardPreemption, Pool, PoolConfig, PoolError, Realtime, RealtimeError,
    SignalError, Unsupported, Worker, WorkerLink, mailbox,
};

use crate::config::{ClassConfig, Config, ConfigError, MechanismKind};
use crate::desk::{Bed, Desk};
use crate::dispatcher::{Control, Dispatcher, Parts, Remains, Rules};
use crate::handler::{PerCoreStates, RequestContext, RequestHandler};
use crate::in_process::{Handle, InProcess, InProcessBounds, in_process};
use crate::layout::{self, Layout, LayoutError};
use crate::preemption::Preemption;
use crate::request::{Done, Job};
use crate::statistics::{DispatcherStatistics, Statistics, WorkerStatistics};
use crate::worker::WorkerLoop;

/// Submitted requests that the dispatcher has not looked at yet, at the most.
const INTAKE: usize = 4096;
/// How long a runtime that is dropped lets its requests finish.
const DROP_DEADLINE: Duration = Duration::from_secs(1);
/// How long a shutdown waits for the courier, which may be held up by a user's waker.
const COURIER_PATIENCE: Duration = Duration::from_secs(1);

/// Why a runtime did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A value of the configuration cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Contexts cannot be made.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Workers cannot run here.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A thread cannot have its core.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Real-time priority was asked for and refused.
    #[error(transparent)]
    Realtime(#[from] RealtimeError),
    /// The signal handler cannot be installed.
    #[error(transparent)]
    Signal(#[from] SignalError),
    /// A mechanism was asked for that interrupts handlers anywhere, without the permission.
    #[error(
        "preemption.mechanism is \"{mechanism}\", which interrupts handlers at any instruction: call \
         `allow_hard_preemption` on the builder with the token, whose constructor says what handlers must not rely on; \
         or choose \"probe\""
    )]
    NotAllowed {
        /// What was asked for.
        mechanism: MechanismKind,
    },
    /// The handler's own `init` refused.
    #[error("the handler's init failed: {0}")]
    Init(Box<dyn std::error::Error + Send + Sync>),
    /// A callback panicked.
    #[error("the handler's {callback} panicked on {place}")]
    Panicked {
        /// Which callback.
        callback: &'static str,
        /// On which thread.
        place: String,
    },
    /// The transport cannot serve another worker.
    #[error("the transport failed to start: {0}")]
    Transport(std::io::Error),
    /// The operating system gave no thread.
    #[error("thread {name} could not be started: {source}")]
    Thread {
        /// The thread's name.
        name: String,
        /// The system's error.
        source: std::io::Error,
    },
}

/// Configures a runtime; see [`Runtime::builder`]. The methods bear the names of the configuration file's keys.
#[must_use = "a builder does nothing until `start`"]
pub struct Builder<H: RequestHandler> {
    handler: H,
    config: Config,
    policy: Option<Box<dyn Policy>>,
    token: Option<HardPreemption>,
}

impl<H: RequestHandler> std::fmt::Debug for Builder<H> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Builder({:?})", self.config)
    }
}

impl<H: RequestHandler> Builder<H> {
    /// Takes the whole configuration, from a file or made in code.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Changes single values of the configuration.
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Number of workers.
    pub fn workers(self, workers: usize) -> Self {
        self.configure(|config| config.workers = Some(workers))
    }

    /// A policy of your own, instead of the configuration's. It must have been built for
    /// [`Config::task_capacity`] task slots.
    pub fn policy(mut self, policy: Box<dyn Policy>) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Lets mechanisms that interrupt handlers at any instruction be used, besides probes.
    pub fn allow_hard_preemption(mut self, token: HardPreemption) -> Self {
        self.token = Some(token);
        self
    }

    /// Starts a runtime that is given its requests in this process, through [`Runtime::handle`].
    ///
    /// # Errors
    /// [`StartError`] says what is in the way; nothing keeps running then.
    pub fn start(self) -> Result<Runtime<H>, StartError> {
        self.config.validate()?;
        let workers = Layout::plan(&self.config)?.workers.len();
        let outstanding = self.config.task_capacity(workers);
        let bounds = InProcessBounds {
            intake: INTAKE,
            outstanding,
        };
        let (handle, transport) = in_process(bounds).map_err(|source| StartError::Thread {
            name: "shinjuku-courier".to_owned(),
            source,
        })?;
        Ok(Runtime {
            core: Core::start(self, transport)?,
            handle,
        })
    }

    /// Starts a runtime that serves a transport.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn serve<Tr>(self, transport: Tr) -> Result<Server<H, Tr>, StartError>
    where
        Tr: Transport<Request = H::Request, Reply = H::Reply>,
    {
        self.config.validate()?;
        Ok(Server {
            core: Core::start(self, transport)?,
            handler: std::marker::PhantomData,
        })
    }
}

/// A runtime that serves requests submitted in this process.
///
/// Dropping it shuts it down, with a deadline of one second.
pub struct Runtime<H: RequestHandler> {
    core: Core<InProcess<H::Request, H::Reply>>,
    handle: Handle<H::Request, H::Reply>,
}

impl<H: RequestHandler> std::fmt::Debug for Runtime<H> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Runtime({:?})", self.core)
    }
}

impl<H: RequestHandler> Runtime<H> {
    /// Begins to configure a runtime for `handler`.
    pub fn builder(handler: H) -> Builder<H> {
        Builder {
            handler,
            config: Config::default(),
            policy: None,
            token: None,
        }
    }

    /// Submits requests, from any thread.
    #[must_use]
    pub fn handle(&self) -> Handle<H::Request, H::Reply> {
        self.handle.clone()
    }

    /// What happened so far. What [`Handle::submit`](crate::Handle::submit) refused at once is among the refusals.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let mut statistics = self.core.statistics();
        let at_submit = self.handle.refusals();
        statistics.received += at_submit.total();
        statistics.refused += at_submit;
        statistics
    }

    /// How the runtime preempts and why: the line that was logged at start.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.core.description
    }

    /// Stops intake, lets admitted requests finish for at most `deadline`, and ends all threads. What has not
    /// finished by then is reported; its context is leaked, with its donor thread and the handler.
    #[must_use = "the report says what did not finish"]
    pub fn shutdown(mut self, deadline: Duration) -> ShutdownReport {
        self.end(deadline)
    }

    fn end(&mut self, deadline: Duration) -> ShutdownReport {
        let report = self.core.shutdown(deadline);
        if let Some(transport) = self.core.transport.take() {
            transport.finish(COURIER_PATIENCE);
        }
        // Whoever still waits for a leaked request is told.
        self.handle.abandon();
        report
    }
}

impl<H: RequestHandler> Drop for Runtime<H> {
    fn drop(&mut self) {
        if self.core.is_running() {
            let _ = self.end(DROP_DEADLINE);
        }
    }
}

/// A runtime that serves a transport.
///
/// Dropping it shuts it down, with a deadline of one second.
pub struct Server<H: RequestHandler, Tr: Transport<Request = H::Request, Reply = H::Reply>> {
    core: Core<Tr>,
    handler: std::marker::PhantomData<fn() -> H>,
}

impl<H: RequestHandler, Tr: Transport<Request = H::Request, Reply = H::Reply>> std::fmt::Debug
    for Server<H, Tr>
{
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Server({})", self.core.description)
    }
}

impl<H: RequestHandler, Tr: Transport<Request = H::Request, Reply = H::Reply>> Server<H, Tr> {
    /// What happened so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.core.statistics()
    }

    /// How the runtime preempts and why: the line that was logged at start.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.core.description
    }

    /// As [`Runtime::shutdown`]; gives the transport back besides, unless the dispatcher itself was lost.
    #[must_use = "the report says what did not finish"]
    pub fn shutdown(mut self, deadline: Duration) -> (ShutdownReport, Option<Tr>) {
        let report = self.core.shutdown(deadline);
        (report, self.core.transport.take())
    }
}

/// What a shutdown left.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Requests that started and did not finish by the deadline, by the name of their class.
    pub unfinished: Vec<String>,
    /// Contexts whose donor threads have ended.
    pub contexts_returned: usize,
    /// Contexts that are leaked: those of the unfinished requests.
    pub contexts_leaked: usize,
    /// Worker threads that are still within a request, and so could not end.
    pub workers_leaked: usize,
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

/// The threads of a runtime, whatever its transport.
struct Core<Tr: Transport> {
    control: Arc<Control>,
    stop: Arc<AtomicBool>,
    dispatcher: Option<JoinHandle<Remains<Tr>>>,
    workers: Vec<JoinHandle<()>>,
    handles: Option<Handles<Job<Tr>, Done<Tr>>>,
    worker_statistics: Vec<Arc<WorkerStatistics>>,
    dispatcher_statistics: Arc<DispatcherStatistics>,
    links: Vec<WorkerLink>,
    class_names: Vec<String>,
    description: String,
    transport: Option<Tr>,
}

impl<Tr: Transport> std::fmt::Debug for Core<Tr> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.description)
    }
}

/// What a worker's thread reports when it is ready.
type Ready = Result<WorkerLink, StartError>;

impl<Tr: Transport> Core<Tr> {
    fn start<H>(builder: Builder<H>, mut transport: Tr) -> Result<Self, StartError>
    where
        H: RequestHandler<Request = Tr::Request, Reply = Tr::Reply>,
    {
        let Builder {
            handler,
            config,
            policy,
            token,
        } = builder;
        let layout = Layout::plan(&config)?;
        let clock = Clock::get();
        catch_unwind(AssertUnwindSafe(|| handler.init()))
            .map_err(|_| StartError::Panicked {
                callback: "init",
                place: "the starting thread".to_owned(),
            })?
            .map_err(StartError::Init)?;
        let preemption = Preemption::choose(&config, &layout, token)?;
        let workers = layout.workers.len();
        let capacity = config.task_capacity(workers);
        let policy = match policy {
            Some(policy) => policy,
            None => config.build_policy(workers)?,
        };
        let policy = Verified::new(policy, capacity)
            .and_then(|policy| policy.with_progress_limit(config.policy.progress_limit))
            .map_err(ConfigError::from)?;
        let description = format!(
            "{} workers, {} contexts, policy {}; preemption {}",
            workers,
            config.contexts,
            policy.name(),
            preemption.why
        );

        let handler = Arc::new(handler);
        let states = Arc::new(PerCoreStates::<H::PerCore>::new(
            workers + config.spare_workers,
        ));
        let pool = Pool::new(
            PoolConfig {
                contexts: config.contexts,
                stack_size: config.stack_bytes(),
                name: "shinjuku-context".to_owned(),
            },
            entry::<H, Tr>(Arc::clone(&handler), Arc::clone(&states)),
        )?;

        let mut core = Self {
            control: Arc::new(Control::new()),
            stop: Arc::new(AtomicBool::new(false)),
            dispatcher: None,
            workers: Vec::new(),
            handles: Some(pool.handles),
            worker_statistics: Vec::new(),
            dispatcher_statistics: Arc::new(DispatcherStatistics::new(config.class.len())),
            links: Vec::new(),
            class_names: config
                .class
                .iter()
                .map(|class| class.name.clone())
                .collect(),
            description,
            transport: None,
        };
        let mut idle = Some(pool.idle);
        let started = (|| {
            let mut desks = Vec::new();
            let idle_backoff = config.idle_backoff();
            for id in 0..workers + config.spare_workers {
                let spare = id >= workers;
                let name = if spare {
                    format!("shinjuku-spare-{}", id - workers)
                } else {
                    format!("shinjuku-worker-{id}")
                };
                let statistics = Arc::new(WorkerStatistics::new(core.class_names.len()));
                let bed = Arc::new(Bed::new());
                let (sender, receiver) = mailbox(config.depth);
                let (ready, readiness) = mpsc::channel::<Ready>();
                let replier = transport.replier().map_err(StartError::Transport)?;
                let worker_core = if spare { None } else { layout.workers[id] };
                let (handler, states) = (Arc::clone(&handler), Arc::clone(&states));
                let (their_statistics, their_bed, stop) = (
                    Arc::clone(&statistics),
                    Arc::clone(&bed),
                    Arc::clone(&core.stop),
                );
                let realtime_priority = config.realtime_priority;
                let body = move || {
                    let number = u32::try_from(id).expect("workers are few");
                    let prepared = prepare(worker_core, realtime_priority).and_then(|realtime| {
                        let worker = Worker::bind(number)?;
                        let state = catch_unwind(AssertUnwindSafe(|| handler.init_per_core(id)))
                            .map_err(|_| {
                                let place = format!("the thread of worker {id}");
                                StartError::Panicked {
                                    callback: "init_per_core",
                                    place,
                                }
                            })?;
                        states.fill(id, state);
                        Ok((worker, realtime))
                    });
                    drop((handler, states));
                    match prepared {
                        Err(error) => drop(ready.send(Err(error))),
                        Ok((worker, _realtime)) => {
                            drop(ready.send(Ok(worker.link())));
                            drop(ready);
                            let idle_backoff = idle_backoff.map(|nanos| {
                                // Spares are needed seldom: they need not look for long.
                                clock.to_cycles(if spare { nanos.0.min(20_000) } else { nanos.0 })
                            });
                            let worker_loop = WorkerLoop::<Tr> {
                                worker,
                                receiver,
                                replier,
                                statistics: their_statistics,
                                bed: their_bed,
                                stop,
                                clock,
                                idle_backoff: if spare {
                                    idle_backoff.or(Some(clock.to_cycles(20_000)))
                                } else {
                                    idle_backoff
                                },
                            };
                            worker_loop.run();
                        }
                    }
                };
                let thread = spawn(&name, body)?;
                let link = readiness.recv();
                let handle = thread.thread().clone();
                core.workers.push(thread);
                let link = link.map_err(|_| StartError::Panicked {
                    callback: "start",
                    place: name,
                })??;
                core.links.push(link.clone());
                core.worker_statistics.push(statistics);
                let worker = WorkerId(u16::try_from(id).expect("workers are few"));
                desks.push(Desk::new(worker, sender, link, handle, bed));
            }
            let spares = desks.split_off(workers);
            let parts = Parts {
                transport,
                policy,
                workers: desks,
                spares,
                cores: layout.workers.clone(),
                idle: idle.take().unwrap_or_default(),
                capacity,
                rules: Rules {
                    depth: config.depth,
                    queue: config.queue,
                    rescue_after: config.rescue_after(),
                    idle_backoff,
                    deadlines: config.class.iter().map(ClassConfig::deadline).collect(),
                },
                preemption,
                statistics: Arc::clone(&core.dispatcher_statistics),
                control: Arc::clone(&core.control),
            };
            let dispatcher = Dispatcher::new(parts);
            let (ready, readiness) = mpsc::channel::<Result<(), StartError>>();
            let (own_core, realtime_priority) = (layout.dispatcher, config.realtime_priority);
            core.dispatcher = Some(spawn("shinjuku-dispatcher", move || {
                let prepared = prepare(own_core, realtime_priority);
                let (realtime, report) = match prepared {
                    Ok(realtime) => (realtime, Ok(())),
                    Err(error) => (None, Err(error)),
                };
                drop(ready.send(report));
                drop(ready);
                let remains = dispatcher.run();
                drop(realtime);
                remains
            })?);
            readiness.recv().map_err(|_| StartError::Panicked {
                callback: "start",
                place: "the dispatcher".to_owned(),
            })?
        })();
        if let Err(error) = started {
            if let (Some(handles), Some(idle)) = (core.handles.take(), idle) {
                handles.hand_back(idle, Duration::from_secs(5));
            }
            let _ = core.shutdown(Duration::ZERO);
            return Err(error);
        }
        tracing::info!(target: "shinjuku", "{}", core.description);
        Ok(core)
    }

    fn statistics(&self) -> Statistics {
        Statistics::gather(
            &self.worker_statistics,
            &self.dispatcher_statistics,
            self.links.iter().map(WorkerLink::counters),
            &self.class_names,
        )
    }

    fn is_running(&self) -> bool {
        self.dispatcher.is_some()
    }

    fn shutdown(&mut self, deadline: Duration) -> ShutdownReport {
        let mut report = ShutdownReport::default();
        self.control.drain();
        let mut blocked = Vec::new();
        let mut idle = Vec::new();
        if let Some(dispatcher) = self.dispatcher.take() {
            let end = Instant::now() + deadline;
            while !dispatcher.is_finished() && Instant::now() < end {
                std::thread::sleep(Duration::from_micros(200));
            }
            self.control.end();
            match dispatcher.join() {
                Ok(remains) => {
                    let name = |class: &shinjuku_policy::ClassId| {
                        self.class_names[usize::from(class.0)].clone()
                    };
                    report.unfinished = remains.unfinished.iter().map(name).collect();
                    report.policy_error = remains.policy.error().cloned();
                    (blocked, idle) = (remains.blocked, remains.idle);
                    self.transport = Some(remains.transport);
                }
                Err(_) => {
                    tracing::error!(target: "shinjuku", "the dispatcher panicked, which is a bug in shinjuku")
                }
            }
        }
        self.stop.store(true, Ordering::Release);
        for (at, thread) in self.workers.drain(..).enumerate() {
            thread.thread().unpark();
            let end = Instant::now()
                + Duration::from_millis(if blocked.contains(&at) { 1 } else { 1000 });
            while !thread.is_finished() && Instant::now() < end {
                std::thread::sleep(Duration::from_micros(50));
            }
            if thread.is_finished() {
                let _ = thread.join();
            } else {
                report.workers_leaked += 1;
            }
        }
        if let Some(handles) = self.handles.take() {
            let contexts = handles.hand_back(idle, Duration::from_secs(5));
            (report.contexts_returned, report.contexts_leaked) =
                (contexts.returned, contexts.leaked);
        }
        if !report.is_clean() || report.policy_error.is_some() {
            tracing::warn!(target: "shinjuku", "shutdown: {report}");
        }
        report
    }
}

impl<Tr: Transport> Drop for Core<Tr> {
    fn drop(&mut self) {
        if self.is_running() {
            let _ = self.shutdown(DROP_DEADLINE);
        }
    }
}

/// What every context does with a request.
fn entry<H, Tr>(
    handler: Arc<H>,
    states: Arc<PerCoreStates<H::PerCore>>,
) -> impl Fn(Job<Tr>) -> Done<Tr> + Send + Sync + 'static
where
    H: RequestHandler<Request = Tr::Request, Reply = Tr::Reply>,
    Tr: Transport,
{
    move |job| {
        let Job {
            meta,
            request,
            route,
        } = job;
        let context = RequestContext {
            class: meta.class,
            arrival: meta.arrival,
            per_core: &states,
        };
        let result = catch_unwind(AssertUnwindSafe(|| {
            handler.handle_request(request, &context)
        }));
        let result = result.map_err(|payload| {
            if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(second);
            }
            Failure::Panicked
        });
        let failed = result.is_err();
        Done {
            meta,
            outgoing: Tr::conclude(route, result),
            failed,
        }
    }
}

/// Puts the calling thread where and how it shall run.
fn prepare(
    core: Option<usize>,
    realtime_priority: Option<i32>,
) -> Result<Option<Realtime>, StartError> {
    if let Some(core) = core {
        layout::pin_current(core)?;
    }
    Ok(realtime_priority.map(Realtime::enter).transpose()?)
}

fn spawn<Out: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> Out + Send + 'static,
) -> Result<JoinHandle<Out>, StartError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(|source| StartError::Thread {
            name: name.to_owned(),
            source,
        })
}
