//! What Kaffes et al., *Shinjuku*, NSDI 2019, measure in sections 4.2 to 4.4, simulated on sixteen
//! hyperthreads: Shinjuku beside what IX and ZygOS do.
//!
//! IX and ZygOS serve with all sixteen, Shinjuku with fourteen. So load is that of sixteen.

use anyhow::Result;
use shinjuku_policy::{Requeue, dfcfs, stealing};
use shinjuku_sim::plan::Target;
use shinjuku_sim::rack::{BalancerSpec, RackScenario};
use shinjuku_sim::{Measure, Overheads, Scenario, Scheduler};
use shinjuku_workload::{Class, Mix, ServiceTime};

use super::shinjuku::{POSTED, SLOWDOWN, multi_queue_at_the_head, single_queue};
use super::source::{Claim, SHINJUKU};
use super::sweep::{SEED, against_load, at, each, highest_load, lines, one_class, simulate};
use super::{Drawing, Effort, Entry, layouts};
use shinjuku_plot::{Point, Series, XAxis, YAxis};

/// Hyperthreads of each system (section 4.1).
const THREADS: usize = 16;
/// Shinjuku's for workers: one is the dispatcher's, one the networker's (section 4.1).
const WORKERS: usize = THREADS - 2;
/// Connections (section 4.1).
const FLOWS: u32 = 1920;

/// What Shinjuku's parts cost, by the paper's own numbers at its 2 GHz: besides interrupts and
/// switches, 70 cycles to send a message and half of the round trip of 211 cycles (section 3.5).
const SHINJUKU_COSTS: Overheads = Overheads {
    dispatch_ns: 35,
    message_ns: 53,
    ..POSTED
};

/// What TCP adds to a request of ZygOS: less than 0.25 us (section 4.1). Stealing costs nothing.
const ZYGOS_COSTS: Overheads = Overheads {
    switch_ns: 250,
    ..Overheads::IDEAL
};

pub(super) const FIGURES: &[Entry] = &[
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-5a",
        title: "Sixteen hyperthreads, 1 µs each",
        seconds: 12,
        claims: &[CLOSE_TO_IX],
        ours: SIXTEEN_OURS,
        draw: |effort| single("fixed", at_the_head(), effort),
    },
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-5b",
        title: "Sixteen hyperthreads, exponential, mean 1 µs",
        seconds: 12,
        claims: &[CLOSE_TO_IX],
        ours: SIXTEEN_OURS,
        draw: |effort| single("exp", at_the_head(), effort),
    },
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-5c",
        title: "Sixteen hyperthreads, 99.5 % of 0.5 µs and 0.5 % of 500 µs",
        seconds: 12,
        claims: &[Claim {
            place: "section 4.2",
            says: "where 99.5 % take 0.5 µs and 0.5 % take 500 µs SQ, with the tail for preempted requests, has up to \
                   50 % lower tail latency at low load, and 5 times the throughput at 300 µs (figure 5c, measured \
                   there).",
            test: "shinjuku_5c_sq_has_the_lower_tail",
        }],
        ours: SIXTEEN_OURS,
        draw: |effort| single("hi", single_queue(5), effort),
    },
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-6a",
        title: "Sixteen hyperthreads, half 1 µs and half 100 µs",
        seconds: 12,
        claims: &[SLOWDOWNS],
        ours: SIXTEEN_OURS,
        draw: |effort| types("mid", effort),
    },
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-6b",
        title: "Sixteen hyperthreads, a third each of 1, 10 and 100 µs",
        seconds: 12,
        claims: &[SLOWDOWNS],
        ours: SIXTEEN_OURS,
        draw: |effort| types("tri", effort),
    },
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-7a",
        title: "Preemption interval: half 1 µs and half 100 µs, c-PRE-MQ",
        seconds: 15,
        claims: &[Claim {
            place: "section 4.3",
            says: "on half 1 µs and half 100 µs under MQ, the shorter the preemption interval the better, and 5 µs does \
                   well (figure 7a, measured there).",
            test: "shinjuku_7a_shorter_intervals_are_better",
        }],
        ours: "to simulate this, and the intervals above 5 µs. Costs are the paper's, at 2 GHz.",
        draw: intervals,
    },
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-7b",
        title: "Requests of 1 µs by the number of workers",
        seconds: 60,
        claims: &[Claim {
            place: "section 4.3",
            says: "with requests of 1 µs fixed one dispatcher scales almost linearly to 11 workers and 5 million requests a \
                   second, two dispatchers to 22 and 9.5 million (figure 7b, measured there).",
            test: "shinjuku_7b_one_dispatcher_scales_until_it_is_busy",
        }],
        ours: "to simulate this, with the costs of the figure `layouts`, measured here, and beside with the paper's, whose 70 \
               cycles are its least for a message; SQ with 5 µs, p99 within 50 µs; two dispatchers have half of the workers \
               each, and flows hash to them.",
        draw: workers,
    },
    super::zygos::STEAL_RATE,
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-few-connections",
        title: "Sixteen hyperthreads, exponential, mean 1 µs, by the number of connections",
        seconds: 30,
        claims: &[Claim {
            place: "section 3.6",
            says: "where one dispatcher suffices Shinjuku is efficient even with a single connection, as IX and ZygOS are not.",
            test: "shinjuku_one_connection_suffices",
        }],
        ours: "the whole figure, with what figure 5b is simulated with: the highest load with a p99 within 10 µs.",
        draw: few_connections,
    },
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-8a",
        title: "Sixteen hyperthreads, 99.5 % GETs of 6 µs and 0.5 % SCANs of 240 µs",
        seconds: 12,
        claims: &[Claim {
            place: "section 4.4",
            says: "with 99.5 % GETs of 6 µs, 0.5 % SCANs of 240 µs and a slice of 15 µs SQ has an 88 % lower tail \
                   latency than ZygOS and 6.6 times its throughput; IX does worse (figure 8a, measured there).",
            test: "shinjuku_8a_sq_keeps_scans_out_of_the_tail",
        }],
        ours: SIXTEEN_OURS,
        draw: gets_and_scans,
    },
];

const CLOSE_TO_IX: Claim = Claim {
    place: "section 4.2",
    says: "with fixed and with exponential service times of 1 µs SQ performs close to IX, although two hyperthreads do \
           not serve and requests of more than 5 µs are preempted, to the head (figures 5a and 5b, measured there).",
    test: "shinjuku_5_light_tails_come_close_to_ix",
};

const SLOWDOWNS: Claim = Claim {
    place: "section 4.2",
    says: "with two types, 1 and 100 µs, and with three, 1, 10 and 100 µs, MQ has a 94 % lower p99 slowdown at low \
           load and more than twice the throughput of IX and ZygOS (figures 6a and 6b, measured there).",
    test: "shinjuku_6_mq_lowers_slowdowns",
};

/// A line of figure 7b: its dispatchers, what they cost, and the numbers of workers in all.
type Scaled = (usize, Overheads, &'static [usize]);

const SCALED: [(&str, Scaled); 4] = [
    (
        "one dispatcher",
        (1, layouts::DISPATCHER, &[1, 2, 4, 6, 8, 11, 16, 22, 32]),
    ),
    (
        "two dispatchers",
        (2, layouts::DISPATCHER, &[2, 4, 6, 8, 16, 22, 32]),
    ),
    (
        "one dispatcher, the paper's costs",
        (1, SHINJUKU_COSTS, &[1, 4, 11]),
    ),
    (
        "two dispatchers, the paper's costs",
        (2, SHINJUKU_COSTS, &[2, 8, 22]),
    ),
];

/// Figure 7b: what one and two dispatchers carry, by the workers behind them.
fn workers(effort: Effort) -> Result<Drawing> {
    let effort = Effort {
        replications: 2,
        search_requests: effort.search_requests / 3,
        ..effort
    };
    let series = lines(SCALED, |(dispatchers, costs, counts)| {
        let point = |&workers: &usize| {
            let carried = carried(dispatchers, costs, workers, effort)?;
            Ok(Point::exact(workers as f64, carried))
        };
        counts.iter().map(point).collect()
    })?;
    let most = |series: &Series| {
        let values = series.points.iter().filter_map(|point| point.y);
        values.fold(0.0, f64::max)
    };
    let found = format!(
        "one dispatcher carries {} million requests a second over 4 workers, {} over 11 and {:.1} at most; two carry {:.1} at \
         most. With the paper's costs one carries {} million over one worker and {} over 11, two carry {} over 22.",
        at(&series[0], 4.0),
        at(&series[0], 11.0),
        most(&series[0]),
        most(&series[1]),
        at(&series[2], 1.0),
        at(&series[2], 11.0),
        at(&series[3], 22.0),
    );
    Ok(Drawing {
        x: XAxis::Linear("workers"),
        y: YAxis::Logarithmic,
        y_label: "highest throughput (million requests / s, log)",
        bars: "",
        series,
        found,
    })
}

/// Million requests of 1 us a second that `dispatchers` carry within 50 us.
fn carried(dispatchers: usize, costs: Overheads, workers: usize, effort: Effort) -> Result<f64> {
    let mix = one_class(ServiceTime::fixed(1.0)?)?;
    let load = highest_load(effort, |load| {
        let each = workers / dispatchers;
        let mut scenario = RackScenario::new(mix.clone(), load, single_queue(5), dispatchers, each);
        scenario.balancer = BalancerSpec::ByFlow;
        scenario.requests = effort.search_requests;
        scenario.shape.overheads = costs;
        scenario.shape.depth = 2;
        let result = simulate(&Target::Rack(Box::new(scenario)), effort)?;
        let p99 = result.estimate(Measure::P99Us, None).value;
        Ok(result.refused == 0 && p99 <= 50.0)
    })?;
    Ok(load / 100.0 * workers as f64 / mix.mean_ns() * 1e3)
}

const SIXTEEN_OURS: &str = "to simulate this. Shinjuku costs what the paper says at 2 GHz: 298, 1,212 and 109 cycles (sections 3.2, \
                            3.3), 70 a message and 211 a round trip (section 3.5). A request of ZygOS has 0.25 µs of TCP \
                            (section 4.1), its stealing is free, and so is all of IX: both do better than the real systems.";

/// A system: its label, and the server that it is at a load of sixteen hyperthreads.
struct System<'a> {
    label: &'a str,
    policy: Scheduler,
    workers: usize,
    overheads: Overheads,
}

impl System<'_> {
    fn scenario(&self, mix: &Mix, effort: Effort, load: f64) -> Scenario {
        let load = load * THREADS as f64 / self.workers as f64;
        let mut scenario = Scenario::new(mix.clone(), load, self.policy.clone(), self.workers)
            .with_requests(effort.requests);
        scenario.flows = Some(FLOWS);
        scenario.shape.overheads = self.overheads;
        scenario
    }

    /// Whether it cannot keep up: then its latency is the length of the simulation.
    fn is_overloaded(&self, mix: &Mix, effort: Effort, load: f64) -> Result<bool> {
        let scenario = self.scenario(mix, effort, load);
        let runs = u64::from(effort.replications);
        let mut growing = 0;
        for seed in 0..runs {
            growing += u64::from(scenario.run(SEED + seed)?.growing);
        }
        Ok(scenario.load >= 1.0 || growing > runs / 2)
    }
}

/// IX, ZygOS, and Shinjuku under a policy.
fn three(shinjuku: Scheduler) -> [System<'static>; 3] {
    [
        System {
            label: "IX(16)",
            policy: Scheduler::of(dfcfs::REGISTERED),
            workers: THREADS,
            overheads: Overheads::IDEAL,
        },
        System {
            label: "ZygOS(16)",
            policy: Scheduler::of(stealing::REGISTERED),
            workers: THREADS,
            overheads: ZYGOS_COSTS,
        },
        System {
            label: "Shinjuku(16)",
            policy: shinjuku,
            workers: WORKERS,
            overheads: SHINJUKU_COSTS,
        },
    ]
}

/// A line for each system. Where a system cannot keep up it has no value.
fn compared(
    y_label: &'static str,
    mix: &Mix,
    systems: &[System<'_>],
    measure: Measure,
    effort: Effort,
) -> Result<Drawing> {
    let labelled = systems.iter().map(|system| (system.label, system));
    let series = lines(labelled, |system| {
        let target = |load| Target::Server(Box::new(system.scenario(mix, effort, load)));
        let mut points = against_load(effort, (measure, None), target)?;
        for point in &mut points {
            if system.is_overloaded(mix, effort, point.x / 100.0)? {
                (point.y, point.spread) = (None, None);
            }
        }
        Ok(points)
    })?;
    let values = each(&series, |one| {
        format!("{} {} and {}", one.label, at(one, 30.0), at(one, 60.0))
    });
    let found = format!("at 30 and 60 % load: {values}.");
    Ok(Drawing {
        y_label,
        ..Drawing::latency(series, found)
    })
}

/// The highest loads of the three systems with few connections and with many.
fn few_connections(effort: Effort) -> Result<Drawing> {
    let effort = Effort {
        replications: 2,
        search_requests: effort.search_requests / 3,
        ..effort
    };
    let mix = Mix::named("exp")?;
    let systems = three(at_the_head());
    let labelled = systems.iter().map(|system| (system.label, system));
    let series = lines(labelled, |system| {
        let point = |flows: u32| {
            let load = highest_load(effort, |load| {
                let mut scenario = system.scenario(&mix, effort, load);
                (scenario.flows, scenario.requests) = (Some(flows), effort.search_requests);
                // A load of all its workers is one that it cannot keep up with.
                if scenario.load >= 1.0 {
                    return Ok(false);
                }
                let result = simulate(&Target::Server(Box::new(scenario)), effort)?;
                let p99 = result.estimate(Measure::P99Us, None).value;
                Ok(result.refused == 0 && p99 <= 10.0)
            })?;
            Ok(Point::exact(f64::from(flows), load))
        };
        [1, 8, 64, 512, FLOWS].into_iter().map(point).collect()
    })?;
    let found = each(&series, |one| {
        let many = at(one, f64::from(FLOWS));
        format!("{} {} and {many} %", one.label, at(one, 1.0))
    });
    Ok(Drawing {
        x: XAxis::Logarithmic("connections (log)"),
        y: YAxis::Percent,
        y_label: "highest load with p99 within 10 µs (%)",
        bars: "",
        series,
        found: format!("over one connection and over {FLOWS}: {found}."),
    })
}

const LATENCY: &str = "p99 latency, all requests (µs, log)";

fn at_the_head() -> Scheduler {
    single_queue(5).with_requeue(Requeue::Head)
}

/// A part of figure 5, preempted requests at head or tail.
fn single(mix: &str, shinjuku: Scheduler, effort: Effort) -> Result<Drawing> {
    let mix = Mix::named(mix)?;
    compared(LATENCY, &mix, &three(shinjuku), Measure::P99Us, effort)
}

/// A part of figure 6.
fn types(mix: &str, effort: Effort) -> Result<Drawing> {
    let mix = Mix::named(mix)?;
    let systems = three(multi_queue_at_the_head(&mix, 5)?);
    compared(SLOWDOWN, &mix, &systems, Measure::P99Slowdown, effort)
}

fn intervals(effort: Effort) -> Result<Drawing> {
    let mix = Mix::named("mid")?;
    let quanta = [(5, "5 µs"), (10, "10 µs"), (15, "15 µs"), (50, "50 µs")];
    let system = |(quantum_us, label)| {
        Ok(System {
            label,
            policy: multi_queue_at_the_head(&mix, quantum_us)?,
            workers: WORKERS,
            overheads: SHINJUKU_COSTS,
        })
    };
    let systems: Vec<_> = quanta.into_iter().map(system).collect::<Result<_>>()?;
    compared(SLOWDOWN, &mix, &systems, Measure::P99Slowdown, effort)
}

fn gets_and_scans(effort: Effort) -> Result<Drawing> {
    let get = Class::new("GET", 99.5, ServiceTime::fixed(6.0)?);
    let scan = Class::new("SCAN", 0.5, ServiceTime::fixed(240.0)?);
    let mix = Mix::new("GET and SCAN", vec![get, scan])?;
    compared(
        LATENCY,
        &mix,
        &three(single_queue(15)),
        Measure::P99Us,
        effort,
    )
}
