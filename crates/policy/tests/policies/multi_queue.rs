//! The bound that the header of `multi_queue.rs` derives: how often a waiting head is passed over.

use std::collections::BTreeMap;

use proptest::prelude::*;
use shinjuku_policy::{
    ClassId, ClassRule, MultiQueue, Nanos, Policy, Requeue, Task, TaskId, Want, WorkerId,
};

use crate::reference::{Line, LinePerClass, Reference};

const WORKER: WorkerId = WorkerId(0);
const QUANTUM: u64 = 10;

/// A head, the time when it became one, and the requests that have passed it: by class, how often
/// and when last.
struct Watch {
    head: Task,
    /// Arrivals of the requests that had not finished when it became head, or came later; by class.
    others: Vec<Vec<Nanos>>,
    passed: BTreeMap<usize, (usize, Nanos)>,
}

impl Watch {
    fn check(&self, class: usize, rules: &[ClassRule], most_quanta: usize) {
        let slo = |class: usize| i128::from(rules[class].slo.0);
        for (&other, &(passes, last)) in &self.passed {
            // a_j <= a_h + max(0, 1 - S_j / S_i) (t - a_h), times S_i.
            let waited = i128::from(last.since(self.head.arrival).0);
            let early_enough = |arrival: &&Nanos| {
                let later = i128::from(arrival.0) - i128::from(self.head.arrival.0);
                later * slo(class) <= (slo(class) - slo(other)).max(0) * waited
            };
            let backlog = self.others[other].iter().filter(early_enough).count();
            assert!(
                passes <= backlog * most_quanta,
                "{passes} requests of class {other} passed {:?}: {backlog} could",
                self.head
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn heads_are_passed_no_more_than_derived(
        slos in prop::collection::vec(1_u64..200, 2..4),
        // Gap before the arrival, class, quanta needed.
        arrivals in prop::collection::vec((0_u64..30, 0_usize..4, 1_usize..4), 1..120),
        head in any::<bool>(),
    ) {
        let requeue = if head { Requeue::Head } else { Requeue::Tail };
        let rules: Vec<_> = slos
            .iter()
            .map(|&slo| ClassRule::new(Nanos(slo), Nanos(QUANTUM)).requeue(requeue))
            .collect();
        let most_quanta = 3;
        let mut policy = MultiQueue::new(arrivals.len(), &rules).unwrap();
        let lines = rules.iter().map(|_| Line::default()).collect();
        // Needed only to know the heads; the policy chooses the answers.
        let mut mirror = LinePerClass { lines, rules: rules.clone(), bound: usize::MAX };

        let mut due = arrivals.iter().scan(0, |at, &(gap, class, quanta)| {
            *at += gap;
            Some((Nanos(*at), class % slos.len(), quanta))
        }).zip(0..).peekable();
        let mut left: BTreeMap<TaskId, (usize, Task)> = BTreeMap::new();
        let mut watches: Vec<Option<Watch>> = rules.iter().map(|_| None).collect();
        let mut now = Nanos(0);
        while due.peek().is_some() || !left.is_empty() {
            while let Some(((arrival, class, quanta), id)) = due.next_if(|((at, ..), _)| *at <= now) {
                let task = Task {
                    id: TaskId(id),
                    class: ClassId(class as u16),
                    flow: Default::default(),
                    arrival,
                    started: false,
                };
                policy.arrive(task).unwrap();
                mirror.arrive(task);
                left.insert(task.id, (quanta, task));
                for watch in watches.iter_mut().flatten() {
                    watch.others[class].push(arrival);
                }
            }
            for (class, watch) in watches.iter_mut().enumerate() {
                let head = mirror.lines[class].first(Want::Any);
                if watch.as_ref().map(|watch| watch.head) != head {
                    *watch = head.map(|head| {
                        let mut others = vec![Vec::new(); rules.len()];
                        for (_, task) in left.values() {
                            others[usize::from(task.class.0)].push(task.arrival);
                        }
                        Watch { head, others, passed: BTreeMap::new() }
                    });
                }
            }
            if let Some(task) = policy.next(WORKER, now, Want::Any) {
                mirror.take(task.id);
                let picked = usize::from(task.class.0);
                for (class, watch) in watches.iter_mut().enumerate() {
                    let Some(watch) = watch else { continue };
                    if class == picked {
                        prop_assert_eq!(watch.head, task, "always the head");
                        continue;
                    }
                    let (passes, last) = watch.passed.entry(picked).or_insert((0, now));
                    *passes += 1;
                    *last = now;
                    watch.check(class, &rules, most_quanta);
                }
                now.0 += QUANTUM;
                let (quanta, stored) = left.get_mut(&task.id).unwrap();
                *quanta -= 1;
                if *quanta == 0 {
                    left.remove(&task.id);
                    policy.finished(task, WORKER);
                    mirror.finished(task);
                } else {
                    *stored = Task { started: true, ..task };
                    policy.preempted(*stored, WORKER, now);
                    mirror.preempted(*stored);
                }
            } else {
                now.0 += QUANTUM;
            }
        }
    }
}

#[test]
fn compares_exactly_where_floating_point_would_not() {
    // 2^63 + 1 over 2^63 against 2^62 + 1 over 2^62: equal as f64, the second is larger.
    let slos = [1_u64 << 63, 1 << 62];
    let rules = slos.map(|slo| ClassRule::new(Nanos(slo), Nanos(1)));
    let mut policy = MultiQueue::new(2, &rules).unwrap();
    let now = u64::MAX;
    for (class, slo) in slos.into_iter().enumerate() {
        let task = Task {
            id: TaskId(class as u32),
            class: ClassId(class as u16),
            flow: Default::default(),
            arrival: Nanos(now - (slo + 1)),
            started: false,
        };
        policy.arrive(task).unwrap();
    }
    let picked = policy
        .next(WORKER, Nanos(now), Want::Any)
        .map(|task| task.class);
    assert_eq!(picked, Some(ClassId(1)));
}
