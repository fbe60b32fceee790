//! What the talk of Prekas et al., *ZygOS*, SOSP 2017, measures beside Linux, simulated on sixteen
//! cores: connections that are partitioned among threads, or that float among them.
//!
//! Linux has one queue where connections float, as the best model has, and pays more for each
//! request. So it depends on the service time which is ahead.

use anyhow::Result;
use shinjuku_policy::{cfcfs, dfcfs, stealing};
use shinjuku_sim::plan::Target;
use shinjuku_sim::{Layout, Measure, Overheads, Scenario, Scheduler};
use shinjuku_workload::{Class, Mix, ServiceTime};

use super::source::{Caption, Claim, ZYGOS};
use super::sweep::{against_load, at, latency_figure};
use super::zygos::{WORKERS, ZYGOS_COSTS};
use super::{Drawing, Effort, Entry};
use shinjuku_plot::Style;

pub(super) const FIGURES: &[Entry] = &[
    Entry {
        source: &ZYGOS,
        name: "zygos-10-us",
        seconds: 25,
        caption: Caption {
            claims: &[DATAPLANES],
            ours: OURS,
        },
        draw: ten,
    },
    Entry {
        source: &ZYGOS,
        name: "zygos-25-us",
        seconds: 25,
        caption: Caption {
            claims: &[DATAPLANES],
            ours: OURS,
        },
        draw: twenty_five,
    },
    Entry {
        source: &ZYGOS,
        name: "zygos-silo",
        seconds: 25,
        caption: Caption {
            claims: &[Claim {
                place: "slide 35",
                says: "on TPC-C's five transactions of 33 µs on average over 2752 connections ZygOS carries 1.63 times Linux's \
                       load and has a 3.68 times lower p99 (measured there).",
                test: "zygos_beats_linux_on_tpcc",
            }],
            ours: "to simulate this: no database is in it, but the five times of TPC-C's transactions that Perséphone (SOSP \
                   2021) has, stretched to the mean of 33 µs; otherwise as for 10 µs.",
        },
        draw: silo,
    },
];

const DATAPLANES: Claim = Claim {
    place: "slide 10",
    says: "Linux with floating connections outperforms IX at 25 µs; dataplanes are ahead only at very low service times of \
           low dispersion (measured there).",
    test: "zygos_linux_floating_outperforms_ix_where_times_are_long",
};

const OURS: &str = "to simulate this; 16 cores, 1920 connections, 5 µs of a core for the kernel's part of a request, and the costs \
                    of ZygOS as for its interrupts; IX has the same for receiving. At 10 µs all take as long, at 25 µs they are \
                    exponential: the slides have both at both, and bimodal ones.";

/// The kernel's receiving, waking and sending, for a request.
const LINUX: Overheads = Overheads {
    switch_ns: 5_000,
    ..Overheads::IDEAL
};

/// What serves.
#[derive(Clone, Copy)]
enum System {
    Partitioned,
    Floating,
    Ix,
    ZygOs,
}

const SYSTEMS: [(&str, System); 4] = [
    ("Linux, partitioned", System::Partitioned),
    ("Linux, floating", System::Floating),
    ("IX", System::Ix),
    ("ZygOS", System::ZygOs),
];

impl System {
    fn scenario(self, mix: &Mix, flows: u32, load: f64, effort: Effort) -> Scenario {
        let (policy, layout, overheads) = match self {
            Self::Partitioned => (dfcfs::REGISTERED, Layout::Central, LINUX),
            Self::Floating => (cfcfs::REGISTERED, Layout::Central, LINUX),
            Self::Ix => (cfcfs::REGISTERED, Layout::Ix, ZYGOS_COSTS),
            Self::ZygOs => (stealing::REGISTERED, Layout::ZygOs, ZYGOS_COSTS),
        };
        let mut scenario = Scenario::new(mix.clone(), load, Scheduler::of(policy), WORKERS)
            .with_requests(effort.requests);
        scenario.flows = Some(flows);
        scenario.shape.layout = layout;
        scenario.shape.overheads = overheads;
        scenario
    }
}

fn beside_linux(
    (name, title): (&str, &str),
    mix: &Mix,
    flows: u32,
    effort: Effort,
) -> Result<Drawing> {
    let line = |(number, (label, system)): (usize, &(&str, System))| {
        let target = |load| Target::Server(Box::new(system.scenario(mix, flows, load, effort)));
        let style = Style::Contender(number);
        against_load(label, style, effort, (Measure::P99Us, None), target)
    };
    let series: Vec<_> = SYSTEMS
        .iter()
        .enumerate()
        .map(line)
        .collect::<Result<_>>()?;
    let values: Vec<_> = series
        .iter()
        .map(|one| format!("{} {} and {} µs", one.label, at(one, 40.0), at(one, 60.0)))
        .collect();
    Ok(Drawing {
        figure: latency_figure(name, title, series),
        found: format!("at 40 and 60 % load: {}.", values.join(", ")),
    })
}

fn one_class(service: ServiceTime) -> Result<Mix> {
    Ok(Mix::new("only", vec![Class::new("request", 1.0, service)])?)
}

fn ten(effort: Effort) -> Result<Drawing> {
    let names = ("zygos-10-us", "Sixteen cores, 10 µs each");
    let mix = one_class(ServiceTime::fixed(10.0)?)?;
    beside_linux(names, &mix, 1920, effort)
}

fn twenty_five(effort: Effort) -> Result<Drawing> {
    let title = "Sixteen cores, exponential, mean 25 µs";
    let mix = one_class(ServiceTime::exponential(25.0)?)?;
    beside_linux(("zygos-25-us", title), &mix, 1920, effort)
}

/// TPC-C's mean service time, and its connections (slide 34).
const SILO_MEAN_NS: f64 = 33_000.0;
const SILO_FLOWS: u32 = 2752;

fn silo(effort: Effort) -> Result<Drawing> {
    let short = Mix::named("tpcc")?;
    let longer = SILO_MEAN_NS / short.mean_ns();
    let stretch = |class: &Class| -> Result<Class> {
        let us = class.service.mean_ns() / 1e3 * longer;
        Ok(Class::new(
            &class.name,
            class.weight,
            ServiceTime::fixed(us)?,
        ))
    };
    let classes: Vec<_> = short.classes().iter().map(stretch).collect::<Result<_>>()?;
    let mix = Mix::new("tpcc-33", classes)?;
    let title = "Sixteen cores, TPC-C's five transactions, mean 33 µs";
    beside_linux(("zygos-silo", title), &mix, SILO_FLOWS, effort)
}
