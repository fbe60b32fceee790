use proptest::prelude::*;
use shinjuku_workload::{
    Arrival, Class, Length, Mix, Schedule, ScheduleConfig, ServiceTime, lindley,
};

use crate::statistics::assert_mean;

/// Mean waits, in ns, of independent runs without their first requests. Each run is much longer
/// than a busy period.
fn mean_waits(service: ServiceTime, load: f64, servers: usize) -> Vec<f64> {
    let mix = Mix::new("one", vec![Class::new("request", 1.0, service)]).unwrap();
    let length = Length::Requests(6_000);
    let run = |seed| {
        let config = ScheduleConfig::at_load(load, servers, length).with_seed(seed);
        let schedule = Schedule::generate(&mix, &config).unwrap();
        let waits = lindley::waits(schedule.arrivals(), servers);
        waits[1_000..].iter().map(|&wait| wait as f64).sum::<f64>() / 5_000.0
    };
    (0..200).map(run).collect()
}

#[test]
fn one_server_has_the_waits_of_theory() {
    // M/M/1: load / (1 - load) service times. M/D/1: half of it.
    let exponential = ServiceTime::exponential(10.0).unwrap();
    assert_mean("M/M/1", &mean_waits(exponential, 0.5, 1), 10_000.0);
    let fixed = ServiceTime::fixed(10.0).unwrap();
    assert_mean("M/D/1", &mean_waits(fixed, 0.6, 1), 7_500.0);
    // M/G/1, by Pollaczek and Khinchine: mean 1.9 us, second moment 10.9 us².
    let bimodal = ServiceTime::bimodal(1.0, 10.0, 0.1).unwrap();
    let expected = 10.9e6 / (2.0 * 1_900.0);
    assert_mean("M/G/1", &mean_waits(bimodal.clone(), 0.5, 1), expected);
    let formula = lindley::mean_wait_ns(0.5, bimodal.mean_ns(), bimodal.second_moment());
    assert!((formula / expected - 1.0).abs() < 1e-12, "{formula}");
    assert_eq!(lindley::mean_wait_ns(1.0, 1.0, 1.0), f64::INFINITY);
    assert!((lindley::mean_wait_ns(0.8, 10.0, 200.0) - 40.0).abs() < 1e-9);
}

/// Erlang's C formula: with two servers, a request waits with probability 2 load² / (1 + load), and
/// if so, for 1 / (2 (1 - load)) service times in the mean.
#[test]
fn two_servers_have_the_waits_of_theory() {
    let load: f64 = 0.6;
    let expected = 10_000.0 * (2.0 * load.powi(2) / (1.0 + load)) / (2.0 * (1.0 - load));
    let exponential = ServiceTime::exponential(10.0).unwrap();
    assert_mean("M/M/2", &mean_waits(exponential, load, 2), expected);
}

#[test]
fn records_say_when_each_request_finished() {
    let arrival = |at_ns, service_ns, class| Arrival {
        at_ns,
        service_ns,
        flow: 0,
        class,
    };
    let arrivals = [
        arrival(10, 100, 1),
        arrival(20, 5, 0),
        arrival(30, 50, 0),
        arrival(500, 1, 0),
    ];
    assert_eq!(lindley::waits_one_server(&arrivals), [0, 90, 85, 0]);
    assert_eq!(lindley::waits(&arrivals, 2), [0, 0, 0, 0]);
    let finishes = lindley::records(&arrivals, 1)
        .iter()
        .map(|r| r.finish_ns)
        .collect::<Vec<_>>();
    assert_eq!(finishes, [110, 115, 165, 501]);
    let first = lindley::records(&arrivals, 1)[0];
    assert_eq!(
        (first.arrival_ns, first.service_ns, first.class),
        (10, 100, 1)
    );
    assert!(lindley::waits(&[], 3).is_empty() && lindley::waits_one_server(&[]).is_empty());
}

#[test]
#[should_panic(expected = "in the order of their times")]
fn arrivals_out_of_order_are_refused() {
    let arrival = |at_ns| Arrival {
        at_ns,
        service_ns: 1,
        flow: 0,
        class: 0,
    };
    let _ = lindley::waits(&[arrival(2), arrival(1)], 2);
}

#[test]
#[should_panic(expected = "at least one server")]
fn no_servers_are_refused() {
    let _ = lindley::waits(&[], 0);
}

/// The recursion as Kiefer and Wolfowitz wrote it: the servers' remaining work, sorted, seen by
/// each arrival.
fn remaining_work(arrivals: &[Arrival], servers: usize) -> Vec<u64> {
    let mut work = vec![0_u64; servers];
    let mut now = 0;
    let mut waits = Vec::new();
    for arrival in arrivals {
        work.iter_mut()
            .for_each(|work| *work = work.saturating_sub(arrival.at_ns - now));
        now = arrival.at_ns;
        work.sort_unstable();
        waits.push(work[0]);
        work[0] += arrival.service_ns;
    }
    waits
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_recursions_agree(
        steps in prop::collection::vec((0_u64..20, 1_u64..40), 0..200),
        servers in 1_usize..6,
    ) {
        let mut at_ns = 0;
        let arrivals: Vec<_> = steps
            .iter()
            .map(|&(gap, service_ns)| {
                at_ns += gap;
                Arrival { at_ns, service_ns, flow: 0, class: 0 }
            })
            .collect();
        prop_assert_eq!(lindley::waits(&arrivals, servers), remaining_work(&arrivals, servers));
        prop_assert_eq!(lindley::waits(&arrivals, 1), lindley::waits_one_server(&arrivals));
    }
}
