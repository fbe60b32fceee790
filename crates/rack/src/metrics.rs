//! A rack's status as metrics: a page for Prometheus, which `shinjuku-rack start` serves
//! ([`exporter`](crate::exporter)); and, with the feature `metrics`, through the
//! [`metrics`](https://docs.rs/metrics) facade, for whichever exporter a program has installed.
//!
//! [`METRICS`] is the list of names and labels; all of them are counts. The program in the kernel
//! counts anyhow; [`Rack::status`](crate::Rack::status) reads its tables and stops no packet.

use std::fmt::Write;

use crate::{State, Status};

/// One metric: what is published under a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Metric {
    /// As Prometheus, or the recorder, gets it.
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

/// Everything that there is.
pub const METRICS: &[Metric] = &[PACKETS, SENT, REPLIES, OUTSTANDING, WORKERS, OPEN];

/// The series of a metric: the label's value, and the number.
fn series(metric: Metric, status: &Status) -> Vec<(&str, u64)> {
    if metric == PACKETS {
        let causes = status.causes.iter();
        return causes
            .map(|(cause, count)| (cause.as_str(), *count))
            .collect();
    }
    let servers = status.servers.iter().map(|server| {
        let number = match metric {
            SENT => server.sent,
            REPLIES => server.replies,
            OUTSTANDING => server.outstanding.into(),
            WORKERS => server.workers.into(),
            _ => u64::from(server.state == State::Open),
        };
        (server.name.as_str(), number)
    });
    servers.collect()
}

/// The status in Prometheus' text format, version 0.0.4.
#[must_use]
pub fn page(status: &Status) -> String {
    let mut page = String::new();
    for &metric in METRICS {
        let Metric {
            name,
            label,
            description,
            is_counter,
        } = metric;
        let kind = if is_counter { "counter" } else { "gauge" };
        let mut line = |text: std::fmt::Arguments<'_>| {
            page.write_fmt(text)
                .expect("a string takes what is written");
        };
        line(format_args!("# HELP {name} {description}\n"));
        line(format_args!("# TYPE {name} {kind}\n"));
        for (value, number) in series(metric, status) {
            let value = escaped(value);
            line(format_args!("{name}{{{label}=\"{value}\"}} {number}\n"));
        }
    }
    page
}

/// A label's value: any text, in which these three are written otherwise.
fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

#[cfg(feature = "metrics")]
mod facade {
    use metrics::{Key, KeyName, Label, Level, Metadata, Unit, with_recorder};

    use super::{METRICS, series};
    use crate::Status;

    const METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, None);

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

    /// Hands a status over, for example when a page is scraped. Allocates.
    pub fn publish(status: &Status) {
        for metric in METRICS {
            for (value, number) in series(*metric, status) {
                let labels = vec![Label::new(metric.label, value.to_owned())];
                let key = Key::from_parts(metric.name, labels);
                with_recorder(|recorder| {
                    if metric.is_counter {
                        recorder.register_counter(&key, &METADATA).absolute(number);
                    } else {
                        recorder.register_gauge(&key, &METADATA).set(number as f64);
                    }
                });
            }
        }
    }
}

#[cfg(feature = "metrics")]
pub use facade::{describe, publish};
