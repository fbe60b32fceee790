//! What one preemption costs the worker here, measured at start on the cores that will be used.
//!
//! A context works a known number of steps, first undisturbed, then preempted again and again by
//! the other core and sent back at once. The time lost, divided by the preemptions that happened,
//! is the cost: interruption, switch away, the message to this core and back, switch, return. The
//! machine's other work only adds time. So the base is the least undisturbed time of all rounds,
//! and the least cost of all rounds counts.
//!
//! Only the two threads of a run are pinned and real-time. A thread that is neither makes the
//! context and these threads, and ends them. A real-time thread that waits for an ordinary one on
//! its own core would wait until the kernel throttles real-time threads.

mod inline;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shinjuku_policy::Nanos;
use shinjuku_preempt::{
    Backend, Clock, Completion, Cycles, Delivery, Idle, Mechanism, Outcome, Pool, PoolConfig,
    Probe, Realtime, Receiver, Runnable, Sender, Signal, Worker, WorkerLink, mailbox,
    preempt_point,
};

use crate::config::ContextKind;
use crate::layout::{self, Layout};

/// The worker time that a preemption takes, by mechanism.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    pub(crate) probe: Nanos,
    pub(crate) signal: Nanos,
    /// By the backend that was measured, with the way in which its interrupts came.
    pub(crate) backend: Option<(Nanos, Delivery)>,
    /// For the log: measured, or assumed and why.
    pub(crate) how: String,
}

/// The costs where nothing can be measured.
const ASSUMED_PROBE: Nanos = Nanos(300);
const ASSUMED_SIGNAL: Nanos = Nanos(10_000);
/// Rounds of each mechanism.
const ROUNDS: usize = 6;
/// The least costs that are believed, in nanoseconds: a signal takes the system calls around it, a
/// message a cache line's way.
const LEAST_SIGNAL: f64 = 1_000.0;
const LEAST_BACKEND: f64 = 500.0;
const LEAST_PROBE: f64 = 100.0;
/// The largest costs that are believed, in nanoseconds: other work of the machine during the
/// measurement must not spoil the quantum for good.
const MOST_SIGNAL: f64 = 30_000.0;
const MOST_BACKEND: f64 = 60_000.0;
const MOST_PROBE: f64 = 2_000.0;
/// Steps of the work, which take some 4 ms.
const STEPS: u64 = 2_000_000;
/// How long the work runs between two preemptions.
const SIGNAL_PAUSE: Duration = Duration::from_micros(60);
const PROBE_PAUSE: Duration = Duration::from_micros(10);
/// A run that takes longer is given up.
const LONGEST_RUN: Duration = Duration::from_millis(500);
/// No round of a mechanism begins later than this after the first: on a busy machine many rounds
/// are given up.
const LONGEST_MEASUREMENT: Duration = Duration::from_secs(2);

/// The assumed cost of the two switches between kernel threads that a preemption takes where
/// contexts are such threads.
fn kernel_switches(contexts: ContextKind) -> Nanos {
    match contexts {
        ContextKind::Stack => Nanos(0),
        ContextKind::KernelThread => Nanos(4_000),
    }
}

#[derive(Clone, Copy)]
struct Work {
    steps: u64,
    probes: bool,
}

/// Measures for about 50 ms. Falls back to assumptions where it cannot measure, but for the
/// backend, which is then left out.
pub(crate) fn measure(
    layout: &Layout,
    realtime_priority: Option<i32>,
    contexts: ContextKind,
    signal: Option<Signal>,
    backend: Option<&Arc<dyn Backend>>,
) -> Costs {
    let switches = kernel_switches(contexts);
    let assumed = |why: &str| Costs {
        probe: Nanos(ASSUMED_PROBE.0 + switches.0),
        signal: Nanos(ASSUMED_SIGNAL.0 + switches.0),
        backend: None,
        how: format!("assumed: {why}"),
    };
    if layout.inline {
        let core = layout.workers.first().copied().flatten();
        return on_a_thread(|| inline::measure(core, realtime_priority, signal))
            .unwrap_or_else(|| assumed("the calibration could not run"));
    }
    let (own, other) = match cores(layout) {
        Ok(cores) => cores,
        Err(why_not) => return assumed(why_not),
    };
    let place = Place {
        dispatcher: own,
        worker: other,
        realtime_priority,
        contexts,
        backend: None,
    };
    measure_at(place, signal, backend).unwrap_or_else(|| assumed("the calibration could not run"))
}

/// The dispatcher's core and a worker's, between which the cost can be measured.
///
/// # Errors
/// Why it cannot be measured.
pub(crate) fn cores(layout: &Layout) -> Result<(usize, usize), &'static str> {
    match (layout.dispatcher, layout.workers.first()) {
        (Some(own), Some(&Some(other))) if own != other => Ok((own, other)),
        (Some(_), Some(Some(_))) => Err("dispatcher and worker share a core"),
        _ => Err("the threads are not pinned"),
    }
}

/// Measures on a thread of its own, since pinning and binding a worker leave traces.
fn on_a_thread<Out: Send>(measure: impl FnOnce() -> Option<Out> + Send) -> Option<Out> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("shinjuku-calibrate".to_owned())
            .spawn_scoped(scope, measure)
            .ok()?
            .join()
            .ok()?
    })
}

fn measure_at(
    place: Place<'_>,
    signal: Option<Signal>,
    backend: Option<&Arc<dyn Backend>>,
) -> Option<Costs> {
    let most_probe = MOST_PROBE + 4.0 * kernel_switches(place.contexts).0 as f64;
    let (probe, _) = cost(place, &Probe, true, PROBE_PAUSE)?;
    let signal = match signal {
        Some(signal) => cost(place, &signal, false, SIGNAL_PAUSE)?
            .0
            .clamp(LEAST_SIGNAL, MOST_SIGNAL),
        None => ASSUMED_SIGNAL.0 as f64,
    };
    let nanos = |nanos: f64| Nanos(nanos as u64);
    let backend = backend.and_then(|backend| {
        let inside = Place {
            backend: Some(backend),
            ..place
        };
        let (cost, link) = cost(inside, &**backend, false, SIGNAL_PAUSE)?;
        let delivery = backend.delivery_to(&[link])?;
        Some((nanos(cost.clamp(LEAST_BACKEND, MOST_BACKEND)), delivery))
    });
    Some(Costs {
        probe: nanos(probe.clamp(LEAST_PROBE, most_probe)),
        signal: nanos(signal),
        backend,
        how: "measured".to_owned(),
    })
}

/// Where and how the two threads of a measurement run.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// The core of the thread that preempts.
    dispatcher: usize,
    /// The core of the worker that is measured.
    worker: usize,
    realtime_priority: Option<i32>,
    contexts: ContextKind,
    /// The backend whose mode the worker enters.
    backend: Option<&'a Arc<dyn Backend>>,
}

/// Nanoseconds lost per preemption, and the link of one of the workers.
fn cost(
    place: Place<'_>,
    mechanism: &dyn Mechanism,
    probes: bool,
    pause: Duration,
) -> Option<(f64, WorkerLink)> {
    let mut link = None;
    let least = least_cost(|| {
        let (round, its_link) = round(place, mechanism, probes, pause)?;
        link.get_or_insert(its_link);
        Some(round)
    })?;
    Some((least, link?))
}

/// How long the work took in nanoseconds, and how many preemptions its disturbed run had: at least
/// one.
#[derive(Clone, Copy)]
struct Round {
    undisturbed: u64,
    disturbed: u64,
    preemptions: u64,
}

impl Round {
    /// `None`: no preemption happened.
    fn new(undisturbed: u64, (disturbed, preemptions): (u64, u64)) -> Option<Self> {
        (preemptions > 0).then_some(Self {
            undisturbed,
            disturbed,
            preemptions,
        })
    }
}

/// The least that a preemption cost, in nanoseconds. `round` answers `None` for a round that was
/// given up; the others count.
fn least_cost(mut round: impl FnMut() -> Option<Round>) -> Option<f64> {
    let start = Instant::now();
    let rounds: Vec<Round> = (0..ROUNDS)
        .take_while(|_| start.elapsed() < LONGEST_MEASUREMENT)
        .filter_map(|_| round())
        .collect();
    let base = rounds.iter().map(|round| round.undisturbed).min()?;
    rounds
        .iter()
        .map(|round| round.disturbed.saturating_sub(base) as f64 / round.preemptions as f64)
        .reduce(f64::min)
}

fn round(
    place: Place<'_>,
    mechanism: &dyn Mechanism,
    probes: bool,
    pause: Duration,
) -> Option<(Round, WorkerLink)> {
    let config = PoolConfig::default()
        .contexts(1)
        .stack_size(64 * 1024)
        .name("shinjuku-calibrate")
        .kind(place.contexts.into());
    let Pool { mut idle, handles } = Pool::new(config, work).ok()?;
    let stop = Arc::new(AtomicBool::new(false));
    let (mut sender, receiver) = mailbox(1);
    let (worker, link) = start_worker(place, receiver, &stop)?;
    let measured = link.and_then(|link| {
        let round = on_a_thread(|| {
            layout::pin_current(place.dispatcher).ok()?;
            let _realtime = place.realtime_priority.map(Realtime::enter);
            let mut run = |disturb| {
                run(
                    &mut sender,
                    &mut idle,
                    disturb,
                    &link,
                    mechanism,
                    probes,
                    pause,
                )
            };
            let (undisturbed, _) = run(false)?;
            Round::new(undisturbed, run(true)?)
        })?;
        Some((round, link))
    });
    stop.store(true, Ordering::Relaxed);
    let _ = worker.join();
    handles.hand_back(idle, Duration::from_secs(1));
    measured
}

/// Starts a worker that runs what it is sent until it is told to stop. Its link is `None` if the
/// thread could not become a worker.
fn start_worker(
    place: Place<'_>,
    mut receiver: Receiver<Work, ()>,
    stop: &Arc<AtomicBool>,
) -> Option<(JoinHandle<()>, Option<WorkerLink>)> {
    let Place {
        worker: core,
        realtime_priority,
        ..
    } = place;
    let (stop, backend) = (Arc::clone(stop), place.backend.cloned());
    let (send_link, links) = std::sync::mpsc::channel();
    let body = move || {
        if layout::pin_current(core).is_err() {
            return;
        }
        let _realtime = realtime_priority.map(Realtime::enter);
        let Ok(mut worker) = Worker::bind(0) else {
            return;
        };
        if backend.is_some_and(|backend| worker.enter(&*backend).is_err()) {
            return;
        }
        if send_link.send(worker.link()).is_err() {
            return;
        }
        while !stop.load(Ordering::Relaxed) {
            let Some((runnable, generation)) = receiver.poll() else {
                std::hint::spin_loop();
                continue;
            };
            receiver.answer(match worker.run(runnable, generation) {
                Outcome::Finished(finished) => Completion::Finished(finished.take().0),
                Outcome::Preempted(suspended) => Completion::Preempted(suspended),
            });
        }
    };
    let name = "shinjuku-calibrate-worker".to_owned();
    let worker = std::thread::Builder::new().name(name).spawn(body).ok()?;
    Some((worker, links.recv_timeout(Duration::from_secs(1)).ok()))
}

/// Has the work done once. Returns how long it took, in nanoseconds, and how often it was
/// preempted; `None` if it took too long.
fn run(
    sender: &mut Sender<Work, ()>,
    idle: &mut Vec<Idle<Work, ()>>,
    disturb: bool,
    link: &WorkerLink,
    mechanism: &dyn Mechanism,
    probes: bool,
    pause: Duration,
) -> Option<(u64, u64)> {
    let clock = Clock::get();
    let pause = clock.to_cycles(pause.as_nanos() as u64);
    let longest = clock.to_cycles(LONGEST_RUN.as_nanos() as u64);
    let start = Cycles::now();
    let mut preemptions = 0;
    let mut runnable: Runnable<Work, ()> = idle
        .pop()?
        .load(Work {
            steps: STEPS,
            probes,
        })
        .into();
    loop {
        let dispatched = sender.send(runnable).ok()?;
        let sent = Cycles::now();
        let mut asked = false;
        runnable = loop {
            match sender.poll() {
                Some((_, Completion::Finished(context))) => {
                    idle.push(context);
                    return Some((clock.to_nanos(Cycles::now().since(start)), preemptions));
                }
                Some((_, Completion::Preempted(suspended))) => break suspended.into(),
                None => {}
            }
            let now = Cycles::now();
            if disturb && !asked && now.since(sent) > pause {
                dispatched.request();
                mechanism.interrupt(link).ok()?;
                asked = true;
            }
            if now.since(start) > longest {
                return None;
            }
        };
        preemptions += 1;
    }
}

/// A chain of steps in registers. Through memory (a `black_box` around each step) the steps would
/// be slower after a switch of stacks than before, on CPUs that rename memory, and the difference
/// would seem to be a cost of the preemption.
fn work(work: Work) {
    let mut value = std::hint::black_box(1_u64);
    for step in 0..work.steps {
        value = (value ^ (value >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        if work.probes && step % 16 == 0 {
            preempt_point();
        }
    }
    std::hint::black_box(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The contexts' threads inherit the cores of the thread that makes them.
    #[test]
    fn the_thread_that_makes_the_contexts_keeps_its_cores() {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let &[dispatcher, worker, ..] = &cores[..] else {
            eprintln!("SKIPPED the_thread_that_makes_the_contexts_keeps_its_cores: one core");
            return;
        };
        let place = Place {
            dispatcher: dispatcher.id,
            worker: worker.id,
            realtime_priority: None,
            contexts: ContextKind::Stack,
            backend: None,
        };
        // On a busy machine nothing may be measured, which does not matter here.
        let _ = measure_at(place, None, None);
        assert_eq!(core_affinity::get_core_ids(), Some(cores));
    }

    /// On a busy machine some rounds are given up.
    #[test]
    fn a_round_that_was_given_up_spoils_only_itself() {
        let mut rounds = [
            None,
            Round::new(100, (300, 2)),
            None,
            Round::new(200, (260, 1)),
        ]
        .into_iter();
        let least = least_cost(|| rounds.next().flatten()).unwrap();
        assert!((least - 100.0).abs() < 1e-9, "{least}");
        assert!(least_cost(|| None).is_none(), "nothing was measured");
    }
}
