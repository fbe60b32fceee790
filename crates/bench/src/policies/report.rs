//! The policies' part of the report.

use super::results::{BASELINE, Policies, SATURATION_THROUGHPUT, SLOWER};
use super::{csv, figures, summary, targets};
use crate::harness::{Measured, Section, Target};
use crate::report::figure;

/// What is said of the sweep over quanta.
const QUANTUM: &str = "After figure 7a of the Shinjuku paper (NSDI'19, section 4.3), where every shorter interval is better, down \
    to 5 µs, on half 1 µs and half 100 µs under c-PRE-MQ: here that is `mid`. `hi` under c-PRE-SQ is ours. Preemptions are more \
    expensive here: below some quantum they cost more than they free.";

impl Measured for Policies {
    const BENCH: &'static str = "policies";
    const TITLE: &'static str = "bench report";
    const DIRECTORY: &'static str = "bench";

    fn check(&self) -> anyhow::Result<()> {
        Self::check(self)
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let floor = self.stalls.as_ref().map_or_else(
            || "not watched".to_owned(),
            |stalls| format!("{} µs", figure(stalls.p99_us)),
        );
        vec![
            ("Floor of every p99 by this host's stalls", floor),
            (
                "Scheduling of measured threads",
                self.runtime.scheduler.clone(),
            ),
            ("Workers", self.runtime.workers.to_string()),
        ]
    }

    fn targets(&self) -> Vec<Target> {
        targets::targets(self)
    }

    fn sections(&self) -> Vec<Section> {
        let of_mix = |mix: &str| Section {
            heading: mix.to_owned(),
            introduction: self.mixes.get(mix).cloned(),
            figures: figures::of_mix(self, mix),
            tables: summary::mix_tables(self, mix),
            ..Section::default()
        };
        let mut sections: Vec<_> = self.mix_names().into_iter().map(of_mix).collect();
        let sweep = figures::of_sweep(self);
        if !sweep.is_empty() {
            sections.push(Section {
                heading: "Quantum".to_owned(),
                introduction: Some(QUANTUM.to_owned()),
                figures: sweep,
                ..Section::default()
            });
        }
        let notes = self.cost_details.iter();
        sections.push(Section {
            heading: "Costs and checks".to_owned(),
            tables: summary::other_tables(self),
            details: notes
                .map(|(name, detail)| format!("{name}: {}", detail.note))
                .collect(),
            ..Section::default()
        });
        sections.push(Section {
            heading: "How to read it".to_owned(),
            details: how_to_read(),
            ..Section::default()
        });
        sections
    }

    fn csv(&self) -> Vec<(&'static str, String)> {
        vec![
            ("runs.csv", csv::runs(&self.runs)),
            ("quantum_sweep.csv", csv::runs(&self.quantum_sweep)),
            ("costs.csv", csv::costs(self)),
        ]
    }
}

fn how_to_read() -> Vec<String> {
    let saturation = 100.0 * SATURATION_THROUGHPUT;
    vec![
        "Latency is sojourn time: from the moment a request was meant to arrive to its end, in an open loop. A slow \
         system does not slow its own arrivals."
            .to_owned(),
        "Load is the share of the workers' capacity that is offered. All contenders get the same arrivals and service \
         times, on the same cores, in turns."
            .to_owned(),
        "In the layout symmetric every core serves, the dispatcher's as well, and so it may be where the layout is auto: these have the \
         same arrivals, and more to serve them with."
            .to_owned(),
        "Every value is the median over the repetitions; bars and the spread columns give the lowest and the highest \
         of them. A difference smaller than the spread is none."
            .to_owned(),
        format!(
            "Ratios are taken within this run, against {BASELINE}: first come, first served, never preempted. Absolute \
             times belong to this machine; ratios travel better."
        ),
        format!(
            "A point where requests were refused, or less than {saturation} % of the offered load was answered (and less by \
             more than its counting noise), in all or of one class, is saturated: its latency grows with the length of the \
             experiment, so it has no percentile."
        ),
        format!(
            "A point marked with * did not get the work it was to measure: the time that long requests ran, less the price of \
             their preemptions, is more than {SLOWER} times the work in them as calibrated. Its latency has something in it \
             that is not the policy's: a slower CPU, or a work loop that suffers from preemption. A spread marked with * has such \
             a repetition in it, and the p99 is another's."
        ),
        "The line and the row of this host's stalls are a floor: of requests that arrive at random moments and wait for nothing \
         but the end of a stall they arrive in, of the dispatcher's core or their worker's, 1 % wait for longer. Stalls are \
         what a thread with the measured threads' priority misses of the time-stamp counter. A p99 near it tells of the host."
            .to_owned(),
        "d-FCFS and work stealing are the policies of IX and ZygOS without those systems' costs."
            .to_owned(),
    ]
}
