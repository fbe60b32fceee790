//! Visits of one loop's thread to the parts, one by one, on the test's thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64};

use shinjuku_net::{Arrival, Failure, Refusal, Replier};
use shinjuku_policy::{Verified, WorkerId};
use shinjuku_preempt::{Handles, Idle, Pool, PoolConfig, mailbox};

use super::*;
use crate::config::{Config, LayoutKind, MechanismKind};
use crate::dispatcher::{Contexts, Parts, Rules, ShutdownHandoff};
use crate::layout::Layout;
use crate::preemption::Preemption;
use crate::quantum_floor::PreemptedFor;
use crate::request::{Done, Job};
use crate::statistics::DispatcherStatistics;
use crate::timeline::Recorder;
use crate::worker_state::WorkerState;

/// No test waits for so long.
const LONG: Duration = Duration::from_secs(3600);

type Task = Box<dyn FnOnce() + Send>;
type Waiting = Arc<Mutex<VecDeque<Task>>>;

/// A transport that delivers what the test lists, and drops replies.
struct Listed(Waiting);

impl Transport for Listed {
    type Request = Task;
    type Reply = ();
    type Route = ();
    type Outgoing = ();
    type Replier = Nowhere;

    fn poll(&mut self, now: u64, room: usize, mut deliver: impl FnMut(Arrival<Task, ()>)) {
        let mut waiting = self.0.lock().unwrap();
        let now_delivered = room.min(waiting.len());
        for task in waiting.drain(..now_delivered) {
            deliver(Arrival::new(task, (), now));
        }
    }

    fn refuse(&mut self, _: Task, (): (), cause: Refusal) {
        panic!("{cause}");
    }

    fn conclude((): (), _: Result<(), Failure>) {}

    fn replier(&mut self) -> std::io::Result<Nowhere> {
        Ok(Nowhere)
    }

    fn wait(&mut self, _: Duration) {}

    fn close(&mut self) {}
}

struct Nowhere;

impl Replier for Nowhere {
    type Outgoing = ();

    fn send(&mut self, (): ()) {}
}

/// Parts with a seat each. The thread is that of seat 0; no thread is in the other seats.
struct Stage {
    thread: LoopThread<Listed>,
    loops: Arc<Loops<Listed>>,
    waiting: Vec<Waiting>,
    handles: Option<Handles<Job<Listed>, Done<Listed>>>,
}

impl Stage {
    /// Each part keeps one context, and the reserve has as many as there are parts, or more.
    fn new(parts: usize) -> Self {
        let mut config = Config::default()
            .layout(LayoutKind::Symmetric)
            .workers(Some(parts))
            .contexts(8);
        config.cores.share = true;
        config.preemption.mechanism = MechanismKind::Probe;
        // However long the thread is kept from its core, no task is stopped on its way in.
        config.policy.quantum_us = 3.6e9;
        let serve = |job: Job<Listed>| {
            (job.request)();
            Done {
                meta: job.meta,
                outgoing: (),
                failed: false,
            }
        };
        let pool = PoolConfig::default().contexts(config.contexts);
        let Pool { idle, handles } = Pool::new(pool, serve).unwrap();
        let worker = Worker::bind(0).unwrap();
        let waiting: Vec<Waiting> = (0..parts).map(|_| Waiting::default()).collect();
        let glance = |waiting: &Waiting| -> Option<Glance> {
            let waiting = Arc::clone(waiting);
            Some(Box::new(move || !waiting.lock().unwrap().is_empty()))
        };
        let idle_time = IdleTime::new(parts);
        let loops = Arc::new(Loops::new(LoopsParts {
            glances: waiting.iter().map(glance).collect(),
            threads: parts,
            alarm: Alarm::new(parts, parts, &config),
            idle_time: Arc::clone(&idle_time),
            rescue_after: LONG,
            best_effort: false,
            control: Arc::new(Control::new()),
            orders: Arc::new(Orders::new(parts)),
        }));
        let mut ports = Vec::new();
        let mut dispatchers = Vec::new();
        for (contexts, waiting) in Contexts::share(idle, parts).into_iter().zip(&waiting) {
            let mut states = Vec::new();
            for seat in 0..parts {
                let (sender, receiver) = mailbox(1);
                if seat == 0 {
                    let replier = Nowhere;
                    ports.push(Port { receiver, replier });
                }
                let thread = std::thread::current();
                states.push(WorkerState::new(
                    WorkerId(0),
                    sender,
                    worker.link(),
                    thread,
                    None,
                ));
            }
            let transport = Listed(Arc::clone(waiting));
            let dispatcher = dispatcher(&config, &loops, transport, contexts, states);
            dispatchers.push(Box::new(dispatcher));
        }
        let threads = vec![std::thread::current(); parts];
        loops.begin(threads, vec![worker.link(); parts], dispatchers);
        let mut thread = LoopThread::new(LoopThreadParts {
            me: 0,
            worker,
            ports,
            statistics: Arc::new(WorkerStatistics::new(1)),
            lane: Recorder::new(1, [String::new()]).lane(0),
            timer: None,
            remote_timer: None,
            loops: Arc::clone(&loops),
            idling: Idling {
                backoff: None,
                learns: false,
                shares_core: false,
            },
        });
        // It goes home only for a reason.
        thread.next_visit = Cycles(u64::MAX);
        Self {
            thread,
            loops,
            waiting,
            handles: Some(handles),
        }
    }

    /// Changes a part's contexts, of which the state that it lies there with may not tell.
    fn change_contexts(
        &self,
        part: usize,
        change: impl FnOnce(&mut Contexts<Idle<Job<Listed>, Done<Listed>>>),
    ) {
        let part = &self.loops.parts[part];
        let mut dispatcher = part.take().unwrap();
        change(dispatcher.contexts());
        part.leave(dispatcher);
    }

    fn submit(&self, part: usize, task: impl FnOnce() + Send + 'static) {
        self.waiting[part].lock().unwrap().push_back(Box::new(task));
    }

    fn has_reserve(&self) -> bool {
        self.loops.reserve.get().is_some_and(|has_any| has_any())
    }

    /// While seats 1 and 2 are parked.
    fn beside_two_parked(&mut self, act: impl FnOnce(&mut Self)) {
        let alarm = Arc::clone(&self.loops.alarm);
        let parking = &alarm.parking;
        parking.search();
        parking.search();
        parking.park(1, 1, LONG, || {
            parking.park(2, 2, LONG, || {
                act(self);
                true
            });
            true
        });
        parking.found();
        parking.found();
    }

    fn has_parked(&self) -> bool {
        self.loops.alarm.parking.has_parked()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let dispatchers = self.loops.parts.iter().filter_map(|part| part.take());
        let idle = dispatchers.flat_map(|dispatcher| dispatcher.into_idle());
        let idle: Vec<_> = idle.collect();
        if let Some(handles) = self.handles.take() {
            handles.hand_back(idle, Duration::from_secs(20));
        }
    }
}

fn dispatcher(
    config: &Config,
    loops: &Loops<Listed>,
    transport: Listed,
    contexts: Contexts<Idle<Job<Listed>, Done<Listed>>>,
    workers: Vec<WorkerState<Listed>>,
) -> Dispatcher<Listed> {
    let layout = Layout::plan(config).unwrap();
    let capacity = config.task_capacity(workers.len());
    let policy = crate::builder::build_policy(config, &mut [], &config.parameters(capacity, 1));
    Dispatcher::new(Parts {
        transport,
        policy: Verified::new(policy.unwrap(), capacity).unwrap(),
        spares: Vec::new(),
        desks: Vec::new(),
        cores: vec![None; workers.len()],
        contexts,
        capacity,
        rules: Rules {
            kernel_threads: false,
            inline: true,
            depth: 1,
            queue: config.queue,
            leaves_excess: true,
            rescue_after: config.rescue_after(),
            best_effort: false,
            preempted_for: PreemptedFor::Anyone,
            is_told_of_work: true,
            works: None,
            idle_backoff: None,
            shares_core: false,
            realtime: false,
            deadlines: vec![None; config.class.len()],
        },
        preemption: Preemption::choose(config, &layout, None).unwrap(),
        learned: None,
        statistics: Arc::new(DispatcherStatistics::new(config.class.len())),
        control: Arc::clone(&loops.control),
        orders: Arc::clone(&loops.orders),
        shutdown_handoff: Arc::new(ShutdownHandoff::new()),
        idle_time: Arc::clone(&loops.idle_time),
        workers,
    })
}

/// Nobody visits a part where nothing is to be done. So contexts that could not be left to the
/// others are something to do.
#[test]
fn an_idle_loop_visits_a_part_that_has_contexts_for_the_others() {
    let mut stage = Stage::new(2);
    stage.change_contexts(1, Contexts::hoard);
    assert!(!stage.has_reserve());
    assert!(stage.loops.parts[1].has_polled(Work::Urgent));
    assert_eq!(stage.thread.find(0), Some(1));
    assert!(!stage.thread.visit(0, 1), "it runs no request");
    assert!(stage.has_reserve());
    assert!(!stage.loops.parts[1].has_polled(Work::Any));
    assert_eq!(stage.thread.find(0), None);
}

/// As many contexts may have come back.
#[test]
fn for_each_part_that_starves_a_loop_is_woken() {
    let mut stage = Stage::new(3);
    stage.change_contexts(1, Contexts::give_away);
    stage.change_contexts(2, Contexts::give_away);
    stage.change_contexts(0, Contexts::hoard);
    for part in 1..3 {
        stage.submit(part, || ());
        stage.thread.visit(0, part);
        assert!(stage.loops.parts[part].is_starved());
    }
    stage.beside_two_parked(|stage| {
        stage.thread.visit(0, 0);
        assert!(stage.has_reserve());
        assert!(!stage.has_parked(), "one sleeps on beside a starved part");
    });
}

/// The loop's last answer there brings the reserve its first context.
#[test]
fn a_loop_that_goes_home_wakes_one_for_whom_it_leaves_contexts() {
    let mut stage = Stage::new(3);
    stage.change_contexts(2, Contexts::give_away);
    stage.change_contexts(1, Contexts::hoard);
    let ran = Arc::new(AtomicBool::new(false));
    let runs = Arc::clone(&ran);
    stage.submit(2, move || runs.store(true, Ordering::Relaxed));
    stage.thread.visit(0, 2);
    assert!(stage.loops.parts[2].is_starved() && !ran.load(Ordering::Relaxed));
    stage.change_contexts(1, Contexts::give_away);
    let loops = Arc::clone(&stage.loops);
    stage.submit(1, move || {
        let part = &loops.parts[1];
        let mut dispatcher = part.take().unwrap();
        dispatcher.contexts().hoard();
        part.leave(dispatcher);
    });
    stage.beside_two_parked(|stage| {
        stage.submit(0, || ());
        assert!(stage.thread.visit(0, 1));
        assert!(stage.has_reserve());
        // One is woken for the part that was left, and one for the part that starved.
        assert!(!stage.has_parked(), "one sleeps on beside a starved part");
    });
    stage.thread.visit(0, 2);
    assert!(ran.load(Ordering::Relaxed));
}

/// Whoever brings work wakes nobody while a loop searches.
#[test]
fn a_loop_that_finds_one_of_two_requests_wakes_another_for_the_second() {
    let mut stage = Stage::new(3);
    stage.thread.idle(0);
    stage.beside_two_parked(|stage| {
        let alarm = Arc::clone(&stage.loops.alarm);
        let sleeps_on = Arc::new(AtomicU64::new(u64::MAX));
        let sleeps = Arc::clone(&sleeps_on);
        stage.submit(0, move || {
            let parked = [1, 2].map(|seat| u64::from(alarm.parking.claim_only(seat).is_some()));
            sleeps.store(parked[0] + 10 * parked[1], Ordering::Relaxed);
        });
        stage.submit(2, || ());
        for part in [0, 2] {
            stage.loops.alarm.wake(part);
        }
        assert!(stage.thread.visit(0, 0));
        let sleeps_on = sleeps_on.load(Ordering::Relaxed);
        assert_eq!(sleeps_on, 1, "loop 1, and not that of the second request");
    });
}

impl Stage {
    /// A thread runs a request of `part` that no timer stops.
    fn stand_by(&self, thread: usize, part: usize) {
        let end = Cycles(Cycles::now().0 + self.thread.cycles(LONG).0);
        self.loops.alarm.stand_by((thread, thread), part, end);
    }

    fn stands_by(&self, thread: usize) -> bool {
        self.loops.alarm.stands_by(thread)
    }

    fn away(&self) -> usize {
        self.loops.alarm.away.load(Ordering::Relaxed)
    }
}

#[test]
fn who_runs_a_request_of_the_part_is_hurried_wherever_that_is() {
    let stage = Stage::new(3);
    for thread in 0..3 {
        stage.stand_by(thread, 1);
    }
    assert_eq!(stage.away(), 2);
    stage.loops.alarm.hurry(0);
    assert_eq!(
        [0, 1, 2].map(|thread| stage.stands_by(thread)),
        [false, true, true],
        "at home"
    );
    stage.stand_by(0, 1);
    stage.loops.alarm.hurry_beside(1, Some(2));
    assert_eq!(
        [0, 1, 2].map(|thread| stage.stands_by(thread)),
        [false, false, true]
    );
    stage.loops.alarm.hurry(1);
    assert_eq!((stage.stands_by(2), stage.away()), (false, 0));
}

/// Whoever brings work while a loop has the dispatcher finds nothing to look at, and that loop may
/// go elsewhere.
#[test]
fn what_comes_while_a_loop_has_the_dispatcher_is_told_of_when_it_leaves() {
    let mut stage = Stage::new(3);
    stage.stand_by(1, 1);
    let dispatcher = stage.loops.parts[1].take().unwrap();
    stage.loops.leave(1, dispatcher);
    assert!(stage.stands_by(1), "nobody waits");
    let dispatcher = stage.loops.parts[1].take().unwrap();
    stage.submit(1, || ());
    stage.loops.leave(1, dispatcher);
    assert!(!stage.stands_by(1), "it runs on beside a request");
    // With a parked loop, that one comes.
    stage.stand_by(1, 1);
    let dispatcher = stage.loops.parts[1].take().unwrap();
    let alarm = Arc::clone(&stage.loops.alarm);
    alarm.parking.search();
    let mut dispatcher = Some(dispatcher);
    alarm.parking.park(2, 2, LONG, || {
        let dispatcher = dispatcher.take().unwrap();
        stage.loops.leave(1, dispatcher);
        assert!(
            !alarm.parking.has_parked(),
            "one sleeps on beside a request"
        );
        true
    });
    assert!(stage.stands_by(1));
    alarm.parking.found();
    stage.thread.visit(0, 1);
}

/// A loop polls two requests and runs one. The other waits for a request that began when nobody
/// waited.
#[test]
fn what_is_left_waiting_stops_who_began_before() {
    let mut stage = Stage::new(2);
    stage.stand_by(1, 1);
    let alarm = Arc::clone(&stage.loops.alarm);
    let (seen, sees) = (Arc::new(AtomicBool::new(true)), Arc::clone(&alarm));
    let first = Arc::clone(&seen);
    stage.submit(1, move || first.store(sees.stands_by(1), Ordering::Relaxed));
    stage.submit(1, || ());
    stage.thread.visit(0, 1);
    assert!(!seen.load(Ordering::Relaxed), "it runs on beside a request");
}

/// Others find a thread by its seat.
#[test]
fn a_relieved_thread_does_not_stand_by() {
    let stage = Stage::new(2);
    let dispatcher = stage.loops.parts[0].take().unwrap();
    let now = Cycles::now();
    let deadline = Deadline {
        start: now,
        soft: None,
        expected: None,
        if_wanted: Some(Cycles(now.0 + stage.thread.cycles(LONG).0)),
    };
    stage.loops.lend((0, 0), 0, dispatcher, deadline);
    assert!(stage.stands_by(0));
    stage.loops.returned(0, 0);
    let dispatcher = stage.loops.parts[0].take().unwrap();
    stage.loops.alarm.seats[0]
        .occupant
        .store(1, Ordering::Relaxed);
    stage.loops.lend((0, 0), 0, dispatcher, deadline);
    assert!(!stage.stands_by(0));
}
