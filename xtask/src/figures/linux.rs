//! What the talk of Prekas et al., *ZygOS*, SOSP 2017, measures beside Linux, simulated on sixteen
//! cores: connections that are partitioned among threads, or that float among them.
//!
//! Linux has one queue where connections float, as the best model has, and pays more for each
//! request. So it depends on the service time which is ahead.

use anyhow::Result;
use shinjuku_policy::{cfcfs, dfcfs, stealing};
use shinjuku_sim::plan::Target;
use shinjuku_sim::{Layout, Overheads, Scenario, Scheduler};
use shinjuku_workload::{Class, Mix, ServiceTime};

use super::source::{Claim, ZYGOS};
use super::sweep::{P99, against_load, at, each, lines, one_class};
use super::zygos::{WORKERS, ZYGOS_COSTS};
use super::{Drawing, Effort, Entry};

pub(super) const FIGURES: &[Entry] = &[
    Entry {
        source: &ZYGOS,
        name: "zygos-10-us",
        title: "Sixteen cores, 10 µs each",
        seconds: 25,
        claims: &[DATAPLANES],
        ours: OURS,
        draw: |effort| beside_linux(&one_class(ServiceTime::fixed(10.0)?)?, 1920, effort),
    },
    Entry {
        source: &ZYGOS,
        name: "zygos-25-us",
        title: "Sixteen cores, exponential, mean 25 µs",
        seconds: 25,
        claims: &[DATAPLANES],
        ours: OURS,
        draw: |effort| beside_linux(&one_class(ServiceTime::exponential(25.0)?)?, 1920, effort),
    },
    Entry {
        source: &ZYGOS,
        name: "zygos-silo",
        title: "Sixteen cores, TPC-C's five transactions, mean 33 µs",
        seconds: 25,
        claims: &[Claim {
            place: "slide 35",
            says: "on TPC-C's five transactions of 33 µs on average over 2752 connections ZygOS carries 1.63 times Linux's \
                   load and has a 3.68 times lower p99 (measured there).",
            test: "zygos_beats_linux_on_tpcc",
        }],
        ours: "to simulate this: no database is in it, but the five times of TPC-C's transactions that Perséphone (SOSP \
               2021) has, stretched to the mean of 33 µs; otherwise as for 10 µs.",
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

fn beside_linux(mix: &Mix, flows: u32, effort: Effort) -> Result<Drawing> {
    let series = lines(SYSTEMS, |system: System| {
        let target = |load| Target::Server(Box::new(system.scenario(mix, flows, load, effort)));
        against_load(effort, P99, target)
    })?;
    let values = each(&series, |one| {
        format!("{} {} and {} µs", one.label, at(one, 40.0), at(one, 60.0))
    });
    let found = format!("at 40 and 60 % load: {values}.");
    Ok(Drawing::latency(series, found))
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
    beside_linux(&Mix::new("tpcc-33", classes)?, SILO_FLOWS, effort)
}
