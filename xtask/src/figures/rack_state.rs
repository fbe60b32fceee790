//! What the switch of Zhu et al., *RackSched*, OSDI 2020, keeps beside loads, and what failures
//! take away: the servers of requests of several packets, and everything that it knew.

use anyhow::Result;
use shinjuku_policy::{Nanos, single_queue};
use shinjuku_sim::rack::{Action, Change, LoadInfo, Outage, RackRun, RackScenario};
use shinjuku_sim::{Estimate, Scheduler};
use shinjuku_workload::{Class, Mix, ServiceTime};

use super::source::{Claim, RACKSCHED};
use super::sweep::{self, SEED, at, lines};
use super::{Drawing, Effort, Entry, INTERVAL};
use shinjuku_plot::{Point, Series, XAxis, YAxis};

const SERVERS: usize = 8;
const WORKERS: usize = 8;
/// From switch to server, one way.
const NETWORK_NS: u64 = 2_500;

pub(super) const FIGURES: &[Entry] = &[
    Entry {
        source: &RACKSCHED,
        name: "racksched-affinity",
        title: "Requests of several packets, each of which the switch sends to a server",
        seconds: 6,
        claims: &[Claim {
            place: "abstract",
            says: "the switch ensures request affinity: all packets of a request go to one server.",
            test: "racksched_all_packets_of_a_request_go_to_one_server",
        }],
        ours: "8 servers of 8 workers at 60 % load, 90 % of 50 µs and 10 % of 500 µs, a quantum of 25 µs, two choices over \
               INT1, 1 µs between packets, the published code's table of 3 stages of 65,536 slots, and what comes of \
               a switch without one.",
        draw: affinity,
    },
    Entry {
        source: &RACKSCHED,
        name: "racksched-failure",
        title: "A server fails at 30 ms and returns at 60; the switch is out from 30 to 40",
        seconds: 6,
        claims: &[Claim {
            place: "abstract",
            says: "the switch tracks the servers' loads and knows requests' servers: state that a failure takes away. \
                   The abstract has no number of failures.",
            test: "a_rack_serves_on_after_a_server_or_the_switch_has_failed",
        }],
        ours: "the whole figure: the rack as for affinity. A server fails at 30 ms, which the switch knows 10 ms later, \
               and is back, empty, at 60 ms. Or the switch is out from 30 to 40 ms, and begins anew.",
        draw: failure,
    },
];

/// What the figures have in common.
fn rack(load_info: LoadInfo) -> Result<RackScenario> {
    let short = Class::new("short", 90.0, ServiceTime::fixed(50.0)?);
    let long = Class::new("long", 10.0, ServiceTime::fixed(500.0)?);
    let mix = Mix::new("high", vec![short, long])?;
    let policy = Scheduler::of(single_queue::REGISTERED).with_quantum(Nanos::from_micros(25));
    Ok(RackScenario {
        load_info,
        network_ns: NETWORK_NS,
        ..RackScenario::new(mix, 0.6, policy, SERVERS, WORKERS)
    })
}

/// All replications.
fn runs(scenario: &RackScenario, effort: Effort) -> Result<Vec<RackRun>> {
    let run = |seed| -> Result<RackRun> {
        effort.check_time()?;
        Ok(scenario.run(SEED + seed)?)
    };
    (0..u64::from(effort.replications)).map(run).collect()
}

fn affinity(effort: Effort) -> Result<Drawing> {
    let all = rack(LoadInfo::Int1)?;
    let tables = [
        ("with the request table", all.request_table),
        ("without", None),
    ];
    let broken = |request_table, packets: u32| -> Result<Point> {
        let scenario = RackScenario {
            request_table,
            packets,
            packet_gap_ns: 1_000,
            requests: effort.requests,
            ..all.clone()
        };
        let share = |run: RackRun| {
            let answered = run.tally.all().requests;
            100.0 * run.broken as f64 / (answered + run.broken + run.lost).max(1) as f64
        };
        let shares: Vec<f64> = runs(&scenario, effort)?.into_iter().map(share).collect();
        Ok(Point::exact(packets.into(), Estimate::of(&shares).value))
    };
    let series = lines(tables, |table| {
        let packets = [1, 2, 4, 8, 16].into_iter();
        packets.map(|packets| broken(table, packets)).collect()
    })?;
    let found = format!(
        "of requests of two packets {} % are broken with the table and {} % without, of sixteen {} % and {} %.",
        at(&series[0], 2.0),
        at(&series[1], 2.0),
        at(&series[0], 16.0),
        at(&series[1], 16.0),
    );
    Ok(Drawing {
        x: XAxis::Logarithmic("packets of a request (log)"),
        y: YAxis::Percent,
        y_label: "broken: packets at several servers (% of the requests)",
        bars: "",
        series,
        found,
    })
}

/// What is shown of a run, in ms: arrivals go on for longer.
const SHOWN_MS: u64 = 100;
/// Answers are counted for so long, in ms.
const INTERVAL_MS: u64 = 5;
/// Requests that last for longer than what is shown, warm-up included: 40 a tenth of a millisecond.
const REQUESTS: u64 = 45_000;
const MS: u64 = 1_000_000;

/// Answers of every interval, in percent of what all workers can do.
fn throughput(scenario: &RackScenario, effort: Effort) -> Result<Vec<Point>> {
    let runs = runs(scenario, effort)?;
    let unit = scenario.mix.mean_ns() / (INTERVAL_MS * MS) as f64 / (SERVERS * WORKERS) as f64;
    let point = |interval: usize| {
        let answered = |run: &RackRun| run.answered.get(interval).copied().unwrap_or(0);
        let shares: Vec<f64> = runs
            .iter()
            .map(|run| 100.0 * unit * answered(run) as f64)
            .collect();
        let middle = (interval as f64 + 0.5) * INTERVAL_MS as f64;
        sweep::point(middle, Estimate::of(&shares))
    };
    Ok((0..(SHOWN_MS / INTERVAL_MS) as usize).map(point).collect())
}

fn failure(effort: Effort) -> Result<Drawing> {
    let change = |at_ms: u64, action| Change {
        at_ns: at_ms * MS,
        server: 3,
        action,
    };
    let server = |load_info| -> Result<RackScenario> {
        Ok(RackScenario {
            changes: vec![change(30, Action::Fail), change(60, Action::Add)],
            detection_ns: 10 * MS,
            interval_ns: INTERVAL_MS * MS,
            requests: REQUESTS,
            ..rack(load_info)?
        })
    };
    let switch = RackScenario {
        outage: Some(Outage {
            at_ns: 30 * MS,
            for_ns: 10 * MS,
        }),
        changes: Vec::new(),
        ..server(LoadInfo::Int1)?
    };
    let scenarios = [
        ("a server fails, INT1", server(LoadInfo::Int1)?),
        ("a server fails, counters", server(LoadInfo::Counters)?),
        ("the switch fails, INT1", switch),
    ];
    let series = lines(scenarios, |scenario| throughput(&scenario, effort))?;
    let values = |series: &Series| {
        let [before, during, after, back] = [27.5, 37.5, 57.5, 97.5].map(|ms| at(series, ms));
        format!("{}: {before}, {during}, {after} and {back} %", series.label)
    };
    let values: Vec<_> = series.iter().map(values).collect();
    let found = format!(
        "throughput of all workers' capacity at 25 to 30, 35 to 40, 55 to 60 and 95 to 100 ms, of 60 % offered: {}. INT1 \
         goes by the last load that the dead server told, and counters by requests that it never answers, so that two \
         choices over counters leave it alone before the switch knows.",
        values.join("; "),
    );
    Ok(Drawing {
        x: XAxis::Linear("time (ms)"),
        y: YAxis::Percent,
        y_label: "requests answered (% of all workers' capacity)",
        bars: INTERVAL,
        series,
        found,
    })
}
