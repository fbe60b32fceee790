//! The queueing models of Prekas et al., *ZygOS*, SOSP 2017: slides 4 and 8 of its talk, with
//! numbers of ours.

use anyhow::Result;
use shinjuku_policy::{cfcfs, dfcfs, stealing};
use shinjuku_sim::plan::Target;
use shinjuku_sim::{Estimate, Layout, Measure, Overheads, Scenario, Scheduler};
use shinjuku_workload::{Mix, ServiceTime};

use super::source::{Claim, SHINJUKU, ZYGOS};
use super::sweep::{
    self, P99, SEED, against_load, at, each, highest_load, lines, one_class, simulate,
};
use super::{Drawing, Effort, Entry, INTERVAL};
use shinjuku_plot::{Point, Series, XAxis, YAxis};

pub(super) const WORKERS: usize = 16;

pub(super) const FIGURES: &[Entry] = &[
    Entry {
        source: &ZYGOS,
        name: "zygos-fixed",
        title: "Four queueing models, fixed service time of 1 µs",
        seconds: 8,
        claims: &[SINGLE_QUEUE],
        ours: "16 servers, the service time of 1 µs, and the same policies under processor sharing, which slide 4 names \
               as a model.",
        draw: |effort| models(ServiceTime::fixed(1.0)?, effort),
    },
    Entry {
        source: &ZYGOS,
        name: "zygos-exponential",
        title: "Four queueing models, exponential service times, mean 1 µs",
        seconds: 8,
        claims: &[SINGLE_QUEUE, MISMATCH],
        ours: "16 servers, the mean of 1 µs, and processor sharing beside.",
        draw: |effort| models(ServiceTime::exponential(1.0)?, effort),
    },
    Entry {
        source: &ZYGOS,
        name: "zygos-bimodal-1",
        title: "Four queueing models, 90 % of 0.5 µs and 10 % of 5.5 µs",
        seconds: 8,
        claims: &[SINGLE_QUEUE, MISMATCH],
        ours: "16 servers, both service times and their shares, and processor sharing beside.",
        draw: |effort| models(ServiceTime::bimodal(0.5, 5.5, 0.1)?, effort),
    },
    Entry {
        source: &ZYGOS,
        name: "zygos-bimodal-2",
        title: "Four queueing models, 99.9 % of 0.5 µs and 0.1 % of 500.5 µs",
        seconds: 8,
        claims: &[SINGLE_QUEUE],
        ours: "the whole figure: 16 servers, both service times and their shares, so far apart that processor \
               sharing is ahead.",
        draw: |effort| models(ServiceTime::bimodal(0.5, 500.5, 0.001)?, effort),
    },
    Entry {
        source: &ZYGOS,
        name: "zygos-load-at-slo",
        title: "Highest load with p99 within ten mean service times, exponential",
        seconds: 30,
        claims: &[
            SINGLE_QUEUE,
            Claim {
                place: "slide 4",
                says: "a model without the operating system's overheads does not depend on the service time, and is \
                       an upper bound of performance.",
                test: "zygos_an_ideal_server_has_no_scale_of_its_own",
            },
            Claim {
                place: "slide 36",
                says: "work stealing converges to a single queue.",
                test: "zygos_stealing_comes_near_one_queue",
            },
        ],
        ours: "16 servers, exponential service times, and the 0.5 µs of a worker for each request, which stand for a \
               network stack.",
        draw: load_at_slo,
    },
    Entry {
        source: &ZYGOS,
        name: "zygos-interrupts",
        title: "Exponential service times, mean 10 µs: what interrupts are worth",
        seconds: 30,
        claims: &[Claim {
            place: "slide 32",
            says: "at 10 µs, interrupts on head-of-line blocking bring ZygOS closer to the single queue (measured \
                   there).",
            test: "zygos_interrupts_bring_it_closer_to_one_queue",
        }],
        ours: "to simulate this; 16 cores, exponential service times, 1920 connections, 0.25 µs of the home core for \
               receiving and as much for a reply that another core has made, 0.2 µs to steal, 1 µs for an interrupt.",
        draw: interrupts,
    },
];

/// How often ZygOS steals: Shinjuku's paper says so.
pub(super) const STEAL_RATE: Entry = Entry {
    source: &SHINJUKU,
    name: "zygos-steal-rate",
    title: "How many requests ZygOS steals",
    seconds: 10,
    claims: &[Claim {
        place: "section 4.2",
        says: "ZygOS steals 60 % of the requests even where service times are alike.",
        test: "shinjuku_zygos_steals_many_requests_that_are_alike",
    }],
    ours: "to simulate this; 16 cores, 1 µs, the costs as for its interrupts, and exponential service times beside.",
    draw: steal_rate,
};

/// What ZygOS's parts cost: the stack for each request (less than Shinjuku's paper says of TCP),
/// two cache lines to steal, an interrupt without an exit.
pub(super) const ZYGOS_COSTS: Overheads = Overheads {
    network_ns: 250,
    steal_ns: 200,
    interrupt_ns: 1_000,
    ..Overheads::IDEAL
};
/// Connections.
const FLOWS: u32 = 1920;

/// A server that serves as ZygOS or IX do, or one queue without costs.
pub(super) fn system(mix: &Mix, layout: Layout, load: f64, effort: Effort) -> Scenario {
    let policy = match layout {
        Layout::ZygOs | Layout::ZygOsNoInterrupts => Scheduler::of(stealing::REGISTERED),
        _ => Scheduler::of(cfcfs::REGISTERED),
    };
    let mut scenario =
        Scenario::new(mix.clone(), load, policy, WORKERS).with_requests(effort.requests);
    scenario.flows = Some(FLOWS);
    scenario.shape.layout = layout;
    if layout != Layout::Central {
        scenario.shape.overheads = ZYGOS_COSTS;
    }
    scenario
}

fn interrupts(effort: Effort) -> Result<Drawing> {
    let mix = one_class(ServiceTime::exponential(10.0)?)?;
    let systems = [
        ("one queue, ideal", Layout::Central),
        ("IX", Layout::Ix),
        ("ZygOS without interrupts", Layout::ZygOsNoInterrupts),
        ("ZygOS", Layout::ZygOs),
    ];
    let series = lines(systems, |layout: Layout| {
        let target = |load| Target::Server(Box::new(system(&mix, layout, load, effort)));
        against_load(effort, P99, target)
    })?;
    let found = at_70(&series);
    Ok(Drawing::latency(series, found))
}

fn at_70(series: &[Series]) -> String {
    let values = each(series, |one| format!("{} {} µs", one.label, at(one, 70.0)));
    format!("at 70 % load: {values}.")
}

fn steal_rate(effort: Effort) -> Result<Drawing> {
    let mixes = [
        ("fixed, 1 µs", one_class(ServiceTime::fixed(1.0)?)?),
        (
            "exponential, 1 µs",
            one_class(ServiceTime::exponential(1.0)?)?,
        ),
    ];
    let series = lines(mixes, |mix: Mix| {
        let point = |percent: f64| -> Result<Point> {
            effort.check_time()?;
            let scenario = system(&mix, Layout::ZygOs, percent / 100.0, effort);
            let mut shares = Vec::new();
            for seed in 0..u64::from(effort.replications) {
                let run = scenario.run(SEED + seed)?;
                // The first of ten requests are not counted, but stolen as well.
                let served = run.tally.all().requests as f64 * 10.0 / 9.0;
                shares.push(100.0 * run.helps as f64 / served);
            }
            Ok(sweep::point(percent, Estimate::of(&shares)))
        };
        effort.loads().map(point).collect()
    })?;
    let most = series[0].points.iter().filter_map(|point| point.y);
    let found = format!(
        "of requests that are alike, ZygOS steals {} % at 30 % load, {} % at 50 %, {} % at 90 %, and {:.0} % at most. An \
         interrupt takes as long as such a request: each makes its home busy for longer, and brings on the next.",
        at(&series[0], 30.0),
        at(&series[0], 50.0),
        at(&series[0], 90.0),
        most.fold(0.0, f64::max),
    );
    Ok(Drawing {
        x: XAxis::Load,
        y: YAxis::Percent,
        y_label: "stolen (% of the requests)",
        bars: INTERVAL,
        series,
        found,
    })
}

const SINGLE_QUEUE: Claim = Claim {
    place: "slide 8",
    says: "with fixed, exponential and bimodal service times a single queue carries more load than a queue for each \
           server while p99 is within ten mean service times, because of transient load imbalance.",
    test: "zygos_one_queue_carries_more_than_sixteen",
};

const MISMATCH: Claim = Claim {
    place: "slide 8",
    says: "the mismatch is greater where dispersion is high.",
    test: "zygos_the_gap_grows_with_dispersion",
};

fn models(service: ServiceTime, effort: Effort) -> Result<Drawing> {
    let mix = one_class(service)?;
    let models = [
        ("M/G/16/FCFS", Scheduler::of(cfcfs::REGISTERED)),
        ("16 x M/G/1/FCFS", Scheduler::of(dfcfs::REGISTERED)),
        ("M/G/16/PS", Scheduler::sharing()),
        ("16 x M/G/1/PS", Scheduler::partitioned_sharing()),
    ];
    let series = lines(models, |policy: Scheduler| {
        against_load(effort, P99, |load| {
            let scenario = Scenario::new(mix.clone(), load, policy.clone(), WORKERS);
            Target::Server(Box::new(scenario.with_requests(effort.requests)))
        })
    })?;
    let found = at_70(&series);
    Ok(Drawing::latency(series, found))
}

/// The highest load, percent, at which p99 is at most ten mean service times.
fn highest(mix: &Mix, policy: &Scheduler, overheads: Overheads, effort: Effort) -> Result<f64> {
    let limit_us = mix.mean_ns() / 100.0;
    highest_load(effort, |load| {
        let mut scenario = Scenario::new(mix.clone(), load, policy.clone(), WORKERS)
            .with_requests(effort.search_requests);
        scenario.shape.overheads = overheads;
        let result = simulate(&Target::Server(Box::new(scenario)), effort)?;
        let p99 = result.estimate(Measure::P99Us, None).value;
        Ok(result.refused == 0 && p99 <= limit_us)
    })
}

/// The highest load, percent, against the mean service time, us.
fn against_service_time(
    policy: &Scheduler,
    overheads: Overheads,
    effort: Effort,
) -> Result<Vec<Point>> {
    let mut points: Vec<Point> = Vec::new();
    for mean_us in [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0] {
        // An ideal system has no scale of its own: one value holds for all.
        let load = match points.first() {
            Some(&Point { y: Some(first), .. }) if overheads == Overheads::IDEAL => first,
            _ => {
                let mix = one_class(ServiceTime::exponential(mean_us)?)?;
                highest(&mix, policy, overheads, effort)?
            }
        };
        points.push(Point::exact(mean_us, load));
    }
    Ok(points)
}

fn load_at_slo(effort: Effort) -> Result<Drawing> {
    // Half a microsecond of a worker's time for each request, as a network stack would take.
    let stack = Overheads {
        switch_ns: 500,
        ..Overheads::IDEAL
    };
    let ideal = Overheads::IDEAL;
    let one_queue = || Scheduler::of(cfcfs::REGISTERED);
    let many_queues = || Scheduler::of(dfcfs::REGISTERED);
    let stealing = Scheduler::of(stealing::REGISTERED);
    let contenders = [
        ("c-FCFS, ideal", (one_queue(), ideal)),
        ("stealing, ideal", (stealing, ideal)),
        ("d-FCFS, ideal", (many_queues(), ideal)),
        ("c-FCFS, 0.5 µs a request", (one_queue(), stack)),
        ("d-FCFS, 0.5 µs a request", (many_queues(), stack)),
    ];
    let series = lines(contenders, |(policy, overheads)| {
        against_service_time(&policy, overheads, effort)
    })?;
    let bimodal = one_class(ServiceTime::bimodal(0.5, 5.5, 0.1)?)?;
    let fixed = one_class(ServiceTime::fixed(1.0)?)?;
    let carried = |mix: &Mix, policy| highest(mix, &policy, ideal, effort);
    let found = format!(
        "ideal c-FCFS carries {} %, stealing {} %, d-FCFS {} %, whatever the service time; with 0.5 µs a request c-FCFS \
         carries {} % at a mean of 1 µs and {} % at 10 µs. With fixed service times c-FCFS carries {:.0} % and d-FCFS \
         {:.0} %, with 90 % of 0.5 and 10 % of 5.5 µs {:.0} % and {:.0} %.",
        at(&series[0], 1.0),
        at(&series[1], 1.0),
        at(&series[2], 1.0),
        at(&series[3], 1.0),
        at(&series[3], 10.0),
        carried(&fixed, one_queue())?,
        carried(&fixed, many_queues())?,
        carried(&bimodal, one_queue())?,
        carried(&bimodal, many_queues())?,
    );
    Ok(Drawing {
        x: XAxis::Logarithmic("mean service time (µs, log)"),
        y: YAxis::Percent,
        y_label: "highest load (% of the workers' capacity)",
        bars: "",
        series,
        found,
    })
}
