//! What reaches an exporter is what the status says, under the names that are documented.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use metrics_exporter_prometheus::PrometheusBuilder;
use shinjuku_rack::metrics::{METRICS, describe, page, publish};
use shinjuku_rack::tables::Cause;
use shinjuku_rack::{Mac, Mode, ServerStatus, State, Status};

fn status() -> Status {
    let server = |number: u8, state| ServerStatus {
        name: format!("s{number}"),
        address: Ipv4Addr::new(10, 0, 0, number),
        mac: Mac([2, 0, 0, 0, 0, number]),
        state,
        failed: Vec::new(),
        workers: 8,
        sent: 100 + u64::from(number),
        replies: 90 + u64::from(number),
        outstanding: 10,
    };
    let causes = Cause::ALL.iter().zip(7..);
    Status {
        address: Ipv4Addr::LOCALHOST,
        interfaces: Vec::new(),
        mode: Mode::Generic,
        servers: vec![server(1, State::Open), server(2, State::Failed)],
        causes: causes
            .map(|(cause, count)| (cause.name().to_owned(), count))
            .collect(),
    }
}

#[test]
fn an_exporter_shows_the_status() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let exporter = recorder.handle();
    let mut status = status();
    let page = metrics::with_local_recorder(&recorder, || {
        describe();
        publish(&status);
        // Counters are set, not added to.
        status.servers[0].sent += 5;
        publish(&status);
        exporter.render()
    });
    for line in [
        r#"shinjuku_rack_requests_sent_total{server="s1"} 106"#,
        r#"shinjuku_rack_replies_total{server="s2"} 92"#,
        r#"shinjuku_rack_requests_outstanding{server="s1"} 10"#,
        r#"shinjuku_rack_workers{server="s2"} 8"#,
        r#"shinjuku_rack_server_open{server="s1"} 1"#,
        r#"shinjuku_rack_server_open{server="s2"} 0"#,
        r#"shinjuku_rack_packets_total{cause="requests"} 7"#,
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
    for metric in METRICS {
        let described = format!("# HELP {} {}", metric.name, metric.description);
        assert!(page.contains(&described), "{described}\n{page}");
    }
    let packets = page
        .lines()
        .filter(|line| line.starts_with("shinjuku_rack_packets_total{"));
    assert_eq!(packets.count(), Cause::ALL.len());
}

/// The same lines, whatever their order: the exporter's format is the reference.
#[test]
fn the_own_page_says_what_the_exporter_says() {
    let mut status = status();
    status.servers[0].name = "a \"quoted\" \\ name,\nof two lines".to_owned();
    let recorder = PrometheusBuilder::new().build_recorder();
    let exporter = recorder.handle();
    let theirs = metrics::with_local_recorder(&recorder, || {
        describe();
        publish(&status);
        exporter.render()
    });
    let lines = |page: &str| -> BTreeSet<String> {
        let lines = page.lines().filter(|line| !line.is_empty());
        lines.map(str::to_owned).collect()
    };
    assert_eq!(lines(&page(&status)), lines(&theirs));
}

#[test]
fn all_names_are_documented() {
    let manual = include_str!("../../../docs/rack.md");
    for metric in METRICS {
        let row = format!("| `{}` | `{}` |", metric.name, metric.label);
        assert!(manual.contains(&row), "{row}");
    }
}
