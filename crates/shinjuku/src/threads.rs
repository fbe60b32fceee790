//! The threads of a runtime, whatever its transport: started together, ended together.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shinjuku_net::{Failure, Glance, Transport};
use shinjuku_policy::{ClassId, Nanos, Verified, WorkerId, registry};
use shinjuku_preempt::{
    Backend, Clock, Cycles, DeadlineTimer, Handles, Idle, Parker, Pool, PoolConfig, Realtime,
    Signal, Worker, WorkerLink, current_context, mailbox, request_slice,
};

use crate::builder::{Builder, OwnPolicy, build_policy};
use crate::config::{ClassConfig, Config, ConfigError, ContextKind, MechanismKind};
use crate::dispatcher::{Contexts, Control, Dispatcher, Parts, Rules, ShutdownHandoff};
use crate::handler::{PerCoreStates, RequestContext, RequestHandler};
use crate::layout::{self, Layout};
use crate::loops::{Alarm, IdleTime, Idling, LoopThread, LoopThreadParts, Loops, LoopsParts};
use crate::observer::{Arrangement, Observer};
use crate::preemption::{ChangeLog, InForce, Preemption};
use crate::request::{Done, Job};
use crate::shutdown::ShutdownReport;
use crate::stalls::{StallCounts, StallWatch};
use crate::start_error::StartError;
use crate::started::Started;
use crate::statistics::{DispatcherStatistics, Statistics, WorkerStatistics};
use crate::timeline::{Lane, Recorder};
use crate::worker::{Orders, Port, WorkerLoop};
use crate::worker_state::WorkerState;

/// How long a runtime that is dropped lets its requests finish.
pub(crate) const DROP_DEADLINE: Duration = Duration::from_secs(1);
/// What the dispatcher may take to leave its remaining requests.
const SHUTDOWN_HANDOFF_PATIENCE: Duration = Duration::from_secs(2);
/// What a worker may take to end once it has nothing to do.
const WORKER_PATIENCE: Duration = Duration::from_secs(1);
/// Spares of the loops with counters of their own; the others share theirs.
const TURNS: usize = 3;
/// What the backing threads may take, with their thread-local destructors.
const BACKING_THREAD_PATIENCE: Duration = Duration::from_secs(5);

/// The threads of a runtime, whatever its transport.
pub(crate) struct Threads<Tr: Transport> {
    control: Arc<Control>,
    orders: Arc<Orders>,
    /// One for each dispatcher.
    shutdown_handoffs: Vec<Arc<ShutdownHandoff<Tr>>>,
    dispatcher: Option<Seat>,
    workers: Vec<JoinHandle<()>>,
    handles: Option<Handles<Job<Tr>, Done<Tr>>>,
    worker_statistics: Vec<Arc<WorkerStatistics>>,
    recorder: Arc<Recorder>,
    started: Arc<Started>,
    stalls: Arc<StallCounts>,
    dispatcher_statistics: Vec<Arc<DispatcherStatistics>>,
    links: Vec<WorkerLink>,
    class_names: Vec<String>,
    backend: Option<Arc<dyn Backend>>,
    /// The line that was logged at start.
    pub(crate) description: String,
    /// What the first dispatcher tells of the quanta in force, where they move.
    in_force: Option<Arc<InForce>>,
    arrangement: Arc<Arrangement>,
    change_log: Option<ChangeLog>,
    stall_watch: Option<StallWatch>,
    /// Given back by the dispatchers at their end.
    pub(crate) transports: Vec<Tr>,
}

impl<Tr: Transport> std::fmt::Debug for Threads<Tr> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.description)
    }
}

/// Where the dispatcher runs.
enum Seat {
    Thread(JoinHandle<()>),
    /// On the workers' threads.
    Loops,
}

/// What a worker's thread reports when it is ready.
type Ready = Result<WorkerLink, StartError>;

/// What each dispatcher is made of.
struct Part<Tr: Transport> {
    transport: Tr,
    policy: Verified,
    contexts: Contexts<Idle<Job<Tr>, Done<Tr>>>,
    preemption: Preemption,
}

/// A part for each dispatcher, with contexts of its own and a share in the others.
fn parts<Tr: Transport>(
    transports: Vec<Tr>,
    policies: Vec<Verified>,
    idle: Vec<Idle<Job<Tr>, Done<Tr>>>,
    preemption: &Preemption,
) -> Vec<Part<Tr>> {
    let contexts = Contexts::share(idle, transports.len());
    let part = |(number, ((transport, policy), contexts))| Part {
        transport,
        policy,
        contexts,
        preemption: match number {
            0 => preemption.clone(),
            _ => preemption.for_another(),
        },
    };
    let pairs = transports.into_iter().zip(policies).zip(contexts);
    pairs.enumerate().map(part).collect()
}

impl<Tr: Transport> Threads<Tr> {
    /// With a dispatcher for each of `transports`: one, but in the layout `symmetric`.
    pub(crate) fn start<H>(builder: Builder<H>, mut transports: Vec<Tr>) -> Result<Self, StartError>
    where
        H: RequestHandler<Request = Tr::Request, Reply = Tr::Reply>,
    {
        let Builder {
            handler,
            config,
            mut own_policies,
            token,
        } = builder;
        let layout = Layout::plan(&config)?;
        let share = config.share_of(transports.len());
        layout.check_dispatchers(transports.len())?;
        catch_unwind(AssertUnwindSafe(|| handler.init()))
            .map_err(|_| StartError::Panicked {
                callback: "init",
                place: "the starting thread".to_owned(),
            })?
            .map_err(StartError::Init)?;
        let preemption = Preemption::choose(&config, &layout, token)?;
        let workers = layout.workers.len();
        let policies = (transports.iter())
            .map(|_| verified_policy(&share, &mut own_policies, &layout, transports.len()))
            .collect::<Result<Vec<_>, _>>()?;
        let policy_name = policies
            .first()
            .map_or_else(String::new, |policy| policy.name().to_owned());
        let description = describe(&config, &layout, &policy_name, &preemption.why);
        let arrangement = Arrangement {
            serving: workers,
            are_loops: layout.inline,
            quanta: match policies.first() {
                Some(policy) => quanta(&config, policy, preemption.enabled),
                None => Vec::new(),
            },
        };

        let handler = Arc::new(handler);
        let maker = Arc::clone(&handler);
        let threads = workers + config.spares();
        let states = Arc::new(PerCoreStates::new(threads, move |worker| {
            maker.init_per_core(worker)
        }));
        let started = Started::new(config.contexts);
        let entry = entry::<H, Tr>(handler, Arc::clone(&states), Arc::clone(&started));
        let pool = start_pool::<Tr>(&config, &layout, entry)?;
        let names = (0..threads).map(|id| layout.lane_name(id));
        let recorder = Recorder::new(run_often(&layout), names);
        let mut core = Self::new(
            &config,
            transports.len(),
            pool.handles,
            &preemption,
            (recorder, started),
            (description, arrangement),
        );
        let alarm = Alarm::new(workers, transports.len(), config.help);
        let attend = |(number, transport): (usize, &mut Tr)| {
            let is_symmetric = layout.symmetric;
            is_symmetric.then(|| transport.attend(alarm.wake_for(number)))?
        };
        let glances = transports.iter_mut().enumerate().map(attend).collect();
        let start = Start::new(&config, &layout, &preemption, states, &core, alarm, glances);
        let parts = parts(transports, policies, pool.idle, &preemption);
        if let Err((error, idle)) = core.start_threads(start, parts) {
            if let Some(handles) = core.handles.take() {
                handles.hand_back(idle, Duration::from_secs(5));
            }
            let _ = core.shutdown(Duration::ZERO);
            return Err(error);
        }
        tracing::info!(target: "shinjuku", "{}", core.description);
        if let Err(error) = core.start_telling(&config, layout.inline) {
            let _ = core.shutdown(Duration::ZERO);
            return Err(error);
        }
        Ok(core)
    }

    /// Starts the threads that tell what is going on, where there is anything to tell.
    fn start_telling(&mut self, config: &Config, inline: bool) -> Result<(), StartError> {
        if let Some(in_force) = &self.in_force {
            self.change_log = Some(ChangeLog::start(Arc::clone(in_force))?);
        }
        if let Some(limit) = config.report_stalls_after() {
            self.stall_watch = Some(StallWatch::start(self.observer(), limit, inline)?);
        }
        Ok(())
    }

    /// Without threads yet, but for the contexts'.
    fn new(
        config: &Config,
        dispatchers: usize,
        handles: Handles<Job<Tr>, Done<Tr>>,
        preemption: &Preemption,
        (recorder, started): (Arc<Recorder>, Arc<Started>),
        (description, arrangement): (String, Arrangement),
    ) -> Self {
        let class_names: Vec<_> = (config.class.iter())
            .map(|class| class.name.clone())
            .collect();
        Self {
            control: Arc::new(Control::new()),
            orders: Arc::new(Orders::new(dispatchers)),
            shutdown_handoffs: (0..dispatchers)
                .map(|_| Arc::new(ShutdownHandoff::new()))
                .collect(),
            dispatcher: None,
            workers: Vec::new(),
            handles: Some(handles),
            worker_statistics: Vec::new(),
            recorder,
            started,
            stalls: Arc::default(),
            dispatcher_statistics: (0..dispatchers)
                .map(|_| Arc::new(DispatcherStatistics::new(class_names.len())))
                .collect(),
            links: Vec::new(),
            class_names,
            backend: preemption.backend.clone(),
            description,
            in_force: preemption.in_force.clone(),
            arrangement: Arc::new(arrangement),
            change_log: None,
            stall_watch: None,
            transports: Vec::new(),
        }
    }

    /// Starts the workers, and then the dispatchers. On an error some threads may run, and the idle
    /// contexts are given back.
    #[expect(
        clippy::type_complexity,
        reason = "an error, and the contexts beside it"
    )]
    fn start_threads<S: Send + 'static>(
        &mut self,
        start: Start<'_, S, Tr>,
        mut parts: Vec<Part<Tr>>,
    ) -> Result<(), (StartError, Vec<Idle<Job<Tr>, Done<Tr>>>)> {
        match self.start_workers(&start, &mut parts) {
            Err(error) => {
                let contexts = parts.into_iter().map(|part| part.contexts);
                Err((error, Contexts::unused(contexts)))
            }
            Ok(states) => {
                let dispatchers = (parts.into_iter().zip(states).enumerate())
                    .map(|(number, (part, states))| self.dispatcher(&start, number, part, states));
                let dispatchers = dispatchers.collect();
                if start.layout.inline {
                    self.begin_loops(&start.loops, dispatchers);
                    return Ok(());
                }
                let started = self.start_dispatcher(&start, dispatchers);
                started.map_err(|error| (error, Vec::new()))
            }
        }
    }

    /// Starts the workers; gives what each dispatcher knows of them.
    fn start_workers<S: Send + 'static>(
        &mut self,
        start: &Start<'_, S, Tr>,
        parts: &mut [Part<Tr>],
    ) -> Result<Vec<Vec<WorkerState<Tr>>>, StartError> {
        let mut states: Vec<_> = parts.iter().map(|_| Vec::new()).collect();
        for id in 0..start.threads() {
            let repliers = parts.iter_mut().map(|part| part.transport.replier());
            let repliers = repliers.collect::<Result<_, _>>();
            let repliers = repliers.map_err(StartError::Transport)?;
            let worker = self.start_worker(start, id, repliers)?;
            for (states, state) in states.iter_mut().zip(worker) {
                states.push(state);
            }
        }
        self.worker_statistics
            .push(Arc::clone(&start.spare_statistics));
        Ok(states)
    }

    fn dispatcher<S>(
        &self,
        start: &Start<'_, S, Tr>,
        number: usize,
        part: Part<Tr>,
        mut states: Vec<WorkerState<Tr>>,
    ) -> Dispatcher<Tr> {
        let (config, layout) = (start.config, start.layout);
        let share = config.share_of(self.shutdown_handoffs.len());
        let spares = match layout.inline {
            true => Vec::new(),
            false => states.split_off(layout.workers.len()),
        };
        Dispatcher::new(Parts {
            transport: part.transport,
            policy: part.policy,
            workers: states,
            spares,
            cores: layout.workers.clone(),
            contexts: part.contexts,
            capacity: share.task_capacity(layout.workers.len()),
            rules: Rules {
                depth: depth(config, layout),
                kernel_threads: config.context_kind.is_kernel_thread(),
                inline: layout.inline,
                queue: share.queue,
                leaves_excess: start.loops.parts() > 1 && start.loops.tells(number),
                rescue_after: config.rescue_after(),
                best_effort: config.has_best_effort(),
                idle_backoff: config.idle_backoff(),
                shares_core: layout.shared,
                realtime: config.realtime_priority.is_some(),
                deadlines: config.class.iter().map(ClassConfig::deadline).collect(),
            },
            preemption: part.preemption,
            statistics: Arc::clone(&self.dispatcher_statistics[number]),
            control: Arc::clone(&self.control),
            orders: Arc::clone(&self.orders),
            shutdown_handoff: Arc::clone(&self.shutdown_handoffs[number]),
            idle_time: Arc::clone(&start.idle_time),
        })
    }

    /// Starts thread `id` and waits until it is ready, or says why it cannot be. Gives what each
    /// dispatcher knows of it.
    fn start_worker<S: Send + 'static>(
        &mut self,
        start: &Start<'_, S, Tr>,
        id: usize,
        repliers: Vec<Tr::Replier>,
    ) -> Result<Vec<WorkerState<Tr>>, StartError> {
        let (inline, is_seldom) = (start.layout.inline, start.is_seldom(id));
        let name = format!("shinjuku-{}", start.layout.thread_name(id));
        let statistics = match is_seldom {
            false => Arc::new(WorkerStatistics::new(self.class_names.len())),
            true => Arc::clone(&start.spare_statistics),
        };
        let parker = Arc::new(Parker::new());
        let (senders, ports): (Vec<_>, Vec<_>) = (repliers.into_iter())
            .map(|replier| {
                let (sender, receiver) = mailbox(depth(start.config, start.layout));
                (sender, Port { receiver, replier })
            })
            .unzip();
        let (ready, readiness) = mpsc::channel::<Ready>();
        let worker = WorkerStart {
            place: start.place(id),
            states: Arc::clone(&start.states),
            loops: inline.then(|| Arc::clone(&start.loops)),
            ports,
            statistics: Arc::clone(&statistics),
            lane: self.recorder.lane(id),
            parker: Arc::clone(&parker),
            orders: Arc::clone(&self.orders),
            shares_core: start.layout.shared,
            idle_backoff: start.idle_backoff(id),
            beside_others: start.layout.slice.is_some(),
        };
        let thread = spawn(&name, move || worker.run(ready))?;
        let link = readiness.recv();
        let handle = thread.thread().clone();
        self.workers.push(thread);
        let link = link.map_err(|_| StartError::Panicked {
            callback: "start",
            place: name,
        })??;
        self.links.push(link.clone());
        if !is_seldom {
            self.worker_statistics.push(statistics);
        }
        // To a policy, all loops are one worker.
        let policy_id = if inline { 0 } else { id };
        let worker = WorkerId(u16::try_from(policy_id).expect("workers are few"));
        let parker = (!inline).then_some(parker);
        let state =
            |sender| WorkerState::new(worker, sender, link.clone(), handle.clone(), parker.clone());
        Ok(senders.into_iter().map(state).collect())
    }

    /// The loops get their dispatchers.
    fn begin_loops(&mut self, loops: &Loops<Tr>, dispatchers: Vec<Dispatcher<Tr>>) {
        let threads = self.workers.iter().map(|thread| thread.thread().clone());
        self.dispatcher = Some(Seat::Loops);
        loops.begin(
            threads.collect(),
            self.links.clone(),
            dispatchers.into_iter().map(Box::new).collect(),
        );
    }

    fn start_dispatcher<S>(
        &mut self,
        start: &Start<'_, S, Tr>,
        mut dispatchers: Vec<Dispatcher<Tr>>,
    ) -> Result<(), StartError> {
        let dispatcher = dispatchers.pop().expect("there is one");
        let (ready, readiness) = mpsc::channel::<Result<(), StartError>>();
        let Config {
            realtime_priority,
            preemption,
            ..
        } = start.config;
        let (core, priority) = (start.layout.dispatcher, *realtime_priority);
        let (mechanism, backend) = (preemption.mechanism, self.backend.clone());
        let thread = spawn("shinjuku-dispatcher", move || {
            let prepared = prepare(core, priority).and_then(|realtime| {
                let mode = backend.map(|backend| backend.enter_as_sender()).transpose();
                let mode = mode.map_err(|cause| StartError::Backend { mechanism, cause })?;
                Ok((realtime, mode))
            });
            let (prepared, report) = match prepared {
                Ok(prepared) => (Some(prepared), Ok(())),
                Err(error) => (None, Err(error)),
            };
            drop(ready.send(report));
            drop(ready);
            dispatcher.run();
            drop(prepared);
        })?;
        self.dispatcher = Some(Seat::Thread(thread));
        readiness.recv().map_err(|_| StartError::Panicked {
            callback: "start",
            place: "the dispatcher".to_owned(),
        })?
    }

    pub(crate) fn statistics(&self) -> Statistics {
        self.observer().statistics()
    }

    pub(crate) fn observer(&self) -> Observer {
        Observer {
            at_submit: None,
            turned_away: None,
            workers: self.worker_statistics.clone().into(),
            dispatchers: self.dispatcher_statistics.clone().into(),
            links: self.links.clone().into(),
            class_names: self.class_names.clone().into(),
            recorder: Arc::clone(&self.recorder),
            started: Arc::clone(&self.started),
            stalls: Arc::clone(&self.stalls),
            description: self.description.as_str().into(),
            in_force: self.in_force.clone(),
            arrangement: Arc::clone(&self.arrangement),
            backend: self.backend.clone(),
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.dispatcher.is_some()
    }

    pub(crate) fn shutdown(&mut self, deadline: Duration) -> ShutdownReport {
        let mut report = ShutdownReport::default();
        self.control.drain();
        let mut remaining = Vec::new();
        // Without one, the start has failed.
        let mut has_ended = true;
        if let Some(seat) = self.dispatcher.take() {
            let is_left = || {
                self.shutdown_handoffs
                    .iter()
                    .all(|handoff| handoff.is_left())
            };
            let is_ended = || match &seat {
                Seat::Thread(thread) => thread.is_finished(),
                Seat::Loops => self.workers.iter().any(JoinHandle::is_finished),
            };
            let is_over = || is_ended() || matches!(seat, Seat::Loops) && is_left();
            wait(deadline, is_over);
            self.control.end();
            for thread in &self.workers {
                thread.thread().unpark();
            }
            wait(SHUTDOWN_HANDOFF_PATIENCE, || is_left() || is_over());
            // Looked at first: threads end after the last hand-off.
            has_ended = is_ended();
            let handoffs = self.shutdown_handoffs.iter();
            remaining.extend(handoffs.filter_map(|handoff| handoff.take()));
        }
        let is_late = remaining.len() < self.shutdown_handoffs.len();
        if is_late && has_ended {
            // It never started, or it panicked, which is a bug and was reported by the panic hook.
            self.orders.end();
        } else if is_late {
            // What it has started goes on, and may hold locks.
            self.orders.go_on_in_background();
        }
        let is_unfinished = remaining.iter().any(|part| !part.unfinished.is_empty());
        let in_background = is_unfinished || is_late && !has_ended;
        let mut idle = Vec::new();
        for part in remaining {
            let name = |class: &ClassId| self.class_names[usize::from(class.0)].clone();
            report.unfinished.extend(part.unfinished.iter().map(name));
            report.workers_leaked += part.busy_workers;
            report.policy_error = report.policy_error.or(part.policy_error);
            idle.extend(part.idle);
            self.transports.extend(part.transport);
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
        let telling = [
            self.change_log.take().map(ChangeLog::end),
            self.stall_watch.take().map(StallWatch::end),
        ];
        for thread in telling.into_iter().flatten() {
            if wait(WORKER_PATIENCE, || thread.is_finished()) {
                let _ = thread.join();
            }
        }
        if let Some(handles) = self.handles.take() {
            let contexts = handles.hand_back(idle, BACKING_THREAD_PATIENCE);
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

/// What the threads of a runtime have in common while they are started.
struct Start<'a, S, Tr: Transport> {
    config: &'a Config,
    layout: &'a Layout,
    backend: Option<Arc<dyn Backend>>,
    timer_signal: Option<Signal>,
    states: Arc<PerCoreStates<S>>,
    loops: Arc<Loops<Tr>>,
    idle_time: Arc<IdleTime>,
    /// Of the spares that are seldom needed.
    spare_statistics: Arc<WorkerStatistics>,
}

impl<'a, S, Tr: Transport> Start<'a, S, Tr> {
    fn new(
        config: &'a Config,
        layout: &'a Layout,
        preemption: &Preemption,
        states: Arc<PerCoreStates<S>>,
        core: &Threads<Tr>,
        alarm: Arc<Alarm>,
        glances: Vec<Option<Glance>>,
    ) -> Self {
        let idle_time = IdleTime::new(layout.workers.len());
        let loops = Loops::new(LoopsParts {
            glances,
            threads: layout.workers.len() + config.spares(),
            alarm,
            idle_time: Arc::clone(&idle_time),
            rescue_after: Duration::from_nanos(config.rescue_after().0),
            best_effort: config.has_best_effort(),
            control: Arc::clone(&core.control),
            orders: Arc::clone(&core.orders),
        });
        Self {
            config,
            layout,
            backend: preemption.backend.clone(),
            timer_signal: preemption.signal.filter(|_| layout.inline),
            states,
            loops: Arc::new(loops),
            idle_time,
            spare_statistics: Arc::new(WorkerStatistics::shared(core.class_names.len())),
        }
    }

    /// Workers and spares.
    fn threads(&self) -> usize {
        self.layout.workers.len() + self.config.spares()
    }

    fn is_spare(&self, id: usize) -> bool {
        id >= self.layout.workers.len()
    }

    /// Whether thread `id` runs requests seldom.
    fn is_seldom(&self, id: usize) -> bool {
        id >= run_often(self.layout)
    }

    fn place(&self, id: usize) -> Place {
        let spare = self.is_spare(id);
        Place {
            id,
            spare,
            core: match spare {
                false => self.layout.workers[id],
                true if self.layout.symmetric => None,
                true if self.layout.inline => self.layout.workers[0],
                true => None,
            },
            slice: self.layout.slice,
            realtime_priority: self.config.realtime_priority,
            strict: self.config.strict,
            mechanism: self.config.preemption.mechanism,
            // Spares stay outside, where signals reach them: KVM has a vCPU for each of some
            // hundred threads only, and Dune wants a core for each.
            backend: self.backend.clone().filter(|_| !spare),
            timer_signal: self.timer_signal,
        }
    }

    /// How long thread `id` is idle before it sleeps; `None`: it never does.
    fn idle_backoff(&self, id: usize) -> Option<Cycles> {
        // Spares are needed seldom: they need not look for long.
        const SPARE: u64 = 20_000;
        let nanos = self.config.idle_backoff().map(|nanos| nanos.0);
        let nanos = match self.is_spare(id) {
            _ if self.layout.inline => self.layout.spins_for(nanos),
            true => Some(nanos.map_or(SPARE, |nanos| nanos.min(SPARE))),
            false => nanos,
        };
        nanos.map(|nanos| Clock::get().to_cycles(nanos))
    }
}

/// Where and how a worker's thread runs.
struct Place {
    id: usize,
    spare: bool,
    core: Option<usize>,
    /// Among other threads of the system: how long Linux shall let it run at a time.
    slice: Option<Duration>,
    realtime_priority: Option<i32>,
    strict: bool,
    mechanism: MechanismKind,
    backend: Option<Arc<dyn Backend>>,
    timer_signal: Option<Signal>,
}

impl Place {
    /// Makes the calling thread a worker there.
    fn take<S>(&self, states: &PerCoreStates<S>) -> Result<Prepared, StartError> {
        let realtime = prepare(self.core, self.realtime_priority)?;
        if let (Some(slice), None) = (self.slice, &realtime) {
            // Before Linux 6.12 the slice is the system's own.
            let _ = request_slice(slice);
        }
        let id = self.id;
        let mut worker = Worker::bind(u32::try_from(id).expect("workers are few"))?;
        self.enter_mode(&mut worker)?;
        if !self.spare {
            catch_unwind(AssertUnwindSafe(|| states.make(id))).map_err(|_| {
                StartError::Panicked {
                    callback: "init_per_core",
                    place: format!("the thread of worker {id}"),
                }
            })?;
        }
        Ok(Prepared {
            worker,
            _realtime: realtime,
            timer: self.timer_signal.map(DeadlineTimer::new).transpose()?,
        })
    }

    fn enter_mode(&self, worker: &mut Worker) -> Result<(), StartError> {
        let Some(backend) = &self.backend else {
            return Ok(());
        };
        match worker.enter(&**backend) {
            Err(error) if backend.interrupts_outside() && !self.strict => {
                tracing::warn!(target: "shinjuku", "signals interrupt worker {}: {error}", self.id);
                Ok(())
            }
            entered => entered.map_err(|cause| StartError::Backend {
                mechanism: self.mechanism,
                cause,
            }),
        }
    }
}

/// A thread that has become a worker.
struct Prepared {
    worker: Worker,
    _realtime: Option<Realtime>,
    timer: Option<DeadlineTimer>,
}

/// What a worker's thread is started with.
struct WorkerStart<S, Tr: Transport> {
    place: Place,
    states: Arc<PerCoreStates<S>>,
    /// In the layouts that have them.
    loops: Option<Arc<Loops<Tr>>>,
    /// For each dispatcher.
    ports: Vec<Port<Tr>>,
    statistics: Arc<WorkerStatistics>,
    lane: Lane,
    parker: Arc<Parker>,
    orders: Arc<Orders>,
    shares_core: bool,
    idle_backoff: Option<Cycles>,
    /// Whether it runs beside other threads.
    beside_others: bool,
}

impl<S, Tr: Transport> WorkerStart<S, Tr> {
    /// The thread: reports that it is ready, or why it cannot be, and then runs its loop.
    fn run(mut self, ready: mpsc::Sender<Ready>) {
        let prepared = self.place.take(&self.states);
        drop(self.states);
        let Prepared {
            mut worker,
            _realtime,
            timer,
        } = match prepared {
            Err(error) => return drop(ready.send(Err(error))),
            Ok(prepared) => prepared,
        };
        drop(ready.send(Ok(worker.link())));
        drop(ready);
        let (shares_core, idle_backoff) = (self.shares_core, self.idle_backoff);
        match self.loops {
            None => worker.serve(&mut WorkerLoop::<Tr> {
                link: worker.link(),
                port: self.ports.pop().expect("there is one dispatcher"),
                statistics: self.statistics,
                lane: self.lane,
                parker: self.parker,
                orders: self.orders,
                shares_core,
                clock: Clock::get(),
                idle_backoff,
                idle_since: Cycles::now(),
                idle_turns: 0,
                running: None,
            }),
            Some(loops) => LoopThread::new(LoopThreadParts {
                me: self.place.id,
                worker,
                ports: self.ports,
                statistics: self.statistics,
                lane: self.lane,
                timer,
                loops,
                idling: Idling {
                    backoff: idle_backoff,
                    learns: self.beside_others,
                    shares_core,
                },
            })
            .run(),
        }
    }
}

/// How many threads run requests often: the workers, and the first spares where spares take turns
/// with them.
fn run_often(layout: &Layout) -> usize {
    layout.workers.len() + if layout.inline { TURNS } else { 0 }
}

/// The policy of one of so many dispatchers, with room for its share of the requests.
fn verified_policy(
    share: &Config,
    own: &mut [OwnPolicy],
    layout: &Layout,
    dispatchers: usize,
) -> Result<Verified, ConfigError> {
    let workers = layout.workers.len();
    // To a policy, all loops are one worker.
    let seen = if layout.inline { 1 } else { workers };
    let capacity = share.task_capacity(workers);
    let mut parameters = share.parameters(capacity, seen);
    // Contexts go to whichever dispatcher needs them.
    let started = &mut parameters.best_effort.started;
    *started = (*started / dispatchers).max(1);
    let policy = build_policy(share, own, &parameters)?;
    Verified::new(policy, capacity)
        .and_then(|policy| policy.with_progress_limit(share.policy.progress_limit))
        .map_err(ConfigError::from)
}

/// Each class's quantum; of a policy of the program's own nothing is known.
fn quanta(config: &Config, policy: &Verified, is_enabled: bool) -> Vec<Option<Nanos>> {
    if registry::named(config.policy.kind.as_str()).is_err() {
        return Vec::new();
    }
    let classes = (0..).map(ClassId).take(config.class.len());
    let quantum = |class| policy.quantum_of(class).filter(|_| is_enabled);
    classes.map(quantum).collect()
}

/// The line that is logged at start.
fn describe(config: &Config, layout: &Layout, policy: &str, preemption: &str) -> String {
    let threads = match layout.inline {
        true => layout.to_string(),
        false => format!("{} workers", layout.workers.len()),
    };
    let why = match layout.why {
        Some(why) => format!(" (auto: {why})"),
        None => " (as configured)".to_owned(),
    };
    let depth = match (depth(config, layout), config.depth) {
        (1, _) if layout.inline => String::new(),
        (depth, Some(_)) => format!(" at depth {depth} (as configured)"),
        (1, None) => String::new(),
        (depth, None) => format!(" at depth {depth} (auto)"),
    };
    let quanta = match config.preemption.raises_quanta() {
        true => "auto",
        false => "as configured",
    };
    let kind = match config.context_kind {
        ContextKind::Stack => "",
        ContextKind::KernelThread => " that are kernel threads",
    };
    format!(
        "{threads}{why}{depth}, {} contexts{kind}, policy {policy}; preemption {preemption}; quanta {quanta}",
        config.contexts
    )
}

/// How many requests a worker is given at a time. A loop takes what it runs.
fn depth(config: &Config, layout: &Layout) -> usize {
    match layout.inline {
        true => 1,
        false => config.depth_at(layout.workers.len()),
    }
}

/// The contexts, each of which does `entry` with a request.
fn start_pool<Tr: Transport>(
    config: &Config,
    layout: &Layout,
    entry: impl Fn(Job<Tr>) -> Done<Tr> + Send + Sync + 'static,
) -> Result<Pool<Job<Tr>, Done<Tr>>, StartError> {
    let tells_itself = layout.inline || config.context_kind.is_kernel_thread();
    let contexts = PoolConfig {
        contexts: config.contexts,
        stack_size: config.stack_bytes() + between_requests::<Tr>(tells_itself),
        name: "shinjuku-context".to_owned(),
        kind: config.context_kind.into(),
    };
    Ok(Pool::new(contexts, entry)?)
}

/// What every context does with a request.
fn entry<H, Tr>(
    handler: Arc<H>,
    states: Arc<PerCoreStates<H::PerCore>>,
    started: Arc<Started>,
) -> impl Fn(Job<Tr>) -> Done<Tr> + Send + Sync + 'static
where
    H: RequestHandler<Request = Tr::Request, Reply = Tr::Reply>,
    Tr: Transport,
{
    move |job| {
        let Job {
            mut meta,
            request,
            route,
        } = job;
        let number = current_context();
        if let Some(number) = number {
            started.begins(number, meta);
        }
        let context = RequestContext {
            class: meta.class,
            arrival: AtomicU64::new(meta.arrival.0),
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
        if let Some(number) = number {
            started.ends(number);
        }
        meta.arrival = context.arrival();
        let failed = match &result {
            Ok(reply) => handler.is_failure(reply),
            Err(_) => true,
        };
        Done {
            meta,
            outgoing: Tr::conclude(route, result),
            failed,
        }
    }
}

/// What contexts' stacks have to have on top of what was promised to handlers, in bytes, where they
/// send their replies themselves: inline, and as kernel threads. Inline the next request is taken
/// from the dispatcher there, too, and moved some times on its way.
fn between_requests<Tr: Transport>(tells_itself: bool) -> usize {
    const CALLS: usize = 16 * 1024;
    // An unoptimised build has a place on the stack for each move.
    const MOVES: usize = if cfg!(debug_assertions) { 24 } else { 6 };
    if tells_itself {
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
