//! A rack's status through the [`metrics`](https://docs.rs/metrics) facade, for whichever exporter
//! a program has installed. Feature `metrics`.
//!
//! [`publish`] hands over what [`Rack::status`](crate::Rack::status) tells, for example when a page
//! is scraped. The program in the kernel counts anyhow; a status reads its tables and stops no
//! packet. [`METRICS`] is the list of names and labels.

use metrics::{Key, KeyName, Label, Level, Metadata, Unit, with_recorder};

use crate::{ServerStatus, State, Status};

/// One metric: what is published under a name.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Metric {
    /// As the recorder gets it.
    pub name: &'static str,
    /// Whether the number only grows.
    pub is_counter: bool,
    /// The label that tells its series apart.
    pub label: &'static str,
    /// What it tells, in a sentence.
    pub description: &'static str,
}

const fn counter(name: &'static str, label: &'static str, description: &'static str) -> Metric {
    Metric {
        name,
        is_counter: true,
        label,
        description,
    }
}

const fn gauge(name: &'static str, label: &'static str, description: &'static str) -> Metric {
    Metric {
        is_counter: false,
        ..counter(name, label, description)
    }
}

const PACKETS: Metric = counter(
    "shinjuku_rack_packets_total",
    "cause",
    "Packets by what became of them, and what else the program counts.",
);
const SENT: Metric = counter(
    "shinjuku_rack_requests_sent_total",
    "server",
    "Requests sent to the server.",
);
const REPLIES: Metric = counter(
    "shinjuku_rack_replies_total",
    "server",
    "Replies from the server.",
);
const OUTSTANDING: Metric = gauge(
    "shinjuku_rack_requests_outstanding",
    "server",
    "Requests that the switch waits for now.",
);
const WORKERS: Metric = gauge("shinjuku_rack_workers", "server", "The server's weight.");
const OPEN: Metric = gauge(
    "shinjuku_rack_server_open",
    "server",
    "1 if the server gets requests; 0 if it drains, leaves or has failed.",
);

/// Everything that [`publish`] publishes.
pub const METRICS: &[Metric] = &[PACKETS, SENT, REPLIES, OUTSTANDING, WORKERS, OPEN];

/// Describes all metrics to the recorder that is installed now; once is enough.
pub fn describe() {
    with_recorder(|recorder| {
        for metric in METRICS {
            let (name, unit) = (KeyName::from_const_str(metric.name), Some(Unit::Count));
            if metric.is_counter {
                recorder.describe_counter(name, unit, metric.description.into());
            } else {
                recorder.describe_gauge(name, unit, metric.description.into());
            }
        }
    });
}

/// Hands a status over. Allocates.
pub fn publish(status: &Status) {
    for (cause, &count) in &status.causes {
        count_as(PACKETS, cause, count);
    }
    for server in &status.servers {
        let ServerStatus {
            name,
            state,
            workers,
            sent,
            replies,
            outstanding,
            ..
        } = server;
        count_as(SENT, name, *sent);
        count_as(REPLIES, name, *replies);
        set(OUTSTANDING, name, f64::from(*outstanding));
        set(WORKERS, name, f64::from(*workers));
        set(OPEN, name, f64::from(u8::from(*state == State::Open)));
    }
}

const METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, None);

fn count_as(metric: Metric, label: &str, value: u64) {
    let key = key(metric, label);
    with_recorder(|recorder| recorder.register_counter(&key, &METADATA).absolute(value));
}

fn set(metric: Metric, label: &str, value: f64) {
    let key = key(metric, label);
    with_recorder(|recorder| recorder.register_gauge(&key, &METADATA).set(value));
}

fn key(metric: Metric, label: &str) -> Key {
    let labels = vec![Label::new(metric.label, label.to_owned())];
    Key::from_parts(metric.name, labels)
}
