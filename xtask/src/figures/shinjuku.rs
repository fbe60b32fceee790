//! Kaffes et al., *Shinjuku*, NSDI 2019: its simulated figures 1, 2 and 4; the queues of its
//! figures 8b and 8c, which it measures; and what preemption costs, which it has no figure of.

use anyhow::Result;
use shinjuku_policy::{Nanos, Requeue, cfcfs, dfcfs, multi_queue, single_queue};
use shinjuku_sim::imbalance::connections_needed;
use shinjuku_sim::plan::Target;
use shinjuku_sim::scheduler::classes;
use shinjuku_sim::{Layout, Measure, Overheads, Scenario, Scheduler, with_slos_alone};
use shinjuku_workload::{Class, Mix, ServiceTime};

use super::source::{Claim, SHINJUKU};
use super::sweep::{P99, SEED, against_load, at, each, lines};
use super::{Drawing, Effort, Entry, zygos};
use shinjuku_plot::{Point, Series, Style, XAxis, YAxis};

const WORKERS: usize = 16;

/// The load at which a class alone gives its SLO. The paper does not say its own.
const SLO_LOAD: f64 = 0.7;

/// What a posted interrupt costs (sections 3.2 and 3.3): 298 cycles to send, 1212 to take, 109 to
/// switch at most, at the 2 GHz at which the paper converts cycles.
pub(super) const POSTED: Overheads = Overheads {
    preempt_send_ns: 149,
    preempt_receive_ns: 606,
    switch_ns: 55,
    ..Overheads::IDEAL
};

/// What a Linux signal costs: roughly 2.5 us at 2 GHz for sender and receiver (section 3.2). Half
/// each is our choice.
const SIGNAL: Overheads = Overheads {
    preempt_send_ns: 1_250,
    preempt_receive_ns: 1_250,
    ..POSTED
};

pub(super) const FIGURES: &[Entry] = &[
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-1a",
        title: "Ideal policies, exponential service times, mean 1 µs",
        seconds: 8,
        claims: &[
            Claim {
                place: "section 2",
                says: "with exponential service times of mean 1 µs c-FCFS is optimal; PS is slightly worse, because it \
                       preempts even short requests; d-FCFS suffers at moderate and high load (figure 1a).",
                test: "shinjuku_1_exponential_c_fcfs_is_best",
            },
            Claim {
                place: "section 3.4",
                says: "the c-PRE-SQ of figure 1 is the single queue policy. Where requests are quick it is c-FCFS.",
                test: "shinjuku_sq_is_c_fcfs_where_requests_are_quick",
            },
        ],
        ours: FIGURE_1_OURS,
        draw: |effort| ideal("exp", effort),
    },
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-1b",
        title: "Ideal policies, lognormal service times, mean 1 µs, sd 10 µs",
        seconds: 8,
        claims: &[Claim {
            place: "section 2",
            says: "with lognormal service times of mean 1 µs and standard deviation 10 µs c-FCFS is significantly \
                   better than d-FCFS, where a long request blocks the short ones of its queue; PS does well \
                   (figure 1b).",
            test: "shinjuku_1_lognormal_c_fcfs_beats_d_fcfs_and_ps_does_well",
        }],
        ours: FIGURE_1_OURS,
        draw: |effort| ideal("lognormal", effort),
    },
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-1c",
        title: "Ideal policies, 99.5 % of 0.5 µs and 0.5 % of 500 µs",
        seconds: 8,
        claims: &[
            Claim {
                place: "section 2",
                says: "where 99.5 % of the requests take 0.5 µs and 0.5 % take 500 µs c-FCFS does significantly \
                       worse; PS does well, since it preempts long requests for short ones (figure 1c).",
                test: "shinjuku_1_bimodal_c_fcfs_is_far_worse_than_ps",
            },
            Claim {
                place: "section 2",
                says: "the c-PRE policies have the best of PS and of c-FCFS.",
                test: "shinjuku_1_sq_has_the_best_of_ps_and_c_fcfs",
            },
        ],
        ours: FIGURE_1_OURS,
        draw: |effort| ideal("hi", effort),
    },
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-2a",
        title: "Ideal policies, half 1 µs and half 100 µs: requests of 1 µs",
        seconds: 60,
        claims: &[
            Claim {
                place: "section 2",
                says: "half of the requests take 1 µs and half 100 µs. d-FCFS and c-FCFS heavily penalize those of \
                       1 µs (figure 2a).",
                test: "shinjuku_2a_both_fcfs_penalize_short_requests_heavily",
            },
            MQ_OF_FIGURE_2,
        ],
        ours: FIGURE_2_OURS,
        draw: |effort| two(LATENCY, (Measure::P99Us, Some(Mix::SHORT)), effort),
    },
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-2b",
        title: "Ideal policies, half 1 µs and half 100 µs: requests of 100 µs",
        seconds: 60,
        claims: &[
            Claim {
                place: "section 2",
                says: "c-FCFS is marginally better than PS for the requests of 100 µs: it puts first the older, long \
                       ones that PS would preempt (figure 2b).",
                test: "shinjuku_2b_c_fcfs_is_marginally_better_for_long_requests",
            },
            MQ_OF_FIGURE_2,
        ],
        ours: FIGURE_2_OURS,
        draw: |effort| two(LATENCY, (Measure::P99Us, Some(Mix::LONG)), effort),
    },
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-2c",
        title: "Ideal policies, half 1 µs and half 100 µs: all requests",
        seconds: 60,
        claims: &[
            Claim {
                place: "section 2",
                says: "in relative terms what c-FCFS costs the short requests dwarfs what it gives to the long ones \
                       (figure 2c, the p99 slowdown of all requests).",
                test: "shinjuku_2c_the_penalty_dwarfs_the_benefit",
            },
            MQ_OF_FIGURE_2,
        ],
        ours: FIGURE_2_OURS,
        draw: |effort| two(SLOWDOWN, (Measure::P99Slowdown, None), effort),
    },
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-4",
        title: "Connections until hashing balances queues",
        seconds: 30,
        claims: &[Claim {
            place: "section 3.6",
            says: "for an imbalance below 10 % with a probability above 90 % hashing needs 300 connections for 2 \
                   dispatchers, and 16,000 for a server of 24 hyperthreads (figure 4).",
            test: "shinjuku_4_connections_needed",
        }],
        ours: "the measure of imbalance: the fullest queue over the mean, less 1.",
        draw: connections,
    },
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-multi-queue",
        title: "One queue or one a class: half GETs of 6 µs, half SCANs of 1,200 µs, quantum 15 µs",
        seconds: 20,
        claims: &[Claim {
            place: "section 4.4",
            says: "half GETs of up to 6 µs, half SCANs of 1,200 µs, a slice of 15 µs, preempted requests at the tail \
                   of the single queue and at the head of the multiple queues (figures 8b and 8c, measured there). \
                   Without preemption SCANs are favoured over GETs; SQ mends that; MQ improves SCANs. ZygOS does worse \
                   than Shinjuku without preemption.",
            test: "shinjuku_8_sq_mends_gets_and_mq_improves_scans",
        }],
        ours: "to simulate this, with 16 ideal workers and GETs of 6 µs; the load of 70 % at which each class alone \
               gives its SLO; ZygOS with 1920 connections, and its costs as in the figure of its interrupts.",
        draw: multi_queue,
    },
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-head-or-tail",
        title: "Head or tail for preempted requests, given or learnt",
        seconds: 15,
        claims: &[Claim {
            place: "section 3.4",
            says: "the place of preempted requests can be set by measured service times: the tail for multi-modal or \
                   heavy-tailed ones, the head for light-tailed ones.",
            test: "shinjuku_the_place_that_is_learnt_is_the_better_one",
        }],
        ours: "the whole figure: 16 ideal workers, SQ with 1 µs, exponential service times of mean 1 µs, and 99.5 % of 0.5 µs \
               with 0.5 % of 500 µs.",
        draw: head_or_tail,
    },
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-cost-exponential",
        title: "Preemption that costs, exponential service times, mean 1 µs",
        seconds: 12,
        claims: &[
            COST_OF_FIVE_US,
            Claim {
                place: "section 4.2",
                says: "where service times are light-tailed only a few requests are preempted.",
                test: "shinjuku_light_tailed_requests_are_seldom_preempted",
            },
        ],
        ours: COSTS_OURS,
        draw: |effort| priced("exp", effort),
    },
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-cost-lognormal",
        title: "Preemption that costs, lognormal service times, mean 1 µs, sd 10 µs",
        seconds: 12,
        claims: &[COST_OF_FIVE_US],
        ours: COSTS_OURS,
        draw: |effort| priced("lognormal", effort),
    },
    Entry {
        source: &SHINJUKU,
        name: "shinjuku-cost-bimodal",
        title: "Preemption that costs, 99.5 % of 0.5 µs and 0.5 % of 500 µs",
        seconds: 12,
        claims: &[
            COST_OF_FIVE_US,
            Claim {
                place: "section 2",
                says: "what interrupts and kernel threads usually cost is incompatible with latencies of \
                       microseconds.",
                test: "shinjuku_expensive_preemption_loses_what_it_gains",
            },
        ],
        ours: COSTS_OURS,
        draw: |effort| priced("hi", effort),
    },
];

const FIGURE_1_OURS: &str = "16 workers; c-PRE-SQ's quantum of 5 µs and its tail for the preempted (section 3.4 has 5 to 15 µs, \
                             and the tail for heavy tails).";

const MQ_OF_FIGURE_2: Claim = Claim {
    place: "section 3.4",
    says: "the c-PRE-MQ of figure 2 puts preempted requests at the head of their queues; a class's SLO is the p99 \
           observed with this class alone under the single queue policy. By section 2 the policy has the best of PS \
           and of c-FCFS.",
    test: "shinjuku_2_mq_has_the_best_of_ps_and_c_fcfs",
};

const FIGURE_2_OURS: &str =
    "16 workers; the quantum of 5 µs; the load of 70 % at which each class alone gives its SLO.";

const COST_OF_FIVE_US: Claim = Claim {
    place: "section 3.2",
    says: "298 cycles for the sender and 1,212 for the receiver make it practical to preempt every 5 µs without \
           wasting more than 10 % of the workers' throughput.",
    test: "shinjuku_posted_interrupts_every_five_us_take_a_tenth_at_most",
};

const COSTS_OURS: &str = "the whole figure; the paper has none of preemption that costs. 16 workers. Cycles are converted at the \
                          paper's 2 GHz, with 109 cycles a switch (section 3.3). Of a signal the paper says roughly 2.5 µs for \
                          sender and receiver (section 3.2): half each.";

pub(super) fn single_queue(quantum_us: u64) -> Scheduler {
    Scheduler::of(single_queue::REGISTERED).with_quantum(Nanos::from_micros(quantum_us))
}

fn server<'a>(
    mix: &'a Mix,
    policy: &'a Scheduler,
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
fn compared(
    mix: &Mix,
    effort: Effort,
    what: (Measure, Option<u16>),
    contenders: &[(&str, Scheduler, Overheads)],
) -> Result<Vec<Series>> {
    let labelled = contenders.iter().map(|one| (one.0, one));
    let mut series = lines(labelled, |(_, policy, overheads)| {
        against_load(effort, what, server(mix, policy, *overheads, effort))
    })?;
    for (line, (_, policy, _)) in series.iter_mut().zip(contenders) {
        if policy.is_sharing() {
            line.style = Style::Floor;
        }
    }
    Ok(series)
}

/// Ideal policies, with the c-PRE policy given.
fn ideal_policies(label: &str, preemptive: Scheduler) -> [(&str, Scheduler, Overheads); 4] {
    [
        ("d-FCFS", Scheduler::of(dfcfs::REGISTERED), Overheads::IDEAL),
        ("c-FCFS", Scheduler::of(cfcfs::REGISTERED), Overheads::IDEAL),
        (label, preemptive, Overheads::IDEAL),
        ("PS", Scheduler::sharing(), Overheads::IDEAL),
    ]
}

fn ideal(mix: &str, effort: Effort) -> Result<Drawing> {
    let mix = Mix::named(mix)?;
    let contenders = ideal_policies("c-PRE-SQ, 5 µs", single_queue(5));
    let series = compared(&mix, effort, P99, &contenders)?;
    let found = format!(
        "at 70 % load p99 is {} µs under d-FCFS, {} under c-FCFS, {} under c-PRE-SQ with a quantum of 5 µs and {} under PS.",
        at(&series[0], 70.0),
        at(&series[1], 70.0),
        at(&series[2], 70.0),
        at(&series[3], 70.0),
    );
    Ok(Drawing::latency(series, found))
}

/// c-PRE-MQ as the paper sets it up: a class's SLO is its p99 alone, preempted requests go to the
/// head (section 3.4).
pub(super) fn multi_queue_at_the_head(mix: &Mix, quantum_us: u64) -> Result<Scheduler> {
    let quantum = Nanos::from_micros(quantum_us);
    let mix = with_slos_alone(mix, SLO_LOAD, WORKERS, quantum)?;
    let scheduler = Scheduler::of(multi_queue::REGISTERED).with_classes(classes(&mix));
    Ok(scheduler.with_quantum(quantum).with_requeue(Requeue::Head))
}

/// A part of figure 2: `what` is measured of half 1 us, half 100 us.
fn two(y_label: &'static str, what: (Measure, Option<u16>), effort: Effort) -> Result<Drawing> {
    let mix = Mix::named("mid")?;
    let contenders = ideal_policies("c-PRE-MQ, 5 µs", multi_queue_at_the_head(&mix, 5)?);
    let series = compared(&mix, effort, what, &contenders)?;
    let found = format!(
        "at 70 % load {} is {} under d-FCFS, {} under c-FCFS, {} under c-PRE-MQ and {} under PS.",
        y_label.split(" (").next().unwrap_or(y_label),
        at(&series[0], 70.0),
        at(&series[1], 70.0),
        at(&series[2], 70.0),
        at(&series[3], 70.0),
    );
    Ok(Drawing {
        y_label,
        ..Drawing::latency(series, found)
    })
}

const LATENCY: &str = "p99 latency in µs (log)";
pub(super) const SLOWDOWN: &str = "p99 slowdown (latency / service time, log)";

fn priced(mix: &str, effort: Effort) -> Result<Drawing> {
    let mix = Mix::named(mix)?;
    let contenders = [
        ("c-FCFS", Scheduler::of(cfcfs::REGISTERED), Overheads::IDEAL),
        ("5 µs, free", single_queue(5), Overheads::IDEAL),
        ("5 µs, posted interrupt", single_queue(5), POSTED),
        ("5 µs, signal", single_queue(5), SIGNAL),
        ("15 µs, posted interrupt", single_queue(15), POSTED),
        ("PS", Scheduler::sharing(), Overheads::IDEAL),
    ];
    let series = compared(&mix, effort, P99, &contenders)?;
    let found = format!(
        "at 70 % load p99 is {} µs without preemption; with a quantum of 5 µs it is {} if preemption is free, {} if it \
         costs what a posted interrupt does, {} if it costs what a signal does; with 15 µs and posted interrupts {}. Ideal \
         PS: {}. A posted interrupt takes {} ns of the dispatcher and {} of the worker, a signal {} and {}{}.",
        at(&series[0], 70.0),
        at(&series[1], 70.0),
        at(&series[2], 70.0),
        at(&series[3], 70.0),
        at(&series[4], 70.0),
        at(&series[5], 70.0),
        POSTED.preempt_send_ns,
        POSTED.preempt_receive_ns,
        SIGNAL.preempt_send_ns,
        SIGNAL.preempt_receive_ns,
        dispatcher_note(&mix),
    );
    Ok(Drawing::latency(series, found))
}

/// What follows where signals are many. A long request of `hi` takes 100 quanta of 5 µs, which is
/// one signal for every two requests: at 70 % load nearly 2 a microsecond, of 1.25 µs each. Of the
/// other mixes few requests reach a quantum.
fn dispatcher_note(mix: &Mix) -> &'static str {
    if mix.name() == "hi" {
        ", so that signals at this quantum soon use up the one dispatcher"
    } else {
        ""
    }
}

fn multi_queue(effort: Effort) -> Result<Drawing> {
    let class = |name, us| Ok(Class::new(name, 1.0, ServiceTime::fixed(us)?));
    let classes: Result<_> = [class("GET", 6.0), class("SCAN", 1_200.0)]
        .into_iter()
        .collect();
    let mix = Mix::new("GET and SCAN", classes?)?;
    let (get, scan) = (Mix::SHORT, Mix::LONG);
    let multi = multi_queue_at_the_head(&mix, 15)?;
    let first_come = Scheduler::of(cfcfs::REGISTERED);
    let single = single_queue(15);
    let contenders = [
        ("no preemption, GET", (&first_come, get)),
        ("no preemption, SCAN", (&first_come, scan)),
        ("SQ, GET", (&single, get)),
        ("SQ, SCAN", (&single, scan)),
        ("MQ, GET", (&multi, get)),
        ("MQ, SCAN", (&multi, scan)),
    ];
    let what = |class| (Measure::P99Slowdown, Some(class));
    let mut series = lines(contenders, |(policy, class)| {
        let target = server(&mix, policy, Overheads::IDEAL, effort);
        against_load(effort, what(class), target)
    })?;
    for (label, class) in [("ZygOS, GET", get), ("ZygOS, SCAN", scan)] {
        let target = |load| {
            let scenario = zygos::system(&mix, Layout::ZygOs, load, effort);
            Target::Server(Box::new(scenario))
        };
        let points = against_load(effort, what(class), target)?;
        series.push(Series::contender(series.len(), label, points));
    }
    let [
        fcfs_get,
        fcfs_scan,
        sq_get,
        sq_scan,
        mq_get,
        mq_scan,
        zygos_get,
        zygos_scan,
    ] = [0, 1, 2, 3, 4, 5, 6, 7].map(|line: usize| at(&series[line], 80.0));
    let found = format!(
        "at 80 % load the p99 slowdown of GETs and SCANs is {fcfs_get} and {fcfs_scan} without preemption, {sq_get} and \
         {sq_scan} under SQ, {mq_get} and {mq_scan} under MQ, {zygos_get} and {zygos_scan} under ZygOS."
    );
    Ok(Drawing {
        y_label: SLOWDOWN,
        ..Drawing::latency(series, found)
    })
}

/// Single queues that preempt to the head, to the tail, and to the place that they learn.
fn head_or_tail(effort: Effort) -> Result<Drawing> {
    let single = single_queue(1);
    let mut series = Vec::new();
    for (name, mix) in [("light", Mix::named("exp")?), ("heavy", Mix::named("hi")?)] {
        let places = [
            ("head", single.clone().with_requeue(Requeue::Head)),
            ("tail", single.clone().with_requeue(Requeue::Tail)),
            ("learnt", single.clone().learning()),
        ];
        for (place, policy) in places {
            let target = server(&mix, &policy, Overheads::IDEAL, effort);
            let points = against_load(effort, P99, target)?;
            let label = format!("{name}, {place}");
            series.push(Series::contender(series.len(), label, points));
        }
    }
    let found = each(&series, |one| format!("{} {}", one.label, at(one, 80.0)));
    let found = format!("p99 at 80 % load, µs: {found}.");
    Ok(Drawing::latency(series, found))
}

fn connections(effort: Effort) -> Result<Drawing> {
    let queues = [2, 4, 8, 12, 16, 24, 32_u32];
    let mut points = Vec::new();
    for queues in queues {
        effort.check_time()?;
        // About 30 q^2 connections will be needed; few queues can be drawn more often in the same
        // time.
        let draws = effort.requests * 100 / (30 * u64::from(queues).pow(2));
        let draws = draws.clamp(300, 20_000) as u32;
        let needed = connections_needed(queues, 0.1, 0.9, draws, SEED);
        points.push(Point::exact(queues.into(), needed.into()));
    }
    let series = vec![Series::contender(0, "hashed at random", points)];
    let found = format!(
        "{} for 2 queues and {} for 24.",
        at(&series[0], 2.0),
        at(&series[0], 24.0)
    );
    Ok(Drawing {
        x: XAxis::Logarithmic("queues (log)"),
        y: YAxis::Logarithmic,
        y_label: "connections for < 10 % imbalance, P > 90 % (log)",
        bars: "",
        series,
        found,
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
        for (mix, says) in [("exp", false), ("lognormal", false), ("hi", true)] {
            let found = priced(mix, effort).unwrap().found;
            assert_eq!(found.contains("use up the one dispatcher"), says, "{found}");
        }
    }
}
