//! How evenly flows are spread over two dispatchers: measured with the hash in software, each flow
//! sending as much as any other, and beside it the simulator's flows, which are hashed at random.
//! Figure 4 of the Shinjuku paper (section 3.6) is about the number of flows at which such a curve
//! comes below a tenth; the measure of imbalance is ours.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use shinjuku_bench_dataplane::Imbalance;
use shinjuku_plot::{Figure, Point, Series, Style, Table, XAxis, YAxis};
use shinjuku_sim::imbalance::{balanced_share, connections_needed};

use super::Bench;
use crate::harness::{Section, Session};

const DISPATCHERS: u32 = 2;
/// Numbers of flows.
const FLOWS: [u32; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
/// Of the flows' ports, for each number.
const DRAWS: u32 = 500;
const SIMULATED_DRAWS: u32 = 5000;
const SEED: u64 = 1;
/// The share of draws that keep within an imbalance, and the imbalance, of figure 4.
const CONFIDENCE: f64 = 0.9;
const LIMIT: f64 = 0.1;
/// What the measurement takes, about.
const EXPECTED: Duration = Duration::from_secs(2);

/// The spread for each number of flows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Imbalances {
    pub measured: Vec<Imbalance>,
    /// As simulated: for each of these, the imbalance (max / mean - 1) that nine tenths of the
    /// draws do not exceed.
    pub simulated: Vec<f64>,
    /// Connections that figure 4 has for as many queues, as simulated.
    pub figure_4: u32,
}

/// About how long it takes.
pub fn expected(_: &Bench, _: &Session) -> Duration {
    EXPECTED
}

/// Draws and simulates; `None` where there is no hash to measure.
///
/// # Errors
/// It was interrupted, or failed.
pub fn measure(bench: &Bench, session: &mut Session) -> Result<Option<Imbalances>> {
    if bench.program.dpdk.is_none() {
        session
            .notes
            .push("skipped: imbalance: only DPDK's devices spread flows.".to_owned());
        return Ok(None);
    }
    let seed = session.settings.seeds[0];
    let flows = FLOWS.map(|flows| flows.to_string()).join(",");
    let line =
        format!("flows --dispatchers {DISPATCHERS} --flows {flows} --draws {DRAWS} --seed {seed}");
    let arguments: Vec<_> = line.split(' ').collect();
    session.progress.begin("imbalance by number of flows");
    let measured = bench.program.run(&arguments, EXPECTED.as_secs_f64());
    session.progress.end(EXPECTED);
    Ok(Some(Imbalances {
        measured: measured?,
        simulated: FLOWS.iter().map(|&flows| simulated(flows)).collect(),
        figure_4: connections_needed(DISPATCHERS, LIMIT, CONFIDENCE, 4 * SIMULATED_DRAWS, SEED),
    }))
}

/// The imbalance that nine tenths of the simulator's draws do not exceed.
fn simulated(flows: u32) -> f64 {
    let within =
        |limit| balanced_share(flows, DISPATCHERS, limit, SIMULATED_DRAWS, SEED) >= CONFIDENCE;
    let (mut low, mut high) = (0.0, f64::from(DISPATCHERS));
    while high - low > 1e-4 {
        let middle = f64::midpoint(low, high);
        if within(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

/// The imbalance that such a share of the draws does not exceed.
fn quantile(measured: &Imbalance, share: f64) -> Option<f64> {
    let mut all = measured.max_over_mean.clone();
    all.sort_by(f64::total_cmp);
    let rank = (all.len() as f64 * share).ceil() as usize;
    Some(all.get(rank.max(1) - 1)? - 1.0)
}

impl Imbalances {
    /// Both curves.
    pub fn section(&self) -> Section {
        let title = format!(
            "imbalance of {DISPATCHERS} dispatchers, most requests over the mean - 1, in %: what a share of the draws does not exceed"
        );
        let header = [
            "flows",
            "measured, half",
            "measured, nine tenths",
            "simulated, nine tenths",
        ];
        let mut table = Table::new(title, header);
        let percent = |imbalance: Option<f64>| {
            imbalance.map_or_else(
                || "-".into(),
                |imbalance| format!("{:.1}", 100.0 * imbalance),
            )
        };
        for (measured, &simulated) in self.measured.iter().zip(&self.simulated) {
            table.push([
                measured.flows.to_string(),
                percent(quantile(measured, 0.5)),
                percent(quantile(measured, CONFIDENCE)),
                percent(Some(simulated)),
            ]);
        }
        let even = self
            .measured
            .iter()
            .find(|one| quantile(one, CONFIDENCE).is_some_and(|above| above < LIMIT));
        let even = even.map_or_else(
            || "never".to_owned(),
            |one| format!("with {} flows, of those tried", one.flows),
        );
        Section::new("How evenly flows are spread", [table])
            .figures([self.figure()])
            .notes([
                format!(
                    "Below {:.0} % in nine tenths of the draws: measured {even}; simulated with {} (`cargo xtask figures --only shinjuku-4`, \
                     figure 4 of the paper, at {DISPATCHERS} queues).",
                    100.0 * LIMIT,
                    self.figure_4
                ),
                format!(
                    "Measured: requests that each of {DISPATCHERS} devices on net_ring got, spread by the hash in software; {DRAWS} draws of \
                     client ports, every flow sends as much as any other. Simulated: the same with queues drawn at random."
                ),
            ])
    }

    fn figure(&self) -> Figure {
        let point = |flows: u32, imbalance: f64| Point::exact(flows.into(), 100.0 * imbalance);
        let measured = self.measured.iter();
        let measured =
            measured.filter_map(|one| Some(point(one.flows, quantile(one, CONFIDENCE)?)));
        let simulated = self.measured.iter().zip(&self.simulated);
        let simulated = simulated.map(|(one, &imbalance)| point(one.flows, imbalance));
        Figure {
            name: "imbalance".to_owned(),
            title: format!("{DISPATCHERS} dispatchers: imbalance by number of flows"),
            x: XAxis::Logarithmic("flows (log)"),
            y: YAxis::Percent,
            y_label: "max / mean - 1 of requests, P = 90 % (%)".to_owned(),
            bars: "",
            series: vec![
                Series::contender(0, "measured, hash in software", measured.collect()),
                Series {
                    label: "simulated, hashed at random".to_owned(),
                    style: Style::Floor,
                    points: simulated.collect(),
                },
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_draw_that_so_many_do_not_exceed() {
        let measured = Imbalance {
            flows: 4,
            max_over_mean: vec![2.0, 1.0, 1.5, 1.25],
        };
        assert_eq!(quantile(&measured, 0.5), Some(0.25));
        assert_eq!(quantile(&measured, 0.9), Some(1.0));
        let none = Imbalance {
            flows: 4,
            max_over_mean: Vec::new(),
        };
        assert_eq!(quantile(&none, 0.9), None);
    }

    #[test]
    fn one_flow_is_all_on_one_dispatcher_and_many_are_even() {
        assert!((simulated(1) - 1.0).abs() < 1e-3, "{}", simulated(1));
        assert!(simulated(1024) < LIMIT);
        assert!(simulated(64) > LIMIT);
    }
}
