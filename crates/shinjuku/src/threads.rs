//! The threads of a runtime, whatever its transport: started together, ended together.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shinjuku_net::{Failure, Transport};
use shinjuku_policy::{ClassId, Verified, WorkerId};
use shinjuku_preempt::guest::Guest;
use shinjuku_preempt::{
    Clock, DeadlineTimer, Handles, Parker, Pool, PoolConfig, Realtime, Worker, WorkerLink, mailbox,
};

use crate::builder::{Builder, build_policy};
use crate::config::{ClassConfig, ConfigError};
use crate::desk::Desk;
use crate::dispatcher::{Control, Dispatcher, Farewell, Parts, Rules};
use crate::handler::{PerCoreStates, RequestContext, RequestHandler};
use crate::inline::{Baton, InlineLoop};
use crate::layout::{self, Layout};
use crate::observer::Observer;
use crate::preemption::Preemption;
use crate::request::{Done, Job};
use crate::shutdown::ShutdownReport;
use crate::start_error::StartError;
use crate::statistics::{DispatcherStatistics, Statistics, WorkerStatistics};
use crate::worker::{Orders, WorkerLoop};

/// How long a runtime that is dropped lets its requests finish.
pub(crate) const DROP_DEADLINE: Duration = Duration::from_secs(1);
/// What the dispatcher may take to leave its remains.
const FAREWELL_PATIENCE: Duration = Duration::from_secs(2);
/// What a worker may take to end once it has nothing to do.
const WORKER_PATIENCE: Duration = Duration::from_secs(1);
/// Inline spares with counters of their own; the others share theirs.
const TURNS: usize = 3;
/// What the donors may take, with their thread-local destructors.
const DONOR_PATIENCE: Duration = Duration::from_secs(5);

/// The threads of a runtime, whatever its transport.
pub(crate) struct Threads<Tr: Transport> {
    control: Arc<Control>,
    orders: Arc<AtomicU8>,
    farewell: Arc<Farewell<Tr>>,
    dispatcher: Option<Seat>,
    workers: Vec<JoinHandle<()>>,
    handles: Option<Handles<Job<Tr>, Done<Tr>>>,
    worker_statistics: Vec<Arc<WorkerStatistics>>,
    dispatcher_statistics: Arc<DispatcherStatistics>,
    links: Vec<WorkerLink>,
    class_names: Vec<String>,
    guest: Option<Guest>,
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

/// Where the dispatcher runs.
enum Seat {
    Thread(JoinHandle<()>),
    /// On one of the workers' threads.
    Inline,
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
            own_policies,
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
        let policy = build_policy(&config, own_policies, workers)?;
        let policy = Verified::new(policy, capacity)
            .and_then(|policy| policy.with_progress_limit(config.policy.progress_limit))
            .map_err(ConfigError::from)?;
        let description = format!(
            "{}, {} contexts, policy {}; preemption {}",
            if layout.inline {
                layout.to_string()
            } else {
                format!("{workers} workers")
            },
            config.contexts,
            policy.name(),
            preemption.why
        );

        let handler = Arc::new(handler);
        let threads = workers + config.spares();
        let maker = Arc::clone(&handler);
        let states = Arc::new(PerCoreStates::new(threads, move |worker| {
            maker.init_per_core(worker)
        }));
        let pool = Pool::new(
            PoolConfig {
                contexts: config.contexts,
                stack_size: config.stack_bytes() + between_requests::<Tr>(layout.inline),
                name: "shinjuku-context".to_owned(),
            },
            entry::<H, Tr>(Arc::clone(&handler), Arc::clone(&states)),
        )?;

        let mut core = Self {
            control: Arc::new(Control::new()),
            orders: Arc::new(AtomicU8::new(Orders::RUN)),
            farewell: Arc::new(Farewell::new()),
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
            guest: preemption.guest.clone(),
            description,
            transport: None,
        };
        let mut idle = Some(pool.idle);
        let started = (|| {
            let mut desks = Vec::new();
            let baton = Arc::new(Baton::new(
                threads,
                Duration::from_nanos(config.rescue_after().0),
                Arc::clone(&core.control),
                Arc::clone(&core.orders),
            ));
            let (take_seat, seat) = mpsc::channel::<Box<Dispatcher<Tr>>>();
            let mut seat = layout.inline.then_some(seat);
            let timer_signal = preemption.timer_signal;
            let (guest, dune) = (core.guest.clone(), preemption.dune);
            let idle_backoff = config.idle_backoff();
            let shares_core = layout.shared;
            let classes = core.class_names.len();
            let spare_statistics = Arc::new(WorkerStatistics::shared(classes));
            for id in 0..threads {
                let spare = id >= workers;
                let name = if spare {
                    format!("shinjuku-spare-{}", id - workers)
                } else if layout.inline {
                    "shinjuku-inline".to_owned()
                } else {
                    format!("shinjuku-worker-{id}")
                };
                // Inline, the first spares take turns with the worker.
                let is_seldom = spare && !(layout.inline && id <= TURNS);
                let statistics = match is_seldom {
                    false => Arc::new(WorkerStatistics::new(classes)),
                    true => Arc::clone(&spare_statistics),
                };
                let parker = Arc::new(Parker::new());
                let (sender, receiver) = mailbox(config.depth);
                let (ready, readiness) = mpsc::channel::<Ready>();
                let replier = transport.replier().map_err(StartError::Transport)?;
                let worker_core = match spare {
                    false => layout.workers[id],
                    true if layout.inline => layout.workers[0],
                    true => None,
                };
                let inline = layout.inline.then(|| Arc::clone(&baton));
                let first = seat.take();
                let guest = guest.clone();
                let states = Arc::clone(&states);
                let (their_statistics, their_parker, orders) = (
                    Arc::clone(&statistics),
                    Arc::clone(&parker),
                    Arc::clone(&core.orders),
                );
                let (realtime_priority, strict) = (config.realtime_priority, config.strict);
                let body = move || {
                    let number = u32::try_from(id).expect("workers are few");
                    let prepared = prepare(worker_core, realtime_priority).and_then(|realtime| {
                        let mut worker = Worker::bind(number)?;
                        // Spares stay outside, where signals reach them: KVM has a vCPU for each of some hundred threads
                        // only, and Dune wants a core for each.
                        if let (Some(guest), false) = (&guest, spare)
                            && let Err(error) = worker.enter_guest_mode(guest)
                        {
                            if strict {
                                return Err(error.into());
                            }
                            tracing::warn!(target: "shinjuku", "signals interrupt worker {id}: {error}");
                        }
                        if let (Some(dune), false) = (&dune, spare) {
                            worker.enter_dune_mode(dune)?;
                        }
                        if !spare {
                            catch_unwind(AssertUnwindSafe(|| states.make(id))).map_err(|_| {
                                let place = format!("the thread of worker {id}");
                                StartError::Panicked {
                                    callback: "init_per_core",
                                    place,
                                }
                            })?;
                        }
                        let timer = match timer_signal {
                            Some(signal) if inline.is_some() => Some(DeadlineTimer::new(signal)?),
                            _ => None,
                        };
                        Ok((worker, realtime, timer))
                    });
                    drop(states);
                    match prepared {
                        Err(error) => drop(ready.send(Err(error))),
                        Ok((worker, _realtime, timer)) => {
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
                                parker: their_parker,
                                orders,
                                shares_core,
                                clock,
                                idle_backoff: if spare {
                                    idle_backoff.or(Some(clock.to_cycles(20_000)))
                                } else {
                                    idle_backoff
                                },
                            };
                            match inline {
                                None => worker_loop.run(),
                                Some(baton) => InlineLoop {
                                    me: id,
                                    worker: worker_loop,
                                    timer,
                                    baton,
                                    first,
                                }
                                .run(),
                            }
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
                if !is_seldom {
                    core.worker_statistics.push(statistics);
                }
                // To the policy, the inline layout's threads are one worker.
                let policy_id = if layout.inline { 0 } else { id };
                let worker = WorkerId(u16::try_from(policy_id).expect("workers are few"));
                let parker = (!layout.inline).then_some(parker);
                desks.push(Desk::new(worker, sender, link, handle, parker));
            }
            core.worker_statistics.push(spare_statistics);
            let spares = if layout.inline {
                Vec::new()
            } else {
                desks.split_off(workers)
            };
            let parts = Parts {
                transport,
                policy,
                workers: desks,
                spares,
                cores: layout.workers.clone(),
                idle: idle.take().unwrap_or_default(),
                capacity,
                rules: Rules {
                    depth: if layout.inline { 1 } else { config.depth },
                    inline: layout.inline,
                    queue: config.queue,
                    rescue_after: config.rescue_after(),
                    idle_backoff,
                    shares_core,
                    deadlines: config.class.iter().map(ClassConfig::deadline).collect(),
                },
                preemption,
                statistics: Arc::clone(&core.dispatcher_statistics),
                control: Arc::clone(&core.control),
                orders: Arc::clone(&core.orders),
                farewell: Arc::clone(&core.farewell),
            };
            let dispatcher = Dispatcher::new(parts);
            if layout.inline {
                let threads = core.workers.iter().map(|thread| thread.thread().clone());
                baton.introduce(threads.collect());
                core.dispatcher = Some(Seat::Inline);
                return take_seat
                    .send(Box::new(dispatcher))
                    .map_err(|_| StartError::Panicked {
                        callback: "start",
                        place: "shinjuku-inline".to_owned(),
                    });
            }
            let (ready, readiness) = mpsc::channel::<Result<(), StartError>>();
            let (own_core, realtime_priority) = (layout.dispatcher, config.realtime_priority);
            core.dispatcher = Some(Seat::Thread(spawn("shinjuku-dispatcher", move || {
                let prepared = prepare(own_core, realtime_priority).and_then(|realtime| {
                    if let Some(dune) = dune {
                        dune.enter_as_sender()?;
                    }
                    Ok(realtime)
                });
                let (realtime, report) = match prepared {
                    Ok(realtime) => (realtime, Ok(())),
                    Err(error) => (None, Err(error)),
                };
                drop(ready.send(report));
                drop(ready);
                dispatcher.run();
                drop(realtime);
            })?));
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
        self.observer().statistics()
    }

    pub(crate) fn observer(&self) -> Observer {
        Observer {
            workers: self.worker_statistics.clone().into(),
            dispatcher: Arc::clone(&self.dispatcher_statistics),
            links: self.links.clone().into(),
            class_names: self.class_names.clone().into(),
            guest: self.guest.clone(),
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.dispatcher.is_some()
    }

    pub(crate) fn shutdown(&mut self, deadline: Duration) -> ShutdownReport {
        let mut report = ShutdownReport::default();
        self.control.drain();
        let remains = self.dispatcher.take().and_then(|seat| {
            let is_over = || match &seat {
                Seat::Thread(thread) => thread.is_finished(),
                // Threads that end before all is over have panicked.
                Seat::Inline => {
                    self.farewell.is_left() || self.workers.iter().any(JoinHandle::is_finished)
                }
            };
            wait(deadline, is_over);
            self.control.end();
            for thread in &self.workers {
                thread.thread().unpark();
            }
            wait(FAREWELL_PATIENCE, || self.farewell.is_left() || is_over());
            self.farewell.take()
        });
        let in_background = remains
            .as_ref()
            .is_some_and(|remains| !remains.unfinished.is_empty());
        let mut idle = Vec::new();
        match remains {
            Some(remains) => {
                let name = |class: &ClassId| self.class_names[usize::from(class.0)].clone();
                report.unfinished = remains.unfinished.iter().map(name).collect();
                report.workers_leaked = remains.busy_workers;
                report.policy_error = remains.policy_error;
                idle = remains.idle;
                self.transport = remains.transport;
            }
            // It never started, or it panicked, which is a bug and was reported by the panic hook.
            None => self.orders.store(Orders::END, Ordering::Release),
        }
        for thread in self.workers.drain(..) {
            thread.thread().unpark();
            if !in_background && wait(WORKER_PATIENCE, || thread.is_finished()) {
                let _ = thread.join();
            } else if !in_background {
                report.workers_leaked += 1;
            }
        }
        report.statistics = Some(self.statistics());
        if let Some(handles) = self.handles.take() {
            let contexts = handles.hand_back(idle, DONOR_PATIENCE);
            (report.contexts_returned, report.contexts_leaked) =
                (contexts.returned, contexts.leaked);
        }
        if !report.is_clean() || report.policy_error.is_some() {
            tracing::warn!(target: "shinjuku", "shutdown: {report}");
        }
        report
    }
}

/// Waits until `is_done`, `patience` at most; tells whether it is.
fn wait(patience: Duration, mut is_done: impl FnMut() -> bool) -> bool {
    // A deadline beyond what the clock can hold is none.
    let end = Instant::now().checked_add(patience);
    while !is_done() {
        if end.is_some_and(|end| Instant::now() >= end) {
            return false;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    true
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

/// What contexts' stacks have to have on top of what was promised to handlers, in bytes: inline, the next request is taken
/// from the dispatcher there, and moved some times on its way.
fn between_requests<Tr: Transport>(inline: bool) -> usize {
    const CALLS: usize = 16 * 1024;
    // An unoptimised build has a place on the stack for each move.
    const MOVES: usize = if cfg!(debug_assertions) { 24 } else { 6 };
    if inline {
        CALLS + MOVES * (size_of::<Job<Tr>>() + size_of::<Done<Tr>>())
    } else {
        0
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
        .map_err(|cause| StartError::Thread {
            name: name.to_owned(),
            cause,
        })
}
