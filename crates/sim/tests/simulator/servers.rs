//! Servers in detail: exact agreement with recursions, what each overhead does, and
//! reproducibility.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shinjuku_policy::{CFcfs, Nanos, cfcfs, dfcfs, single_queue};
use shinjuku_sim::{
    Layout, Machine, Measure, Outcome, Overheads, Request, Sample, Scenario, Scheduler, Server,
    Shape, SimError, Until, predict, replicate,
};
use shinjuku_workload::{Arrivals, Length, Mix, Schedule, ScheduleConfig, lindley};

fn request(sent_ns: u64, service_ns: u64, tag: u64) -> Request {
    Request {
        sent_ns,
        service_ns,
        flow: tag,
        class: 0,
        tag,
    }
}

/// Serves all requests, which are in order, and returns when each (by its tag) ended.
fn serve(machine: &mut Machine, requests: &[Request]) -> Vec<u64> {
    let mut ends = vec![0; requests.len()];
    let mut note = |outcome| {
        if let Some(Outcome::Finished { request, at_ns }) = outcome {
            ends[request.tag as usize] = at_ns;
        }
    };
    for &request in requests {
        while machine.next_ns() <= request.sent_ns {
            note(machine.step());
        }
        note(machine.arrive(request.sent_ns, request));
    }
    while machine.next_ns() < u64::MAX {
        note(machine.step());
    }
    machine.check().unwrap();
    assert!(machine.is_empty());
    ends
}

fn machine(policy: Scheduler, shape: Shape) -> Machine {
    Machine::new(&policy, shape, 1).unwrap()
}

fn sq(quantum_ns: u64) -> Scheduler {
    Scheduler::of(single_queue::REGISTERED).with_quantum(Nanos(quantum_ns))
}

/// Request by request the ideal c-FCFS server is Kiefer and Wolfowitz's recursion.
#[test]
fn c_fcfs_is_the_recursion_to_the_nanosecond() {
    for workers in [1, 3, 16] {
        let mix = Mix::named("hi").unwrap();
        let config = ScheduleConfig::at_load(0.8, workers, Length::Requests(20_000));
        let schedule = Schedule::generate(&mix, &config).unwrap();
        let arrivals = schedule.arrivals();
        let requests: Vec<_> = (0..)
            .zip(arrivals)
            .map(|(tag, arrival)| request(arrival.at_ns, arrival.service_ns, tag))
            .collect();
        let ends = serve(
            &mut machine(Scheduler::of(cfcfs::REGISTERED), Shape::ideal(workers)),
            &requests,
        );
        let waits = lindley::waits(arrivals, workers);
        for ((arrival, wait), end) in arrivals.iter().zip(waits).zip(ends) {
            assert_eq!(end, arrival.at_ns + wait + arrival.service_ns);
        }
    }
}

#[test]
fn round_robin_by_hand() {
    let requests = [request(0, 250, 0), request(0, 100, 1), request(220, 50, 2)];
    let ends = serve(&mut machine(sq(100), Shape::ideal(1)), &requests);
    // 0: 0-100, 1: 100-200, 0: 200-300 (preempted: 2 waits), 2: 300-350, 0: 350-400.
    assert_eq!(ends, [400, 200, 350]);
}

#[test]
fn nothing_is_preempted_while_nothing_waits_and_the_overdue_at_once() {
    let requests = [request(0, 1_000, 0), request(730, 10, 1)];
    let ends = serve(&mut machine(sq(100), Shape::ideal(1)), &requests);
    assert_eq!(ends, [1_010, 740]);
}

#[test]
fn sharing_by_hand() {
    // One core: alone 0-100, shared 100-300 (0 has 100 left after 100 more of half speed...).
    let requests = [request(0, 200, 0), request(100, 50, 1)];
    let ends = serve(
        &mut machine(Scheduler::sharing(), Shape::ideal(1)),
        &requests,
    );
    assert_eq!(ends, [250, 200]);
    // Two cores are enough for two requests.
    let ends = serve(
        &mut machine(Scheduler::sharing(), Shape::ideal(2)),
        &requests,
    );
    assert_eq!(ends, [200, 150]);
}

/// One worker, and a dispatcher that works for so long at a time.
fn working(works_ns: u64, overheads: Overheads) -> Shape {
    Shape {
        works_ns,
        overheads,
        ..Shape::ideal(1)
    }
}

#[test]
fn a_dispatcher_that_works_by_hand() {
    // The worker has 0 until 1,000. The dispatcher runs 1 from 10 on, for 100, and then 2 whole.
    // 1 has 200 left, which the worker takes up when 0 has gone.
    let requests = [
        request(0, 1_000, 0),
        request(10, 300, 1),
        request(20, 50, 2),
    ];
    let shape = working(100, Overheads::IDEAL);
    let ends = serve(&mut machine(sq(10_000), shape), &requests);
    assert_eq!(ends, [1_000, 1_200, 160]);
    // Without: in order.
    let shape = working(0, Overheads::IDEAL);
    let ends = serve(&mut machine(sq(10_000), shape), &requests);
    assert_eq!(ends, [1_000, 1_300, 1_350]);
}

#[test]
fn a_dispatcher_that_works_leaves_when_the_worker_has_nothing() {
    // 0 has gone at 60: 1, of which the dispatcher has done 50, goes on at the worker.
    let requests = [request(0, 60, 0), request(10, 300, 1)];
    let shape = working(1_000, Overheads::IDEAL);
    let ends = serve(&mut machine(sq(10_000), shape), &requests);
    assert_eq!(ends, [60, 310]);
    // A switch takes 5, a message 20, saving 7. 0 comes to the dispatcher at 20 and to the worker
    // at 40, and has gone at 105. The code of 1 runs from 35 on, and has done 90 when word of that
    // comes at 125. 1 is saved at 132; a message and a switch later, 210 are left.
    let costs = Overheads {
        message_ns: 20,
        switch_ns: 5,
        preempt_receive_ns: 7,
        ..Overheads::IDEAL
    };
    let ends = serve(&mut machine(sq(10_000), working(1_000, costs)), &requests);
    assert_eq!(ends, [105, 132 + 20 + 5 + 210]);
}

#[test]
fn a_dispatcher_that_works_resumes_nothing() {
    // 1 is left at 110 and waits. 2 comes, and is begun by the dispatcher though 1 waits longer.
    let requests = [
        request(0, 5_000, 0),
        request(10, 300, 1),
        request(400, 100, 2),
    ];
    let shape = working(100, Overheads::IDEAL);
    let ends = serve(&mut machine(sq(10_000), shape), &requests);
    assert_eq!(ends, [5_000, 5_200, 500]);
}

/// Of requests that it can finish, the dispatcher is a worker more. Of long ones it does a slice.
#[test]
fn a_dispatcher_that_works_adds_to_the_capacity() {
    let run = |mix, works_ns| {
        let shape = working(works_ns, Overheads::IDEAL);
        let mix = Mix::named(mix).unwrap();
        let scenario = Scenario {
            shape,
            ..Scenario::new(mix, 1.3, sq(5_000), 1).with_requests(50_000)
        };
        scenario.run(3).unwrap()
    };
    let (idle, works) = (run("fixed", 0), run("fixed", 5_000));
    assert!(idle.growing && !works.growing);
    assert!(works.span_ns < idle.span_ns);
    // Five sixths of the work of `hi` are of requests that take 500 us.
    assert!(run("hi", 5_000).growing);
}

#[test]
fn a_dispatcher_that_works_is_refused_where_it_cannot() {
    let shape = working(100, Overheads::IDEAL);
    let refused = |policy: Scheduler, shape| {
        let error = Machine::new(&policy, shape, 1).err().unwrap().to_string();
        assert!(error.contains("works_ns"), "{error}");
    };
    refused(Scheduler::of(cfcfs::REGISTERED), shape);
    refused(Scheduler::sharing(), shape);
    let layout = Layout::Symmetric;
    refused(sq(100), Shape { layout, ..shape });
}

fn with(overheads: Overheads, workers: usize) -> Shape {
    Shape {
        overheads,
        ..Shape::ideal(workers)
    }
}

#[test]
fn overheads_add_up_for_a_lone_request() {
    let costs = Overheads {
        network_ns: 1,
        dispatch_ns: 10,
        message_ns: 100,
        switch_ns: 1_000,
        ..Overheads::IDEAL
    };
    let ends = serve(
        &mut machine(Scheduler::of(cfcfs::REGISTERED), with(costs, 1)),
        &[request(0, 10_000, 0)],
    );
    // Networker, message to the dispatcher, dispatch, message to the worker, switch, service.
    assert_eq!(ends, [1 + 100 + 10 + 100 + 1_000 + 10_000]);
}

#[test]
fn a_preemption_costs_what_its_parts_cost() {
    let costs = Overheads {
        preempt_send_ns: 1,
        preempt_delay_ns: 20,
        preempt_receive_ns: 300,
        ..Overheads::IDEAL
    };
    let requests = [request(0, 5_000, 0), request(10, 100, 1)];
    let ends = serve(&mut machine(sq(1_000), with(costs, 1)), &requests);
    // At 1000 the dispatcher sends; at 1021 it is taken; saved at 1321; the other until 1421; then
    // the rest.
    assert_eq!(ends, [1_421 + (5_000 - 1_021), 1_421]);
}

#[test]
fn a_preemption_that_misses_delays_the_next_request_alone() {
    let costs = Overheads {
        preempt_delay_ns: 500,
        preempt_receive_ns: 30,
        ..Overheads::IDEAL
    };
    let requests = [request(0, 1_200, 0), request(10, 100, 1)];
    let ends = serve(&mut machine(sq(1_000), with(costs, 1)), &requests);
    assert_eq!(ends, [1_200, 1_200 + 30 + 100]);
}

#[test]
fn probes_delay_a_preemption_by_their_distance_at_most() {
    let costs = Overheads {
        probe_interval_ns: 400,
        ..Overheads::IDEAL
    };
    let requests = [request(0, 5_000, 0), request(10, 100, 1)];
    let ends = serve(&mut machine(sq(1_000), with(costs, 1)), &requests);
    assert!((1_100..=1_500).contains(&ends[1]), "{ends:?}");
    assert_eq!(ends[0], 5_100);
}

#[test]
fn late_preemptions_come_late() {
    let costs = Overheads {
        late_share: 1.0,
        late_ns: 700,
        ..Overheads::IDEAL
    };
    let requests = [request(0, 5_000, 0), request(10, 100, 1)];
    let ends = serve(&mut machine(sq(1_000), with(costs, 1)), &requests);
    assert_eq!(ends, [5_100, 1_800]);
}

/// A staged request hides the round trip to the dispatcher.
#[test]
fn jbsq_hides_messages() {
    let costs = Overheads {
        message_ns: 100,
        ..Overheads::IDEAL
    };
    let requests: Vec<_> = (0..10).map(|tag| request(0, 1_000, tag)).collect();
    let end = |depth| {
        let shape = Shape {
            depth,
            ..with(costs, 1)
        };
        serve(
            &mut machine(Scheduler::of(cfcfs::REGISTERED), shape),
            &requests,
        )[9]
    };
    // Two messages at the start; with depth 1, two more between any two requests.
    assert_eq!(end(1), 200 + 10 * 1_000 + 9 * 200);
    assert_eq!(end(2), 200 + 10 * 1_000);
}

#[test]
fn one_dispatcher_limits_the_throughput() {
    let costs = Overheads {
        dispatch_ns: 500,
        ..Overheads::IDEAL
    };
    let requests: Vec<_> = (0..1_000).map(|tag| request(0, 1_000, tag)).collect();
    let ends = serve(
        &mut machine(Scheduler::of(cfcfs::REGISTERED), with(costs, 16)),
        &requests,
    );
    let last = *ends.iter().max().unwrap();
    assert_eq!(last, 1_000 * 500 + 1_000);
}

#[test]
fn a_full_server_refuses_and_says_so() {
    let shape = Shape {
        capacity: 2,
        ..Shape::ideal(1)
    };
    let mut server = machine(Scheduler::of(cfcfs::REGISTERED), shape);
    assert_eq!(server.arrive(0, request(0, 10, 0)), None);
    assert_eq!(server.arrive(0, request(0, 10, 1)), None);
    let third = request(0, 10, 2);
    assert_eq!(
        server.arrive(0, third),
        Some(Outcome::Refused { request: third })
    );
}

#[test]
fn a_policy_of_your_own_can_be_simulated() {
    let own = Scheduler::own("own", |parameters| {
        Ok(Box::new(CFcfs::new(parameters.capacity)?))
    });
    let mix = Mix::named("exp").unwrap();
    let run = |policy| {
        let scenario = Scenario::new(mix.clone(), 0.7, policy, 4).with_requests(5_000);
        scenario.run(3).unwrap().tally.all()
    };
    assert_eq!(run(own), run(Scheduler::of(cfcfs::REGISTERED)));
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let mix = Mix::named("hi").unwrap();
    let scenario = Scenario::new(mix, 0.7, sq(5_000), 4).with_requests(3_000);
    let until = Until::Precision {
        relative: 0.2,
        measure: Measure::MeanUs,
    };
    let run = || {
        replicate(
            |seed| scenario.run(seed).map(Sample::from),
            5,
            until,
            |_, _| {},
        )
    };
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(run).unwrap()
    };
    let (one, three) = (on(1), on(3));
    assert_eq!(one.all, three.all);
    assert_eq!(one.classes, three.classes);
    assert!(one.estimate(Measure::MeanUs, None).relative() <= 0.2 || one.all.len() == 256);
}

#[test]
fn more_replications_reach_the_precision_asked_for() {
    let mix = Mix::named("exp").unwrap();
    let scenario =
        Scenario::new(mix, 0.8, Scheduler::of(cfcfs::REGISTERED), 2).with_requests(20_000);
    let relative = 0.02;
    let until = Until::Precision {
        relative,
        measure: Measure::P99Us,
    };
    let run = |seed| scenario.run(seed).map(Sample::from);
    let mut rounds = 0;
    let result = replicate(run, 5, until, |_, _| rounds += 1).unwrap();
    assert!(result.estimate(Measure::P99Us, None).relative() <= relative);
    assert!(rounds > 1 && result.all.len() > 8, "{rounds}");
}

#[test]
fn all_contenders_meet_the_same_requests() {
    let mix = Mix::named("tri").unwrap();
    let work = |policy| {
        let scenario = Scenario::new(mix.clone(), 0.5, policy, 4).with_requests(2_000);
        let tally = scenario.run(11).unwrap().tally;
        [0, 1, 2].map(|class| tally.class(class).requests)
    };
    assert_eq!(
        work(Scheduler::of(cfcfs::REGISTERED)),
        work(Scheduler::of(dfcfs::REGISTERED))
    );
}

#[test]
fn bursts_wait_longer_at_the_same_rate() {
    let mix = Mix::named("exp").unwrap();
    let wait = |arrivals| {
        let scenario = Scenario {
            arrivals,
            ..Scenario::new(mix.clone(), 0.6, Scheduler::of(cfcfs::REGISTERED), 4)
        };
        scenario.run(2).unwrap().tally.all().mean_wait_ns
    };
    let bursts = Arrivals::mmpp(10.0, 0.1, 100.0).unwrap();
    assert!(wait(bursts) > 3.0 * wait(Arrivals::poisson()));
    assert!(wait(Arrivals::deterministic()) < wait(Arrivals::poisson()));
}

#[test]
fn an_overloaded_server_ends_and_counts_refusals() {
    let mix = Mix::named("fixed").unwrap();
    let mut scenario =
        Scenario::new(mix, 1.5, Scheduler::of(cfcfs::REGISTERED), 2).with_requests(20_000);
    scenario.shape.capacity = 1_000;
    let run = scenario.run(1).unwrap();
    let refused = run.tally.refused();
    // A third of the offered requests cannot be served.
    assert!((5_500..7_500).contains(&refused), "{refused}");
    assert_eq!(run.tally.all().requests + refused, 20_000);
}

#[test]
fn costs_load_from_results_and_bad_ones_are_refused() {
    let costs = |pairs: &[(&str, f64)]| -> BTreeMap<String, f64> {
        pairs
            .iter()
            .map(|(name, ns)| ((*name).to_owned(), *ns))
            .collect()
    };
    let given = costs(&[
        ("sim/switch", 41.6),
        ("sim/late-share", 0.01),
        ("switch/own", 9.9),
    ]);
    let overheads = Overheads::from_costs(&given).unwrap();
    let expected = Overheads {
        switch_ns: 42,
        late_share: 0.01,
        ..Overheads::IDEAL
    };
    assert_eq!(overheads, expected);
    let error = Overheads::from_costs(&costs(&[("sim/switch", -1.0)])).unwrap_err();
    assert!(error.to_string().contains("sim/switch = -1"), "{error}");
    assert!(Overheads::from_costs(&costs(&[("sim/late-share", 2.0)])).is_err());

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("results.json");
    std::fs::write(&path, r#"{"schema": 1, "costs": {"sim/dispatch": 120.0}}"#).unwrap();
    assert_eq!(Overheads::from_results(&path).unwrap().dispatch_ns, 120);
    std::fs::write(&path, "{}").unwrap();
    assert!(matches!(
        Overheads::from_results(&path),
        Err(SimError::Costs { .. })
    ));
}

#[test]
fn a_prediction_is_ordered_and_repeats() {
    let mix = Mix::named("hi").unwrap();
    let ideal = predict(&mix, 0.6, 2, 1, &sq(5_000), Overheads::IDEAL).unwrap();
    assert_eq!(
        ideal,
        predict(&mix, 0.6, 2, 1, &sq(5_000), Overheads::IDEAL).unwrap()
    );
    let short = &ideal.classes[usize::from(Mix::SHORT)];
    assert!(short.p50_us.value < short.p99_us.value && short.p99_us.value < short.p999_us.value);
    let fcfs = predict(
        &mix,
        0.6,
        2,
        1,
        &Scheduler::of(cfcfs::REGISTERED),
        Overheads::IDEAL,
    )
    .unwrap();
    assert!(fcfs.classes[0].p99_us.value > 10.0 * short.p99_us.value);
    assert!(!ideal.saturated);
}

#[test]
fn impossible_servers_are_refused() {
    let policy = || Box::new(CFcfs::new(8).unwrap());
    assert!(Server::new(policy(), Shape::ideal(0), 1).is_err());
    let shape = Shape {
        depth: 0,
        ..Shape::ideal(1)
    };
    assert!(Server::new(policy(), shape, 1).is_err());
    let endless = |overheads| {
        let shape = Shape {
            overheads,
            ..Shape::ideal(1)
        };
        Server::new(policy(), shape, 1).is_err()
    };
    for (ns, refused) in [
        (1_000_000_000, false),
        (1_000_000_001, true),
        (u64::MAX, true),
    ] {
        let with = |set: fn(&mut Overheads) -> &mut u64| {
            let mut overheads = Overheads::IDEAL;
            *set(&mut overheads) = ns;
            endless(overheads)
        };
        assert_eq!(with(|o| &mut o.network_ns), refused);
        assert_eq!(with(|o| &mut o.dispatch_ns), refused);
        assert_eq!(with(|o| &mut o.message_ns), refused);
        assert_eq!(with(|o| &mut o.switch_ns), refused);
        assert_eq!(with(|o| &mut o.preempt_send_ns), refused);
        assert_eq!(with(|o| &mut o.preempt_delay_ns), refused);
        assert_eq!(with(|o| &mut o.preempt_receive_ns), refused);
        assert_eq!(with(|o| &mut o.probe_interval_ns), refused);
        assert_eq!(with(|o| &mut o.late_ns), refused);
    }
    let mix = || Mix::named("exp").unwrap();
    let least = Scenario::new(mix(), 1e-6, Scheduler::of(cfcfs::REGISTERED), 1).with_requests(100);
    assert!(least.run(1).is_ok());
    for load in [
        0.0,
        -1.0,
        0.99e-6,
        f64::MIN_POSITIVE,
        f64::NAN,
        f64::INFINITY,
    ] {
        assert!(
            Scenario::new(mix(), load, Scheduler::of(cfcfs::REGISTERED), 1)
                .run(1)
                .is_err()
        );
    }
    let none = Scenario::new(mix(), 0.5, Scheduler::of(cfcfs::REGISTERED), 1).with_requests(0);
    assert!(none.run(1).is_err());
}

#[test]
fn a_prediction_tells_when_costs_saturate_the_server() {
    let mix = Mix::named("exp").unwrap();
    let saturated = |load, overheads| {
        predict(
            &mix,
            load,
            2,
            1,
            &Scheduler::of(cfcfs::REGISTERED),
            overheads,
        )
        .unwrap()
        .saturated
    };
    let mean_ns = mix.mean_ns();
    let switch = Overheads {
        switch_ns: 500,
        ..Overheads::IDEAL
    };
    assert!(0.9 * (mean_ns + 500.0) / mean_ns > 1.0);
    assert!(saturated(0.9, switch));
    assert!(!saturated(0.9, Overheads::IDEAL));
    // The dispatcher alone: 1.8 requests arrive in a mean service time, and each takes a share of
    // its time.
    let dispatch = |share: f64| Overheads {
        dispatch_ns: (share * mean_ns) as u64,
        ..Overheads::IDEAL
    };
    assert!(saturated(0.9, dispatch(0.6)));
    assert!(!saturated(0.6, dispatch(0.4)));
}

#[test]
fn a_long_tail_does_not_look_like_saturation() {
    let mix = Mix::named("hi").unwrap();
    for load in [0.5, 0.8] {
        for policy in [
            Scheduler::of(cfcfs::REGISTERED),
            sq(5_000),
            Scheduler::sharing(),
        ] {
            let prediction = predict(&mix, load, 2, 1, &policy, Overheads::IDEAL).unwrap();
            assert!(!prediction.saturated, "{load} {policy:?}");
        }
    }
}

#[test]
fn a_machine_has_other_random_numbers_than_its_requests() {
    let given = Arc::new(AtomicU64::new(0));
    let note = Arc::clone(&given);
    let policy = Scheduler::own("noted", move |parameters| {
        note.store(parameters.seed, Ordering::Relaxed);
        Ok(Box::new(CFcfs::new(parameters.capacity)?))
    });
    let scenario = Scenario::new(Mix::named("exp").unwrap(), 0.5, policy, 2).with_requests(10);
    for seed in [1, 7] {
        scenario.run(seed).unwrap();
        assert_ne!(given.load(Ordering::Relaxed), seed);
    }
}

#[test]
fn a_prediction_knows_the_depth() {
    let mix = Mix::named("exp").unwrap();
    let costs = Overheads {
        message_ns: 400,
        ..Overheads::IDEAL
    };
    let median = |depth| {
        let prediction = predict(
            &mix,
            0.5,
            1,
            depth,
            &Scheduler::of(cfcfs::REGISTERED),
            costs,
        )
        .unwrap();
        assert!(!prediction.saturated);
        prediction.all.p50_us
    };
    // A staged request need not wait for two messages when the one before it ends.
    let (alone, staged) = (median(1), median(2));
    assert!(staged.value + staged.half_width < alone.value - alone.half_width);
    assert!(predict(&mix, 0.5, 1, 0, &Scheduler::of(cfcfs::REGISTERED), costs).is_err());
}
