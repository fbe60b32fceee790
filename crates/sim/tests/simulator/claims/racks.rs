//! Several dispatchers or servers: what RackSched and TailGuard claim.

use shinjuku_policy::cfcfs;
use shinjuku_sim::fanout::{Discipline, FanoutScenario};
use shinjuku_sim::rack::{Action, BalancerSpec, Change, LoadInfo, Outage, RackScenario};
use shinjuku_sim::{Estimate, Measure, Overheads, Sample, Scenario, Scheduler};
use shinjuku_workload::{Class, Mix, ServiceTime};

use super::{SEED, only, replications, sq};

/// Shinjuku, section 4.3: with requests of 1 us fixed one dispatcher scales almost linearly with
/// its workers until it is busy, and two go twice as far.
#[test]
fn shinjuku_7b_one_dispatcher_scales_until_it_is_busy() {
    // The dispatcher has 200 ns for a request: 5 million a second.
    let costs = Overheads {
        dispatch_ns: 200,
        message_ns: 53,
        ..Overheads::IDEAL
    };
    let keeps_up = |dispatchers: usize, workers: usize, load| {
        let mut scenario = RackScenario::new(
            only(ServiceTime::fixed(1.0).unwrap()),
            load,
            Scheduler::of(cfcfs::REGISTERED),
            dispatchers,
            workers / dispatchers,
        );
        scenario.balancer = BalancerSpec::ByFlow;
        scenario.shape.overheads = costs;
        scenario.shape.depth = 2;
        scenario.requests = 60_000;
        rack_p99(&scenario).value < 50.0
    };
    // 0.75 of 1, of 4 and of 6 workers; of 11 that would be 8 million a second.
    for (dispatchers, workers, expected) in [
        (1, 1, true),
        (1, 4, true),
        (1, 6, true),
        (1, 11, false),
        (2, 12, true),
        (2, 22, false),
    ] {
        let does = keeps_up(dispatchers, workers, 0.75);
        assert_eq!(
            does, expected,
            "{dispatchers} dispatchers, {workers} workers"
        );
    }
}

fn rack(mix: &Mix, load: f64, policy: Scheduler, servers: usize) -> RackScenario {
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

/// Low dispersion and high, of our choice: exponential, and 90 % of 50 us with 10 % of 500 us.
fn dispersions() -> [(Mix, Scheduler); 2] {
    let low = only(ServiceTime::exponential(50.0).unwrap());
    let fixed = |name: &str, weight, us| Class::new(name, weight, ServiceTime::fixed(us).unwrap());
    let high = vec![fixed("short", 90.0, 50.0), fixed("long", 10.0, 500.0)];
    [
        (low, Scheduler::of(cfcfs::REGISTERED)),
        (Mix::new("high", high).unwrap(), sq(25)),
    ]
}

/// RackSched, abstract: two layers, the server chosen by load and then the server's own policy,
/// perform nearly as well as a centralized policy, for low dispersion and for high;
/// power-of-k-choices is how the switch chooses. The rack and its policies are ours, and that
/// random choice does not come near.
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

/// Ours: with load that is as old as a round trip, the shortest queue draws a herd; two choices do
/// not.
#[test]
fn stale_load_makes_a_herd_of_the_shortest_queue() {
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

/// RackSched, abstract: throughput scales out near linearly at the same tail latency: 4 or 32
/// servers at the load of one have a p99 no worse than one has.
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

/// A rack of eight servers of eight workers at 60 % load, two choices over INT1.
fn rack_of_eight() -> RackScenario {
    let mix = Mix::named("exp").unwrap();
    RackScenario {
        network_ns: 2_500,
        requests: 60_000,
        ..RackScenario::new(mix, 0.6, Scheduler::of(cfcfs::REGISTERED), 8, 8)
    }
}

/// RackSched, abstract: the switch ensures request affinity. Without its table most requests of two
/// packets are broken.
#[test]
fn racksched_all_packets_of_a_request_go_to_one_server() {
    let with = RackScenario {
        packets: 4,
        packet_gap_ns: 1_000,
        ..rack_of_eight()
    };
    let without = RackScenario {
        request_table: None,
        packets: 2,
        ..with.clone()
    };
    let [with, without] = [with, without].map(|one| one.run(SEED).unwrap());
    assert_eq!(with.broken, 0);
    assert!(without.broken > 30_000, "{}", without.broken);
}

/// Ours: a rack answers as much as before once it knows that one of eight servers has failed, and
/// after an outage of its switch.
#[test]
fn a_rack_serves_on_after_a_server_or_the_switch_has_failed() {
    // 38 requests a microsecond: 60,000 take 1.7 ms.
    let rack = RackScenario {
        interval_ns: 100_000,
        ..rack_of_eight()
    };
    let server = RackScenario {
        changes: vec![Change {
            at_ns: 500_000,
            server: 3,
            action: Action::Fail,
        }],
        detection_ns: 200_000,
        ..rack.clone()
    };
    let switch = RackScenario {
        outage: Some(Outage {
            at_ns: 500_000,
            for_ns: 200_000,
        }),
        ..rack
    };
    for scenario in [server, switch] {
        let run = scenario.run(SEED).unwrap();
        let [before, meanwhile, after] = [4, 6, 9].map(|interval| run.answered[interval] as f64);
        assert!(
            run.lost > 0 && meanwhile < 0.95 * before,
            "{meanwhile}, {before}"
        );
        assert!(after > 0.95 * before, "{after}, {before}");
    }
}

/// TailGuard, abstract: a deadline from SLO and fan-out carries more load within the SLOs than one
/// from the SLO alone, than priorities, and than FIFO. The set-up is ours: 100 servers, fan-outs of
/// 1, 10 and 100 with shares that make each offer the same number of tasks; service times like a
/// key-value store's.
#[test]
fn tailguard_carries_more_load_than_fifo_priority_and_plain_edf() {
    // Queries of 100 tasks take longer than those of one even in an empty system.
    let body = Class::new(
        "body",
        1_999.0,
        ServiceTime::lognormal(176.0, 18.0).unwrap(),
    );
    let tail = Class::new("tail", 1.0, ServiceTime::fixed(475.0).unwrap());
    let mix = Mix::new("store", vec![body, tail]).unwrap();
    let fanouts = vec![(1, 100.0), (10, 10.0), (100, 1.0)];
    let slos_us = vec![(1_000.0, 1.0), (1_500.0, 1.0)];
    let scenario = FanoutScenario {
        queries: 80_000,
        ..FanoutScenario::new(mix, 100, fanouts, slos_us)
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
