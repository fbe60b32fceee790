//! The progress rule: a request that spins for a lock cannot starve the lock's holder, under any
//! policy.

use std::collections::BTreeMap;

use proptest::prelude::*;
use shinjuku_policy::{Full, Nanos, Policy, Task, TaskId, Verified, Want, WorkerId};

use crate::driver::{CAPACITY, Driver, Event, Step, steps};

const WORKER: WorkerId = WorkerId(0);

/// Answers any waiting request it likes, by script; the newest if the script is empty.
struct Whimsical {
    tasks: Vec<Task>,
    whims: Vec<usize>,
    answers: usize,
}

impl Whimsical {
    fn new(whims: Vec<usize>) -> Self {
        Self {
            tasks: Vec::new(),
            whims,
            answers: 0,
        }
    }
}

impl Policy for Whimsical {
    fn arrive(&mut self, task: Task) -> Result<(), Full> {
        self.tasks.push(task);
        Ok(())
    }
    fn preempted(&mut self, task: Task, _worker: WorkerId, _now: Nanos) {
        self.tasks.push(task);
    }
    fn returned(&mut self, task: Task, _worker: WorkerId) {
        self.tasks.push(task);
    }
    fn finished(&mut self, _task: Task, _worker: WorkerId) {}
    fn next(&mut self, worker: WorkerId, _now: Nanos, want: Want) -> Option<Task> {
        let wanted = self
            .tasks
            .iter()
            .filter(|task| task.started || want == Want::Any);
        let wanted: Vec<_> = wanted.map(|task| task.id).collect();
        let whim = match self.whims.len() {
            0 => 0,
            whims => self.whims[self.answers % whims],
        };
        self.answers += 1;
        let &id = wanted.iter().rev().nth(whim % wanted.len().max(1))?;
        self.remove(id, worker)
    }
    fn remove(&mut self, id: TaskId, _worker: WorkerId) -> Option<Task> {
        let at = self.tasks.iter().position(|task| task.id == id)?;
        Some(self.tasks.remove(at))
    }
    fn quantum(&self, _task: &Task) -> Option<Nanos> {
        Some(Nanos(1))
    }
    fn waiting(&self, _worker: WorkerId, want: Want) -> usize {
        self.tasks
            .iter()
            .filter(|task| task.started || want == Want::Any)
            .count()
    }
    fn len(&self) -> usize {
        self.tasks.len()
    }
    fn name(&self) -> String {
        String::from("whimsical")
    }
}

/// Request 0 takes a lock, is preempted, and needs 3 more quanta to release it; all others spin for
/// it until then. Arrivals never end, and there are `contexts` contexts. Returns how many quanta
/// passed until the holder had finished, at most `patience`.
fn quanta_until_the_holder_finishes(
    whims: Vec<usize>,
    k: u32,
    contexts: usize,
    patience: usize,
) -> Option<usize> {
    let capacity = contexts + 10;
    let policy = Verified::new(Box::new(Whimsical::new(whims)), capacity).unwrap();
    let mut policy = policy.with_progress_limit(k).unwrap();
    let task = |id: usize| Task {
        id: TaskId(id as u32),
        class: Default::default(),
        flow: Default::default(),
        arrival: Nanos(0),
        started: false,
    };
    policy.arrive(task(0)).unwrap();
    let holder = policy.next(WORKER, Nanos(0), Want::Any).unwrap();
    policy.preempted(holder.id, WORKER, Nanos(0));
    for id in 1..capacity {
        policy.arrive(task(id)).unwrap();
    }
    let (mut started, mut holder_needs) = (1, 3);
    for quanta in 1..=patience {
        let want = if started < contexts {
            Want::Any
        } else {
            Want::StartedOnly
        };
        let now = Nanos(quanta as u64);
        let running = policy
            .next(WORKER, now, want)
            .expect("the holder at least waits");
        started += usize::from(!running.started);
        if running.id == holder.id {
            holder_needs -= 1;
            if holder_needs == 0 {
                assert_eq!(policy.error(), None);
                return Some(quanta);
            }
        }
        policy.preempted(running.id, WORKER, now);
    }
    None
}

#[test]
fn the_newest_first_starves_the_holder_without_the_rule() {
    assert_eq!(
        quanta_until_the_holder_finishes(vec![], u32::MAX, 8, 20_000),
        None
    );
}

#[test]
fn with_the_rule_the_holder_runs_within_the_bound() {
    for k in [1, 2, 16] {
        for contexts in [2, 8, 50] {
            let bound = 3 * (k as usize * (contexts - 1) + 1);
            let quanta = quanta_until_the_holder_finishes(vec![], k, contexts, bound);
            assert!(
                quanta.is_some(),
                "k {k}, {contexts} contexts: more than {bound} quanta"
            );
        }
    }
}

/// A verified newest-first policy; requests 0 and 1 are out and fresh.
fn two_out() -> Verified {
    let mut policy = Verified::new(Box::new(Whimsical::new(vec![])), 2).unwrap();
    for id in [0, 1] {
        let task = Task {
            id: TaskId(id),
            class: Default::default(),
            flow: Default::default(),
            arrival: Nanos(0),
            started: false,
        };
        policy.arrive(task).unwrap();
        policy.next(WORKER, Nanos(0), Want::Any).unwrap();
    }
    policy
}

/// Runs the next request for a quantum.
fn run(policy: &mut Verified) -> u32 {
    let task = policy.next(WORKER, Nanos(0), Want::Any).unwrap();
    policy.preempted(task.id, WORKER, Nanos(0));
    task.id.0
}

#[test]
fn after_its_barrier_a_request_has_k_quanta_again() {
    let mut policy = two_out();
    policy.preempted(TaskId(0), WORKER, Nanos(0));
    // This is the first of 16 times that 1 is preempted while 0 waits.
    policy.preempted(TaskId(1), WORKER, Nanos(0));
    let answers: Vec<_> = (0..64).map(|_| run(&mut policy)).collect();
    let expected = [vec![1; 15], vec![0; 16], vec![1; 16], vec![0; 16], vec![1]].concat();
    assert_eq!(answers, expected);
    assert_eq!(policy.progress_interventions(), 4);
}

#[test]
fn quanta_count_only_while_others_wait() {
    let mut policy = two_out();
    policy.preempted(TaskId(1), WORKER, Nanos(0));
    for _ in 0..14 {
        assert_eq!(run(&mut policy), 1);
    }
    assert_eq!(
        policy.next(WORKER, Nanos(0), Want::Any).map(|task| task.id),
        Some(TaskId(1))
    );
    policy.preempted(TaskId(0), WORKER, Nanos(0));
    policy.preempted(TaskId(1), WORKER, Nanos(0));
    // Only the last of its quanta ran while 0 waited.
    assert_eq!(run(&mut policy), 1);
    assert_eq!(policy.progress_interventions(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_holder_runs_within_the_bound_whatever_the_whims(
        whims in prop::collection::vec(0_usize..8, 0..30),
        k in 1_u32..6,
        contexts in 2_usize..9,
    ) {
        let bound = 3 * (k as usize * (contexts - 1) + 1);
        let quanta = quanta_until_the_holder_finishes(whims, k, contexts, bound);
        prop_assert!(quanta.is_some(), "more than {} quanta", bound);
    }

    // On several workers, with requests that come, finish and are removed.
    #[test]
    fn while_one_waits_no_other_gets_more_than_k_quanta(
        steps in steps(),
        whims in prop::collection::vec(0_usize..8, 0..30),
        k in 1_u32..4,
    ) {
        let policy = Verified::new(Box::new(Whimsical::new(whims)), CAPACITY).unwrap();
        let mut driver = Driver::new(policy.with_progress_limit(k).unwrap());
        // Of each started request that waits: the quanta of every other since.
        let mut seen: BTreeMap<TaskId, BTreeMap<TaskId, u32>> = BTreeMap::new();
        for step in steps {
            // A returned request has had no quantum, which this count does not know.
            if matches!(step, Step::Return { .. }) {
                continue;
            }
            match driver.step(step) {
                Event::Preempted(task) => {
                    seen.insert(task.id, BTreeMap::new());
                }
                Event::Answered { answer: Some(task), .. } => {
                    seen.remove(&task.id);
                    for (holder, quanta) in &mut seen {
                        let quanta = quanta.entry(task.id).or_default();
                        *quanta += 1;
                        prop_assert!(*quanta <= k, "{:?} while {:?} waited", task, holder);
                    }
                }
                // The slot is free for another request.
                Event::Finished(task) => {
                    for quanta in seen.values_mut() {
                        quanta.remove(&task.id);
                    }
                }
                _ => {}
            }
        }
        prop_assert_eq!(driver.subject.error(), None);
        driver.drain();
    }
}
