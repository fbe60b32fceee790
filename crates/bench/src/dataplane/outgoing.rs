//! Figure 7c of the Shinjuku paper: how much two dispatchers send, by the length of reply frames.
//!
//! There they saturate a network card of 40 Gb/s with frames of 258 bytes. Here no card is: frames
//! go over a ring in memory, to a client on the dispatcher's own thread, and their bits are counted
//! as they would take a wire, with what Ethernet puts between two frames. So the figure says
//! whether dispatchers could fill that card, and not that they do.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use shinjuku_bench_dataplane::{LONGEST_PAYLOAD, Rates, SHORTEST_PAYLOAD};
use shinjuku_plot::{Figure, Point, Series, Table, XAxis, YAxis};
use shinjuku_workload::repeat::Spread;

use super::{Bench, stages};
use crate::harness::{Runs, Section, Session};
use crate::report::{BARS, cells, figure, point};

/// Around a UDP payload: Ethernet's header and check sequence, IPv4's header and UDP's, in bytes.
const HEADERS: u16 = 64 - SHORTEST_PAYLOAD;
/// On a wire, before each frame and after it: preamble and gap, in bytes.
const BETWEEN: u16 = 8 + 12;
/// The frames with which the paper's dispatchers saturate their card.
const PAPERS_FRAME: u16 = 258;
/// The paper's card, Gb/s.
const PAPERS_CARD: f64 = 40.0;

/// Bytes of a reply's UDP payload: the shortest frame, 24 and 64 bytes, the paper's frame, ...
const REPLIES: [u16; 7] = [
    SHORTEST_PAYLOAD,
    24,
    64,
    PAPERS_FRAME - HEADERS,
    512,
    1024,
    LONGEST_PAYLOAD,
];
const QUICK: [u16; 4] = [24, 64, PAPERS_FRAME - HEADERS, LONGEST_PAYLOAD];

/// A stage with so many dispatchers, in words.
type Contender = (&'static str, &'static str, usize);
const CONTENDERS: [Contender; 3] = [
    ("runtime, one dispatcher", "runtime", 1),
    ("runtime, two dispatchers", "runtime", 2),
    ("bare device, two threads", "raw", 2),
];

/// What was sent with all lengths of replies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outgoing {
    /// The device: `net_ring`, or `memory` without libdpdk.
    pub wire: String,
    /// One contender after the other, for one length of replies after the other.
    pub sent: Vec<Sent>,
}

/// What a contender sent with replies of one length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sent {
    pub contender: String,
    /// Bytes of a reply's frame, from Ethernet's header to its check sequence.
    pub frame: u16,
    /// Replies a second of all dispatchers together by the clock, in millions, by repetition.
    pub million_rps: Vec<f64>,
    /// Gb/s that they would take on a wire, by repetition.
    pub gbit_s: Vec<f64>,
    /// Repetitions in which dispatchers shared a core, or left theirs.
    pub shared: usize,
}

impl Sent {
    fn of(reply: u16, runs: &Runs<Rates>) -> Self {
        let frame = reply + HEADERS;
        let rates: Vec<f64> = runs.measured().map(Rates::by_the_clock).collect();
        let bits = 8.0 * f64::from(frame + BETWEEN);
        let shared = |rates: &&Rates| !rates.on_cores_of_their_own();
        Self {
            contender: runs.name.clone(),
            frame,
            million_rps: rates.iter().map(|rate| rate / 1e6).collect(),
            gbit_s: rates.iter().map(|rate| rate * bits / 1e9).collect(),
            shared: runs.measured().filter(shared).count(),
        }
    }
}

fn replies(bench: &Bench) -> &'static [u16] {
    if bench.quick { &QUICK } else { &REPLIES }
}

/// About how long it takes.
pub fn expected(bench: &Bench, session: &Session) -> Duration {
    let points = CONTENDERS.len() * replies(bench).len();
    session.all(bench.expected(1), points)
}

/// Measures all in turn, repetition by repetition, and what went wrong is among the notes.
///
/// # Errors
/// It was interrupted.
pub fn measure(bench: &Bench, session: &mut Session) -> Result<Outgoing> {
    let [first, second] = bench.cores;
    let mut sent = Vec::new();
    for &reply in replies(bench) {
        let point = format!("outgoing, frames of {} bytes", reply + HEADERS);
        let name = |one: &Contender| one.0.to_owned();
        let each = bench.expected(1);
        let runs = session.interleave(&point, &mut CONTENDERS.clone(), name, each, |one, _| {
            let (_, stage, dispatchers) = *one;
            let rates = bench.program.rates(stage, bench.seconds);
            let rates = rates.cores(&[second, first][..dispatchers]);
            rates.reply(reply).run().map(Some)
        })?;
        let faults = stages::faults(runs.iter().flat_map(Runs::measured).map(Rates::faults));
        session
            .notes
            .extend(faults.map(|text| format!("{point}: {text}")));
        sent.extend(runs.iter().map(|runs| Sent::of(reply, runs)));
    }
    Ok(Outgoing {
        wire: bench.program.wire().to_owned(),
        sent,
    })
}

impl Outgoing {
    /// Gb/s by the length of frames, as a table and lines.
    pub fn section(&self) -> Section {
        let header = [
            "frame, bytes",
            "",
            "million replies/s",
            "Gb/s",
            "(min..max)",
        ];
        let mut table = Table::new("what would be on a wire; medians", header);
        for one in &self.sent {
            let [rate, gbit] = [&one.million_rps, &one.gbit_s].map(|all| Spread::of(all));
            let (Some(rate), [gbit, range]) = (rate, cells(gbit)) else {
                continue;
            };
            let mut contender = one.contender.clone();
            if one.shared > 0 {
                contender += ", NOT ON CORES OF THEIR OWN";
            }
            table.push([
                one.frame.to_string(),
                contender,
                figure(rate.median),
                gbit,
                range,
            ]);
        }
        let note = format!(
            "Requests have 64 bytes. Each dispatcher has a queue of the same device ({}), a client behind it on its thread, and \
             workers that do nothing. Bits of a frame are those of {BETWEEN} bytes more, which a wire takes for each. The paper: two \
             dispatchers saturate {PAPERS_CARD} Gb/s with frames of {PAPERS_FRAME} bytes (section 4.3).",
            self.wire
        );
        let heading = "What dispatchers send (figure 7c of the Shinjuku paper)";
        let section = Section::new(heading, [table]);
        section.figures([self.figure()]).notes([note])
    }

    fn figure(&self) -> Figure {
        let line = |(number, (name, ..)): (usize, &Contender)| {
            let of = |one: &Sent| {
                let gbit = Spread::of(&one.gbit_s)?;
                Some(point(one.frame.into(), Some(gbit)))
            };
            let own = self.sent.iter().filter(|one| one.contender == *name);
            Series::contender(number, *name, own.filter_map(of).collect())
        };
        let mut series: Vec<_> = CONTENDERS.iter().enumerate().map(line).collect();
        let papers = vec![Point::exact(PAPERS_FRAME.into(), PAPERS_CARD)];
        series.push(Series::contender(CONTENDERS.len(), "the paper", papers));
        series.retain(|one| !one.points.is_empty());
        Figure {
            name: "outgoing".to_owned(),
            title: "Requests of 64 bytes, replies of more: what would be on a wire".to_owned(),
            x: XAxis::Logarithmic("bytes of a reply's frame (log)"),
            y: YAxis::Logarithmic,
            y_label: "Gb/s, preamble and gap included (log)".to_owned(),
            bars: BARS,
            series,
        }
    }
}

#[cfg(test)]
mod tests {
    use shinjuku_bench_dataplane::Rate;

    use super::*;

    fn rates(cores: &[usize], within: u64) -> Rates {
        let rate = |core: &usize| Rate {
            nanos: [100.0; 3],
            sustained: 1e7,
            waited: None,
            cores: vec![*core],
            requests: within,
            within,
            wrong: 0,
        };
        Rates {
            description: None,
            dispatchers: cores.iter().map(rate).collect(),
            seconds: 0.5,
            unanswered: 0,
        }
    }

    #[test]
    fn bits_are_those_of_a_wire() {
        // 18 million frames of 258 bytes a second are what 40 Gb/s carry.
        let own = Some(rates(&[0, 1], 4_496_403));
        let shared = Some(rates(&[1, 1], 100));
        let runs = Runs::of("runtime, two dispatchers", [own, None, shared]);
        let sent = Sent::of(212, &runs);
        assert_eq!((sent.frame, sent.shared), (258, 1));
        assert!((sent.gbit_s[0] - 40.0).abs() < 0.001, "{:?}", sent.gbit_s);
        assert!((sent.million_rps[0] - 17.986).abs() < 0.001);
        assert_eq!(Sent::of(SHORTEST_PAYLOAD, &runs).frame, 64);
        assert_eq!(Sent::of(LONGEST_PAYLOAD, &runs).frame, 1518);
    }

    #[test]
    fn a_section_has_the_papers_point_and_every_contender() {
        let sent = CONTENDERS
            .map(|(name, ..)| Sent::of(212, &Runs::of(name, [Some(rates(&[0, 0], 1_000))])));
        let outgoing = Outgoing {
            wire: "memory".to_owned(),
            sent: sent.into(),
        };
        let section = outgoing.section();
        assert_eq!(section.tables[0].rows.len(), CONTENDERS.len());
        assert!(section.tables[0].rows[0][1].contains("NOT ON CORES"));
        let series = &section.figures[0].series;
        assert_eq!(series.len(), CONTENDERS.len() + 1);
        let papers = series.last().unwrap().points[0];
        assert_eq!((papers.x, papers.y), (258.0, Some(40.0)));
        let text = serde_json::to_string(&outgoing).unwrap();
        assert_eq!(serde_json::from_str::<Outgoing>(&text).unwrap(), outgoing);
    }
}
