//! What the abstract of Zhu et al., *RackSched*, OSDI 2020, claims, on a rack of ours: eight
//! servers of eight workers.

use anyhow::Result;
use shinjuku_policy::{Nanos, cfcfs, single_queue};
use shinjuku_sim::plan::Target;
use shinjuku_sim::rack::{BalancerSpec, LoadInfo, RackScenario};
use shinjuku_sim::{Measure, Scenario, Scheduler};
use shinjuku_workload::{Class, Mix, ServiceTime};

use super::source::{Caption, Claim, RACKSCHED};
use super::sweep::{against_load, at, highest_load, latency_figure, simulate};
use super::{Drawing, Effort, Entry};
use shinjuku_plot::{Figure, Point, Series, Style, XAxis, YAxis};

const SERVERS: usize = 8;
const WORKERS: usize = 8;

pub(super) const FIGURES: &[Entry] = &[
    Entry {
        source: &RACKSCHED,
        name: "racksched-low-dispersion",
        seconds: 12,
        caption: Caption {
            claims: &[TWO_LAYERS],
            ours: RACK_OURS,
        },
        draw: low_dispersion,
    },
    Entry {
        source: &RACKSCHED,
        name: "racksched-high-dispersion",
        seconds: 12,
        caption: Caption {
            claims: &[TWO_LAYERS],
            ours: RACK_OURS,
        },
        draw: high_dispersion,
    },
    Entry {
        source: &RACKSCHED,
        name: "racksched-load-tracking",
        seconds: 12,
        caption: Caption {
            claims: &[TWO_LAYERS],
            ours: "8 servers of 8 workers, 90 % of 50 µs and 10 % of 500 µs, a quantum of 25 µs, two choices, 2.5 µs from switch \
                   to server. The ways to track load are those of the published code, not of the abstract; by INT2 that sends to \
                   the one server that is known, and one request in four to any.",
        },
        draw: load_tracking,
    },
    Entry {
        source: &RACKSCHED,
        name: "racksched-scale-out",
        seconds: 40,
        caption: Caption {
            claims: &[Claim {
                place: "abstract",
                says: "throughput scales out near linearly, while the tail latency stays that of one server until the \
                       system is saturated (measured there, on twelve servers).",
                test: "racksched_scales_out_linearly",
            }],
            ours: "to simulate this; servers of 8 workers, service times, the quantum of 25 µs, the limit of 1 ms, and 2.5 µs \
                   from switch to server.",
        },
        draw: scale_out,
    },
];

const TWO_LAYERS: Claim = Claim {
    place: "abstract",
    says: "two layers, a server chosen in the switch and a scheduler in the server, perform nearly as well as a \
           centralized policy, for low and for high dispersion; the switch realizes power-of-k-choices and tracks \
           server loads.",
    test: "racksched_two_layers_come_near_a_global_queue",
};

const RACK_OURS: &str = "8 servers of 8 workers, service times, c-FCFS or a quantum of 25 µs in the servers, two choices, 2.5 µs \
                         from switch to server. What load that is a round trip old does to the shortest queue is our \
                         finding, not the abstract's.";

/// From switch to server, one way.
const NETWORK_NS: u64 = 2_500;

fn preemptive() -> Scheduler {
    Scheduler::of(single_queue::REGISTERED).with_quantum(Nanos::from_micros(25))
}

fn low() -> Result<Mix> {
    let service = ServiceTime::exponential(50.0)?;
    Ok(Mix::new("low", vec![Class::new("request", 1.0, service)])?)
}

fn high() -> Result<Mix> {
    let short = Class::new("short", 90.0, ServiceTime::fixed(50.0)?);
    let long = Class::new("long", 10.0, ServiceTime::fixed(500.0)?);
    Ok(Mix::new("high", vec![short, long])?)
}

/// A choice of server, and what it is based on; the label says both.
type Choice = (&'static str, BalancerSpec, LoadInfo, u64);

const CHOICES: [Choice; 6] = [
    ("random", BalancerSpec::Random, LoadInfo::Exact, 0),
    (
        "shortest, exact load",
        BalancerSpec::Shortest,
        LoadInfo::Exact,
        0,
    ),
    (
        "two choices, exact load",
        BalancerSpec::PowerOf(2),
        LoadInfo::Exact,
        0,
    ),
    (
        "two choices, INT1",
        BalancerSpec::PowerOf(2),
        LoadInfo::Int1,
        NETWORK_NS,
    ),
    (
        "two choices, counters",
        BalancerSpec::PowerOf(2),
        LoadInfo::Counters,
        NETWORK_NS,
    ),
    (
        "shortest, INT1",
        BalancerSpec::Shortest,
        LoadInfo::Int1,
        NETWORK_NS,
    ),
];

/// The ways to track load, which two choices are based on, as in the published code; by INT2 that
/// sends to the one server that is known, and one request in four to any.
const TRACKED: [Choice; 4] = [
    (
        "INT1, queue lengths by class",
        BalancerSpec::PowerOf(2),
        LoadInfo::Int1,
        NETWORK_NS,
    ),
    (
        "INT2, the least loaded alone",
        BalancerSpec::Shortest,
        LoadInfo::Int2,
        NETWORK_NS,
    ),
    (
        "INT3, outstanding work",
        BalancerSpec::PowerOf(2),
        LoadInfo::Int3,
        NETWORK_NS,
    ),
    (
        "counters",
        BalancerSpec::PowerOf(2),
        LoadInfo::Counters,
        NETWORK_NS,
    ),
];

fn rack(mix: &Mix, policy: &Scheduler, choice: Choice, effort: Effort, load: f64) -> RackScenario {
    let (_, balancer, load_info, network_ns) = choice;
    RackScenario {
        balancer,
        load_info,
        network_ns,
        requests: effort.requests,
        ..RackScenario::new(mix.clone(), load, policy.clone(), SERVERS, WORKERS)
    }
}

fn layers(
    (name, title): (&str, &str),
    mix: &Mix,
    policy: &Scheduler,
    choices: &[Choice],
    effort: Effort,
) -> Result<Drawing> {
    let what = (Measure::P99Us, None);
    let mut series = vec![against_load(
        "one queue for all",
        Style::Floor,
        effort,
        what,
        |load| {
            let scenario = Scenario::new(mix.clone(), load, policy.clone(), SERVERS * WORKERS);
            Target::Server(Box::new(scenario.with_requests(effort.requests)))
        },
    )?];
    for (number, &choice) in choices.iter().enumerate() {
        series.push(against_load(
            choice.0,
            Style::Contender(number),
            effort,
            what,
            |load| Target::Rack(Box::new(rack(mix, policy, choice, effort, load))),
        )?);
    }
    let values: Vec<_> = series
        .iter()
        .map(|series| format!("{} {}", series.label, at(series, 90.0)))
        .collect();
    Ok(Drawing {
        figure: latency_figure(name, title, series),
        found: format!("p99 in µs at 90 % load: {}.", values.join(", ")),
    })
}

fn low_dispersion(effort: Effort) -> Result<Drawing> {
    let title = "Rack of 8 x 8, exponential, mean 50 µs; c-FCFS in each server";
    layers(
        ("racksched-low-dispersion", title),
        &low()?,
        &Scheduler::of(cfcfs::REGISTERED),
        &CHOICES,
        effort,
    )
}

fn high_dispersion(effort: Effort) -> Result<Drawing> {
    let title = "Rack of 8 x 8, 90 % of 50 µs and 10 % of 500 µs; c-PRE-SQ(25 µs) in each server";
    let names = ("racksched-high-dispersion", title);
    layers(names, &high()?, &preemptive(), &CHOICES, effort)
}

fn load_tracking(effort: Effort) -> Result<Drawing> {
    let title = "Tracking load: 8 x 8, 90 % of 50 µs and 10 % of 500 µs, two choices";
    let names = ("racksched-load-tracking", title);
    layers(names, &high()?, &preemptive(), &TRACKED, effort)
}

/// Explains a ratio of the throughputs of 32 servers and one, if there is something to explain.
fn superlinear_note(ratio: f64) -> &'static str {
    // 32.0, as printed, is not more than 32.
    if ratio >= 32.05 {
        " (More than 32 because a balanced rack shares its idle workers, which a single server cannot.)"
    } else {
        ""
    }
}

fn scale_out(effort: Effort) -> Result<Drawing> {
    let mix = high()?;
    let policy = preemptive();
    let limit_us = 1_000.0;
    let counts = [1, 2, 4, 8, 12, 16, 32];
    let choices = [
        (
            "two choices, exact load",
            BalancerSpec::PowerOf(2),
            LoadInfo::Exact,
            0,
        ),
        (
            "two choices, INT1",
            BalancerSpec::PowerOf(2),
            LoadInfo::Int1,
            NETWORK_NS,
        ),
        ("random", BalancerSpec::Random, LoadInfo::Exact, 0),
    ];
    let mut series = Vec::new();
    for (number, choice) in choices.into_iter().enumerate() {
        let mut points = Vec::new();
        for servers in counts {
            let load = highest_load(effort, |load| {
                let scenario = RackScenario {
                    servers,
                    requests: effort.search_requests / 2,
                    ..rack(&mix, &policy, choice, effort, load)
                };
                let result = simulate(&Target::Rack(Box::new(scenario)), effort)?;
                Ok(result.estimate(Measure::P99Us, None).value <= limit_us)
            })?;
            // Thousand requests a second.
            let throughput = load / 100.0 * (servers * WORKERS) as f64 / mix.mean_ns() * 1e6;
            points.push(Point {
                x: servers as f64,
                y: Some(throughput),
                spread: None,
            });
        }
        series.push(Series {
            label: choice.0.to_owned(),
            style: Style::Contender(number),
            points,
        });
    }
    let ratio = |series: &Series| {
        let ends = series
            .points
            .first()
            .and_then(|a| a.y)
            .zip(series.points.last().and_then(|b| b.y));
        ends.map_or(0.0, |(first, last)| last / first)
    };
    let found = format!(
        "with p99 within {limit_us} µs, 32 servers carry {:.1} times what one does by two choices over exact load, {:.1} times \
         over INT1, and {:.1} times at random.{}",
        ratio(&series[0]),
        ratio(&series[1]),
        ratio(&series[2]),
        superlinear_note(ratio(&series[0]).max(ratio(&series[1]))),
    );
    Ok(Drawing {
        figure: Figure {
            name: "racksched-scale-out".to_owned(),
            title: "Scale-out: 90 % of 50 µs and 10 % of 500 µs, p99 within 1 ms".to_owned(),
            x: XAxis::Logarithmic("servers of 8 workers (log)"),
            y: YAxis::Logarithmic,
            y_label: "highest throughput (thousand requests / s, log)".to_owned(),
            bars: "",
            series,
        },
        found,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_more_than_linear_growth_is_explained() {
        assert_eq!(superlinear_note(31.0), "");
        assert_eq!(superlinear_note(32.0), "");
        assert!(superlinear_note(33.0).contains("More than 32"));
    }
}
