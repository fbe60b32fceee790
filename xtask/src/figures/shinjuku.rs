//! The simulated figures of Kaffes et al., *Shinjuku*, NSDI 2019: 16 workers, mean service times about 1 us.

use anyhow::Result;
use shinjuku_policy::Nanos;
use shinjuku_sim::imbalance::connections_needed;
use shinjuku_sim::plan::Target;
use shinjuku_sim::policies::rules;
use shinjuku_sim::{Measure, Overheads, PolicySpec, Scenario};
use shinjuku_workload::Mix;

use super::sweep::{SEED, against_load, at, latency_figure};
use super::{Drawing, Effort};
use shinjuku_plot::{Figure, Point, Series, Style, XAxis, YAxis};

const WORKERS: usize = 16;

/// What a posted interrupt costs in the paper (298 cycles to send, 1212 to take, about 110 to switch, at 2.5 GHz or so).
const POSTED: Overheads = Overheads {
    preempt_send_ns: 120,
    preempt_receive_ns: 485,
    switch_ns: 44,
    ..Overheads::IDEAL
};

/// About what a Linux signal costs on real hardware (2.4 us lost by the receiver).
const SIGNAL: Overheads = Overheads {
    preempt_send_ns: 1_000,
    preempt_receive_ns: 2_400,
    switch_ns: 44,
    ..Overheads::IDEAL
};

fn single_queue(quantum_us: u64) -> PolicySpec {
    PolicySpec::SingleQueue {
        quantum: Nanos::from_micros(quantum_us),
    }
}

fn server<'a>(
    mix: &'a Mix,
    policy: &'a PolicySpec,
    overheads: Overheads,
    effort: Effort,
) -> impl Fn(f64) -> Target + 'a {
    move |load| {
        let mut scenario = Scenario::new(mix.clone(), load, policy.clone(), WORKERS)
            .with_requests(effort.requests);
        scenario.shape.overheads = overheads;
        Target::Server(Box::new(scenario))
    }
}

/// A line for each contender: label, policy, overheads.
fn lines(
    mix: &Mix,
    effort: Effort,
    contenders: &[(&str, PolicySpec, Overheads)],
) -> Result<Vec<Series>> {
    let line = |(number, (label, policy, overheads)): (usize, &(&str, PolicySpec, Overheads))| {
        let target = server(mix, policy, *overheads, effort);
        let style = if matches!(policy, PolicySpec::Sharing) {
            Style::Floor
        } else {
            Style::Contender(number)
        };
        against_load(label, style, effort, (Measure::P99Us, None), target)
    };
    contenders.iter().enumerate().map(line).collect()
}

fn ideal(name: &str, mix: &str, title: &str, effort: Effort, paper: &str) -> Result<Drawing> {
    let mix = Mix::named(mix)?;
    let contenders = [
        ("d-FCFS", PolicySpec::DFcfs, Overheads::IDEAL),
        ("c-FCFS", PolicySpec::CFcfs, Overheads::IDEAL),
        ("c-PRE-SQ, 5 µs", single_queue(5), Overheads::IDEAL),
        ("PS", PolicySpec::Sharing, Overheads::IDEAL),
    ];
    let series = lines(&mix, effort, &contenders)?;
    let ours = format!(
        "at 70 % load p99 is {} µs under d-FCFS, {} under c-FCFS, {} under c-PRE-SQ with a quantum of 5 µs and {} under PS.",
        at(&series[0], 70.0),
        at(&series[1], 70.0),
        at(&series[2], 70.0),
        at(&series[3], 70.0),
    );
    Ok(Drawing {
        figure: latency_figure(name, title, series),
        paper: paper.to_owned(),
        ours,
    })
}

pub(super) fn exponential(effort: Effort) -> Result<Drawing> {
    ideal(
        "shinjuku-1a",
        "exp",
        "Ideal policies, exponential service times, mean 1 µs",
        effort,
        "figure 1a: with light-tailed service times c-FCFS is best; PS follows closely, and d-FCFS is worst, because a \
         worker idles while others have queues.",
    )
}

pub(super) fn lognormal(effort: Effort) -> Result<Drawing> {
    ideal(
        "shinjuku-1b",
        "lognormal",
        "Ideal policies, lognormal service times, mean 1 µs, sd 10 µs",
        effort,
        "figure 1b: with a heavy tail PS gets the lead over c-FCFS as the load grows, and d-FCFS is far off (the \
         distribution's parameters are our choice).",
    )
}

pub(super) fn bimodal(effort: Effort) -> Result<Drawing> {
    ideal(
        "shinjuku-1c",
        "hi",
        "Ideal policies, 99.5 % of 0.5 µs and 0.5 % of 500 µs",
        effort,
        "figure 1c: on this mix PS is better than c-FCFS, and c-FCFS better than d-FCFS, each by orders of magnitude at \
         p99: short requests wait behind long ones.",
    )
}

fn priced(name: &str, mix: &str, title: &str, effort: Effort, paper: &str) -> Result<Drawing> {
    let mix = Mix::named(mix)?;
    let contenders = [
        ("c-FCFS", PolicySpec::CFcfs, Overheads::IDEAL),
        ("5 µs, free", single_queue(5), Overheads::IDEAL),
        ("5 µs, posted interrupt", single_queue(5), POSTED),
        ("5 µs, signal", single_queue(5), SIGNAL),
        ("15 µs, posted interrupt", single_queue(15), POSTED),
        ("PS", PolicySpec::Sharing, Overheads::IDEAL),
    ];
    let series = lines(&mix, effort, &contenders)?;
    let ours = format!(
        "at 70 % load p99 is {} µs without preemption; with a quantum of 5 µs it is {} if preemption is free, {} if it \
         costs what a posted interrupt does, {} if it costs what a signal does; with 15 µs and posted interrupts {}. Ideal \
         PS: {}. A posted interrupt takes 0.12 µs of the dispatcher and 0.49 of the worker, a signal 1 and 2.4 µs{}.",
        at(&series[0], 70.0),
        at(&series[1], 70.0),
        at(&series[2], 70.0),
        at(&series[3], 70.0),
        at(&series[4], 70.0),
        at(&series[5], 70.0),
        dispatcher_note(&mix),
    );
    Ok(Drawing {
        figure: latency_figure(name, title, series),
        paper: paper.to_owned(),
        ours,
    })
}

/// What follows where signals are many. A long request of `hi` takes 100 quanta of 5 µs, which is one signal for every two
/// requests: at 70 % load nearly 2 a microsecond, of 1 µs each. Of the other mixes few requests reach a quantum.
fn dispatcher_note(mix: &Mix) -> &'static str {
    if mix.name() == "hi" {
        ", so that signals at this quantum soon use up the one dispatcher"
    } else {
        ""
    }
}

pub(super) fn priced_exponential(effort: Effort) -> Result<Drawing> {
    priced(
        "shinjuku-2a",
        "exp",
        "Preemption that costs, exponential service times, mean 1 µs",
        effort,
        "figure 2a: with light tails few requests reach their quantum, so that preemption does little good and little \
         harm (quanta and costs are our choice).",
    )
}

pub(super) fn priced_lognormal(effort: Effort) -> Result<Drawing> {
    priced(
        "shinjuku-2b",
        "lognormal",
        "Preemption that costs, lognormal service times, mean 1 µs, sd 10 µs",
        effort,
        "figure 2b: a quantum of some microseconds with a cheap preemption comes near ideal PS (quanta, costs \
         and the distribution's parameters are our choice).",
    )
}

pub(super) fn priced_bimodal(effort: Effort) -> Result<Drawing> {
    priced(
        "shinjuku-2c",
        "hi",
        "Preemption that costs, 99.5 % of 0.5 µs and 0.5 % of 500 µs",
        effort,
        "figure 2c: the quantum must be a few microseconds, and a preemption well under one, for the gain of PS over \
         c-FCFS to be had in practice (quanta and costs are our choice).",
    )
}

pub(super) fn multi_queue(effort: Effort) -> Result<Drawing> {
    let mix = Mix::named("mid")?;
    let multi = PolicySpec::MultiQueue {
        rules: rules(&mix, Nanos::from_micros(5)),
    };
    let single = single_queue(5);
    let line = |label, number, policy, class| {
        let target = server(&mix, policy, Overheads::IDEAL, effort);
        let what = (Measure::P99Slowdown, Some(class));
        against_load(label, Style::Contender(number), effort, what, target)
    };
    let series = vec![
        line("c-FCFS, short", 0, &PolicySpec::CFcfs, Mix::SHORT)?,
        line("c-PRE-SQ, short", 1, &single, Mix::SHORT)?,
        line("c-PRE-SQ, long", 2, &single, Mix::LONG)?,
        line("c-PRE-MQ, short", 3, &multi, Mix::SHORT)?,
        line("c-PRE-MQ, long", 4, &multi, Mix::LONG)?,
    ];
    let ours = format!(
        "at 90 % load the p99 slowdown of short and long requests is {} and {} under c-PRE-SQ, {} and {} under c-PRE-MQ; short \
         requests under c-FCFS: {}.",
        at(&series[1], 90.0),
        at(&series[2], 90.0),
        at(&series[3], 90.0),
        at(&series[4], 90.0),
        at(&series[0], 90.0),
    );
    Ok(Drawing {
        figure: Figure {
            y_label: "p99 slowdown (latency / service time, log)".to_owned(),
            ..latency_figure(
                "shinjuku-multi-queue",
                "One queue or one a class: half 1 µs, half 100 µs, quantum 5 µs",
                series,
            )
        },
        paper: "a queue per class, chosen by waiting time in proportion to the SLO, keeps the slowdown of both classes \
                low, where a single queue lets short requests wait for all others."
            .to_owned(),
        ours,
    })
}

pub(super) fn connections(effort: Effort) -> Result<Drawing> {
    let queues = [2, 4, 8, 12, 16, 24, 32_u32];
    let needed = queues.map(|queues| {
        // About 30 q^2 connections will be needed; few queues can be drawn more often in the same time.
        let draws = effort.requests * 100 / (30 * u64::from(queues).pow(2));
        let draws = draws.clamp(300, 20_000) as u32;
        connections_needed(queues, 0.1, 0.9, draws, SEED)
    });
    let points = queues.iter().zip(needed).map(|(queues, needed)| Point {
        x: f64::from(*queues),
        y: Some(f64::from(needed)),
        spread: None,
    });
    let series = vec![Series {
        label: "hashed at random".to_owned(),
        style: Style::Contender(0),
        points: points.collect(),
    }];
    Ok(Drawing {
        figure: Figure {
            name: "shinjuku-4".to_owned(),
            title: "Connections until hashing balances queues".to_owned(),
            x: XAxis::Logarithmic("queues (log)"),
            y: YAxis::Logarithmic,
            y_label: "connections for < 10 % imbalance, P > 90 % (log)".to_owned(),
            bars: "",
            series,
        },
        paper: "figure 4: connections needed for an imbalance (max / mean - 1) below 10 % with a probability above 90 %: \
                about 300 for 2 queues and 16,000 for 24."
            .to_owned(),
        ours: format!("{} for 2 queues and {} for 24.", needed[0], needed[5]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_bimodal_caption_says_that_the_dispatcher_is_used_up() {
        let effort = Effort {
            requests: 500,
            replications: 2,
            load_step: 60,
            ..Effort::QUICK
        };
        for (draw, says) in [
            (priced_exponential as fn(Effort) -> Result<Drawing>, false),
            (priced_lognormal, false),
            (priced_bimodal, true),
        ] {
            let ours = draw(effort).unwrap().ours;
            assert_eq!(ours.contains("use up the one dispatcher"), says, "{ours}");
        }
    }
}
