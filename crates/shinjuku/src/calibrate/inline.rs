//! The same in the inline layout: the thread stops itself, by a deadline that its probes find or by its timer.

use std::time::Duration;

use shinjuku_policy::Nanos;
use shinjuku_preempt::{
    Clock, Completion, Cycles, DeadlineTimer, Handles, Idle, Outcome, Pool, PoolConfig, Realtime,
    Receiver, Runnable, Sender, Signal, Worker, mailbox,
};

use super::{
    ASSUMED_SIGNAL, Costs, LEAST_PROBE, LEAST_SIGNAL, LONGEST_RUN, MOST_PROBE, MOST_SIGNAL,
    PROBE_PAUSE, ROUNDS, SIGNAL_PAUSE, STEPS, Work, work,
};
use crate::layout;

/// After a preemption, a look at the network: a system call that finds nothing.
const LOOK: f64 = 500.0;

/// Measures on the calling thread, on `core` if there is one.
pub(super) fn measure(
    core: Option<usize>,
    realtime_priority: Option<i32>,
    signal: Option<Signal>,
) -> Option<Costs> {
    if let Some(core) = core {
        layout::pin_current(core).ok()?;
    }
    let _realtime = realtime_priority.map(Realtime::enter);
    let (mut stage, handles) = Stage::new(signal)?;
    let probe = stage.cost(true, PROBE_PAUSE);
    let by_signal = match signal {
        Some(_) => stage.cost(false, SIGNAL_PAUSE),
        None => Some(ASSUMED_SIGNAL.0 as f64),
    };
    handles.hand_back(stage.idle, Duration::from_secs(1));
    let nanos = |nanos: f64| Nanos((nanos + LOOK) as u64);
    Some(Costs {
        probe: nanos(probe?.clamp(LEAST_PROBE, MOST_PROBE)),
        signal: nanos(by_signal?.clamp(LEAST_SIGNAL, MOST_SIGNAL)),
        backend: None,
        how: "a look at the network taken for 0.5 us, the rest measured".to_owned(),
    })
}

struct Stage {
    worker: Worker,
    sender: Sender<Work, ()>,
    receiver: Receiver<Work, ()>,
    timer: Option<DeadlineTimer>,
    idle: Vec<Idle<Work, ()>>,
    clock: Clock,
}

impl Stage {
    fn new(signal: Option<Signal>) -> Option<(Self, Handles<Work, ()>)> {
        let config = PoolConfig {
            contexts: 1,
            stack_size: 64 * 1024,
            name: "shinjuku-calibrate".to_owned(),
        };
        let Pool { idle, handles } = Pool::new(config, work).ok()?;
        let (sender, receiver) = mailbox(1);
        let stage = Self {
            worker: Worker::bind(0).ok()?,
            sender,
            receiver,
            timer: signal.map(DeadlineTimer::new).transpose().ok()?,
            idle,
            clock: Clock::get(),
        };
        Some((stage, handles))
    }

    /// Nanoseconds lost per preemption.
    fn cost(&mut self, probes: bool, pause: Duration) -> Option<f64> {
        let mut least: Option<u64> = None;
        let mut disturbed = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let (undisturbed, _) = self.run(probes, None)?;
            least = Some(least.map_or(undisturbed, |least| least.min(undisturbed)));
            disturbed.push(self.run(probes, Some(pause))?);
        }
        let base = least?;
        disturbed
            .into_iter()
            .filter(|&(_, preemptions)| preemptions > 0)
            .map(|(took, preemptions)| took.saturating_sub(base) as f64 / preemptions as f64)
            .reduce(f64::min)
    }

    /// Has the work done once; tells how long it took, in nanoseconds, and how often it was preempted.
    fn run(&mut self, probes: bool, pause: Option<Duration>) -> Option<(u64, u64)> {
        let quantum = pause.unwrap_or(2 * LONGEST_RUN);
        let quantum = self.clock.to_cycles(quantum.as_nanos() as u64);
        let longest = self.clock.to_cycles(LONGEST_RUN.as_nanos() as u64);
        let start = Cycles::now();
        let steps = STEPS;
        let context = self.idle.pop()?;
        let mut runnable: Runnable<Work, ()> = context.load(Work { steps, probes }).into();
        let mut preemptions = 0;
        loop {
            let now = Cycles::now();
            // What takes too long is let finish: a suspended context could not be handed back.
            let quantum = if now.since(start) < longest {
                quantum
            } else {
                longest
            };
            let begun = match (&mut self.timer, pause) {
                (Some(timer), Some(_)) if !probes => timer.arm(quantum),
                _ => now,
            };
            // Undisturbed, too: its probes shall cost the same.
            let dispatched = self.sender.send(runnable).ok()?;
            dispatched.request_at(Cycles(begun.0 + quantum.0));
            let (received, generation) = self.receiver.poll()?;
            let outcome = self.worker.run(received, generation);
            if let Some(timer) = &mut self.timer {
                timer.disarm();
            }
            self.receiver.answer(match outcome {
                Outcome::Finished(finished) => Completion::Finished(finished.take().0),
                Outcome::Preempted(suspended) => Completion::Preempted(suspended),
            });
            match self.sender.poll()?.1 {
                Completion::Finished(context) => {
                    self.idle.push(context);
                    let took = Cycles::now().since(start);
                    return (took < longest).then(|| (self.clock.to_nanos(took), preemptions));
                }
                Completion::Preempted(suspended) => runnable = suspended.into(),
            }
            preemptions += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The work is the same, so what is measured of a disturbed run must be the whole of it.
    #[test]
    fn a_disturbed_run_is_timed_from_its_beginning() {
        let (mut stage, handles) = Stage::new(None).unwrap();
        let mut least = (u64::MAX, u64::MAX);
        for _ in 0..20 {
            let pause = Duration::from_micros(500);
            // `None`: the machine was too busy for it.
            let runs = stage.run(true, None).zip(stage.run(true, Some(pause)));
            if let Some(((quiet, _), (disturbed, preemptions))) = runs {
                assert!(preemptions > 0);
                least = (least.0.min(quiet), least.1.min(disturbed));
            }
        }
        assert!(least.1 >= least.0 / 2, "{least:?}");
        handles.hand_back(stage.idle, Duration::from_secs(1));
    }
}
