//! A request that spins for a lock cannot starve the lock's suspended holder, not even under a
//! policy that would always run the spinning request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use shinjuku::policy::{ClassId, Full, Nanos, Policy, Task, TaskId, Want, WorkerId};
use shinjuku::{MechanismKind, Runtime, handler_fn, preempt_point};
use shinjuku_tests_support::runtime::{config, token};
use shinjuku_tests_support::{PATIENCE, wait_for};

/// Runs the request that came last, preempted or not.
struct NewestFirst {
    waiting: Vec<Task>,
}

impl Policy for NewestFirst {
    fn arrive(&mut self, task: Task) -> Result<(), Full> {
        self.waiting.push(task);
        Ok(())
    }
    fn preempted(&mut self, task: Task, _: WorkerId, _: Nanos) {
        self.waiting.push(task);
    }
    fn returned(&mut self, task: Task, _: WorkerId) {
        self.waiting.push(task);
    }
    fn next(&mut self, worker: WorkerId, _: Nanos, want: Want) -> Option<Task> {
        let wanted = |task: &&Task| want == Want::Any || task.started;
        let newest = self.waiting.iter().filter(wanted);
        let id = newest.max_by_key(|task| (task.arrival, task.id))?.id;
        self.remove(id, worker)
    }
    fn remove(&mut self, id: TaskId, _: WorkerId) -> Option<Task> {
        let at = self.waiting.iter().position(|task| task.id == id)?;
        Some(self.waiting.swap_remove(at))
    }
    fn quantum(&self, _: &Task) -> Option<Nanos> {
        Some(Nanos::from_micros(100))
    }
    fn waiting(&self, _: WorkerId, want: Want) -> usize {
        let started = self.waiting.iter().filter(|task| task.started).count();
        match want {
            Want::Any => self.waiting.len(),
            Want::StartedOnly => started,
        }
    }
    fn len(&self) -> usize {
        self.waiting.len()
    }
    fn name(&self) -> String {
        "newest first".to_owned()
    }
}

/// A spin lock, and how many requests have waited for it.
#[derive(Default)]
struct SpinLock {
    held: AtomicBool,
    spinning: AtomicUsize,
}

impl SpinLock {
    /// Runs `body` with the lock; `false`: the lock was not free in time.
    fn with(&self, pause: impl Fn(), body: impl FnOnce()) -> bool {
        let start = Instant::now();
        let mut waits = false;
        while self.held.swap(true, Ordering::Acquire) {
            if !std::mem::replace(&mut waits, true) {
                self.spinning.fetch_add(1, Ordering::Relaxed);
            }
            if start.elapsed() > PATIENCE {
                return false;
            }
            pause();
        }
        body();
        self.held.store(false, Ordering::Release);
        true
    }
}

#[test]
fn the_holder_of_a_spin_lock_goes_on_while_newer_requests_spin_for_it() {
    for mechanism in [MechanismKind::Probe, MechanismKind::Signal] {
        // Without spares: if the machine stalls the worker for long, a spare would run the holder
        // beside it.
        let mut config = config(1, mechanism).spare_workers(0);
        config.policy.kind = "newest-first".into();
        let lock = Arc::new(SpinLock::default());
        let theirs = Arc::clone(&lock);
        let pause = move || {
            if mechanism == MechanismKind::Probe {
                preempt_point();
            }
        };
        let serve = move |number: usize| {
            theirs.with(pause, || {
                // The first request holds the lock until another spins for it, which takes a
                // preemption of the first.
                let start = Instant::now();
                while number == 0
                    && theirs.spinning.load(Ordering::Relaxed) == 0
                    && start.elapsed() < PATIENCE
                {
                    pause();
                }
            })
        };
        let runtime = Runtime::builder(handler_fn(serve))
            .config(config)
            .policy_with("newest-first", |parameters| {
                Ok(Box::new(NewestFirst {
                    waiting: Vec::with_capacity(parameters.capacity),
                }))
            })
            .allow_hard_preemption(token())
            .start()
            .unwrap();
        let handle = runtime.handle();
        let submit = |number| handle.submit(ClassId(0), number).unwrap();
        let mut tickets = vec![submit(0)];
        wait_for("the first one's lock", || lock.held.load(Ordering::Relaxed));
        tickets.extend((1..4).map(submit));
        for mut ticket in tickets {
            let answer = ticket.wait_timeout(2 * PATIENCE);
            assert_eq!(answer.expect("no request hangs"), Ok(true), "{mechanism}");
        }
        let statistics = runtime.statistics();
        wait_for("the count of interventions", || {
            runtime.statistics().progress_interventions > 0
        });
        assert!(!statistics.policy_set_aside);
        assert!(runtime.shutdown(PATIENCE).is_clean());
    }
}
