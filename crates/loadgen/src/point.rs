//! The results at one load: the figures, and the warnings that belong to them.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::plan::Load;
use crate::record::Tally;

/// One load, one repetition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// What was offered.
    pub load: Load,
    /// The seed.
    pub seed: u64,
    /// How long the measurement lasted, in seconds, warm-up excluded.
    pub seconds: f64,
    /// Requests per second that were due.
    pub offered_rps: f64,
    /// All classes together.
    pub all: Figures,
    /// Each class.
    pub classes: Vec<ClassFigures>,
    /// Each class on the connection that only measures, if there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probe: Vec<ClassFigures>,
    /// The client's own figures.
    pub client: ClientFigures,
    /// Warnings to know before believing the figures.
    pub marks: Vec<Mark>,
}

/// The figures of one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassFigures {
    /// Its name.
    pub name: String,
    /// Its figures.
    pub figures: Figures,
}

/// Figures of requests that were due during the measurement.
///
/// Latency counts from the intended moment (while saturating, from the sending). Requests that
/// timed out, or had no answer at the end, count with their age when they were given up, so that a
/// percentile is never too low for them. Errors, and requests lost or never sent, do not count.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// Requests that were due.
    pub due: u64,
    /// Requests answered with something other than an error.
    pub answered: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Requests that went down with their connection, or met an error of the socket.
    pub lost: u64,
    /// Requests that waited longer than the time-out.
    pub timed_out: u64,
    /// Requests without an answer at the end.
    pub unanswered: u64,
    /// Requests not sent: too many were under way, or no connection was left.
    pub unsent: u64,
    /// Answers per second, errors excluded, whenever their requests were due.
    pub throughput_rps: f64,
    /// Mean latency, us.
    pub mean_us: Option<f64>,
    /// Median latency, us.
    pub p50_us: Option<f64>,
    /// 90th percentile, us.
    pub p90_us: Option<f64>,
    /// 99th percentile, us.
    pub p99_us: Option<f64>,
    /// 99.9th percentile, us.
    pub p999_us: Option<f64>,
    /// Longest, us.
    pub max_us: Option<f64>,
    /// Median of latency over the class's median without load.
    pub p50_slowdown: Option<f64>,
    /// Its 99th percentile.
    pub p99_slowdown: Option<f64>,
    /// Its 99.9th percentile.
    pub p999_slowdown: Option<f64>,
    /// The first errors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub first_errors: Vec<String>,
}

/// The client's own figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientFigures {
    /// The share of the requests that the client sent later than the threshold.
    pub late_share: f64,
    /// How much later than intended the client sent requests, 99th percentile, us.
    pub late_p99_us: f64,
    /// Connections that were open when the load began.
    pub connections: usize,
    /// Connections that could not be opened.
    pub refused_connections: usize,
    /// Connections lost during the measurement.
    pub lost_connections: usize,
    /// Replies that belong to no request.
    pub stray_replies: u64,
    /// Replies that break the protocol.
    pub malformed_replies: u64,
    /// The first errors that belong to no request: the server's, and the sockets'.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub first_errors: Vec<String>,
}

/// A warning to know before believing the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// The client sent more than 1 % of the requests late: part of what p99 shows is the client's.
    Behind,
    /// The server did not keep up: figures depend on how long it was measured.
    Saturated,
    /// Errors instead of answers, or when connections were opened.
    Errors,
    /// Requests or connections were lost, refused, timed out or unanswered.
    Losses,
    /// The measurement was interrupted: it is shorter than asked for, and its last requests had
    /// little time to be answered.
    Partial,
}

impl Mark {
    /// The mark's letter in tables.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::Behind => 'L',
            Self::Saturated => 'S',
            Self::Errors => 'E',
            Self::Losses => 'X',
            Self::Partial => 'P',
        }
    }

    /// What the letter means.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Behind => "the client was late with more than 1 % of the requests",
            Self::Saturated => "the server did not keep up",
            Self::Errors => "error replies, or errors of sockets",
            Self::Losses => {
                "requests or connections lost, refused, timed out, unanswered or not sent"
            }
            Self::Partial => "partial: interrupted before its end",
        }
    }

    /// All marks.
    pub const ALL: [Self; 5] = [
        Self::Behind,
        Self::Saturated,
        Self::Errors,
        Self::Losses,
        Self::Partial,
    ];
}

/// The least share of late requests that is marked.
const BEHIND: f64 = 0.01;
/// The throughput, as a share of the offered load, below which a server did not keep up.
const KEPT_UP: f64 = 0.95;

impl Point {
    /// The marks for these figures, whether or not the measurement was interrupted.
    pub(crate) fn judge(&self, interrupted: bool) -> Vec<Mark> {
        let Figures {
            errors,
            lost,
            timed_out,
            unanswered,
            unsent,
            ..
        } = self.all;
        let probe = |figure: fn(&Figures) -> u64| {
            let figures = self.probe.iter().map(|one| figure(&one.figures));
            figures.sum::<u64>()
        };
        let client = &self.client;
        let open_loop = matches!(self.load, Load::Rate(_));
        let behind = open_loop && client.late_share > BEHIND;
        let kept_up = self.all.throughput_rps >= KEPT_UP * self.offered_rps;
        let lost = lost
            + timed_out
            + unanswered
            + unsent
            + probe(|one| one.lost + one.timed_out + one.unanswered + one.unsent)
            + client.malformed_replies
            + (client.refused_connections + client.lost_connections) as u64;
        let marks = [
            behind,
            open_loop && (unsent > 0 || !kept_up),
            errors + probe(|one| one.errors) > 0 || !client.first_errors.is_empty(),
            lost > 0,
            interrupted,
        ];
        let all = Mark::ALL.into_iter().zip(marks);
        all.filter_map(|(mark, deserved)| deserved.then_some(mark))
            .collect()
    }
}

impl Figures {
    /// The fates of the requests, in words, if some were due and none was answered.
    #[must_use]
    pub fn none_answered(&self) -> Option<String> {
        if self.answered > 0 || self.due == 0 {
            return None;
        }
        let fates = [
            (self.errors, "answered with an error"),
            (self.lost, "lost"),
            (self.timed_out, "timed out"),
            (self.unanswered, "unanswered at the end"),
            (self.unsent, "not sent"),
        ];
        let fates = fates.iter().filter(|(count, _)| *count > 0);
        let fates: Vec<_> = fates
            .map(|(count, fate)| format!("{count} {fate}"))
            .collect();
        Some(format!(
            "none of {} requests was answered: {}",
            self.due,
            fates.join(", ")
        ))
    }

    /// The figures of some classes together, each with its median without load in ns where known.
    pub(crate) fn of(tallies: &[(&Tally, Option<f64>)], seconds: f64) -> Self {
        let sum = |field: fn(&Tally) -> u64| tallies.iter().map(|(one, _)| field(one)).sum::<u64>();
        let mut latency = crate::record::histogram();
        for (tally, _) in tallies {
            latency += &tally.latency;
        }
        let some = !latency.is_empty();
        let at = |quantile| some.then(|| latency.value_at_quantile(quantile) as f64 / 1e3);
        let slowdown = slowdown(tallies);
        let slower = |quantile| {
            let slowdown = slowdown.as_ref()?;
            Some(slowdown.value_at_quantile(quantile) as f64 / SLOWDOWN_UNIT)
        };
        Self {
            due: sum(|one| one.due),
            answered: sum(|one| one.answered),
            errors: sum(|one| one.errors),
            lost: sum(|one| one.lost),
            timed_out: sum(|one| one.timed_out),
            unanswered: sum(|one| one.unanswered),
            unsent: sum(|one| one.unsent),
            throughput_rps: sum(|one| one.completed) as f64 / seconds,
            mean_us: some.then(|| latency.mean() / 1e3),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: some.then(|| latency.max() as f64 / 1e3),
            p50_slowdown: slower(0.5),
            p99_slowdown: slower(0.99),
            p999_slowdown: slower(0.999),
            first_errors: (tallies.iter())
                .flat_map(|(one, _)| one.errors_shown.clone())
                .collect(),
        }
    }
}

/// Slowdowns are counted in thousandths.
const SLOWDOWN_UNIT: f64 = 1e3;

/// Latency over the median without load; `None` if a class with requests has no known median.
fn slowdown(tallies: &[(&Tally, Option<f64>)]) -> Option<Histogram<u64>> {
    let mut all = crate::record::histogram();
    for (tally, unloaded) in tallies {
        if tally.latency.is_empty() {
            continue;
        }
        let unloaded = (*unloaded)?;
        for step in tally.latency.iter_recorded() {
            let slowdown = step.value_iterated_to() as f64 / unloaded * SLOWDOWN_UNIT;
            all.saturating_record_n(slowdown.round() as u64, step.count_at_value());
        }
    }
    (!all.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{GivenUp, Record, Sent};

    fn point(load: Load) -> Point {
        Point {
            load,
            seed: 1,
            seconds: 1.0,
            offered_rps: 1000.0,
            all: Figures {
                due: 1000,
                answered: 1000,
                throughput_rps: 990.0,
                ..Figures::default()
            },
            classes: Vec::new(),
            probe: Vec::new(),
            client: ClientFigures::default(),
            marks: Vec::new(),
        }
    }

    #[test]
    fn a_client_behind_its_schedule_says_so_and_a_closed_loop_has_none() {
        let client = ClientFigures {
            late_share: 0.02,
            ..ClientFigures::default()
        };
        let of = |load| {
            let client = client.clone();
            Point {
                client,
                ..point(load)
            }
            .judge(false)
        };
        assert_eq!(of(Load::Rate(1000.0)), [Mark::Behind]);
        assert_eq!(of(Load::Saturate(1)), []);
    }

    #[test]
    fn a_server_that_answers_less_than_it_is_asked_is_saturated() {
        let mut slow = point(Load::Rate(1000.0));
        assert_eq!(slow.judge(false), []);
        slow.all.throughput_rps = 900.0;
        assert_eq!(slow.judge(false), [Mark::Saturated]);
        assert_eq!(slow.judge(true), [Mark::Saturated, Mark::Partial]);
    }

    #[test]
    fn only_requests_due_in_the_window_are_measured() {
        let mut record = Record::new(1, 1_000..2_000, 100);
        for due_ns in [999, 1_000, 1_999, 2_000] {
            let request = Sent { due_ns, tally: 0 };
            record.sent(request, due_ns + 101);
            record.answered(request, due_ns + 500, None);
        }
        let never = Sent {
            due_ns: 1_500,
            tally: 0,
        };
        record.sent(never, 1_500);
        record.given_up(never, 11_500, GivenUp::End);
        let tally = &record.tallies[0];
        assert_eq!((tally.due, tally.answered, tally.unanswered), (3, 2, 1));
        // Two answers came in the window: to the first request, which was due before it, and to the
        // second.
        assert_eq!(tally.completed, 2);
        assert_eq!(record.late, 2);
        assert_eq!((tally.latency.len(), tally.latency.max() / 10), (3, 1_000));
    }

    #[test]
    fn slowdown_needs_every_class_without_load() {
        let mut record = Record::new(2, 0..1_000_000, 0);
        for (tally, latency) in [(0, 100), (1, 40_000)] {
            let request = Sent { due_ns: 10, tally };
            record.sent(request, 10);
            record.answered(request, 10 + latency, None);
        }
        let of = |long| {
            let tallies = [(&record.tallies[0], Some(50.0)), (&record.tallies[1], long)];
            Figures::of(&tallies, 1.0).p99_slowdown
        };
        assert_eq!(of(None), None);
        // 2 and 4: the percentile is the larger.
        assert_eq!(of(Some(10_000.0)).map(f64::round), Some(4.0));
    }
}
