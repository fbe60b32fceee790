//! The threads of a runtime, whatever its transport: started together, ended together.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shinjuku_net::{Failure, Transport};
use shinjuku_policy::{Verified, WorkerId};
use shinjuku_preempt::{Clock, Handles, Pool, PoolConfig, Realtime, Worker, WorkerLink, mailbox};

use crate::builder::Builder;
use crate::config::{ClassConfig, ConfigError};
use crate::desk::{Bed, Desk};
use crate::dispatcher::{Control, Dispatcher, Parts, Remains, Rules};
use crate::handler::{PerCoreStates, RequestContext, RequestHandler};
use crate::layout::{self, Layout};
use crate::preemption::Preemption;
use crate::request::{Done, Job};
use crate::shutdown::ShutdownReport;
use crate::start_error::StartError;
use crate::statistics::{DispatcherStatistics, Statistics, WorkerStatistics};
use crate::worker::WorkerLoop;

/// How long a runtime that is dropped lets its requests finish.
pub(crate) const DROP_DEADLINE: Duration = Duration::from_secs(1);

/// The threads of a runtime, whatever its transport.
pub(crate) struct Threads<Tr: Transport> {
    control: Arc<Control>,
    stop: Arc<AtomicBool>,
    dispatcher: Option<JoinHandle<Remains<Tr>>>,
    workers: Vec<JoinHandle<()>>,
    handles: Option<Handles<Job<Tr>, Done<Tr>>>,
    worker_statistics: Vec<Arc<WorkerStatistics>>,
    dispatcher_statistics: Arc<DispatcherStatistics>,
    links: Vec<WorkerLink>,
    class_names: Vec<String>,
    /// The line that was logged at start.
    pub(crate) description: String,
    /// Given back by the dispatcher at its end.
    pub(crate) transport: Option<Tr>,
}

impl<Tr: Transport> std::fmt::Debug for Threads<Tr> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.description)
    }
}

/// What a worker's thread reports when it is ready.
type Ready = Result<WorkerLink, StartError>;

impl<Tr: Transport> Threads<Tr> {
    pub(crate) fn start<H>(builder: Builder<H>, mut transport: Tr) -> Result<Self, StartError>
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

    pub(crate) fn statistics(&self) -> Statistics {
        Statistics::gather(
            &self.worker_statistics,
            &self.dispatcher_statistics,
            self.links.iter().map(WorkerLink::counters),
            &self.class_names,
        )
    }

    pub(crate) fn is_running(&self) -> bool {
        self.dispatcher.is_some()
    }

    pub(crate) fn shutdown(&mut self, deadline: Duration) -> ShutdownReport {
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

impl<Tr: Transport> Drop for Threads<Tr> {
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
