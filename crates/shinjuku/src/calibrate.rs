//! What one preemption costs the worker here, measured at start on the cores that will be used.
//!
//! A context works a known number of steps, first undisturbed, then preempted again and again by the other core
//! and sent back at once. The time lost, divided by the preemptions that happened, is the cost: interruption, switch
//! away, the message to this core and back, switch, return.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use shinjuku_policy::Nanos;
use shinjuku_preempt::{
    Clock, Completion, Cycles, Mechanism, Outcome, Pool, PoolConfig, Probe, Signal, Worker,
    mailbox, preempt_point,
};

use crate::layout::{self, Layout};

/// Worker time a preemption takes.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    pub(crate) probe: Nanos,
    pub(crate) signal: Nanos,
    /// For the log: measured, or assumed and why.
    pub(crate) how: String,
}

/// What is taken for granted where nothing can be measured.
const ASSUMED_PROBE: Nanos = Nanos(300);
const ASSUMED_SIGNAL: Nanos = Nanos(10_000);
/// Rounds of each mechanism. The least counts: whatever else the machine does only adds.
const ROUNDS: usize = 6;
/// Steps of the work, about 3 ms.
const STEPS: u64 = 2_000_000;
/// Pause between preemptions.
const SIGNAL_PAUSE: Duration = Duration::from_micros(60);
const PROBE_PAUSE: Duration = Duration::from_micros(10);

#[derive(Clone, Copy)]
struct Work {
    steps: u64,
    probes: bool,
}

/// Measures for about 50 ms. Falls back to assumptions where it cannot measure.
pub(crate) fn measure(layout: &Layout, signal: Option<Signal>) -> Costs {
    let assumed = |why: &str| Costs {
        probe: ASSUMED_PROBE,
        signal: ASSUMED_SIGNAL,
        how: format!("assumed: {why}"),
    };
    let (Some(own), Some(Some(other))) = (layout.dispatcher, layout.workers.first().copied())
    else {
        return assumed("the threads are not pinned");
    };
    if own == other {
        return assumed("dispatcher and worker share a core");
    }
    let measured = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("shinjuku-calibrate".to_owned());
        thread
            .spawn_scoped(scope, || measure_on(own, other, signal))
            .ok()?
            .join()
            .ok()?
    });
    measured.unwrap_or_else(|| assumed("the calibration could not run"))
}

fn measure_on(own: usize, other: usize, signal: Option<Signal>) -> Option<Costs> {
    layout::pin_current(own).ok()?;
    let mut rounds_probe: Vec<f64> = Vec::new();
    let mut rounds_signal: Vec<f64> = Vec::new();
    for _ in 0..ROUNDS {
        rounds_probe.extend(round(other, &Probe, true, PROBE_PAUSE));
        if let Some(signal) = signal {
            rounds_signal.extend(round(other, &signal, false, SIGNAL_PAUSE));
        }
    }
    let least = |rounds: Vec<f64>| rounds.into_iter().reduce(f64::min);
    let probe = least(rounds_probe)?.clamp(50.0, 100_000.0);
    let signal = match signal {
        Some(_) => least(rounds_signal)?.clamp(500.0, 1_000_000.0),
        None => ASSUMED_SIGNAL.0 as f64,
    };
    Some(Costs {
        probe: Nanos(probe as u64),
        signal: Nanos(signal as u64),
        how: "measured".to_owned(),
    })
}

/// Nanoseconds lost per preemption in one round, if any happened.
fn round(core: usize, mechanism: &dyn Mechanism, probes: bool, pause: Duration) -> Option<f64> {
    let config = PoolConfig {
        contexts: 1,
        stack_size: 64 * 1024,
        name: "shinjuku-calibrate".to_owned(),
    };
    let Pool { mut idle, handles } = Pool::new(config, work).ok()?;
    let stop = Arc::new(AtomicBool::new(false));
    let (mut sender, mut receiver) = mailbox::<Work, Cycles>(1);
    let (send_link, links) = std::sync::mpsc::channel();
    let worker = std::thread::Builder::new()
        .name("shinjuku-calibrate-worker".to_owned())
        .spawn({
            let stop = Arc::clone(&stop);
            move || {
                let Ok(mut worker) = layout::pin_current(core)
                    .map_err(|_| ())
                    .and_then(|()| Worker::bind(0).map_err(|_| ()))
                else {
                    return;
                };
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
            }
        });
    let worker = worker.ok()?;
    let lost = (|| {
        let link = links.recv_timeout(Duration::from_secs(1)).ok()?;
        let clock = Clock::get();
        let deadline = Instant::now() + Duration::from_millis(500);
        let mut times = [0u64; 2];
        let mut preemptions = 0u64;
        for (disturbed, time) in times.iter_mut().enumerate() {
            let start = Cycles::now();
            let mut runnable = idle
                .pop()?
                .load(Work {
                    steps: STEPS,
                    probes,
                })
                .into();
            'run: loop {
                let dispatched = sender.send(runnable).ok()?;
                let resumed = Instant::now();
                let mut asked = false;
                loop {
                    match sender.poll() {
                        Some((_, Completion::Finished(context))) => {
                            idle.push(context);
                            break 'run;
                        }
                        Some((_, Completion::Preempted(suspended))) => {
                            preemptions += 1;
                            runnable = suspended.into();
                            break;
                        }
                        None if disturbed == 1 && !asked && resumed.elapsed() > pause => {
                            dispatched.request();
                            mechanism.interrupt(&link).ok()?;
                            asked = true;
                        }
                        None if Instant::now() > deadline => return None,
                        None => std::hint::spin_loop(),
                    }
                }
            }
            *time = clock.to_nanos(Cycles::now().since(start));
        }
        (preemptions > 0).then(|| times[1].saturating_sub(times[0]) as f64 / preemptions as f64)
    })();
    stop.store(true, Ordering::Relaxed);
    let _ = worker.join();
    handles.hand_back(idle, Duration::from_secs(1));
    lost
}

fn work(work: Work) -> Cycles {
    let start = Cycles::now();
    let mut value = work.steps;
    for step in 0..work.steps {
        value = std::hint::black_box(
            value
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1),
        );
        if work.probes && step % 16 == 0 {
            preempt_point();
        }
    }
    Cycles::now().since(start)
}
