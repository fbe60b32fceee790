use proptest::prelude::*;
use shinjuku_workload::{Class, Mix, Record, RecordError, ServiceTime, Summary, nearest_rank};

fn record(class: u16, arrival_ns: u64, service_ns: u64, finish_ns: u64) -> Record {
    Record {
        arrival_ns,
        service_ns,
        finish_ns,
        class,
    }
}

fn mid() -> Mix {
    Mix::named("mid").unwrap()
}

#[test]
fn figures_of_a_run_worked_out_by_hand() {
    // Latencies 1..=1000 us, services 1 us, arrivals a us apart, latest first.
    let mut records: Vec<_> = (0..1_000_u64)
        .map(|i| record(Mix::SHORT, i * 1_000, 1_000, i * 1_000 + (i + 1) * 1_000))
        .collect();
    records.reverse();
    let summary = Summary::with_warm_up(&mid(), &records).unwrap();
    let all = &summary.all;
    assert_eq!(all.requests, 1_000);
    assert_eq!(
        (all.p50_ns, all.p99_ns, all.p999_ns),
        (500_000, 990_000, 999_000)
    );
    assert_eq!((all.p99_slowdown, all.p999_slowdown), (990.0, 999.0));
    assert_eq!((all.mean_ns, all.mean_slowdown), (500_500.0, 500.5));
    // From 0 to the last finish: 999 us + 1000 us.
    assert!(
        (all.throughput_per_second - 1_000.0 / 1_999e-6).abs() < 1e-3,
        "{all:?}"
    );
    assert_eq!(all.within_slo, None);
    assert_eq!(summary.class(Mix::SHORT), Some(all));
    assert_eq!(summary.class(Mix::LONG), None);

    // Without the first 50 by arrival, latencies are 51..=1000 us.
    let steady = Summary::of(&mid(), &records).unwrap().all;
    assert_eq!(steady.requests, 950);
    assert_eq!(steady.p50_ns, 525_000);
    assert_eq!(steady.mean_ns, 525_500.0);
    assert!(
        (steady.throughput_per_second - 950.0 / 1_949e-6).abs() < 1e-3,
        "{steady:?}"
    );
}

#[test]
fn classes_are_told_apart() {
    let slow = ServiceTime::fixed(100.0).unwrap();
    let classes = vec![
        Class::new("get", 1.0, ServiceTime::fixed(1.0).unwrap()).with_slo_us(2.0),
        Class::new("put", 1.0, ServiceTime::fixed(2.0).unwrap()),
        Class::new("scan", 1.0, slow),
    ];
    let mix = Mix::new("store", classes).unwrap();
    let records = [
        record(0, 0, 1_000, 1_000),
        record(2, 0, 100_000, 400_000),
        record(0, 500, 1_000, 2_500),
        record(0, 700, 1_000, 2_701),
    ];
    let summary = Summary::of(&mix, &records).unwrap();
    let names: Vec<_> = summary
        .classes
        .iter()
        .map(|class| class.name.as_str())
        .collect();
    assert_eq!(names, ["get", "scan"]);
    let get = summary.class(0).unwrap();
    assert_eq!((get.requests, get.p50_ns, get.p99_ns), (3, 2_000, 2_001));
    // A latency of exactly the SLO keeps to it.
    assert_eq!(get.within_slo, Some(2.0 / 3.0));
    assert_eq!(summary.all.within_slo, Some(2.0 / 3.0));
    let scan = summary.class(2).unwrap();
    assert_eq!(
        (scan.p50_ns, scan.p99_slowdown, scan.within_slo),
        (400_000, 4.0, None)
    );
    assert!((scan.throughput_per_second - 2_500.0).abs() < 1e-6);
    let text = toml::to_string(&summary).unwrap();
    assert_eq!(toml::from_str::<Summary>(&text).unwrap(), summary, "{text}");
}

#[test]
fn records_are_checked() {
    let good = record(0, 5, 1, 6);
    for (bad, error) in [
        (
            record(0, 5, 1, 4),
            RecordError::FinishBeforeArrival {
                index: 1,
                record: record(0, 5, 1, 4),
            },
        ),
        (
            record(0, 5, 0, 6),
            RecordError::NoService {
                index: 1,
                record: record(0, 5, 0, 6),
            },
        ),
        (
            record(2, 5, 1, 6),
            RecordError::UnknownClass {
                index: 1,
                record: record(2, 5, 1, 6),
            },
        ),
    ] {
        assert_eq!(Summary::of(&mid(), &[good, bad]), Err(error));
    }
    assert_eq!(Summary::of(&mid(), &[]), Err(RecordError::Empty));
    assert!(
        Summary::of(&mid(), &[record(0, 5, 1, 5)])
            .unwrap()
            .all
            .throughput_per_second
            .is_finite()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The definition: the smallest value that at least p of all values do not exceed.
    #[test]
    fn nearest_rank_is_by_definition(
        mut values in prop::collection::vec(0_u32..50, 1..2_500),
        permille in 1_usize..=1_000,
    ) {
        values.sort_unstable();
        let found = nearest_rank(&values, permille);
        let not_above = |bound| values.iter().filter(|&&value| value <= bound).count() * 1_000;
        let needed = permille * values.len();
        prop_assert!(not_above(found) >= needed);
        let smaller = values.iter().rev().find(|&&value| value < found);
        prop_assert!(smaller.is_none_or(|&smaller| not_above(smaller) < needed));
    }
}
