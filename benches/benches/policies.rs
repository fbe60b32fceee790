//! Every policy by itself: one request through `arrive`, `next` and `finished` while a hundred
//! others wait, bare and under the core's watch. With preemption: the same, and once through
//! `preempted` and `next`.
#![allow(missing_docs)]
#![forbid(unsafe_code)]

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use shinjuku_policy::{
    ClassId, ClassParameters, FlowId, Nanos, Parameters, Policy, Registered, Task, TaskId,
    Verified, Want, WorkerId, registry,
};

const CAPACITY: usize = 1024;
const WAITING: u32 = 100;
const WORKERS: u16 = 4;

fn policies() -> Vec<(&'static str, Box<dyn Policy>)> {
    let mut parameters = Parameters::new(CAPACITY, usize::from(WORKERS));
    parameters.classes = [10, 1000]
        .map(|slo| ClassParameters::with_slo(Nanos::from_micros(slo)))
        .to_vec();
    let build = |one: &Registered| (one.label, one.build(&parameters).unwrap());
    registry::ALL.iter().map(build).collect()
}

/// Requests one after another, each in the slot of one that is over.
struct Arrivals {
    now: u64,
}

impl Arrivals {
    fn task(&mut self, slot: u32) -> Task {
        self.now += 1000;
        Task {
            id: TaskId(slot),
            class: ClassId((self.now / 1000 % 2) as u16),
            flow: FlowId(self.now / 1000),
            arrival: Nanos(self.now),
            started: false,
        }
    }

    fn now(&self) -> Nanos {
        Nanos(self.now)
    }
}

/// The next request, for the first worker that has one, beginning with another one each time.
fn next(turn: u64, mut ask: impl FnMut(WorkerId) -> Option<Task>) -> (Task, WorkerId) {
    (turn..)
        .map(|worker| WorkerId((worker % u64::from(WORKERS)) as u16))
        .take(usize::from(WORKERS))
        .find_map(|worker| Some((ask(worker)?, worker)))
        .expect("some worker has one of a hundred")
}

fn bare(criterion: &mut Criterion, preempt: bool) {
    let mut group = criterion.benchmark_group(if preempt {
        "policy/preempted-once"
    } else {
        "policy/bare"
    });
    group.throughput(Throughput::Elements(1));
    for (name, mut policy) in policies() {
        let mut arrivals = Arrivals { now: 0 };
        for slot in 0..WAITING {
            policy.arrive(arrivals.task(slot)).unwrap();
        }
        let mut free = TaskId(WAITING);
        let mut turn = 0;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                policy.arrive(arrivals.task(free.0)).unwrap();
                turn += 1;
                let now = arrivals.now();
                let (mut task, mut worker) =
                    next(turn, |worker| policy.next(worker, now, Want::Any));
                if preempt {
                    let task_started = Task {
                        started: true,
                        ..task
                    };
                    policy.preempted(task_started, worker, now);
                    (task, worker) = next(turn, |worker| policy.next(worker, now, Want::Any));
                }
                policy.finished(task, worker);
                free = task.id;
            });
        });
    }
    group.finish();
}

fn verified(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("policy/verified");
    group.throughput(Throughput::Elements(1));
    for (name, policy) in policies() {
        let mut policy = Verified::new(policy, CAPACITY).unwrap();
        let mut arrivals = Arrivals { now: 0 };
        for slot in 0..WAITING {
            policy.arrive(arrivals.task(slot)).unwrap();
        }
        let mut free = TaskId(WAITING);
        let mut turn = 0;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                policy.arrive(arrivals.task(free.0)).unwrap();
                turn += 1;
                let now = arrivals.now();
                let (task, worker) = next(turn, |worker| policy.next(worker, now, Want::Any));
                policy.finished(task.id, worker);
                free = task.id;
            });
        });
        assert_eq!(policy.error(), None, "{name} must keep to the rules");
    }
    group.finish();
}

fn all(criterion: &mut Criterion) {
    bare(criterion, false);
    bare(criterion, true);
    verified(criterion);
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600));
    targets = all
}
criterion_main!(benches);
