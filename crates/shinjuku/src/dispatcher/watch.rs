//! Stopping requests that run too long while others wait, and going on without workers that do not answer.
//!
//! ```text
//!   running ──quantum over, others wait──▶ asked ──grace over──▶ interrupted, again and again
//!                                            └──── no answer for `rescue_after`, suspended ones wait ────▶ stuck:
//!                                                  a spare resumes suspended requests in the worker's place
//! ```

use std::sync::atomic::Ordering;

use shinjuku_net::Transport;
use shinjuku_policy::verified::PROGRESS_QUANTUM;
use shinjuku_policy::{Nanos, TaskId, Want, WorkerId};
use shinjuku_preempt::CountersSnapshot;

use super::Dispatcher;
use crate::desk::{Asked, Desk};
use crate::floor::{PERIOD, Period};
use crate::preemption::Preemption;

/// Runs shorter than this are never looked at for preemption.
const SHORTEST_QUANTUM: Nanos = Nanos(500);
/// An interrupt without an answer is sent again after this, then twice that, and so on.
const INTERRUPT_AGAIN: Nanos = Nanos::from_micros(500);

impl<Tr: Transport> Dispatcher<Tr> {
    /// Looks whether the request that runs at a worker has run for too long.
    pub(super) fn watch(&mut self, at: usize, now: Nanos) {
        let desk = &self.desks[at];
        let Some(running) = desk.running() else {
            return;
        };
        let ran = now.since(desk.running_since);
        if !self.preemption.enabled || ran < SHORTEST_QUANTUM {
            return;
        }
        let (task, worker) = (running.task, desk.worker);
        match desk.asked {
            None => {
                let Some(quantum) = self.policy.quantum(task) else {
                    return;
                };
                let graced = Nanos(quantum.0.saturating_add(self.preemption.grace.0));
                // No floor holds up progress: the one that runs may want a lock that a suspended one has.
                let (ask_after, interrupt_after) = if self.may_hold_up_others(ran) {
                    (quantum, graced)
                } else {
                    let Preemption {
                        probe_floor,
                        hard_floor,
                        ..
                    } = &self.preemption;
                    (probe_floor.raise(quantum), hard_floor.raise(graced))
                };
                if ran < ask_after || !self.somebody_waits(at, worker, ran) {
                    return;
                }
                let desk = &mut self.desks[at];
                if let Some(running) = desk.running() {
                    running.dispatched.request();
                }
                let interrupt_at = Nanos(desk.running_since.0.saturating_add(interrupt_after.0));
                desk.asked = Some(Asked {
                    at: now,
                    interrupt_at,
                    interrupts: 0,
                });
                self.statistics.requested();
                if interrupt_at <= now {
                    self.interrupt(at, now);
                }
            }
            Some(asked) => {
                if asked.interrupt_at <= now {
                    self.interrupt(at, now);
                }
                if now.since(asked.at) > self.rules.rescue_after {
                    self.rescue(at, now);
                }
            }
        }
    }

    /// Whether preempting the worker would serve anybody.
    fn somebody_waits(&self, at: usize, worker: WorkerId, ran: Nanos) -> bool {
        let want = if self.idle.is_empty() {
            Want::StartedOnly
        } else {
            Want::Any
        };
        self.desks[at].staged() > 0
            || self.policy.waiting(worker, want) > 0
            // Whatever the policy says.
            || self.may_hold_up_others(ran)
    }

    /// Whether what runs for so long may be spinning for something that a suspended request has.
    fn may_hold_up_others(&self, ran: Nanos) -> bool {
        ran > PROGRESS_QUANTUM && self.policy.waiting_started() > 0
    }

    fn interrupt(&mut self, at: usize, now: Nanos) {
        let desk = &mut self.desks[at];
        let (Some(hard), Some(asked)) = (&self.preemption.hard, &mut desk.asked) else {
            return;
        };
        asked.interrupts += 1;
        // It may have landed where the context could not leave (in a guard, with too little stack): again later,
        // ever more seldom.
        asked.interrupt_at = Nanos(now.0 + (INTERRUPT_AGAIN.0 << asked.interrupts.min(8)));
        if hard.interrupt(&desk.link).is_ok() {
            self.statistics.interrupted();
        } else {
            self.statistics.interrupt_failed();
        }
    }

    /// The worker does not answer: others go on in its place.
    fn rescue(&mut self, stuck: usize, now: Nanos) {
        if !self.desks[stuck].stuck {
            self.desks[stuck].stuck = true;
            self.statistics.stuck();
        }
        while self.take_back(stuck) {}
        if self.policy.waiting_started() == 0 || self.is_stood_in_for(stuck, now) {
            return;
        }
        let Some(spare) =
            (0..self.stands_in.len()).find(|&spare| self.desks[self.workers + spare].out() == 0)
        else {
            if !std::mem::replace(&mut self.desks[stuck].without_spare, true) {
                self.statistics.spares_exhausted();
            }
            return;
        };
        let at = self.workers + spare;
        let core = self.cores[stuck].map_or(0, |core| core + 1);
        if let Some(bed) = &self.desks[at].bed {
            bed.core.store(core, Ordering::Relaxed);
        }
        self.desks[at].worker = self.desks[stuck].worker;
        if self.hand_one(at, stuck, now) {
            self.stands_in[spare] = Some(stuck);
            self.spares_out += 1;
            self.statistics.rescued();
        }
    }

    /// Whether a spare works in the place of `stuck`, and is not itself without an answer. Spares share the core's
    /// time in quanta like workers do.
    fn is_stood_in_for(&mut self, stuck: usize, now: Nanos) -> bool {
        let mut stood_in = false;
        for spare in 0..self.stands_in.len() {
            if self.stands_in[spare] != Some(stuck) {
                continue;
            }
            let at = self.workers + spare;
            if now.since(self.desks[at].running_since) < self.rules.rescue_after {
                stood_in = true;
            } else {
                self.ask_spare(at, now);
                stood_in |= self.desks[at]
                    .asked
                    .is_none_or(|asked| now.since(asked.at) < self.rules.rescue_after);
            }
        }
        stood_in
    }

    /// Asks a request to stop that runs at a spare (or, at the end, anywhere).
    pub(super) fn ask_spare(&mut self, at: usize, now: Nanos) {
        let desk = &mut self.desks[at];
        let Some(running) = desk.running() else {
            return;
        };
        match desk.asked {
            None => {
                running.dispatched.request();
                desk.asked = Some(Asked {
                    at: now,
                    interrupt_at: now,
                    interrupts: 0,
                });
                self.interrupt(at, now);
            }
            Some(asked) if asked.interrupt_at <= now => self.interrupt(at, now),
            Some(_) => {}
        }
    }

    pub(super) fn look_around(&mut self, now: Nanos) {
        let period = Nanos(PERIOD.0 + now.since(self.next_look).0);
        self.next_look = Nanos(now.0 + PERIOD.0);
        self.publish_gauges();
        for at in 0..self.workers {
            if self.desks[at]
                .staged_tasks()
                .any(|task| self.is_expired(task, now))
            {
                // Back in the queue, those that are too late are refused when their turn comes.
                while self.take_back(at) {}
            }
        }
        // Spares whose worker answers again make way for it.
        for spare in 0..self.stands_in.len() {
            if self.stands_in[spare].is_some_and(|worker| !self.desks[worker].stuck) {
                self.ask_spare(self.workers + spare, now);
            }
        }
        let mut counters = CountersSnapshot::default();
        for desk in &self.desks {
            counters += desk.link.counters();
        }
        let worker_time = Nanos(period.0 * self.workers as u64);
        let idle = Nanos(
            self.desks[..self.workers]
                .iter_mut()
                .map(|desk| desk.take_idle_time(now).0)
                .sum(),
        );
        self.adapt_floors(counters, worker_time, idle);
    }

    /// What a period showed of the mechanisms, to their floors.
    pub(super) fn adapt_floors(
        &mut self,
        counters: CountersSnapshot,
        worker_time: Nanos,
        idle: Nanos,
    ) {
        let now = self.now();
        let last = std::mem::replace(&mut self.last_counters, counters);
        // Saturating: in the inline layout the sum is over the threads that have a part at the time.
        let hard = counters
            .taken_by_interrupt
            .saturating_sub(last.taken_by_interrupt);
        let all = counters.taken().saturating_sub(last.taken());
        for (is_hard, preemptions) in [(false, all.saturating_sub(hard)), (true, hard)] {
            let period = Period {
                worker_time,
                idle,
                preemptions,
            };
            self.preemption.floor_of(is_hard).adapt(period, now);
        }
    }

    fn is_expired(&self, task: TaskId, now: Nanos) -> bool {
        let record = &self.records[task.0 as usize];
        record.deadline < now && record.ran == Nanos(0)
    }

    pub(super) fn publish_gauges(&self) {
        self.statistics.gauges(
            self.policy.len() + self.desks.iter().map(Desk::staged_fresh).sum::<usize>(),
            self.contexts - self.idle.len(),
            self.desks.iter().filter(|desk| desk.out() > 0).count(),
            self.policy.progress_interventions(),
            self.policy.error().is_some(),
        );
    }
}
