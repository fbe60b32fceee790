//! Which layout dispatches best on how many cores, by this project's own costs: a dispatcher with
//! one queue, a dispatcher before many queues, or every core for itself.

use anyhow::Result;
use shinjuku_plot::{Point, Series, XAxis, YAxis};
use shinjuku_policy::{Nanos, single_queue};
use shinjuku_sim::{Layout, Overheads, Scenario, Scheduler};
use shinjuku_workload::{Class, Mix, ServiceTime};

use super::source::{Claim, OURS};
use super::sweep::{SEED, highest_load};
use super::{Drawing, Effort, Entry};

pub(super) const FIGURES: &[Entry] = &[Entry {
    source: &OURS,
    name: "layouts",
    title: "Highest load at which short requests keep their p99",
    seconds: 30,
    claims: &[Claim {
        place: "docs/choosing.md",
        says: "`symmetric` carries most on up to eight cores. Where requests take microseconds, two levels come up to \
               it on sixteen, and one dispatcher with one queue is at its end there; where they take tens of them, it comes \
               near.",
        test: "layouts_on_few_cores_every_core_is_to_serve",
    }],
    ours: "all of it. Costs are rows of the cost table of `cargo xtask bench` on an Intel Xeon guest (family 6 model \
           167) that was busy with other work: half of a cache-line round trip of 273 ns for a message, 266 ns of the \
           dispatcher for an empty request, 26 ns to start a context, 248 ns for a preemption by probe, 0.59 of that \
           where a core preempts itself. Two round trips are taken for a steal. No other program has a core.",
    draw: layouts,
}];

/// Cores of a machine, dispatcher included.
const CORES: [usize; 4] = [4, 8, 16, 32];

/// Half of a cache-line round trip.
const LINE_NS: u64 = 137;
/// What starting a context costs, and what the policy under watch costs, a request.
const CONTEXT_NS: u64 = 26;
const POLICY_NS: u64 = 23;

/// What a dispatcher with one queue and its workers cost. An empty request costs the dispatcher all
/// that it does for one: it polls, asks the policy, writes one mailbox and reads another.
pub(super) const DISPATCHER: Overheads = Overheads {
    dispatch_ns: 266,
    message_ns: LINE_NS,
    switch_ns: CONTEXT_NS,
    preempt_send_ns: 13,
    preempt_receive_ns: 248,
    ..Overheads::IDEAL
};

/// What cores that preempt themselves cost.
const LOOPS: Overheads = Overheads {
    network_ns: LINE_NS,
    dispatch_ns: POLICY_NS,
    message_ns: LINE_NS,
    switch_ns: CONTEXT_NS,
    preempt_receive_ns: 146,
    steal_ns: 4 * LINE_NS,
    ..Overheads::IDEAL
};

/// A mix, its quantum, and the p99 of short requests that is still good, us.
struct Service {
    label: &'static str,
    mix: Mix,
    quantum: Nanos,
    limit_us: f64,
}

fn services() -> Result<[Service; 2]> {
    let service = Mix::new(
        "service",
        vec![
            Class::new("short", 99.0, ServiceTime::fixed(20.0)?),
            Class::new("long", 1.0, ServiceTime::fixed(5_000.0)?),
        ],
    )?;
    Ok([
        Service {
            label: "0.5 and 500 µs",
            mix: Mix::named("hi")?,
            quantum: Nanos::from_micros(5),
            limit_us: 50.0,
        },
        Service {
            label: "20 µs and 5 ms",
            mix: service,
            quantum: Nanos::from_micros(20),
            limit_us: 200.0,
        },
    ])
}

/// Whether short requests keep their limit and no queue grows: that of long ones can, for long,
/// before short ones notice.
fn keeps(scenario: &Scenario, limit_us: f64, effort: Effort) -> Result<bool> {
    let mut p99_us = 0.0;
    for seed in 0..u64::from(effort.replications) {
        let run = scenario.run(SEED + seed)?;
        if run.growing || run.tally.refused() > 0 {
            return Ok(false);
        }
        p99_us += run.tally.class(0).p99_ns / 1e3;
    }
    Ok(p99_us / f64::from(effort.replications) <= limit_us)
}

/// The highest load, percent of all cores, at which short requests keep their limit.
fn carried(service: &Service, layout: Layout, cores: usize, effort: Effort) -> Result<f64> {
    let workers = match layout {
        Layout::Central | Layout::TwoLevel => cores - 1,
        _ => cores,
    };
    let policy = Scheduler::of(single_queue::REGISTERED).with_quantum(service.quantum);
    highest_load(effort, |load| {
        let of_workers = load * cores as f64 / workers as f64;
        if of_workers >= 1.0 {
            return Ok(false);
        }
        let mut scenario = Scenario::new(service.mix.clone(), of_workers, policy.clone(), workers)
            .with_requests(effort.search_requests);
        scenario.shape.layout = layout;
        if layout == Layout::Central {
            scenario.shape.overheads = DISPATCHER;
            // Preemptions cost least with the next request staged.
            scenario.shape.depth = 2;
        } else {
            scenario.shape.overheads = LOOPS;
        }
        keeps(&scenario, service.limit_us, effort)
    })
}

fn layouts(effort: Effort) -> Result<Drawing> {
    // Two replications of a load tell on which side of the limit it lies.
    let effort = Effort {
        replications: 2,
        ..effort
    };
    let mut series = Vec::new();
    let mut found = String::new();
    for service in services()? {
        let mut best = String::new();
        for layout in [Layout::Central, Layout::TwoLevel, Layout::Symmetric] {
            let (mut points, mut loads) = (Vec::new(), Vec::new());
            for cores in CORES {
                let load = carried(&service, layout, cores, effort)?;
                points.push(Point::exact(cores as f64, load));
                loads.push(format!("{load:.0}"));
            }
            best += &format!("; {layout} {} %", loads.join(", "));
            let label = format!("{layout}, {}", service.label);
            series.push(Series::contender(series.len(), label, points));
        }
        let Service {
            label, limit_us, ..
        } = service;
        found += &format!(
            "With {label} and p99 of short requests within {limit_us} µs, 4, 8, 16 and 32 cores carry{}. ",
            best.trim_start_matches(';')
        );
    }
    Ok(Drawing {
        x: XAxis::Logarithmic("cores, the dispatcher's included (log)"),
        y: YAxis::Percent,
        y_label: "highest load (% of all cores)",
        bars: "",
        series,
        found: found.trim_end().to_owned(),
    })
}
