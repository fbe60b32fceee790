//! What the papers say in words or figures, each a test. Where a claim is "by orders", a factor of ten at least is asked
//! for; elsewhere the intervals must not overlap, or a bound is given.

use shinjuku_policy::Nanos;
use shinjuku_sim::fanout::{Discipline, FanoutScenario};
use shinjuku_sim::imbalance::balanced_share;
use shinjuku_sim::policies::rules;
use shinjuku_sim::rack::{BalancerSpec, LoadInfo, RackScenario};
use shinjuku_sim::{
    Estimate, Measure, Overheads, PolicySpec, Replicated, Sample, Scenario, SimError, Until,
    replicate, theory,
};
use shinjuku_workload::{Class, Mix, ServiceTime};

const SEED: u64 = 7;

fn sq(quantum_us: u64) -> PolicySpec {
    PolicySpec::SingleQueue {
        quantum: Nanos::from_micros(quantum_us),
    }
}

fn replications(run: impl Fn(u64) -> Result<Sample, SimError> + Sync) -> Replicated {
    replicate(run, SEED, Until::Replications(6), |_, _| {}).unwrap()
}

/// 16 workers, as in the papers.
fn simulate(mix: &Mix, load: f64, policy: PolicySpec) -> Replicated {
    simulate_with(mix, load, policy, Overheads::IDEAL)
}

fn simulate_with(mix: &Mix, load: f64, policy: PolicySpec, overheads: Overheads) -> Replicated {
    let mut scenario = Scenario::new(mix.clone(), load, policy, 16).with_requests(80_000);
    scenario.shape.overheads = overheads;
    replications(|seed| scenario.run(seed).map(Sample::from))
}

fn p99(mix: &Mix, load: f64, policy: PolicySpec) -> Estimate {
    simulate(mix, load, policy).estimate(Measure::P99Us, None)
}

fn only(service: ServiceTime) -> Mix {
    Mix::new("only", vec![Class::new("request", 1.0, service)]).unwrap()
}

/// Shinjuku, section 2: on 99.5/0.5 bimodal requests, processor sharing beats c-FCFS, which beats d-FCFS, by orders.
#[test]
fn shinjuku_1_bimodal_ps_beats_c_fcfs_beats_d_fcfs_by_orders() {
    let mix = Mix::named("hi").unwrap();
    let ps = p99(&mix, 0.7, PolicySpec::Sharing);
    let central = p99(&mix, 0.7, PolicySpec::CFcfs);
    let distributed = p99(&mix, 0.7, PolicySpec::DFcfs);
    assert!(
        10.0 * ps.high() < central.low(),
        "PS {ps}, c-FCFS {central}"
    );
    assert!(
        10.0 * central.high() < distributed.low(),
        "c-FCFS {central}, d-FCFS {distributed}"
    );
}

/// Shinjuku, section 2, and ZygOS: with exponential service times c-FCFS is best.
#[test]
fn shinjuku_1_exponential_c_fcfs_is_best() {
    let mix = Mix::named("exp").unwrap();
    let central = p99(&mix, 0.8, PolicySpec::CFcfs);
    let ps = p99(&mix, 0.8, PolicySpec::Sharing);
    let distributed = p99(&mix, 0.8, PolicySpec::DFcfs);
    assert!(central.high() < ps.low(), "c-FCFS {central}, PS {ps}");
    assert!(
        ps.high() < distributed.low(),
        "PS {ps}, d-FCFS {distributed}"
    );
    // Preempting after five mean service times does little harm.
    let single = p99(&mix, 0.8, sq(5));
    assert!(
        single.value < 1.02 * central.value,
        "c-PRE-SQ {single}, c-FCFS {central}"
    );
}

/// Shinjuku, section 2: a quantum of 5 us is enough to come close to processor sharing.
#[test]
fn shinjuku_2_a_quantum_of_five_us_gains_an_order() {
    let mix = Mix::named("hi").unwrap();
    let single = p99(&mix, 0.7, sq(5));
    let central = p99(&mix, 0.7, PolicySpec::CFcfs);
    assert!(
        10.0 * single.high() < central.low(),
        "c-PRE-SQ {single}, c-FCFS {central}"
    );
}

/// Shinjuku, section 2: preemption pays only while it is cheap beside the quantum.
#[test]
fn shinjuku_2_dear_preemption_loses_what_it_gains() {
    let mix = Mix::named("mid").unwrap();
    let short = |cost_ns, policy| {
        let overheads = Overheads {
            preempt_receive_ns: cost_ns,
            ..Overheads::IDEAL
        };
        let result = simulate_with(&mix, 0.8, policy, overheads);
        result.estimate(Measure::P99Us, Some(Mix::SHORT))
    };
    let central = short(0, PolicySpec::CFcfs);
    let cheap = short(500, sq(5));
    let dear = short(5_000, sq(5));
    assert!(
        3.0 * cheap.high() < central.low(),
        "cheap {cheap}, c-FCFS {central}"
    );
    assert!(dear.low() > central.high(), "dear {dear}, c-FCFS {central}");
}

/// Shinjuku, sections 3.4 and 5: with a queue per class, both classes' slowdown stays low, where a single queue lets that
/// of short requests grow with the load.
#[test]
fn shinjuku_mq_keeps_both_classes_slowdown_low() {
    let mix = Mix::named("mid").unwrap();
    let slowdowns = |policy| {
        let result = simulate(&mix, 0.9, policy);
        [Mix::SHORT, Mix::LONG].map(|class| result.estimate(Measure::P99Slowdown, Some(class)))
    };
    let [short_central, _] = slowdowns(PolicySpec::CFcfs);
    let [short_single, long_single] = slowdowns(sq(5));
    let [short_multi, long_multi] = slowdowns(PolicySpec::MultiQueue {
        rules: rules(&mix, Nanos::from_micros(5)),
    });
    assert!(
        short_multi.high() < 6.0 && long_multi.high() < 6.0,
        "{short_multi} {long_multi}"
    );
    assert!(
        1.5 * short_multi.high() < short_single.low(),
        "{short_multi} {short_single}"
    );
    assert!(
        long_multi.value < 1.1 * long_single.value,
        "{long_multi} {long_single}"
    );
    assert!(short_central.low() > 50.0, "{short_central}");
}

/// Shinjuku, figure 4: it takes about 300 connections for 2 queues, and about 16,000 for 24, until the imbalance is below
/// a tenth with a probability of nine tenths.
#[test]
fn shinjuku_4_connections_needed() {
    let two = balanced_share(300, 2, 0.1, 20_000, SEED);
    assert!((two - 0.9).abs() < 0.015, "{two}");
    let many = balanced_share(16_000, 24, 0.1, 1_500, SEED);
    assert!((many - 0.9).abs() < 0.03, "{many}");
    // Half as many are far from enough.
    let fewer = balanced_share(8_000, 24, 0.1, 500, SEED);
    assert!(fewer < 0.5, "{fewer}");
}

/// The highest load, in steps of a hundredth, at which p99 is at most ten mean service times.
fn load_at_ten_times_the_mean(service: ServiceTime, policy: &PolicySpec) -> f64 {
    let limit_us = service.mean_ns() / 100.0;
    let mix = only(service);
    let (mut met, mut missed) = (0, 100);
    while missed - met > 1 {
        let percent = (met + missed) / 2;
        let scenario = Scenario::new(mix.clone(), f64::from(percent) / 100.0, policy.clone(), 16)
            .with_requests(60_000);
        let run = |seed| scenario.run(seed).map(Sample::from);
        let result = replicate(run, SEED, Until::Replications(4), |_, _| {}).unwrap();
        if result.estimate(Measure::P99Us, None).value <= limit_us {
            met = percent;
        } else {
            missed = percent;
        }
    }
    f64::from(met) / 100.0
}

/// ZygOS, section 3: exponential service times at a limit of ten times the mean: 96 % of the capacity with one queue, 54 %
/// with sixteen; work stealing comes near the one queue.
#[test]
fn zygos_one_queue_carries_96_percent_and_sixteen_queues_54() {
    let service = || ServiceTime::exponential(1.0).unwrap();
    let one = load_at_ten_times_the_mean(service(), &PolicySpec::CFcfs);
    let many = load_at_ten_times_the_mean(service(), &PolicySpec::DFcfs);
    let stealing = load_at_ten_times_the_mean(service(), &PolicySpec::Stealing);
    assert!((0.95..=0.97).contains(&one), "{one}");
    assert!((0.52..=0.55).contains(&many), "{many}");
    assert!(stealing > 0.92, "{stealing}");
    // And so says theory.
    let meets = |servers, load| theory::mm_sojourn_quantile(servers, load, 1.0, 0.99) <= 10.0;
    assert!(meets(16, 0.965) && !meets(16, 0.975));
    assert!(meets(1, 0.535) && !meets(1, 0.545));
}

/// ZygOS, section 3: the more the service times vary the less FCFS carries, until sharing carries more.
#[test]
fn zygos_dispersion_turns_the_order_of_fcfs_and_sharing() {
    let calm = ServiceTime::fixed(1.0).unwrap();
    let mild = ServiceTime::bimodal(0.5, 5.5, 0.1).unwrap();
    let wild = ServiceTime::bimodal(0.5, 500.5, 0.001).unwrap();
    let fcfs = [&calm, &mild, &wild]
        .map(|service| load_at_ten_times_the_mean(service.clone(), &PolicySpec::CFcfs));
    assert!(fcfs[0] > fcfs[1] && fcfs[1] > fcfs[2] + 0.2, "{fcfs:?}");
    let shared = [&mild, &wild]
        .map(|service| load_at_ten_times_the_mean(service.clone(), &PolicySpec::Sharing));
    assert!(
        shared[0] < fcfs[1] && shared[1] > fcfs[2] + 0.2,
        "{shared:?} {fcfs:?}"
    );
}

fn rack(mix: &Mix, load: f64, policy: PolicySpec, servers: usize) -> RackScenario {
    RackScenario {
        requests: 60_000,
        load_info: LoadInfo::Exact,
        ..RackScenario::new(mix.clone(), load, policy, servers, 8)
    }
}

fn rack_p99(scenario: &RackScenario) -> Estimate {
    let result = replications(|seed| scenario.run(seed).map(Sample::from));
    result.estimate(Measure::P99Us, None)
}

/// RackSched's workloads: exponential, and 90 % of 50 us with 10 % of 500 us.
fn dispersions() -> [(Mix, PolicySpec); 2] {
    let low = only(ServiceTime::exponential(50.0).unwrap());
    let fixed = |name: &str, weight, us| Class::new(name, weight, ServiceTime::fixed(us).unwrap());
    let high = vec![fixed("short", 90.0, 50.0), fixed("long", 10.0, 500.0)];
    [
        (low, PolicySpec::CFcfs),
        (Mix::new("high", high).unwrap(), sq(25)),
    ]
}

/// RackSched, section 2: two layers, the server chosen by load and then the server's own policy, come near one queue for the
/// whole rack, for low dispersion (FCFS in the servers) and high (preemption in the servers); random choice does not.
#[test]
fn racksched_two_layers_come_near_a_global_queue() {
    for (mix, policy) in dispersions() {
        let one = Scenario::new(mix.clone(), 0.9, policy.clone(), 64).with_requests(60_000);
        let global = replications(|seed| one.run(seed).map(Sample::from));
        let global = global.estimate(Measure::P99Us, None);
        let scenario = rack(&mix, 0.9, policy, 8);
        let two_layers = rack_p99(&RackScenario {
            balancer: BalancerSpec::Shortest,
            ..scenario.clone()
        });
        let two_choices = rack_p99(&scenario);
        let random = rack_p99(&RackScenario {
            balancer: BalancerSpec::Random,
            ..scenario
        });
        assert!(
            two_layers.value < 1.15 * global.value,
            "{two_layers}, global {global}"
        );
        assert!(
            two_choices.value < 1.25 * global.value,
            "{two_choices}, global {global}"
        );
        assert!(
            random.low() > 1.3 * global.value,
            "random {random}, global {global}"
        );
    }
}

/// RackSched, section 3.3: with load that is as old as a round trip, the shortest queue draws a herd; two choices do not.
#[test]
fn racksched_stale_load_makes_a_herd_of_the_shortest_queue() {
    let [_, (mix, policy)] = dispersions();
    let stale = RackScenario {
        network_ns: 2_500,
        load_info: LoadInfo::Int1,
        ..rack(&mix, 0.9, policy, 8)
    };
    let two_choices = rack_p99(&stale);
    let shortest = rack_p99(&RackScenario {
        balancer: BalancerSpec::Shortest,
        ..stale
    });
    assert!(
        two_choices.high() < shortest.low(),
        "{two_choices} {shortest}"
    );
}

/// RackSched, section 5: the rack carries load in proportion to its servers: 32 of them at the load of one have a p99 no
/// worse than one has.
#[test]
fn racksched_scales_out_linearly() {
    let [_, (mix, policy)] = dispersions();
    let one = rack_p99(&rack(&mix, 0.8, policy.clone(), 1));
    for servers in [4, 32] {
        let many = rack_p99(&rack(&mix, 0.8, policy.clone(), servers));
        assert!(
            many.value < 1.05 * one.value,
            "{servers} servers {many}, one {one}"
        );
    }
}

/// TailGuard: a deadline from SLO and fan-out carries more load than one from the SLO alone, than priorities, and than
/// FIFO. The set-up is the paper's: 100 servers, fan-outs of 1, 10 and 100 with shares that make each offer the same
/// number of tasks; service times like a key-value store's.
#[test]
fn tailguard_carries_more_load_than_fifo_priority_and_plain_edf() {
    // Queries of 100 tasks take longer than those of one even in an empty system.
    let body = Class::new(
        "body",
        1_999.0,
        ServiceTime::lognormal(176.0, 18.0).unwrap(),
    );
    let tail = Class::new("tail", 1.0, ServiceTime::fixed(475.0).unwrap());
    let scenario = FanoutScenario {
        mix: Mix::new("store", vec![body, tail]).unwrap(),
        servers: 100,
        fanouts: vec![(1, 100.0), (10, 10.0), (100, 1.0)],
        slos_us: vec![(1_000.0, 1.0), (1_500.0, 1.0)],
        percentile: 0.99,
        discipline: Discipline::Fifo,
        load: 0.5,
        queries: 80_000,
    };
    let loads = Discipline::ALL.map(|discipline| {
        let scenario = FanoutScenario {
            discipline,
            ..scenario.clone()
        };
        scenario.highest_load(0.01, SEED).unwrap()
    });
    let [fifo, priority, edf, tail_guard] = loads;
    assert!(tail_guard > edf + 0.02, "{loads:?}");
    assert!(
        tail_guard > priority + 0.02 && tail_guard > fifo + 0.02,
        "{loads:?}"
    );
    assert!(edf >= fifo, "{loads:?}");
}
