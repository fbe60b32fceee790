//! Best effort in a simulated server: what the other classes lose by it, and what it gets.

use shinjuku_policy::{
    ClassId, Full, Nanos, Parameters, Policy, Registered, Task, TaskId, Want, WorkerId, cfcfs,
    darc, edf, multi_queue, priority, single_queue,
};
use shinjuku_sim::scheduler::classes;
use shinjuku_sim::{
    Layout, Measure, Overheads, Replicated, Sample, Scenario, Scheduler, SimError, Until, replicate,
};
use shinjuku_workload::{Class, Mix, ServiceTime};

const SEED: u64 = 20_260_113;
const SHORT: u16 = 0;
const LONG: u16 = 1;
const BATCH: ClassId = ClassId(2);

/// Refuses batch requests, and leaves all others to the policy.
struct WithoutBatch(Box<dyn Policy>);

impl Policy for WithoutBatch {
    fn arrive(&mut self, task: Task) -> Result<(), Full> {
        match task.class {
            BATCH => Err(Full),
            _ => self.0.arrive(task),
        }
    }
    fn preempted(&mut self, task: Task, worker: WorkerId, now: Nanos) {
        self.0.preempted(task, worker, now);
    }
    fn returned(&mut self, task: Task, worker: WorkerId) {
        self.0.returned(task, worker);
    }
    fn finished_after(&mut self, task: Task, worker: WorkerId, ran: Nanos) {
        self.0.finished_after(task, worker, ran);
    }
    fn next(&mut self, worker: WorkerId, now: Nanos, want: Want) -> Option<Task> {
        self.0.next(worker, now, want)
    }
    fn remove(&mut self, id: TaskId, worker: WorkerId) -> Option<Task> {
        self.0.remove(id, worker)
    }
    fn quantum(&self, task: &Task) -> Option<Nanos> {
        self.0.quantum(task)
    }
    fn waiting(&self, worker: WorkerId, want: Want) -> usize {
        self.0.waiting(worker, want)
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn name(&self) -> String {
        self.0.name()
    }
}

/// Short and long requests at half of the capacity, and batch requests that take twice of it.
fn scenario(policy: Scheduler, layout: Layout) -> Scenario {
    let mut scenario = Scenario::new(mix(), 2.5, policy, 4).with_requests(60_000);
    scenario.shape.layout = layout;
    // Full soon.
    scenario.shape.capacity = 4_000;
    scenario
}

/// Of each request 0.995 us are short ones', 0.5 us long ones', and 6 us batch ones'.
fn mix() -> Mix {
    let class = |name, weight, us| Class::new(name, weight, ServiceTime::fixed(us).unwrap());
    let of_three = vec![
        class("short", 0.995, 1.0),
        class("long", 0.005, 100.0),
        class("batch", 0.06, 100.0),
    ];
    Mix::new("service", of_three).unwrap()
}

fn before_batch(registered: Registered) -> Scheduler {
    let scheduler = Scheduler::of(registered).with_classes(classes(&mix()));
    scheduler.with_best_effort(vec![BATCH])
}

/// The same requests, with batch as best effort, and without it.
fn with_and_without(registered: Registered, layout: Layout, costs: Overheads) -> [Replicated; 2] {
    let build = move |parameters: &Parameters| {
        let policy = registered.build(parameters)?;
        Ok(Box::new(WithoutBatch(policy)) as Box<dyn Policy>)
    };
    let without = Scheduler::own("without", build).with_classes(classes(&mix()));
    [before_batch(registered), without].map(|policy| {
        let mut scenario = scenario(policy, layout);
        scenario.shape.overheads = costs;
        let run = |seed| scenario.run(seed).map(Sample::from);
        replicate(run, SEED, Until::Replications(4), |_, _| {}).unwrap()
    })
}

fn p99(result: &Replicated, class: u16) -> f64 {
    result.estimate(Measure::P99Us, Some(class)).value
}

/// With a dispatcher and preemptions that cost nothing, the others do not notice it, and it has
/// what they leave.
#[test]
fn on_ideal_cores_the_others_are_served_as_without_it() {
    for registered in [
        cfcfs::REGISTERED,
        single_queue::REGISTERED,
        multi_queue::REGISTERED,
        edf::REGISTERED,
        priority::REGISTERED,
        darc::REGISTERED,
    ] {
        let [with, without] = with_and_without(registered, Layout::Central, Overheads::IDEAL);
        for class in [SHORT, LONG] {
            let (with, without) = (p99(&with, class), p99(&without, class));
            assert!(
                (with / without - 1.0).abs() < 0.05,
                "{registered}, class {class}: {with:.2} with, {without:.2} without"
            );
        }
        let finished = with
            .classes
            .iter()
            .map(|of| of[usize::from(BATCH.0)].requests);
        assert!(finished.min() > Some(1_000), "{registered}");
    }
}

/// Loops look every ten microseconds whether something else waits, here or elsewhere; and what a
/// short request pays besides is a preemption.
#[test]
fn loops_that_run_it_are_late_by_a_look() {
    let costs = Overheads {
        switch_ns: 50,
        preempt_receive_ns: 150,
        ..Overheads::IDEAL
    };
    for registered in [cfcfs::REGISTERED, single_queue::REGISTERED] {
        let [with, without] = with_and_without(registered, Layout::Symmetric, costs);
        let (with, without) = (p99(&with, SHORT), p99(&without, SHORT));
        assert!(
            with < without + 15.0,
            "{registered}: {with:.2} with, {without:.2} without"
        );
    }
}

#[test]
fn it_is_not_staged() {
    let mut scenario = scenario(before_batch(cfcfs::REGISTERED), Layout::Central);
    scenario.shape.depth = 2;
    let error = scenario.run(SEED).map(|_| ()).unwrap_err();
    assert!(matches!(error, SimError::Parameter { .. }), "{error}");
}
