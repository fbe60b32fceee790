//! What the abstract of Zhu et al., *RackSched*, OSDI 2020, claims, on a rack of ours: eight
//! servers of eight workers.

use anyhow::Result;
use shinjuku_policy::{Nanos, cfcfs, single_queue};
use shinjuku_sim::plan::Target;
use shinjuku_sim::rack::{BalancerSpec, LoadInfo, RackScenario};
use shinjuku_sim::{Measure, Scenario, Scheduler};
use shinjuku_workload::{Class, Mix, ServiceTime};

use super::source::{Claim, RACKSCHED};
use super::sweep::{P99, against_load, at, each, highest_load, lines, one_class, simulate};
use super::{Drawing, Effort, Entry};
use shinjuku_plot::{Point, Series, Style, XAxis, YAxis};

const SERVERS: usize = 8;
const WORKERS: usize = 8;

pub(super) const FIGURES: &[Entry] = &[
    Entry {
        source: &RACKSCHED,
        name: "racksched-low-dispersion",
        title: "Rack of 8 x 8, exponential, mean 50 µs; c-FCFS in each server",
        seconds: 12,
        claims: &[TWO_LAYERS],
        ours: RACK_OURS,
        draw: |effort| layers(&low()?, &Scheduler::of(cfcfs::REGISTERED), &CHOICES, effort),
    },
    Entry {
        source: &RACKSCHED,
        name: "racksched-high-dispersion",
        title: "Rack of 8 x 8, 90 % of 50 µs and 10 % of 500 µs; c-PRE-SQ(25 µs) in each server",
        seconds: 12,
        claims: &[TWO_LAYERS],
        ours: RACK_OURS,
        draw: |effort| layers(&high()?, &preemptive(), &CHOICES, effort),
    },
    Entry {
        source: &RACKSCHED,
        name: "racksched-load-tracking",
        title: "Tracking load: 8 x 8, 90 % of 50 µs and 10 % of 500 µs, two choices",
        seconds: 12,
        claims: &[TWO_LAYERS],
        ours: "8 servers of 8 workers, 90 % of 50 µs and 10 % of 500 µs, a quantum of 25 µs, two choices, 2.5 µs from switch \
               to server. The ways to track load are those of the published code, not of the abstract; by INT2 that sends to \
                the one server that is known, and one request in four to any.",
        draw: |effort| layers(&high()?, &preemptive(), &TRACKED, effort),
    },
    Entry {
        source: &RACKSCHED,
        name: "racksched-scale-out",
        title: "Scale-out: 90 % of 50 µs and 10 % of 500 µs, p99 within 1 ms",
        seconds: 40,
        claims: &[Claim {
            place: "abstract",
            says: "throughput scales out near linearly, while the tail latency stays that of one server until the \
                   system is saturated (measured there, on twelve servers).",
            test: "racksched_scales_out_linearly",
        }],
        ours: "to simulate this; servers of 8 workers, service times, the quantum of 25 µs, the limit of 1 ms, and 2.5 µs \
               from switch to server.",
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
    one_class(ServiceTime::exponential(50.0)?)
}

fn high() -> Result<Mix> {
    let short = Class::new("short", 90.0, ServiceTime::fixed(50.0)?);
    let long = Class::new("long", 10.0, ServiceTime::fixed(500.0)?);
    Ok(Mix::new("high", vec![short, long])?)
}

/// A choice of server: the label says all.
type Choice = (&'static str, Balancing);

/// How servers are chosen, what that is based on, and from switch to server, one way, in ns.
type Balancing = (BalancerSpec, LoadInfo, u64);

const RANDOM: Balancing = (BalancerSpec::Random, LoadInfo::Exact, 0);
const TWO_EXACT: Balancing = (BalancerSpec::PowerOf(2), LoadInfo::Exact, 0);

/// Two choices over what the packets tell.
const fn two(load: LoadInfo) -> Balancing {
    (BalancerSpec::PowerOf(2), load, NETWORK_NS)
}

const CHOICES: [Choice; 6] = [
    ("random", RANDOM),
    (
        "shortest, exact load",
        (BalancerSpec::Shortest, LoadInfo::Exact, 0),
    ),
    ("two choices, exact load", TWO_EXACT),
    ("two choices, INT1", two(LoadInfo::Int1)),
    ("two choices, counters", two(LoadInfo::Counters)),
    (
        "shortest, INT1",
        (BalancerSpec::Shortest, LoadInfo::Int1, NETWORK_NS),
    ),
];

/// The ways to track load, which two choices are based on, as in the published code; by INT2 that
/// sends to the one server that is known, and one request in four to any.
const TRACKED: [Choice; 4] = [
    ("INT1, queue lengths by class", two(LoadInfo::Int1)),
    (
        "INT2, the least loaded alone",
        (BalancerSpec::Shortest, LoadInfo::Int2, NETWORK_NS),
    ),
    ("INT3, outstanding work", two(LoadInfo::Int3)),
    ("counters", two(LoadInfo::Counters)),
];

fn rack(
    mix: &Mix,
    policy: &Scheduler,
    (balancer, load_info, network_ns): Balancing,
    effort: Effort,
    load: f64,
) -> RackScenario {
    RackScenario {
        balancer,
        load_info,
        network_ns,
        requests: effort.requests,
        ..RackScenario::new(mix.clone(), load, policy.clone(), SERVERS, WORKERS)
    }
}

fn layers(mix: &Mix, policy: &Scheduler, choices: &[Choice], effort: Effort) -> Result<Drawing> {
    let one_queue = against_load(effort, P99, |load| {
        let scenario = Scenario::new(mix.clone(), load, policy.clone(), SERVERS * WORKERS);
        Target::Server(Box::new(scenario.with_requests(effort.requests)))
    })?;
    let mut series = vec![Series {
        label: "one queue for all".to_owned(),
        style: Style::Floor,
        points: one_queue,
    }];
    series.extend(lines(choices.iter().copied(), |balancing| {
        against_load(effort, P99, |load| {
            Target::Rack(Box::new(rack(mix, policy, balancing, effort, load)))
        })
    })?);
    let values = each(&series, |one| format!("{} {}", one.label, at(one, 90.0)));
    let found = format!("p99 in µs at 90 % load: {values}.");
    Ok(Drawing::latency(series, found))
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
        ("two choices, exact load", TWO_EXACT),
        ("two choices, INT1", two(LoadInfo::Int1)),
        ("random", RANDOM),
    ];
    let carried = |balancing, servers: usize| -> Result<Point> {
        let load = highest_load(effort, |load| {
            let scenario = RackScenario {
                servers,
                requests: effort.search_requests / 2,
                ..rack(&mix, &policy, balancing, effort, load)
            };
            let result = simulate(&Target::Rack(Box::new(scenario)), effort)?;
            Ok(result.estimate(Measure::P99Us, None).value <= limit_us)
        })?;
        // Thousand requests a second.
        let throughput = load / 100.0 * (servers * WORKERS) as f64 / mix.mean_ns() * 1e6;
        Ok(Point::exact(servers as f64, throughput))
    };
    let series = lines(choices, |balancing| {
        let points = counts
            .into_iter()
            .map(|servers| carried(balancing, servers));
        points.collect()
    })?;
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
        x: XAxis::Logarithmic("servers of 8 workers (log)"),
        y: YAxis::Logarithmic,
        y_label: "highest throughput (thousand requests / s, log)",
        bars: "",
        series,
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
