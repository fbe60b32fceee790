use std::time::Duration;

use shinjuku_workload::{
    Arrival, Arrivals, Length, Mix, Offered, Schedule, ScheduleConfig, WorkloadError,
};

use crate::statistics::assert_share;

fn at_load(load: f64, requests: usize) -> ScheduleConfig {
    ScheduleConfig::at_load(load, 2, Length::Requests(requests))
}

fn generate(config: &ScheduleConfig) -> Schedule {
    Schedule::generate(&Mix::named("hi").unwrap(), config).unwrap()
}

/// The requests without their times.
fn requests(schedule: &Schedule) -> Vec<Arrival> {
    schedule
        .arrivals()
        .iter()
        .map(|&arrival| Arrival {
            at_ns: 0,
            ..arrival
        })
        .collect()
}

#[test]
fn same_seed_same_schedule() {
    let config = at_load(0.7, 2_000);
    assert_eq!(generate(&config), generate(&config.clone()));
    assert_ne!(generate(&config), generate(&config.with_seed(2)));
}

/// A change of the random number generator, or of the order of draws, breaks comparisons with older
/// results.
#[test]
fn a_seed_means_the_same_for_ever() {
    let mix = Mix::named("tri").unwrap();
    let config = ScheduleConfig::at_load(0.5, 1, Length::Requests(4)).with_flows(8);
    let schedule = Schedule::generate(&mix, &config).unwrap();
    let seen = schedule.arrivals().iter();
    let seen: Vec<_> = seen
        .map(|seen| (seen.at_ns, seen.class, seen.service_ns, seen.flow))
        .collect();
    let pinned = [
        (81_163, 2, 100_000, 0),
        (164_781, 1, 10_000, 6),
        (191_524, 2, 100_000, 1),
        (230_764, 2, 100_000, 5),
    ];
    assert_eq!(seen, pinned);
}

#[test]
fn load_stretches_the_gaps_and_nothing_else() {
    let (low, high) = (
        generate(&at_load(0.35, 2_000)),
        generate(&at_load(0.7, 2_000)),
    );
    assert_eq!(requests(&low), requests(&high));
    for (low, high) in low.arrivals().iter().zip(high.arrivals()) {
        assert!(low.at_ns.abs_diff(2 * high.at_ns) <= 2, "{low:?} {high:?}");
    }
}

#[test]
fn the_streams_are_independent() {
    let config = at_load(0.7, 2_000);
    let base = generate(&config);
    // Other flows: same times, classes, services.
    let flows = generate(&config.clone().with_flows(7));
    let without_flow = |schedule: &Schedule| -> Vec<_> {
        schedule
            .arrivals()
            .iter()
            .map(|&arrival| Arrival { flow: 0, ..arrival })
            .collect()
    };
    assert_eq!(without_flow(&base), without_flow(&flows));
    assert_ne!(base, flows);
    // Another arrival process: same requests.
    let regular = generate(&config.clone().with_arrivals(Arrivals::deterministic()));
    assert_eq!(requests(&base), requests(&regular));
    // Another mix of the same shares, which draws other service times: same times, classes, flows.
    let scaled = r#"
        name = "noisy"
        classes = [
            { name = "short", weight = 995, service = { kind = "exponential", mean_us = 0.5 } },
            { name = "long", weight = 5, service = { kind = "exponential", mean_us = 500 } },
        ]"#;
    let noisy = Schedule::generate(&toml::from_str(scaled).unwrap(), &config).unwrap();
    for (base, noisy) in base.arrivals().iter().zip(noisy.arrivals()) {
        assert!(base.at_ns.abs_diff(noisy.at_ns) <= 1);
        assert_eq!((base.class, base.flow), (noisy.class, noisy.flow));
    }
    assert_ne!(
        base.arrivals()[0].service_ns,
        noisy.arrivals()[0].service_ns
    );
}

#[test]
fn arrivals_are_sorted_and_in_range() {
    let schedule = generate(&at_load(0.9, 20_000).with_flows(10));
    assert_eq!(schedule.arrivals().len(), 20_000);
    assert!(
        schedule
            .arrivals()
            .is_sorted_by_key(|arrival| arrival.at_ns)
    );
    for arrival in schedule.arrivals() {
        assert_eq!(
            arrival.service_ns,
            [500, 500_000][usize::from(arrival.class)]
        );
    }
    for flow in 0..10 {
        let hits = schedule
            .arrivals()
            .iter()
            .filter(|arrival| arrival.flow == flow)
            .count();
        assert_share("flow", hits, 20_000, 0.1);
    }
}

#[test]
fn the_load_drawn_is_the_load_asked_for() {
    // Of n exponential gaps and services, the ratio of sums has a standard error of sqrt(2 / n).
    let mix = Mix::named("exp").unwrap();
    let n = 50_000;
    for workers in [1, 4] {
        let config = ScheduleConfig::at_load(0.6, workers, Length::Requests(n));
        let drawn = Schedule::generate(&mix, &config)
            .unwrap()
            .drawn_load(workers)
            .unwrap();
        assert!(
            (drawn / 0.6 - 1.0).abs() < 5.0 * (2.0 / n as f64).sqrt(),
            "{drawn}"
        );
    }
    let rate = Offered::Rate { per_second: 1e6 };
    let config = ScheduleConfig::new(rate, Length::Requests(n));
    let span = Schedule::generate(&mix, &config).unwrap().span_ns();
    assert!(
        (span as f64 / (n as f64 * 1_000.0) - 1.0).abs() < 5.0 / (n as f64).sqrt(),
        "{span}"
    );
}

#[test]
fn a_duration_cuts_the_same_schedule() {
    let rate = Offered::Rate { per_second: 1e5 };
    let length = Length::lasting(Duration::from_millis(50));
    assert_eq!(length, Length::Millis(50));
    let timed = generate(&ScheduleConfig::new(rate, length));
    let n = timed.arrivals().len();
    assert!((n as f64 - 5_000.0).abs() < 5.0 * 5_000_f64.sqrt(), "{n}");
    assert!(timed.span_ns() <= 50_000_000);
    let counted = generate(&ScheduleConfig::new(rate, Length::Requests(n + 1)));
    assert_eq!(timed.arrivals(), &counted.arrivals()[..n]);
    assert!(counted.span_ns() > 50_000_000);
}

#[test]
fn a_service_time_is_at_least_a_nanosecond() {
    let mix: Mix = toml::from_str(
        r#"
        name = "tiny"
        classes = [{ name = "t", weight = 1, service = { kind = "exponential", mean_us = 0.001 } }]"#,
    )
    .unwrap();
    let schedule = Schedule::generate(&mix, &at_load(0.5, 1_000)).unwrap();
    assert!(
        schedule
            .arrivals()
            .iter()
            .all(|arrival| arrival.service_ns >= 1)
    );
    assert!(
        schedule
            .arrivals()
            .iter()
            .any(|arrival| arrival.service_ns == 1)
    );
}

#[test]
fn what_cannot_be_scheduled_is_refused() {
    let mix = Mix::named("fixed").unwrap();
    let good = at_load(0.5, 10);
    let rate = |per_second| Offered::Rate { per_second };
    for config in [
        at_load(0.0, 10),
        at_load(f64::NAN, 10),
        at_load(0.5, 0),
        ScheduleConfig::at_load(0.5, 0, Length::Requests(10)),
        good.clone().with_flows(0),
        ScheduleConfig::new(rate(0.0), Length::Requests(10)),
        ScheduleConfig::new(rate(10.0), Length::Millis(1)),
    ] {
        let refused = Schedule::generate(&mix, &config);
        assert!(
            matches!(refused, Err(WorkloadError::Parameter { .. })),
            "{config:?}: {refused:?}"
        );
    }
    for config in [
        at_load(0.5, Schedule::MAX_ARRIVALS + 1),
        ScheduleConfig::new(rate(1e6), Length::Millis(u64::MAX)),
    ] {
        let refused = Schedule::generate(&mix, &config);
        assert!(
            matches!(refused, Err(WorkloadError::TooMany { .. })),
            "{config:?}"
        );
    }
}

#[test]
fn configurations_survive_toml_and_have_defaults() {
    let text = r#"
        offered = { kind = "load", load = 0.5, workers = 2 }
        length = { requests = 10 }"#;
    assert_eq!(
        toml::from_str::<ScheduleConfig>(text).unwrap(),
        at_load(0.5, 10)
    );
    let bursts = Arrivals::mmpp(10.0, 0.1, 50.0).unwrap();
    let offered = Offered::Rate { per_second: 2.5e6 };
    let config = ScheduleConfig::new(offered, Length::Millis(20))
        .with_arrivals(bursts)
        .with_seed(9);
    let written = toml::to_string(&config).unwrap();
    assert_eq!(
        toml::from_str::<ScheduleConfig>(&written).unwrap(),
        config,
        "{written}"
    );
    for wrong in ["colour = 1", "flow = 3"] {
        assert!(
            toml::from_str::<ScheduleConfig>(&format!("{wrong}\n{text}")).is_err(),
            "{wrong}"
        );
    }
}
