//! Racks in detail: affinity, loss, drift, servers that come, go and fail.

use shinjuku_policy::{Nanos, cfcfs, single_queue};
use shinjuku_sim::rack::balancer::Balancer;
use shinjuku_sim::rack::{Action, BalancerSpec, Change, LoadInfo, LoadView, Outage, RackScenario};
use shinjuku_sim::{Request, Scheduler, SimError};
use shinjuku_workload::{Class, Mix, ServiceTime};

const REQUESTS: u64 = 20_000;

/// Four servers of four workers, 1 us requests.
fn rack() -> RackScenario {
    RackScenario {
        network_ns: 2_000,
        requests: REQUESTS,
        ..RackScenario::new(
            Mix::named("exp").unwrap(),
            0.6,
            Scheduler::of(cfcfs::REGISTERED),
            4,
            4,
        )
    }
}

#[test]
fn every_balancer_answers_every_request() {
    let balancers = [
        "random",
        "round-robin",
        "by-flow",
        "shortest",
        "power-of-2",
        "power-of-3",
        "jbsq-6",
    ];
    for name in balancers {
        for load_info in [
            LoadInfo::Exact,
            LoadInfo::Int1,
            LoadInfo::Int2,
            LoadInfo::Int3,
            LoadInfo::Counters,
        ] {
            let scenario = RackScenario {
                balancer: name.parse().unwrap(),
                load_info,
                ..rack()
            };
            let run = scenario.run(1).unwrap();
            assert_eq!(run.tally.all().requests, REQUESTS, "{name} {load_info:?}");
            assert_eq!((run.lost, run.broken), (0, 0), "{name} {load_info:?}");
            assert!(
                run.sent.iter().all(|sent| *sent > REQUESTS / 10),
                "{name}: {:?}",
                run.sent
            );
        }
    }
    for bad in ["", "jbsq-0", "power-of-x", "best"] {
        assert!(bad.parse::<BalancerSpec>().is_err(), "{bad}");
    }
}

#[test]
fn latency_holds_both_ways_of_the_network() {
    let scenario = RackScenario {
        load: 0.01,
        ..rack()
    };
    let all = scenario.run(1).unwrap().tally.all();
    assert!((all.mean_wait_ns - 4_000.0).abs() < 20.0, "{all:?}");
}

#[test]
fn a_server_holds_no_more_than_the_bound_and_the_switch_the_rest() {
    // Bound 4 on 4 workers: no server ever queues; under random choice servers do.
    let mut scenario = rack();
    scenario.load = 0.8;
    scenario.network_ns = 0;
    scenario.balancer = BalancerSpec::Jbsq(4);
    let central = scenario.run(1).unwrap().tally.all();
    scenario.balancer = BalancerSpec::Random;
    let random = scenario.run(1).unwrap().tally.all();
    // With no delay this is one queue for 16 workers.
    let truth = shinjuku_sim::theory::mm_mean_wait(16, 0.8, 1_000.0);
    assert!(
        (central.mean_wait_ns - truth).abs() < 0.2 * truth,
        "{central:?} {truth}"
    );
    assert!(random.mean_wait_ns > 3.0 * truth, "{random:?}");
}

/// Requests of three packets.
fn packets() -> RackScenario {
    RackScenario {
        packets: 3,
        packet_gap_ns: 200,
        balancer: BalancerSpec::Random,
        ..rack()
    }
}

#[test]
fn affinity_keeps_packets_together_and_without_it_requests_break() {
    let kept = packets().run(1).unwrap();
    assert_eq!((kept.broken, kept.table_overflows), (0, 0));
    assert_eq!(kept.tally.all().requests, REQUESTS);

    let scattered = RackScenario {
        request_table: None,
        ..packets()
    };
    let run = scattered.run(1).unwrap();
    // Three packets at four servers stay together once in sixteen times.
    let together = run.tally.all().requests as f64 / REQUESTS as f64;
    assert!((together - 1.0 / 16.0).abs() < 0.01, "{together}");
    assert_eq!(run.broken + run.tally.all().requests, REQUESTS);
}

#[test]
fn a_full_request_table_falls_back_to_a_hash_and_breaks_nothing() {
    let small = RackScenario {
        request_table: Some((1, 4)),
        ..packets()
    };
    let run = small.run(1).unwrap();
    assert!(run.table_overflows > 1_000, "{}", run.table_overflows);
    assert_eq!((run.broken, run.lost), (0, 0));
}

#[test]
fn affinity_outlives_the_removal_of_a_server() {
    let change = |server, at_us: u64, action| Change {
        at_ns: at_us * 1_000,
        server,
        action,
    };
    let scenario = RackScenario {
        load: 0.4,
        changes: vec![
            change(1, 500, Action::Remove),
            change(4, 800, Action::Add),
            change(2, 1_000, Action::Remove),
        ],
        ..packets()
    };
    let run = scenario.run(1).unwrap();
    assert_eq!((run.broken, run.lost), (0, 0));
    assert_eq!(run.tally.all().requests, REQUESTS);
    assert!(
        run.sent[4] > 0 && run.sent[0] > run.sent[1],
        "{:?}",
        run.sent
    );
}

#[test]
fn a_failure_loses_what_the_server_had_and_what_is_sent_before_the_switch_hears() {
    let fail = |detection_ns| RackScenario {
        load: 0.5,
        changes: vec![Change {
            at_ns: 1_000_000,
            server: 3,
            action: Action::Fail,
        }],
        detection_ns,
        balancer: BalancerSpec::Random,
        ..rack()
    };
    let soon = fail(0).run(1).unwrap();
    let late = fail(100_000).run(1).unwrap();
    // A quarter of 8 requests a microsecond, for 100 us.
    assert!(soon.lost > 0 && soon.lost < 40, "{}", soon.lost);
    assert!((150..270).contains(&late.lost), "{}", late.lost);
    for run in [soon, late] {
        assert_eq!(run.tally.all().requests + run.lost, REQUESTS);
    }
}

#[test]
fn a_server_added_again_before_its_failure_is_noticed_stays() {
    let change = |at_ns, action| Change {
        at_ns,
        server: 3,
        action,
    };
    let scenario = RackScenario {
        changes: vec![change(100_000, Action::Fail), change(150_000, Action::Add)],
        detection_ns: 100_000,
        balancer: BalancerSpec::Random,
        ..rack()
    };
    let sent = scenario.run(1).unwrap().sent;
    // The run takes about 2,000 us: without the server's return it would get a tenth of a share.
    assert!(10 * sent[3] > 9 * sent[0], "{sent:?}");
}

/// 9.6 requests a microsecond, none answered for 100 us.
#[test]
fn an_outage_of_the_switch_loses_what_reaches_it_and_no_more() {
    let outage = Some(Outage {
        at_ns: 1_000_000,
        for_ns: 100_000,
    });
    for (balancer, load_info) in [
        (BalancerSpec::PowerOf(2), LoadInfo::Int1),
        (BalancerSpec::PowerOf(2), LoadInfo::Exact),
        // Had the switch not forgotten its counters, the replies lost would take all places.
        (BalancerSpec::Jbsq(32), LoadInfo::Counters),
    ] {
        let scenario = RackScenario {
            balancer,
            load_info,
            outage,
            interval_ns: 100_000,
            ..rack()
        };
        let run = scenario.run(1).unwrap();
        // Requests in the meantime, and replies to what was on its way.
        assert!(
            (900..1_200).contains(&run.lost),
            "{balancer:?}: {}",
            run.lost
        );
        assert_eq!(run.tally.all().requests + run.lost, REQUESTS);
        let [before, meanwhile, after] = [9, 10, 12].map(|interval| run.answered[interval]);
        assert_eq!(meanwhile, 0, "{balancer:?}");
        assert!(after * 10 > before * 8 && after > 700, "{before}, {after}");
    }
}

#[test]
fn a_switch_that_begins_anew_has_forgotten_the_servers_of_requests() {
    let run = |outage| {
        let scenario = RackScenario {
            outage,
            packets: 2,
            packet_gap_ns: 20_000,
            ..rack()
        };
        scenario.run(1).unwrap()
    };
    let calm = run(None);
    assert_eq!((calm.broken, calm.lost), (0, 0));
    assert!(calm.answered.is_empty(), "no interval was asked for");
    // So short that hardly a packet reaches it. The second packets of 200 requests do afterwards.
    let out = run(Some(Outage {
        at_ns: 1_000_000,
        for_ns: 100,
    }));
    assert!((100..200).contains(&out.broken), "{}", out.broken);
    assert_eq!(out.tally.all().requests + out.broken + out.lost, REQUESTS);
}

#[test]
fn lost_packets_make_counters_drift_but_not_reports() {
    let lossy = |load_info| RackScenario {
        loss: 0.002,
        balancer: BalancerSpec::Jbsq(8),
        load_info,
        ..rack()
    };
    // JBSQ relies on the counters: each lost packet takes a place away forever, until the switch
    // holds everything.
    let run = lossy(LoadInfo::Counters).run(1).unwrap();
    assert!(run.lost > REQUESTS / 2, "{}", run.lost);
    let carried = RackScenario {
        balancer: BalancerSpec::PowerOf(2),
        ..lossy(LoadInfo::Int1)
    };
    let run = carried.run(1).unwrap();
    assert!((40..130).contains(&run.lost), "{}", run.lost);
    assert_eq!(run.tally.all().requests + run.lost, REQUESTS);
}

#[test]
fn servers_keep_their_own_policy() {
    let mix = Mix::named("hi").unwrap();
    let p99 = |policy| {
        let scenario = RackScenario {
            requests: 60_000,
            ..RackScenario::new(mix.clone(), 0.7, policy, 4, 4)
        };
        let run = scenario.run(1).unwrap();
        (run.tally.class(Mix::SHORT).p99_ns, run.preemptions)
    };
    let (fcfs, none) = p99(Scheduler::of(cfcfs::REGISTERED));
    let (preemptive, some) =
        p99(Scheduler::of(single_queue::REGISTERED).with_quantum(Nanos::from_micros(5)));
    assert!(10.0 * preemptive < fcfs, "{preemptive} {fcfs}");
    assert!(none == 0 && some > 1_000);
}

/// Two dispatchers of eight workers each: with few connections, one dispatcher has more of them and
/// is overloaded at a load that many connections spread evenly.
#[test]
fn few_flows_are_spread_unevenly_over_dispatchers() {
    let p99 = |flows| {
        let scenario = RackScenario {
            flows,
            balancer: BalancerSpec::ByFlow,
            network_ns: 0,
            ..RackScenario::new(
                Mix::named("exp").unwrap(),
                0.85,
                Scheduler::of(cfcfs::REGISTERED),
                2,
                8,
            )
        };
        let run = scenario.run(4).unwrap();
        let (few, many) = (run.sent[0].min(run.sent[1]), run.sent[0].max(run.sent[1]));
        (run.tally.all().p99_ns, many as f64 / few as f64)
    };
    let (uneven, ratio) = p99(Some(5));
    let (even, _) = p99(None);
    assert!(ratio > 1.2, "{ratio}");
    assert!(uneven > 3.0 * even, "{uneven} {even}");
}

#[test]
fn a_balancer_of_your_own_is_asked() {
    struct Last;
    impl Balancer for Last {
        fn choose(
            &mut self,
            _request: &Request,
            servers: &[usize],
            _loads: &LoadView,
            _random: &mut rand_xoshiro::Xoshiro256PlusPlus,
        ) -> Option<usize> {
            servers.last().copied()
        }
    }
    let scenario = RackScenario {
        load: 0.1,
        ..rack()
    };
    let run = scenario.run_with(Box::new(Last), 1).unwrap();
    assert_eq!(run.sent[..3], [0, 0, 0]);
    assert_eq!(run.tally.all().requests, REQUESTS);
}

#[test]
fn impossible_racks_are_refused() {
    let refused = |scenario: RackScenario| {
        let result = scenario.run(1);
        assert!(matches!(result, Err(SimError::Parameter { .. })));
    };
    refused(RackScenario {
        servers: 0,
        ..rack()
    });
    refused(RackScenario {
        loss: 1.0,
        ..rack()
    });
    refused(RackScenario {
        packets: 0,
        ..rack()
    });
    refused(RackScenario {
        packets: 65,
        ..rack()
    });
    refused(RackScenario {
        packet_gap_ns: u64::MAX / 2,
        ..packets()
    });
    refused(RackScenario {
        balancer: BalancerSpec::PowerOf(1 << 40),
        ..rack()
    });
    let mut large = rack();
    large.shape.capacity = 1 << 25;
    refused(large);
    refused(RackScenario {
        balancer: BalancerSpec::Jbsq(1),
        ..packets()
    });
}

#[test]
fn a_server_with_more_workers_gets_more_requests() {
    for (name, load_info) in [
        ("random", LoadInfo::Int1),
        ("power-of-2", LoadInfo::Int1),
        ("power-of-2", LoadInfo::Counters),
        ("shortest", LoadInfo::Counters),
    ] {
        let scenario = RackScenario {
            workers: vec![2, 2, 4, 8],
            balancer: name.parse().unwrap(),
            load_info,
            load: 0.8,
            ..rack()
        };
        let run = scenario.run(3).unwrap();
        let sent: u64 = run.sent.iter().sum();
        for (server, workers) in scenario.workers.iter().enumerate() {
            let share = run.sent[server] as f64 / sent as f64;
            let fair = *workers as f64 / 16.0;
            assert!((share / fair - 1.0).abs() < 0.1, "{name}: {:?}", run.sent);
        }
        assert_eq!(run.tally.refused(), 0, "{name}");
    }
}

#[test]
fn load_that_comes_late_or_never_misleads() {
    let p99 = |report_delay_ns, report_loss, views| {
        let scenario = RackScenario {
            load: 0.85,
            network_ns: 0,
            report_delay_ns,
            report_loss,
            views,
            ..rack()
        };
        let run = scenario.run(5).unwrap();
        assert_eq!(run.lost, 0);
        run.tally.all().p99_ns
    };
    let fresh = p99(0, 0.0, 1);
    assert!(p99(100_000, 0.0, 1) > 1.1 * fresh);
    assert!(p99(0, 0.9, 1) > fresh);
    // A client of a hundred has last heard long ago.
    assert!(p99(0, 0.0, 100) > 1.1 * fresh);
    let views = RackScenario { views: 0, ..rack() }.run(1);
    assert!(matches!(views, Err(SimError::Parameter { .. })));
}

#[test]
fn racks_of_racks_spread_over_all_servers_and_close_ones_get_nothing() {
    let mut scenario = RackScenario {
        servers: 16,
        balancer: "racks-4".parse().unwrap(),
        load: 0.7,
        ..rack()
    };
    let run = scenario.run(1).unwrap();
    assert_eq!(run.tally.all().requests, REQUESTS);
    let fair = run.sent.iter().sum::<u64>() / 16;
    assert!(
        run.sent.iter().all(|sent| sent.abs_diff(fair) < fair / 3),
        "{:?}",
        run.sent
    );
    // A whole rack, and one server of another.
    scenario.load = 0.4;
    scenario.changes = [4, 5, 6, 7, 12]
        .map(|server| Change {
            at_ns: 0,
            server,
            action: Action::Remove,
        })
        .to_vec();
    let run = scenario.run(1).unwrap();
    let got = |server: &usize| run.sent[*server] > 1;
    let served: Vec<_> = (0..16).filter(got).collect();
    assert_eq!(served, [0, 1, 2, 3, 8, 9, 10, 11, 13, 14, 15]);
}

/// Where servers have one queue for all classes, the load of a class alone says nothing of the
/// others that wait in the same queue.
#[test]
fn load_of_all_classes_together_is_what_a_shared_queue_has() {
    let class = |name, weight, us| Class::new(name, weight, ServiceTime::fixed(us).unwrap());
    let bimodal = Mix::new("b", vec![class("s", 0.9, 5.0), class("l", 0.1, 50.0)]).unwrap();
    let p99 = |mix: &Mix, load_info, one_type| {
        let policy = Scheduler::of(single_queue::REGISTERED).with_quantum(Nanos::from_micros(5));
        let scenario = RackScenario {
            load_info,
            one_type,
            requests: 2 * REQUESTS,
            ..RackScenario::new(mix.clone(), 0.85, policy, 8, 8)
        };
        scenario.run(1).unwrap().tally.all().p99_ns
    };
    for load_info in [LoadInfo::Int1, LoadInfo::Int3] {
        assert!(p99(&bimodal, load_info, true) < 0.9 * p99(&bimodal, load_info, false));
    }
    // They count all classes anyhow; and of a single class there is nothing to tell apart.
    let counters = [true, false].map(|one| p99(&bimodal, LoadInfo::Counters, one));
    assert!((counters[0] - counters[1]).abs() < f64::EPSILON);
    let single = Mix::named("exp").unwrap();
    for load_info in [LoadInfo::Int1, LoadInfo::Int2] {
        let [one, other] = [true, false].map(|one| p99(&single, load_info, one));
        assert!((one - other).abs() < f64::EPSILON);
    }
}

/// The least loaded server alone is known; once that is removed, it is another one.
#[test]
fn int2_knows_none_that_was_removed() {
    /// Chooses the one that is known; sees that it is open.
    struct Known;
    impl Balancer for Known {
        fn choose(
            &mut self,
            request: &Request,
            servers: &[usize],
            loads: &LoadView,
            random: &mut rand_xoshiro::Xoshiro256PlusPlus,
        ) -> Option<usize> {
            let known = loads.least(request.class);
            assert!(known.is_none_or(|known| servers.contains(&known)));
            shinjuku_sim::rack::balancer::Shortest.choose(request, servers, loads, random)
        }
    }
    for removed in [[0, 1, 2], [2, 3, 4], [0, 1, 4]] {
        let scenario = RackScenario {
            servers: 5,
            load_info: LoadInfo::Int2,
            load: 0.002,
            changes: removed
                .map(|server| Change {
                    at_ns: 100_000,
                    server,
                    action: Action::Remove,
                })
                .to_vec(),
            ..rack()
        };
        let run = scenario.run_with(Box::new(Known), 1).unwrap();
        assert_eq!(run.tally.all().requests, REQUESTS);
    }
}

/// Where all requests went to the one server that is known, the others would never be: RackSched's
/// switch sends one in four to any.
#[test]
fn int2_comes_to_know_the_others() {
    let p99 = |balancer, load_info| {
        let scenario = RackScenario {
            balancer,
            load_info,
            load: 0.6,
            ..rack()
        };
        let run = scenario.run(1).unwrap();
        let fair = run.sent.iter().sum::<u64>() / 4;
        let is_fair = |sent: &u64| sent.abs_diff(fair) < fair / 10;
        assert!(run.sent.iter().all(is_fair), "{:?}", run.sent);
        run.tally.all().p99_ns
    };
    let int2 = p99(BalancerSpec::Shortest, LoadInfo::Int2);
    let int1 = p99(BalancerSpec::PowerOf(2), LoadInfo::Int1);
    assert!(int2 > int1, "{int2}, {int1}");
}

/// Half of the servers have a third of the others' workers.
#[test]
fn unlike_servers_want_weights() {
    for (balancer, load_info) in [
        ("power-of-2", LoadInfo::Int1),
        ("power-of-2", LoadInfo::Counters),
        ("shortest", LoadInfo::Counters),
        ("shortest", LoadInfo::Int2),
        ("random", LoadInfo::Int1),
    ] {
        let p99 = |equal_weights| {
            let scenario = RackScenario {
                workers: vec![2, 2, 6, 6],
                equal_weights,
                balancer: balancer.parse().unwrap(),
                load_info,
                load: 0.7,
                ..rack()
            };
            scenario.run(2).unwrap().tally.all().p99_ns
        };
        let (weighed, alike) = (p99(false), p99(true));
        assert!(
            weighed < alike,
            "{balancer}, {load_info:?}: {weighed}, {alike}"
        );
    }
}
