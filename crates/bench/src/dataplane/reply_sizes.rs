//! Figure 7c of the Shinjuku paper in kind: requests of 64 bytes, and replies of more and more. On
//! one thread, runtime and bare device; between two processes over memif, and over the kernel's
//! UDP, with many requests under way.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use shinjuku_bench_dataplane::{Calls, LONGEST_PAYLOAD, Rate, Rates};
use shinjuku_plot::{Figure, Point, Series, Table, XAxis, YAxis};
use shinjuku_workload::repeat::Spread;

use super::round_trips::Contender;
use super::server::{Kind, Over, Server};
use super::{Bench, stages};
use crate::harness::{Runs, Section, Session};
use crate::report::{BARS, or_dash};

/// Bytes of a reply's UDP payload.
const REPLIES: [u16; 6] = [64, 128, 256, 512, 1024, LONGEST_PAYLOAD];
const QUICK: [u16; 4] = [64, 256, 1024, LONGEST_PAYLOAD];
/// Requests under way between two processes.
const WINDOW: u16 = 64;

/// Stages measured on one thread, and the contenders in two processes.
const STAGES: [&str; 2] = ["raw", "runtime"];
const PROCESSES: [Contender; 3] = [
    ("memif, bare loop", Over::Memif, Kind::Raw),
    ("memif, runtime", Over::Memif, Kind::Runtime),
    ("kernel UDP, runtime", Over::Udp, Kind::Runtime),
];

/// What was measured for all lengths of replies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplySizes {
    /// The device of what is on one thread: `net_ring`, or `memory` without libdpdk.
    pub wire: String,
    /// Bytes of a reply's UDP payload.
    pub replies: Vec<u16>,
    /// On one thread: each contender's repetitions for each length of replies.
    pub one_thread: Vec<Vec<Runs<Rates>>>,
    /// Between two processes: each contender's repetitions, with all lengths in each.
    pub processes: Vec<Runs<Vec<Calls>>>,
}

fn replies(bench: &Bench) -> &'static [u16] {
    if bench.quick { &QUICK } else { &REPLIES }
}

fn processes(bench: &Bench) -> Vec<Contender> {
    let has_memif = bench.program.dpdk.is_some();
    let possible = |(_, over, _): &Contender| has_memif || *over != Over::Memif;
    PROCESSES.into_iter().filter(possible).collect()
}

/// About how long it takes.
pub fn expected(bench: &Bench, session: &Session) -> Duration {
    let replies = replies(bench).len();
    session.all(bench.expected(1), STAGES.len() * replies)
        + session.all(bench.of_two(replies), processes(bench).len())
}

/// Measures all in turn, repetition by repetition: first what is on one thread, then what is
/// between two processes.
///
/// # Errors
/// It was interrupted.
pub fn measure(bench: &Bench, session: &mut Session) -> Result<ReplySizes> {
    let replies = replies(bench);
    let wire = bench.program.wire();
    let [server_core, client_core] = bench.cores;
    let mut one_thread = STAGES.map(|_| Vec::new());
    for &reply in replies {
        let point = format!("replies of {reply} bytes, one thread");
        let (each, name) = (bench.expected(1), |stage: &&str| format!("{wire}, {stage}"));
        let runs = session.interleave(&point, &mut STAGES.clone(), name, each, |stage, _| {
            let rates = bench.program.rates(stage, bench.seconds);
            rates.cores(&[client_core]).reply(reply).run().map(Some)
        })?;
        for (all, runs) in one_thread.iter_mut().zip(runs) {
            all.push(runs);
        }
    }
    let (each, name) = (bench.of_two(replies.len()), |one: &Contender| {
        one.0.to_owned()
    });
    let call = |&mut (_, over, kind): &mut Contender, _| {
        let mut server = Server::start(&bench.program, over, kind, server_core)?;
        let calls = server.call(WINDOW, replies, bench.seconds, client_core)?;
        Ok(Some(calls))
    };
    let point = "replies of all lengths, two processes";
    let processes = session.interleave(point, &mut processes(bench), name, each, call)?;
    Ok(ReplySizes {
        wire: wire.to_owned(),
        replies: replies.to_vec(),
        one_thread: one_thread.into(),
        processes,
    })
}

/// A contender's line: replies a second for each length, by median bursts and by all.
struct Line {
    name: String,
    rates: Vec<Option<Spread>>,
    sustained: Vec<Option<Spread>>,
}

impl ReplySizes {
    fn lines(&self) -> Vec<Line> {
        let one_thread = self.one_thread.iter().map(|of_all| {
            let rates = |value: fn(&Rate) -> f64| {
                let of_one = |rates: &Rates| rates.dispatchers.first().map(value);
                of_all.iter().map(|runs| runs.spread(of_one)).collect()
            };
            Line {
                name: of_all
                    .first()
                    .map_or_else(String::new, |runs| runs.name.clone()),
                rates: rates(Rate::median),
                sustained: rates(|rate| rate.sustained),
            }
        });
        let processes = self.processes.iter().map(|runs| {
            let rates = |value: fn(&Rate) -> f64| {
                let of = |reply: &u16| {
                    runs.spread(|calls| {
                        let calls = calls.iter().find(|calls| calls.reply == *reply)?;
                        Some(value(&calls.rate))
                    })
                };
                self.replies.iter().map(of).collect()
            };
            Line {
                name: runs.name.clone(),
                rates: rates(Rate::median),
                sustained: rates(|rate| rate.sustained),
            }
        });
        one_thread.chain(processes).collect()
    }

    /// Replies and bytes a second, as tables and lines.
    pub fn section(&self) -> Section {
        let lines = self.lines();
        let mut header = vec!["bytes of a reply".to_owned()];
        header.extend(lines.iter().map(|line| line.name.clone()));
        header.extend(
            [
                "runtime of raw (all bursts)",
                "of the bare loop (all bursts)",
            ]
            .map(str::to_owned),
        );
        let rates = Table::new("replies a second, in millions", header.clone());
        let bytes = Table::new("bytes of replies a second, in millions", header);
        let mut tables = [(rates, false), (bytes, true)].map(|(mut table, bytes)| {
            for (at, &reply) in self.replies.iter().enumerate() {
                let factor = if bytes { f64::from(reply) } else { 1.0 };
                let median = |line: &Line| Some(line.rates[at]?.median * factor / 1e6);
                let of = |over: &str, under: &str| {
                    let find = |name: &str| lines.iter().find(|line| line.name == name);
                    let shares = find(over).zip(find(under)).and_then(|(over, under)| {
                        let share = |over: &Line, rates: fn(&Line) -> &[Option<Spread>]| {
                            Some(100.0 * rates(over)[at]?.median / rates(under)[at]?.median)
                        };
                        let medians = share(over, |line| &line.rates)?;
                        Some((medians, share(over, |line| &line.sustained)?))
                    });
                    shares.map_or_else(
                        || "-".to_owned(),
                        |(medians, all)| format!("{medians:.0} % ({all:.0} %)"),
                    )
                };
                let mut row = vec![reply.to_string()];
                let value = |line| or_dash(median(line));
                row.extend(lines.iter().map(value));
                row.push(of(
                    &format!("{}, runtime", self.wire),
                    &format!("{}, raw", self.wire),
                ));
                row.push(of("memif, runtime", "memif, bare loop"));
                table.push(row);
            }
            table
        });
        tables[0].title += " (medians over the repetitions)";
        let mut notes = vec![
            format!(
                "Requests have 64 bytes. {}: client and server on one thread; raw writes the reply's bytes and sends the frame back. \
                 memif and kernel UDP: two processes with a core each, {WINDOW} requests under way. The runtime also computes the \
                 checksum over all bytes, which these devices do not; the kernel on loopback computes none.",
                self.wire
            ),
            stages::BURSTS.to_owned(),
        ];
        let rates = self.one_thread.iter().flatten().flat_map(Runs::measured);
        let calls = self.processes.iter().flat_map(Runs::measured).flatten();
        notes.extend(stages::faults(
            rates.map(Rates::faults).chain(calls.map(Calls::faults)),
        ));
        let heading = "Replies of more bytes (after figure 7c of the Shinjuku paper)";
        let figures = [false, true].map(|bytes| self.figure(&lines, bytes));
        Section::new(heading, tables).figures(figures).notes(notes)
    }

    fn figure(&self, lines: &[Line], bytes: bool) -> Figure {
        let point = |(&reply, rate): (&u16, &Option<Spread>)| {
            let factor = if bytes { f64::from(reply) } else { 1.0 } / 1e6;
            let rate = (*rate)?;
            Some(Point {
                x: reply.into(),
                y: Some(rate.median * factor),
                spread: Some((rate.min * factor, rate.max * factor)),
            })
        };
        let series = lines.iter().enumerate().map(|(number, line)| {
            let points = self.replies.iter().zip(&line.rates).filter_map(point);
            Series::contender(number, &line.name, points.collect())
        });
        let (name, what) = match bytes {
            true => ("reply-sizes-bytes", "bytes of replies a second"),
            false => ("reply-sizes-rate", "replies a second"),
        };
        Figure {
            name: name.to_owned(),
            title: format!("Requests of 64 bytes, replies of more: {what}"),
            x: XAxis::Logarithmic("bytes of a reply's payload (log)"),
            y: YAxis::Logarithmic,
            y_label: format!("{what}, in millions (log)"),
            bars: BARS,
            series: series.filter(|one| !one.points.is_empty()).collect(),
        }
    }
}
