//! Layouts whose cores dispatch for themselves: against queueing theory, against other models of
//! the same system, and each cost by hand.

use shinjuku_policy::{Nanos, cfcfs, single_queue, stealing};
use shinjuku_sim::rack::{BalancerSpec, LoadInfo, RackScenario};
use shinjuku_sim::{
    Estimate, Layout, Loops, Measure, Outcome, Overheads, Replicated, Request, Sample, Scenario,
    Scheduler, Shape, SimError, Until, replicate, theory,
};
use shinjuku_workload::{Class, Mix, ServiceTime};

const MEAN_US: f64 = 100.0;
const SEED: u64 = 20_240_427;

fn exponential() -> Mix {
    let service = ServiceTime::exponential(MEAN_US).unwrap();
    Mix::new("only", vec![Class::new("request", 1.0, service)]).unwrap()
}

fn fcfs() -> Scheduler {
    Scheduler::of(cfcfs::REGISTERED)
}

fn rotating(us: u64) -> Scheduler {
    Scheduler::of(single_queue::REGISTERED).with_quantum(Nanos::from_micros(us))
}

fn scenario(layout: Layout, policy: Scheduler, workers: usize, load: f64) -> Scenario {
    let mut scenario = Scenario::new(exponential(), load, policy, workers);
    scenario.shape.layout = layout;
    scenario
}

fn simulate(run: impl Fn(u64) -> Result<Sample, SimError> + Sync) -> Replicated {
    replicate(run, SEED, Until::Replications(12), |_, _| {}).unwrap()
}

fn estimate(scenario: &Scenario, measure: Measure) -> Estimate {
    simulate(|seed| scenario.run(seed).map(Sample::from)).estimate(measure, None)
}

#[track_caller]
fn agree(what: &str, estimate: Estimate, truth: f64) {
    assert!(
        estimate.relative() < 0.05,
        "{what}: {estimate:.4} is too wide"
    );
    assert!(
        estimate.agrees_with(truth, 1.6),
        "{what}: {estimate:.4}, theory {truth:.4}"
    );
}

/// Loops that help at no cost leave no core idle while a request waits. Then the number of requests
/// is that of M/M/c, whichever of them runs.
#[test]
fn loops_that_help_each_other_are_one_queue() {
    for (layout, policy, workers, load) in [
        (Layout::Symmetric, fcfs(), 16, 0.9),
        (Layout::Symmetric, rotating(50), 2, 0.7),
        (Layout::ZygOs, Scheduler::of(stealing::REGISTERED), 2, 0.7),
    ] {
        let truth = theory::mm_mean_wait(workers, load, MEAN_US);
        let scenario = scenario(layout, policy, workers, load);
        let wait = estimate(&scenario, Measure::MeanWaitUs);
        agree(&format!("{layout}, {workers}"), wait, truth);
    }
}

#[test]
fn loops_that_do_not_help_are_single_servers() {
    let truth = theory::mm_mean_wait(1, 0.7, MEAN_US);
    let wait = estimate(&scenario(Layout::Ix, fcfs(), 8, 0.7), Measure::MeanWaitUs);
    agree("mean wait", wait, truth);
    let truth = theory::mm_sojourn_quantile(1, 0.7, MEAN_US, 0.99);
    let p99 = estimate(&scenario(Layout::Ix, fcfs(), 8, 0.7), Measure::P99Us);
    agree("p99", p99, truth);
}

/// A rack whose switch knows every queue and sends to the shortest is a second, older model of two
/// levels.
#[test]
fn two_levels_are_a_rack_that_joins_the_shortest_queue() {
    let (workers, load) = (8, 0.8);
    let rack = RackScenario {
        balancer: BalancerSpec::Shortest,
        load_info: LoadInfo::Exact,
        ..RackScenario::new(exponential(), load, rotating(10), workers, 1)
    };
    let rack = simulate(|seed| rack.run(seed).map(Sample::from));
    let two_levels = scenario(Layout::TwoLevel, rotating(10), workers, load);
    for measure in [Measure::MeanUs, Measure::P99Us] {
        let ours = estimate(&two_levels, measure);
        let theirs = rack.estimate(measure, None);
        // They differ in which of two equals goes first, and in when a busy worker polls.
        let ratio = ours.value / theirs.value;
        assert!(
            (0.93..1.07).contains(&ratio),
            "{}: {ours:.3}, rack {theirs:.3}",
            measure.name()
        );
    }
}

#[test]
fn bursts_of_others_delay_as_a_higher_priority_does() {
    let costs = Overheads {
        away_every_ns: 2_000_000,
        away_ns: 300_000,
        ..Overheads::IDEAL
    };
    let mut beside = scenario(Layout::Symmetric, fcfs(), 1, 0.6);
    beside.shape.overheads = costs;
    let truth = theory::mm1_beside_bursts(0.6, MEAN_US, 2_000.0, 300.0);
    agree("sojourn", estimate(&beside, Measure::MeanUs), truth);
    // Others serve what waits at a loop that is away, so only the request that runs waits for its
    // core.
    let four = |layout| {
        let mut beside = scenario(layout, fcfs(), 4, 0.6);
        beside.shape.overheads = costs;
        estimate(&beside, Measure::MeanUs).value
    };
    assert!(1.5 * four(Layout::Symmetric) < four(Layout::Ix));
}

fn request(flow: u64, service_ns: u64, tag: u64) -> Request {
    Request {
        sent_ns: 0,
        service_ns,
        flow,
        class: 0,
        tag,
    }
}

/// When each of these requests, all of which come at once, is answered.
fn ends(server: &mut Loops, requests: &[Request]) -> Vec<u64> {
    let mut ends = vec![0; requests.len()];
    let mut note = |outcome: Option<Outcome>| {
        if let Some(Outcome::Finished { request, at_ns }) = outcome {
            ends[request.tag as usize] = at_ns;
        }
    };
    for request in requests {
        note(server.arrive(0, *request));
    }
    while server.next_ns() != u64::MAX {
        note(server.step());
    }
    assert!(server.is_empty());
    server.check().unwrap();
    ends
}

fn loops(layout: Layout, policy: &Scheduler, workers: usize, overheads: Overheads) -> Loops {
    let shape = Shape {
        layout,
        overheads,
        ..Shape::ideal(workers)
    };
    Loops::new(policy, shape, 1).unwrap()
}

const COSTS: Overheads = Overheads {
    network_ns: 1,
    dispatch_ns: 10,
    switch_ns: 100,
    preempt_receive_ns: 1_000,
    steal_ns: 10_000,
    interrupt_ns: 100_000,
    ..Overheads::IDEAL
};

#[test]
fn a_loop_pays_for_polling_its_policy_the_switch_and_each_quantum() {
    let mut server = loops(Layout::Symmetric, &rotating(5), 1, COSTS);
    let ends = ends(&mut server, &[request(0, 12_000, 0)]);
    // It polls once, and is preempted twice although nothing waits.
    assert_eq!(ends, [1 + 3 * (10 + 100) + 12_000 + 2 * 1_000]);
    assert_eq!(server.preemptions(), 2);
}

/// Two flows of the same home, on two cores.
fn two_at_home() -> [Request; 2] {
    let flow = |tag| request(7, 1_000_000, tag);
    [flow(0), flow(1)]
}

#[test]
fn help_costs_a_steal() {
    let mut server = loops(Layout::Symmetric, &fcfs(), 2, COSTS);
    let ends_of_both = ends(&mut server, &two_at_home());
    let alone = 1 + 10 + 100 + 1_000_000;
    // The second waits until the turn of the first is over.
    assert_eq!(ends_of_both, [alone, 11 + 10_000 + alone]);
    assert_eq!(server.helps(), 1);
    // Without help, it waits for the first.
    let mut server = loops(Layout::Ix, &fcfs(), 2, COSTS);
    assert_eq!(ends(&mut server, &two_at_home()), [alone, 2 * alone]);
}

#[test]
fn zygos_polls_and_replies_at_home_alone() {
    let alone = 1 + 10 + 100 + 1_000_000;
    // No loop polls the second while the first runs, and then no other loop is needed for it.
    let mut server = loops(Layout::ZygOsNoInterrupts, &fcfs(), 2, COSTS);
    assert_eq!(ends(&mut server, &two_at_home()), [alone, 2 * alone]);
    // An interrupt polls the second for the idle loop, and another has home send its reply. The
    // first is late by both.
    let mut server = loops(Layout::ZygOs, &fcfs(), 2, COSTS);
    let polled = 100_000 + 1;
    let stolen = polled + 10 + 10_000 + 100 + 1_000_000;
    let first = alone + polled;
    // Its reply finds home idle again, since the first has ended: home's turn sends it.
    assert!(first < stolen + 100_000);
    let ends_of_both = ends(&mut server, &two_at_home());
    assert_eq!(ends_of_both, [first, stolen + 10 + 1]);
    assert_eq!((server.helps(), server.interrupts()), (1, 1));
}

#[test]
fn what_no_layout_can_be_is_refused() {
    let sharing = Scheduler::sharing();
    let shape = Shape {
        layout: Layout::Symmetric,
        ..Shape::ideal(2)
    };
    let error = Loops::new(&sharing, shape, 1).err().unwrap().to_string();
    assert!(error.contains("processor sharing"), "{error}");
    let deep = Shape { depth: 2, ..shape };
    let error = Loops::new(&fcfs(), deep, 1).err().unwrap().to_string();
    assert!(error.contains("staged"), "{error}");
    let error = "round".parse::<Layout>().unwrap_err().to_string();
    assert!(error.contains("two-level"), "{error}");
}

#[test]
fn a_full_part_refuses() {
    let shape = Shape {
        layout: Layout::Symmetric,
        capacity: 2,
        ..Shape::ideal(2)
    };
    let mut server = Loops::new(&fcfs(), shape, 1).unwrap();
    assert_eq!(server.arrive(0, request(7, 10, 0)), None);
    let refused = request(7, 10, 1);
    let outcome = server.arrive(0, refused);
    assert_eq!(outcome, Some(Outcome::Refused { request: refused }));
    assert_eq!(server.len(), 1);
}
