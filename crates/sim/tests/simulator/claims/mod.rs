//! Each test is a claim that the papers make in words or figures and that the simulator can show. A
//! test's comment begins with the document and the place of the claim, or with "Ours:". A test of
//! xtask checks that, and that every claim in a caption of `cargo xtask figures` has its test here.
//! A claim of a great difference has to show a factor; elsewhere the intervals must not overlap, or
//! a bound is given. The documents seldom say how many workers there were: 16 is our choice.

use shinjuku_policy::{Nanos, Requeue, multi_queue, single_queue};
use shinjuku_sim::scheduler::classes;
use shinjuku_sim::{
    Estimate, Measure, Overheads, Replicated, Sample, Scenario, Scheduler, SimError, Until,
    replicate, with_slos_alone,
};
use shinjuku_workload::{Class, Mix, ServiceTime};

mod learning;
mod policies;
mod queues;
mod racks;

const SEED: u64 = 7;

fn sq(quantum_us: u64) -> Scheduler {
    Scheduler::of(single_queue::REGISTERED).with_quantum(Nanos::from_micros(quantum_us))
}

/// c-PRE-MQ as the paper sets it up: SLOs of each class alone, preempted requests to the head
/// (Shinjuku, section 3.4).
fn mq_at_the_head(mix: &Mix, quantum_us: u64) -> Scheduler {
    let quantum = Nanos::from_micros(quantum_us);
    let mix = with_slos_alone(mix, 0.7, 16, quantum).unwrap();
    Scheduler::of(multi_queue::REGISTERED)
        .with_classes(classes(&mix))
        .with_quantum(quantum)
        .with_requeue(Requeue::Head)
}

/// What a posted interrupt costs at 2 GHz: 298 cycles, 1212, and 109 a switch (Shinjuku, sections
/// 3.2 and 3.3).
const POSTED: Overheads = Overheads {
    preempt_send_ns: 149,
    preempt_receive_ns: 606,
    switch_ns: 55,
    ..Overheads::IDEAL
};

fn replications(run: impl Fn(u64) -> Result<Sample, SimError> + Sync) -> Replicated {
    replicate(run, SEED, Until::Replications(6), |_, _| {}).unwrap()
}

fn simulate(mix: &Mix, load: f64, policy: Scheduler) -> Replicated {
    simulate_with(mix, load, policy, Overheads::IDEAL)
}

fn simulate_with(mix: &Mix, load: f64, policy: Scheduler, overheads: Overheads) -> Replicated {
    let mut scenario = Scenario::new(mix.clone(), load, policy, 16).with_requests(80_000);
    scenario.shape.overheads = overheads;
    replications(|seed| scenario.run(seed).map(Sample::from))
}

fn p99(mix: &Mix, load: f64, policy: Scheduler) -> Estimate {
    simulate(mix, load, policy).estimate(Measure::P99Us, None)
}

/// p99 of a two-class mix's short and long requests.
fn p99_by_class(mix: &Mix, load: f64, policy: Scheduler) -> [Estimate; 2] {
    let result = simulate(mix, load, policy);
    [Mix::SHORT, Mix::LONG].map(|class| result.estimate(Measure::P99Us, Some(class)))
}

fn only(service: ServiceTime) -> Mix {
    Mix::new("only", vec![Class::new("request", 1.0, service)]).unwrap()
}
