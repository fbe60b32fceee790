//! The threads of a runtime, whatever its transport: started together, ended together.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shinjuku_net::{Glance, Transport};
use shinjuku_policy::{ClassId, Nanos, Verified, WorkerId, registry};
use shinjuku_preempt::{
    Backend, Clock, Cycles, Handles, Idle, Parker, Signal, WorkerLink, mailbox,
};

use crate::builder::{Builder, OwnPolicy, build_policy, learner};
use crate::calibrate;
use crate::change_log::ChangeLog;
use crate::config::{ClassConfig, Config, ConfigError};
use crate::description::{depth, describe, policy_in_words};
use crate::dispatcher::{
    Contexts, Control, DESKS, Dispatcher, POLICY_ID, Parts, Post, Relay, Rules, ShutdownHandoff,
    slice,
};
use crate::entry::{entry, start_pool};
use crate::handler::{PerCoreStates, RequestHandler};
use crate::layout::Layout;
use crate::learned::Learned;
use crate::loops::{Alarm, IdleTime, Loops, LoopsParts};
use crate::observer::{Arrangement, Observer};
use crate::preemption::{InForce, Preemption};
use crate::quantum_floor::PreemptedFor;
use crate::request::{Done, Job};
use crate::runtime::ShutdownReport;
use crate::stalls::{StallCounts, StallWatch};
use crate::start_error::StartError;
use crate::started::Started;
use crate::statistics::{DispatcherStatistics, Statistics, WorkerStatistics};
use crate::timeline::Recorder;
use crate::worker::{Orders, Port};
use crate::worker_state::WorkerState;
use crate::worker_thread::{Duty, Place, Ready, WorkerStart, prepare};

/// How long a runtime that is dropped lets its requests finish.
pub(crate) const DROP_DEADLINE: Duration = Duration::from_secs(1);
/// How long the dispatchers may take to hand over what remains, once they are told to end.
const SHUTDOWN_HANDOFF_PATIENCE: Duration = Duration::from_secs(2);
/// How long a worker may take to end once it has nothing to do.
const WORKER_PATIENCE: Duration = Duration::from_secs(1);
/// How many standby threads of the loops have counters and a timeline's lane of their own. The
/// others, which are seldom needed, share theirs.
const OFTEN_STANDING_IN: usize = 3;
/// What the threads of a dispatcher that works are called: the one that begins, and the other.
const DESK_NAMES: [&str; DESKS] = ["dispatcher", "relief"];
/// How long the backing threads may take to end, with their thread-local destructors.
const BACKING_THREAD_PATIENCE: Duration = Duration::from_secs(5);

/// The threads of a runtime, whatever its transport.
pub(crate) struct Threads<Tr: Transport> {
    /// What hurries loops; `None` until there are any.
    alarm: Option<Arc<Alarm>>,
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
    /// The quanta in force as the first dispatcher publishes them, if `auto` can change them.
    in_force: Option<Arc<InForce>>,
    /// What the first dispatcher's policy learns, where it was not given.
    learned: Option<Arc<Learned>>,
    arrangement: Arc<Arrangement>,
    change_log: Option<ChangeLog>,
    stall_watch: Option<StallWatch>,
    /// What the dispatchers have given back at their end.
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
    /// On the last of the workers' threads, which are its own and serve requests as well.
    Relay,
    /// On the workers' threads.
    Loops,
}

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
    /// Starts all threads, with a dispatcher for each of `transports`. Only the layout `symmetric`
    /// takes more than one.
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
        let learner = policies.first().and_then(Verified::learner);
        let learned = learner.map(|learner| Learned::new(learner.lessons(), &config.class));
        let policy = policy_in_words(policies.first(), learned.as_ref());
        let works = works(&config, &layout);
        let description = describe(&config, &layout, works, &policy, &preemption.why);
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
        let desks = works.map_or(0, |_| DESKS);
        let threads = workers + config.spares() + desks;
        let states = Arc::new(PerCoreStates::new(threads, move |worker| {
            maker.init_per_core(worker)
        }));
        let started = Started::new(config.contexts);
        let entry = entry::<H, Tr>(handler, Arc::clone(&states), Arc::clone(&started));
        let pool = start_pool::<Tr>(&config, &layout, entry)?;
        let spares = workers + config.spares();
        let names = (0..spares).map(|id| layout.lane_name(id));
        let names = names.chain(DESK_NAMES[..desks].iter().map(|&name| name.to_owned()));
        let recorder = Recorder::new(run_often(&layout), names);
        let mut core = Self::new(
            &config,
            transports.len(),
            pool.handles,
            &preemption,
            (recorder, started),
            (description, arrangement, learned),
        );
        let alarm = Alarm::new(workers, transports.len(), &config);
        core.alarm = Some(Arc::clone(&alarm));
        let attend = |(number, transport): (usize, &mut Tr)| {
            let is_symmetric = layout.symmetric;
            is_symmetric.then(|| transport.attend(alarm.wake_for(number)))?
        };
        let glances = transports.iter_mut().enumerate().map(attend).collect();
        let start = Start::new(&config, &layout, &preemption, states, &core, alarm, glances);
        let start = Start {
            works,
            relay: works.map(|_| core.relay(&config)),
            ..start
        };
        let parts = parts(transports, policies, pool.idle, &preemption);
        if let Err((error, idle)) = core.start_threads(start, parts) {
            if let Some(handles) = core.handles.take() {
                handles.hand_back(idle, BACKING_THREAD_PATIENCE);
            }
            let _ = core.shutdown(Duration::ZERO);
            return Err(error);
        }
        tracing::info!(target: "shinjuku", "{}", core.description);
        if let Err(error) = core.start_loggers(&config, layout.inline) {
            let _ = core.shutdown(Duration::ZERO);
            return Err(error);
        }
        Ok(core)
    }

    /// Starts the threads that log: what `auto` changes, and requests that stall their worker.
    fn start_loggers(&mut self, config: &Config, inline: bool) -> Result<(), StartError> {
        let observer = self.observer();
        let changing: Vec<_> = observer.changing().collect();
        if !changing.is_empty() {
            self.change_log = Some(ChangeLog::start(changing)?);
        }
        if let Some(limit) = config.report_stalls_after() {
            let loops = self.alarm.clone().filter(|_| inline);
            self.stall_watch = Some(StallWatch::start(observer, limit, loops)?);
        }
        Ok(())
    }

    fn relay(&self, config: &Config) -> Arc<Relay<Tr>> {
        let orders = Arc::clone(&self.orders);
        Arc::new(Relay::new(config.rescue_after(), orders))
    }

    /// A runtime that has no threads yet but the contexts' backing threads.
    fn new(
        config: &Config,
        dispatchers: usize,
        handles: Handles<Job<Tr>, Done<Tr>>,
        preemption: &Preemption,
        (recorder, started): (Arc<Recorder>, Arc<Started>),
        (description, arrangement, learned): (String, Arrangement, Option<Learned>),
    ) -> Self {
        let class_names: Vec<_> = (config.class.iter())
            .map(|class| class.name.clone())
            .collect();
        Self {
            alarm: None,
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
            learned: learned.map(Arc::new),
            arrangement: Arc::new(arrangement),
            change_log: None,
            stall_watch: None,
            transports: Vec::new(),
        }
    }

    /// Starts the workers, and then the dispatchers. On an error some threads may run, and the
    /// result has the idle contexts.
    #[expect(
        clippy::type_complexity,
        reason = "an error, with the contexts to hand back"
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
                if let Some(relay) = &start.relay {
                    self.begin_relay(relay, dispatchers);
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
        let mut states: Vec<Vec<WorkerState<Tr>>> = parts.iter().map(|_| Vec::new()).collect();
        for id in 0..start.threads() + start.desks() {
            let repliers = parts.iter_mut().map(|part| part.transport.replier());
            let repliers = repliers.collect::<Result<_, _>>();
            let repliers = repliers.map_err(StartError::Transport)?;
            let duty = start.duty(id, &states);
            let worker = self.start_worker(start, id, duty, repliers)?;
            for (states, state) in states.iter_mut().zip(worker) {
                states.push(state);
            }
        }
        self.worker_statistics
            .push(Arc::clone(&start.spare_statistics));
        Ok(states)
    }

    /// Makes dispatcher `number` of its part and of what it knows of the workers.
    fn dispatcher<S>(
        &self,
        start: &Start<'_, S, Tr>,
        number: usize,
        part: Part<Tr>,
        mut states: Vec<WorkerState<Tr>>,
    ) -> Dispatcher<Tr> {
        let (config, layout) = (start.config, start.layout);
        let share = config.share_of(self.shutdown_handoffs.len());
        let desks = states.split_off(start.threads());
        let is_told_of_work = start.is_told_of_work();
        let spares = match layout.inline {
            true => Vec::new(),
            false => states.split_off(layout.workers.len()),
        };
        Dispatcher::new(Parts {
            transport: part.transport,
            policy: part.policy,
            workers: states,
            spares,
            desks,
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
                preempted_for: PreemptedFor::under(config),
                is_told_of_work,
                works: start.works,
                idle_backoff: config.idle_backoff(),
                shares_core: layout.shared,
                realtime: config.realtime_priority.is_some(),
                deadlines: config.class.iter().map(ClassConfig::deadline).collect(),
            },
            // A dispatcher with a thread of its own looks first whether anybody waits.
            preemption: (part.preemption).unasked(layout.inline, layout.inline && !is_told_of_work),
            learned: self.learned.clone().filter(|_| number == 0),
            statistics: Arc::clone(&self.dispatcher_statistics[number]),
            control: Arc::clone(&self.control),
            orders: Arc::clone(&self.orders),
            shutdown_handoff: Arc::clone(&self.shutdown_handoffs[number]),
            idle_time: Arc::clone(&start.idle_time),
        })
    }

    /// Starts thread `id` and waits until it is ready or has failed. Gives what each dispatcher
    /// knows of the thread.
    fn start_worker<S: Send + 'static>(
        &mut self,
        start: &Start<'_, S, Tr>,
        id: usize,
        duty: Duty<Tr>,
        repliers: Vec<Tr::Replier>,
    ) -> Result<Vec<WorkerState<Tr>>, StartError> {
        let (inline, is_seldom) = (start.layout.inline, start.is_seldom(id));
        let desk = start.desk(id);
        let name = format!("shinjuku-{}", start.thread_name(id));
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
            duty,
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
        let worker = match desk {
            Some(_) => POLICY_ID,
            None => WorkerId(u16::try_from(policy_id).expect("workers are few")),
        };
        // Where a dispatcher has the thread itself, nobody sleeps over what is sent.
        let parker = (!inline && desk.is_none()).then_some(parker);
        let state =
            |sender| WorkerState::new(worker, sender, link.clone(), handle.clone(), parker.clone());
        Ok(senders.into_iter().map(state).collect())
    }

    /// Gives the loops their dispatchers.
    fn begin_loops(&mut self, loops: &Loops<Tr>, dispatchers: Vec<Dispatcher<Tr>>) {
        let threads = self.workers.iter().map(|thread| thread.thread().clone());
        self.dispatcher = Some(Seat::Loops);
        loops.begin(
            threads.collect(),
            self.links.clone(),
            dispatchers.into_iter().map(Box::new).collect(),
        );
    }

    /// The dispatcher's own threads, which were started last, get it.
    fn begin_relay(&mut self, relay: &Relay<Tr>, dispatchers: Vec<Dispatcher<Tr>>) {
        let own = &self.workers[self.workers.len() - DESKS..];
        let threads = own.iter().map(|thread| thread.thread().clone());
        self.dispatcher = Some(Seat::Relay);
        for dispatcher in dispatchers {
            relay.begin(Box::new(dispatcher), threads.clone());
        }
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
            learned: self.learned.clone(),
            arrangement: Arc::clone(&self.arrangement),
            backend: self.backend.clone(),
        }
    }

    /// Loops within requests see the end once their quanta are over.
    fn hurry(&self) {
        if let Some(alarm) = &self.alarm {
            alarm.hurry_all();
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.dispatcher.is_some()
    }

    pub(crate) fn shutdown(&mut self, deadline: Duration) -> ShutdownReport {
        let mut report = ShutdownReport::default();
        self.control.drain();
        self.hurry();
        let mut remaining = Vec::new();
        // Without a dispatcher, the start has failed.
        let mut has_ended = true;
        if let Some(seat) = self.dispatcher.take() {
            let is_left = || {
                self.shutdown_handoffs
                    .iter()
                    .all(|handoff| handoff.is_left())
            };
            let is_ended = || match &seat {
                Seat::Thread(thread) => thread.is_finished(),
                Seat::Relay => (self.workers.iter().rev().take(DESKS)).any(JoinHandle::is_finished),
                Seat::Loops => self.workers.iter().any(JoinHandle::is_finished),
            };
            let is_over = || is_ended() || !matches!(seat, Seat::Thread(_)) && is_left();
            wait(deadline, is_over);
            self.control.end();
            self.hurry();
            for thread in &self.workers {
                thread.thread().unpark();
            }
            wait(SHUTDOWN_HANDOFF_PATIENCE, || is_left() || is_over());
            // This comes before the hand-offs are taken: threads end after the last one.
            has_ended = is_ended();
            let handoffs = self.shutdown_handoffs.iter();
            remaining.extend(handoffs.filter_map(|handoff| handoff.take()));
        }
        let is_late = remaining.len() < self.shutdown_handoffs.len();
        if is_late && has_ended {
            // A dispatcher never started, or its thread panicked, which is a bug and was reported
            // by the panic hook.
            self.orders.end();
        } else if is_late {
            // Requests that the dispatcher has started may hold locks, so they go on.
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
        let loggers = [
            self.change_log.take().map(ChangeLog::end),
            self.stall_watch.take().map(StallWatch::end),
        ];
        for thread in loggers.into_iter().flatten() {
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
    // With a deadline beyond what the clock can hold, the wait has no end.
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

/// What the threads of a runtime share while they are started.
struct Start<'a, S, Tr: Transport> {
    config: &'a Config,
    layout: &'a Layout,
    backend: Option<Arc<dyn Backend>>,
    timer_signal: Option<Signal>,
    states: Arc<PerCoreStates<S>>,
    loops: Arc<Loops<Tr>>,
    idle_time: Arc<IdleTime>,
    /// Shared by the spares that are seldom needed.
    spare_statistics: Arc<WorkerStatistics>,
    /// For how long a dispatcher that works does so at a time, and where it lies meanwhile.
    works: Option<Nanos>,
    relay: Option<Arc<Relay<Tr>>>,
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
            works: None,
            relay: None,
        }
    }

    /// Whether loops run without a timer while nobody waits. Under SCHED_FIFO a thread that is back
    /// from the kernel has the core only once the request gives way; and best effort gives way to
    /// what waits elsewhere, too.
    fn is_told_of_work(&self) -> bool {
        self.layout.symmetric
            && self.config.realtime_priority.is_none()
            && !self.config.has_best_effort()
            && (0..self.loops.parts()).all(|part| self.loops.tells(part))
            && Tr::WAKES_THE_BUSY
    }

    /// A dispatcher's own threads, behind the spares.
    fn desks(&self) -> usize {
        self.relay.as_ref().map_or(0, |_| DESKS)
    }

    /// Which of those thread `id` is.
    fn desk(&self, id: usize) -> Option<usize> {
        id.checked_sub(self.threads())
    }

    fn thread_name(&self, id: usize) -> String {
        match self.desk(id) {
            Some(desk) => DESK_NAMES[desk].to_owned(),
            None => self.layout.thread_name(id),
        }
    }

    /// What thread `id` does, beside workers of which the dispatchers know so much.
    fn duty(&self, id: usize, states: &[Vec<WorkerState<Tr>>]) -> Duty<Tr> {
        match (self.desk(id), &self.relay) {
            (Some(desk), Some(relay)) => {
                let workers = &states[0][..self.layout.workers.len()];
                let last_answers = workers.iter().map(|state| state.sender.last_answer());
                Duty::Serve(Some(Post {
                    desk,
                    relay: Arc::clone(relay),
                    last_answers: last_answers.collect(),
                }))
            }
            _ if self.layout.inline => Duty::Loop(Arc::clone(&self.loops)),
            _ => Duty::Serve(None),
        }
    }

    /// Workers and spares.
    fn threads(&self) -> usize {
        self.layout.workers.len() + self.config.spares()
    }

    fn is_spare(&self, id: usize) -> bool {
        (self.layout.workers.len()..self.threads()).contains(&id)
    }

    /// Whether thread `id` runs requests seldom.
    fn is_seldom(&self, id: usize) -> bool {
        id >= run_often(self.layout) && self.desk(id).is_none()
    }

    fn place(&self, id: usize) -> Place {
        let spare = self.is_spare(id);
        Place {
            id,
            spare,
            core: match spare {
                _ if self.desk(id).is_some() => self.layout.dispatcher,
                false => self.layout.workers[id],
                true if self.layout.symmetric => None,
                true if self.layout.inline => self.layout.workers[0],
                true => None,
            },
            slice: self.layout.slice,
            realtime_priority: self.config.realtime_priority,
            strict: self.config.strict,
            mechanism: self.config.preemption.mechanism,
            // Spares stay outside of the special mode, where signals reach them: KVM has vCPUs for
            // some hundred threads only, and Dune wants a core for each.
            backend: self.backend.clone().filter(|_| !spare),
            timer_signal: self.timer_signal,
            is_told_of_work: self.is_told_of_work(),
        }
    }

    /// How long thread `id` is idle before it sleeps; `None`: it never sleeps.
    fn idle_backoff(&self, id: usize) -> Option<Cycles> {
        /// Spares are needed seldom, so they do not poll for long, in nanoseconds.
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

/// How many threads run requests often: the workers, and, where standby threads take turns with
/// them, the first of these.
fn run_often(layout: &Layout) -> usize {
    let standing_in = if layout.inline { OFTEN_STANDING_IN } else { 0 };
    layout.workers.len() + standing_in
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
    // `share` has all contexts, since they go to whichever dispatcher needs them.
    let started = &mut parameters.best_effort.started;
    *started = (*started / dispatchers).max(1);
    let policy = build_policy(share, own, &parameters)?;
    let learner = learner(share, own, &parameters);
    // Where a request is stopped for more urgent ones alone, they should not wait for longer.
    let stretches =
        share.preemption.raises_quanta() && PreemptedFor::under(share) == PreemptedFor::Anyone;
    Verified::new(policy, capacity)
        .map(|policy| policy.with_learner(learner).with_longer_quanta(stretches))
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

/// For how long the dispatcher runs requests at a time, where it does.
fn works(config: &Config, layout: &Layout) -> Option<Nanos> {
    config.dispatcher.works.then(|| {
        let (priority, kind) = (config.realtime_priority, config.context_kind);
        slice(calibrate::measure(layout, priority, kind, None, None).probe)
    })
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
