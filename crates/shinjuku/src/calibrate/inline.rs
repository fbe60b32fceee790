//! The cost of a preemption in the layouts `inline` and `symmetric`, where a thread stops itself,
//! by a deadline that its probes find, or by its timer.

use std::time::Duration;

use shinjuku_policy::Nanos;
use shinjuku_preempt::{
    Clock, Completion, Cycles, DeadlineTimer, Handles, Idle, Outcome, Pool, PoolConfig, Realtime,
    Receiver, Runnable, Sender, Signal, Worker, mailbox,
};

use super::{
    ASSUMED_SIGNAL, Costs, LEAST_PROBE, LEAST_SIGNAL, LONGEST_RUN, MOST_PROBE, MOST_SIGNAL,
    PROBE_PAUSE, Round, SIGNAL_PAUSE, STEPS, Work, least_cost, work,
};
use crate::layout;

/// The assumed cost of the poll that follows a preemption, in nanoseconds: a system call that finds
/// nothing.
const POLL: f64 = 500.0;

/// Measures on the calling thread, on `core` if there is one.
pub(super) fn measure(
    core: Option<usize>,
    realtime_priority: Option<i32>,
    signal: Option<Signal>,
) -> Option<Costs> {
    // The contexts are made before this thread is pinned and real-time, as in the other layouts.
    let (mut stage, handles) = Stage::new(signal, LONGEST_RUN)?;
    let costs = stage.measure(core, realtime_priority, signal.is_some());
    handles.hand_back(stage.idle, Duration::from_secs(1));
    costs
}

struct Stage {
    worker: Worker,
    sender: Sender<Work, ()>,
    receiver: Receiver<Work, ()>,
    timer: Option<DeadlineTimer>,
    idle: Vec<Idle<Work, ()>>,
    clock: Clock,
    /// A run that takes longer is given up.
    longest: Cycles,
}

impl Stage {
    fn new(signal: Option<Signal>, longest: Duration) -> Option<(Self, Handles<Work, ()>)> {
        let config = PoolConfig::default()
            .contexts(1)
            .stack_size(64 * 1024)
            .name("shinjuku-calibrate");
        let Pool { idle, handles } = Pool::new(config, work).ok()?;
        let (sender, receiver) = mailbox(1);
        let clock = Clock::get();
        let stage = Self {
            worker: Worker::bind(0).ok()?,
            sender,
            receiver,
            timer: signal.map(DeadlineTimer::new).transpose().ok()?,
            idle,
            clock,
            longest: clock.to_cycles(longest.as_nanos() as u64),
        };
        Some((stage, handles))
    }

    /// Measures on `core`, if there is one, under `realtime_priority`.
    fn measure(
        &mut self,
        core: Option<usize>,
        realtime_priority: Option<i32>,
        by_signal: bool,
    ) -> Option<Costs> {
        if let Some(core) = core {
            layout::pin_current(core).ok()?;
        }
        let _realtime = realtime_priority.map(Realtime::enter);
        let probe = self.cost(true, PROBE_PAUSE)?;
        let signal = match by_signal {
            true => self.cost(false, SIGNAL_PAUSE)?,
            false => ASSUMED_SIGNAL.0 as f64,
        };
        let nanos = |nanos: f64| Nanos((nanos + POLL) as u64);
        Some(Costs {
            probe: nanos(probe.clamp(LEAST_PROBE, MOST_PROBE)),
            signal: nanos(signal.clamp(LEAST_SIGNAL, MOST_SIGNAL)),
            backend: None,
            how: "a look at the network taken for 0.5 us, the rest measured".to_owned(),
        })
    }

    /// Nanoseconds lost per preemption.
    fn cost(&mut self, probes: bool, pause: Duration) -> Option<f64> {
        least_cost(|| {
            let (undisturbed, _) = self.run(probes, None)?;
            Round::new(undisturbed, self.run(probes, Some(pause))?)
        })
    }

    /// Has the work done once. Returns how long it took, in nanoseconds, and how often it was
    /// preempted; `None` if it took too long.
    fn run(&mut self, probes: bool, pause: Option<Duration>) -> Option<(u64, u64)> {
        let longest = self.longest;
        let quantum = pause.map_or(Cycles(2 * longest.0), |pause| {
            self.clock.to_cycles(pause.as_nanos() as u64)
        });
        let start = Cycles::now();
        let steps = STEPS;
        let context = self.idle.pop()?;
        let mut runnable: Runnable<Work, ()> = context.load(Work { steps, probes }).into();
        let mut preemptions = 0;
        loop {
            let now = Cycles::now();
            // Work that takes too long may finish, since a suspended context cannot be handed back.
            let quantum = if now.since(start) < longest {
                quantum
            } else {
                longest
            };
            let begun = match (&mut self.timer, pause) {
                (Some(timer), Some(_)) if !probes => timer.arm(quantum),
                _ => now,
            };
            // An undisturbed run has a deadline as well, so that its probes cost the same.
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

    /// The work is not preempted before a pause is over, so a whole run takes at least as long as
    /// all its pauses. A time that began with the last slice would be about one pause.
    #[test]
    fn a_disturbed_run_is_timed_from_its_beginning() {
        // Long enough on any busy machine.
        let patience = Duration::from_secs(60);
        let (mut stage, handles) = Stage::new(None, patience).unwrap();
        let pause = Duration::from_micros(500);
        for _ in 0..5 {
            let (took, preemptions) = stage.run(true, Some(pause)).unwrap();
            assert!(preemptions > 0);
            // Converting between cycles and nanoseconds loses less than a microsecond a pause.
            let pauses = preemptions * (pause.as_nanos() as u64 - 1_000);
            assert!(took >= pauses, "{took} ns, {preemptions} preemptions");
        }
        handles.hand_back(stage.idle, Duration::from_secs(1));
    }
}
