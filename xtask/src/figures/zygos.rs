//! The queueing models of Prekas et al., *ZygOS*, SOSP 2017: slides 4 and 8 of its talk, with
//! numbers of ours.

use anyhow::Result;
use shinjuku_policy::{cfcfs, dfcfs, stealing};
use shinjuku_sim::plan::Target;
use shinjuku_sim::{Estimate, Layout, Measure, Overheads, Scenario, Scheduler};
use shinjuku_workload::{Class, Mix, ServiceTime};

use super::source::{Caption, Claim, SHINJUKU, ZYGOS};
use super::sweep::{self, SEED, against_load, at, highest_load, latency_figure, simulate};
use super::{Drawing, Effort, Entry};
use shinjuku_plot::{Figure, Point, Series, Style, XAxis, YAxis};

pub(super) const WORKERS: usize = 16;

pub(super) const FIGURES: &[Entry] = &[
    Entry {
        source: &ZYGOS,
        name: "zygos-fixed",
        seconds: 8,
        caption: Caption {
            claims: &[SINGLE_QUEUE],
            ours: "16 servers, the service time of 1 µs, and the same policies under processor sharing, which slide 4 names \
                   as a model.",
        },
        draw: fixed,
    },
    Entry {
        source: &ZYGOS,
        name: "zygos-exponential",
        seconds: 8,
        caption: Caption {
            claims: &[SINGLE_QUEUE, MISMATCH],
            ours: "16 servers, the mean of 1 µs, and processor sharing beside.",
        },
        draw: exponential,
    },
    Entry {
        source: &ZYGOS,
        name: "zygos-bimodal-1",
        seconds: 8,
        caption: Caption {
            claims: &[SINGLE_QUEUE, MISMATCH],
            ours: "16 servers, both service times and their shares, and processor sharing beside.",
        },
        draw: bimodal_1,
    },
    Entry {
        source: &ZYGOS,
        name: "zygos-bimodal-2",
        seconds: 8,
        caption: Caption {
            claims: &[SINGLE_QUEUE],
            ours: "the whole figure: 16 servers, both service times and their shares, so far apart that processor \
                   sharing is ahead.",
        },
        draw: bimodal_2,
    },
    Entry {
        source: &ZYGOS,
        name: "zygos-load-at-slo",
        seconds: 30,
        caption: Caption {
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
        },
        draw: load_at_slo,
    },
    Entry {
        source: &ZYGOS,
        name: "zygos-interrupts",
        seconds: 30,
        caption: Caption {
            claims: &[Claim {
                place: "slide 32",
                says: "at 10 µs, interrupts on head-of-line blocking bring ZygOS closer to the single queue (measured \
                       there).",
                test: "zygos_interrupts_bring_it_closer_to_one_queue",
            }],
            ours: "to simulate this; 16 cores, exponential service times, 1920 connections, 0.25 µs of the home core for \
                   receiving and as much for a reply that another core has made, 0.2 µs to steal, 1 µs for an interrupt.",
        },
        draw: interrupts,
    },
];

/// How often ZygOS steals: Shinjuku's paper says so.
pub(super) const STEAL_RATE: Entry = Entry {
    source: &SHINJUKU,
    name: "zygos-steal-rate",
    seconds: 10,
    caption: Caption {
        claims: &[Claim {
            place: "section 4.2",
            says: "ZygOS steals up to 60 % of the requests even where service times are alike.",
            test: "shinjuku_zygos_steals_many_requests_that_are_alike",
        }],
        ours: "to simulate this; 16 cores, 1 µs, the costs as for its interrupts, and exponential service times beside.",
    },
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
fn system(mix: &Mix, layout: Layout, load: f64, effort: Effort) -> Scenario {
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
    let mix = mix(ServiceTime::exponential(10.0)?)?;
    let systems = [
        ("one queue, ideal", Layout::Central),
        ("IX", Layout::Ix),
        ("ZygOS without interrupts", Layout::ZygOsNoInterrupts),
        ("ZygOS", Layout::ZygOs),
    ];
    let line = |(number, (label, layout)): (usize, &(&str, Layout))| {
        let target = |load| Target::Server(Box::new(system(&mix, *layout, load, effort)));
        let style = Style::Contender(number);
        against_load(label, style, effort, (Measure::P99Us, None), target)
    };
    let series: Vec<_> = systems
        .iter()
        .enumerate()
        .map(line)
        .collect::<Result<_>>()?;
    let values: Vec<_> = series
        .iter()
        .map(|series| format!("{} {} µs", series.label, at(series, 70.0)))
        .collect();
    let title = "Exponential service times, mean 10 µs: what interrupts are worth";
    Ok(Drawing {
        figure: latency_figure("zygos-interrupts", title, series),
        found: format!("at 70 % load: {}.", values.join(", ")),
    })
}

fn steal_rate(effort: Effort) -> Result<Drawing> {
    let mixes = [
        ("fixed, 1 µs", mix(ServiceTime::fixed(1.0)?)?),
        ("exponential, 1 µs", mix(ServiceTime::exponential(1.0)?)?),
    ];
    let line = |(number, (label, mix)): (usize, &(&str, Mix))| -> Result<Series> {
        let point = |percent: f64| -> Result<Point> {
            effort.check_time()?;
            let scenario = system(mix, Layout::ZygOs, percent / 100.0, effort);
            let mut shares = Vec::new();
            for seed in 0..u64::from(effort.replications) {
                let run = scenario.run(SEED + seed)?;
                // The first of ten requests are not counted, but stolen as well.
                let served = run.tally.all().requests as f64 * 10.0 / 9.0;
                shares.push(100.0 * run.helps as f64 / served);
            }
            let estimate = Estimate::of(&shares);
            Ok(sweep::point(percent, estimate))
        };
        Ok(Series {
            label: (*label).to_owned(),
            style: Style::Contender(number),
            points: effort.loads().map(point).collect::<Result<_>>()?,
        })
    };
    let series: Vec<_> = mixes.iter().enumerate().map(line).collect::<Result<_>>()?;
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
        figure: Figure {
            name: "zygos-steal-rate".to_owned(),
            title: "How many requests ZygOS steals".to_owned(),
            x: XAxis::Load,
            y: YAxis::Percent,
            y_label: "stolen (% of the requests)".to_owned(),
            bars: "95 % interval",
            series,
        },
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

fn mix(service: ServiceTime) -> Result<Mix> {
    Ok(Mix::new("only", vec![Class::new("request", 1.0, service)])?)
}

fn models(name: &str, title: &str, service: ServiceTime, effort: Effort) -> Result<Drawing> {
    let mix = mix(service)?;
    let models = [
        ("M/G/16/FCFS", Scheduler::of(cfcfs::REGISTERED)),
        ("16 x M/G/1/FCFS", Scheduler::of(dfcfs::REGISTERED)),
        ("M/G/16/PS", Scheduler::sharing()),
        ("16 x M/G/1/PS", Scheduler::partitioned_sharing()),
    ];
    let line = |(number, (label, policy)): (usize, &(&str, Scheduler))| {
        let target = |load| {
            let scenario = Scenario::new(mix.clone(), load, policy.clone(), WORKERS);
            Target::Server(Box::new(scenario.with_requests(effort.requests)))
        };
        against_load(
            label,
            Style::Contender(number),
            effort,
            (Measure::P99Us, None),
            target,
        )
    };
    let series: Vec<_> = models.iter().enumerate().map(line).collect::<Result<_>>()?;
    let values: Vec<_> = series
        .iter()
        .map(|series| format!("{} {} µs", series.label, at(series, 70.0)))
        .collect();
    Ok(Drawing {
        figure: latency_figure(name, title, series),
        found: format!("at 70 % load: {}.", values.join(", ")),
    })
}

fn fixed(effort: Effort) -> Result<Drawing> {
    models(
        "zygos-fixed",
        "Four queueing models, fixed service time of 1 µs",
        ServiceTime::fixed(1.0)?,
        effort,
    )
}

fn exponential(effort: Effort) -> Result<Drawing> {
    models(
        "zygos-exponential",
        "Four queueing models, exponential service times, mean 1 µs",
        ServiceTime::exponential(1.0)?,
        effort,
    )
}

fn bimodal_1(effort: Effort) -> Result<Drawing> {
    models(
        "zygos-bimodal-1",
        "Four queueing models, 90 % of 0.5 µs and 10 % of 5.5 µs",
        ServiceTime::bimodal(0.5, 5.5, 0.1)?,
        effort,
    )
}

fn bimodal_2(effort: Effort) -> Result<Drawing> {
    models(
        "zygos-bimodal-2",
        "Four queueing models, 99.9 % of 0.5 µs and 0.1 % of 500.5 µs",
        ServiceTime::bimodal(0.5, 500.5, 0.001)?,
        effort,
    )
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

/// One contender's highest load, percent, against the mean service time, us.
fn against_service_time(
    (number, (label, policy, overheads)): (usize, (&str, Scheduler, Overheads)),
    effort: Effort,
) -> Result<Series> {
    let mut points = Vec::new();
    for mean_us in [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0] {
        // An ideal system has no scale of its own: one value holds for all.
        let load = match points.first() {
            Some(&Point { y: Some(first), .. }) if overheads == Overheads::IDEAL => first,
            _ => {
                let mix = mix(ServiceTime::exponential(mean_us)?)?;
                highest(&mix, &policy, overheads, effort)?
            }
        };
        points.push(Point {
            x: mean_us,
            y: Some(load),
            spread: None,
        });
    }
    Ok(Series {
        label: label.to_owned(),
        style: Style::Contender(number),
        points,
    })
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
    let contenders = [
        ("c-FCFS, ideal", one_queue(), ideal),
        (
            "stealing, ideal",
            Scheduler::of(stealing::REGISTERED),
            ideal,
        ),
        ("d-FCFS, ideal", many_queues(), ideal),
        ("c-FCFS, 0.5 µs a request", one_queue(), stack),
        ("d-FCFS, 0.5 µs a request", many_queues(), stack),
    ];
    let contenders = contenders.into_iter().enumerate();
    let series = contenders.map(|contender| against_service_time(contender, effort));
    let series: Vec<_> = series.collect::<Result<_>>()?;
    let bimodal = mix(ServiceTime::bimodal(0.5, 5.5, 0.1)?)?;
    let fixed = mix(ServiceTime::fixed(1.0)?)?;
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
        figure: Figure {
            name: "zygos-load-at-slo".to_owned(),
            title: "Highest load with p99 within ten mean service times, exponential".to_owned(),
            x: XAxis::Logarithmic("mean service time (µs, log)"),
            y: YAxis::Percent,
            y_label: "highest load (% of the workers' capacity)".to_owned(),
            bars: "",
            series,
        },
        found,
    })
}
