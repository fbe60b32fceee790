//! An exporter gets the runtime's counts, under the names that are documented.

use std::collections::BTreeSet;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use shinjuku::metrics::{METRICS, Publisher};
use shinjuku::policy::ClassId;
use shinjuku::{ClassConfig, Runtime, handler_fn, preempt_point};

/// Serves 30 requests of class `get` and 2 of `range`, of which one fails; the page twice, without
/// and with a name.
fn pages() -> [String; 2] {
    let recorder = PrometheusBuilder::new().build_recorder();
    let exporter = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        let serve = |n: u64| {
            assert!(n < 1_000, "a request that fails");
            (0..n).for_each(|_| preempt_point());
            n
        };
        let runtime = Runtime::builder(handler_fn(serve))
            .workers(1)
            .class([ClassConfig::new("get"), ClassConfig::new("range")])
            .start()
            .unwrap();
        let handle = runtime.handle();
        for n in 0..30 {
            handle.submit(ClassId(0), n).unwrap().wait().unwrap();
        }
        assert!(handle.submit(ClassId(1), 999).unwrap().wait().is_ok());
        assert!(handle.submit(ClassId(1), 1_000).unwrap().wait().is_err());
        let unknown = handle.submit(ClassId(7), 0);
        assert!(unknown.is_err() || unknown.unwrap().wait().is_err());
        let (plain, named) = (
            Publisher::new(runtime.observer()),
            Publisher::new(runtime.observer()).label("runtime", "second"),
        );
        assert!(
            runtime
                .shutdown(Duration::from_secs(10))
                .statistics
                .is_some()
        );
        plain.publish();
        let first = exporter.render();
        named.publish();
        [first, exporter.render()]
    })
}

/// The value of the series whose line begins with `series`.
fn value(page: &str, series: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    let value = line.unwrap_or_else(|| panic!("{series} is not in\n{page}"));
    value.trim().parse().unwrap()
}

#[test]
fn an_exporter_shows_what_the_runtime_counted() {
    let [page, with_a_name] = pages();
    for (series, expected) in [
        ("shinjuku_requests_received_total ", 33.0),
        (
            "shinjuku_requests_refused_total{cause=\"unknown_class\"}",
            1.0,
        ),
        ("shinjuku_requests_refused_total{cause=\"queue_full\"}", 0.0),
        ("shinjuku_requests_finished_total{class=\"get\"}", 30.0),
        ("shinjuku_requests_finished_total{class=\"range\"}", 1.0),
        ("shinjuku_requests_failed_total{class=\"range\"}", 1.0),
        ("shinjuku_latency_seconds_count{class=\"get\"}", 30.0),
        (
            "shinjuku_latency_seconds_bucket{class=\"get\",le=\"+Inf\"}",
            30.0,
        ),
        ("shinjuku_slowdown_bucket{class=\"get\",le=\"+Inf\"}", 30.0),
        ("shinjuku_slowdown_count{class=\"range\"}", 1.0),
        ("shinjuku_queue_seconds_count{class=\"get\"}", 30.0),
        (
            "shinjuku_queue_seconds_bucket{class=\"get\",le=\"+Inf\"}",
            30.0,
        ),
    ] {
        assert_eq!(value(&page, series), expected, "{series}");
    }
    assert!(value(&page, "shinjuku_uptime_seconds ") > 0.0);
    let sum = value(&page, "shinjuku_latency_seconds_sum{class=\"get\"}");
    assert!(sum > 30.0 * 1e-7, "30 requests took {sum} s together");
    let queued = value(&page, "shinjuku_queue_seconds_sum{class=\"get\"}");
    assert!(queued > 0.0 && queued < sum, "{queued} s of {sum} s");
    let floor = |line: &&str| line.starts_with("shinjuku_quantum_floor_seconds{mechanism=");
    assert!(page.lines().any(|line| floor(&line)), "{page}");
    let quantum = "shinjuku_quantum_in_force_seconds{class=\"get\",mechanism=\"probe\"}";
    let floor = value(&page, "shinjuku_quantum_floor_seconds{mechanism=\"probe\"}");
    assert_eq!(
        value(&page, quantum),
        floor.max(5e-6),
        "the policy's is 5 us"
    );
    let named = "shinjuku_requests_finished_total{runtime=\"second\",class=\"get\"}";
    assert_eq!(value(&with_a_name, named), 30.0);
}

#[test]
fn buckets_grow_up_to_the_count() {
    let [page, _] = pages();
    for bucket in [
        "shinjuku_latency_seconds_bucket",
        "shinjuku_queue_seconds_bucket",
        "shinjuku_slowdown_bucket",
    ] {
        let prefix = format!("{bucket}{{class=\"get\",le=\"");
        let series = page.lines().filter_map(|line| line.strip_prefix(&prefix));
        let mut buckets: Vec<(f64, u64)> = series
            .map(|line| line.split_once("\"} ").unwrap())
            .map(|(end, number)| (end.parse().unwrap(), number.parse().unwrap()))
            .collect();
        buckets.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        assert!(buckets.len() > 10, "{bucket}: {buckets:?}");
        assert!(
            buckets.is_sorted_by_key(|&(_, number)| number),
            "{buckets:?}"
        );
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, 30)));
    }
}

/// All names of the runtime's metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let is_name = |symbol: char| symbol.is_ascii_lowercase() || symbol == '_';
    text.split(|symbol| !is_name(symbol))
        .filter(|word| word.starts_with("shinjuku_"))
        .collect()
}

#[test]
fn page_manual_and_dashboard_know_the_same_names() {
    let listed: BTreeSet<_> = METRICS.iter().map(|metric| metric.name).collect();
    assert_eq!(listed.len(), METRICS.len(), "a name stands twice");
    let [page, _] = pages();
    let published: BTreeSet<_> = page
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .filter(|name| !name.is_empty())
        .collect();
    assert_eq!(published, listed);
    assert_eq!(names(include_str!("../../docs/watching.md")), listed);
    let dashboard = names(include_str!("../../docs/grafana-dashboard.json"));
    let unknown: Vec<_> = dashboard.difference(&listed).collect();
    assert!(unknown.is_empty(), "the dashboard asks for {unknown:?}");
    assert!(dashboard.len() > 10);
}
