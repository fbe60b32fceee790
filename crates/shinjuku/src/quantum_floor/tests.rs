//! The floor alone, and in a queue that is simulated: one worker, requests in order of arrival,
//! preempted ones to the tail, and a preemption that costs what it costs.

use std::collections::VecDeque;

use super::*;
use crate::load_profile::Period;

const COST: Nanos = Nanos(7_000);

fn profile(lengths: &[(u64, u64)], busy: f64) -> LoadProfile {
    let mut load = LoadProfile::new();
    for &(count, nanos) in lengths {
        (0..count).for_each(|_| load.finished(Nanos(nanos)));
    }
    load.observe(Period {
        worker_time: PERIOD,
        idle: Nanos((PERIOD.0 as f64 * (1.0 - busy)) as u64),
        spent: Nanos(0),
    });
    load
}

fn floor_under(load: &LoadProfile) -> u64 {
    let mut floor = QuantumFloor::at_cost(COST);
    floor.adapt(load);
    floor.raise(Nanos(0)).0
}

#[test]
fn nothing_known_is_ten_times_the_cost() {
    assert_eq!(floor_under(&LoadProfile::new()), 70_000);
    assert_eq!(QuantumFloor::at_cost(COST).raise(Nanos(200_000)).0, 200_000);
}

#[test]
fn without_cost_there_is_no_floor() {
    let mut floor = QuantumFloor::NONE;
    floor.adapt(&profile(&[(995, 500), (5, 500_000)], 0.99));
    assert_eq!(floor.raise(Nanos(3)), Nanos(3));
}

#[test]
fn few_long_ones_among_many_short_are_preempted_early_and_later_the_busier_it_is() {
    let high = [(995, 500), (5, 500_000)];
    let floors = [0.2, 0.6, 0.9].map(|busy| floor_under(&profile(&high, busy)));
    assert_eq!(floors[0], 5 * COST.0);
    assert!(floors.is_sorted() && floors[2] > floors[0], "{floors:?}");
}

#[test]
fn requests_that_are_all_alike_are_not_preempted_but_one_that_is_not_is() {
    for busy in [0.2, 0.5, 0.8, 0.99] {
        assert_eq!(floor_under(&profile(&[(1_000, 100_000)], busy)), 200_000);
    }
    // Shorter than any quantum would be.
    assert_eq!(floor_under(&profile(&[(1_000, 1_000)], 0.5)), 5 * COST.0);
}

#[test]
fn where_preempted_requests_are_next_again_only_longer_ones_than_are_known_are_preempted() {
    let mut floor = QuantumFloor::at_cost(COST);
    let mixed = profile(&[(995, 500), (5, 500_000)], 0.5);
    floor.adapt(&mixed);
    assert!(floor.raise(Nanos(0)).0 < 500_000);
    floor.let_run(&mixed);
    let quantum = floor.raise(Nanos(0));
    assert!((1_000_000..=2_000_000).contains(&quantum.0), "{quantum}");
    // Lengths that differ a little change nothing.
    floor.let_run(&profile(&[(995, 500), (5, 600_000)], 0.5));
    assert_eq!(floor.raise(Nanos(0)), quantum);
    let mut none = QuantumFloor::NONE;
    none.let_run(&mixed);
    assert_eq!(none.raise(Nanos(3)), Nanos(3));
}

#[test]
fn for_more_urgent_requests_alone_the_floor_is_low_while_there_is_time_left() {
    let mixed = [(940, 10_000), (60, 15_000_000)];
    let floor = |busy, is_unasked| {
        let mut floor = QuantumFloor::at_cost(COST);
        floor.unasked(is_unasked);
        floor.suit(&profile(&mixed, busy), PreemptedFor::MoreUrgent);
        floor.raise(Nanos(0)).0
    };
    // Rotating, the estimate would have it raised long before.
    assert!(floor_under(&profile(&mixed, 0.9)) > 20 * COST.0);
    assert_eq!(
        [0.2, 0.6, 0.9].map(|busy| floor(busy, false)),
        [10 * COST.0; 3]
    );
    assert_eq!(
        [0.2, 0.6, 0.9].map(|busy| floor(busy, true)),
        [20 * COST.0; 3]
    );
    // Half of the hundredth that is left: a preemption for each arrival would take more.
    assert!(floor(0.99, false) > 100 * COST.0);
    let mut none = QuantumFloor::NONE;
    none.suit(&profile(&mixed, 0.5), PreemptedFor::MoreUrgent);
    assert_eq!(none.raise(Nanos(3)), Nanos(3));
}

#[test]
fn a_few_busy_periods_are_no_overload_and_many_are() {
    let mut load = profile(&[(995, 500), (5, 500_000)], 0.5);
    let mut floor = QuantumFloor::at_cost(COST);
    let mut pass = |busy: f64, periods: u32| {
        for _ in 0..periods {
            load.observe(Period {
                worker_time: PERIOD,
                idle: Nanos((PERIOD.0 as f64 * (1.0 - busy)) as u64),
                spent: Nanos(0),
            });
            floor.adapt(&load);
        }
        floor.raise(Nanos(0)).0
    };
    assert_eq!(pass(0.5, 100), 5 * COST.0);
    assert!(pass(1.0, 8) <= 10 * COST.0, "as two long requests do");
    assert_eq!(pass(1.0, 200), 1_000_000, "overload");
}

#[test]
fn at_overload_what_is_expensive_is_not_done() {
    let high = profile(&[(995, 500), (5, 500_000)], 1.0);
    assert_eq!(floor_under(&high), 1_000_000);
}

/// How requests are stopped.
#[derive(Clone, Copy)]
enum Rule {
    Never,
    After(u64),
    Auto { told: Nanos },
}

/// Service times: shares of the requests, and nanoseconds.
type Mix = [(f64, u64)];

const HIGH: &Mix = &[(0.995, 500), (0.005, 500_000)];
const MIDDLE: &Mix = &[(0.5, 1_000), (0.5, 100_000)];
const ALIKE: &Mix = &[(1.0, 100_000)];

#[derive(Clone, Copy)]
struct Request {
    arrival: u64,
    length: u64,
    ran: u64,
    short: bool,
}

/// Between 0 and 1, without either.
fn uniform(state: &mut u64) -> f64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    ((state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

fn arrivals(mix: &Mix, load: f64, seed: u64) -> VecDeque<Request> {
    const LENGTH: f64 = 0.4e9;
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mean: f64 = mix.iter().map(|(share, nanos)| share * *nanos as f64).sum();
    let mut requests = VecDeque::new();
    let mut now = 0.0;
    while now < LENGTH {
        now -= mean / load * uniform(&mut state).ln();
        let short = uniform(&mut state) < mix[0].0;
        requests.push_back(Request {
            arrival: now as u64,
            length: mix[usize::from(!short)].1,
            ran: 0,
            short,
        });
    }
    requests
}

struct Simulation {
    rule: Rule,
    cost: u64,
    floor: QuantumFloor,
    load: LoadProfile,
    to_come: VecDeque<Request>,
    waiting: VecDeque<Request>,
    now: u64,
    next_look: u64,
    idle: u64,
    preemptions: u64,
    short: Vec<u64>,
}

impl Simulation {
    /// The p99 of the short ones, in microseconds.
    fn p99(mix: &Mix, load: f64, seed: u64, rule: Rule, cost: Nanos) -> u64 {
        let mut this = Self {
            rule,
            cost: cost.0,
            floor: match rule {
                Rule::Auto { told } => QuantumFloor::at_cost(told),
                _ => QuantumFloor::NONE,
            },
            load: LoadProfile::new(),
            to_come: arrivals(mix, load, seed),
            waiting: VecDeque::new(),
            now: 0,
            next_look: PERIOD.0,
            idle: 0,
            preemptions: 0,
            short: Vec::new(),
        };
        while !this.waiting.is_empty() || !this.to_come.is_empty() {
            match this.waiting.pop_front() {
                Some(request) => this.run(request),
                None => {
                    let until = this.to_come[0].arrival.max(this.now);
                    this.idle += until - this.now;
                    this.advance(until);
                }
            }
        }
        this.short.sort_unstable();
        this.short[this.short.len() * 99 / 100] / 1_000
    }

    fn run(&mut self, mut request: Request) {
        let quantum = match self.rule {
            Rule::Never => u64::MAX,
            Rule::After(nanos) => nanos,
            Rule::Auto { .. } => self.floor.raise(Nanos(5_000)).0,
        };
        let mut slice = quantum.min(request.length - request.ran);
        loop {
            self.advance(self.now + slice);
            request.ran += slice;
            if request.ran == request.length {
                self.load.finished(Nanos(request.length));
                if request.short {
                    self.short.push(self.now - request.arrival);
                }
                return;
            }
            if !self.waiting.is_empty() {
                self.preemptions += 1;
                self.waiting.push_back(request);
                return self.advance(self.now + self.cost);
            }
            // No request waits: until one does.
            let left = request.length - request.ran;
            slice = (self.to_come.front()).map_or(left, |next| left.min(next.arrival - self.now));
        }
    }

    fn advance(&mut self, to: u64) {
        self.now = to;
        while self.to_come.front().is_some_and(|next| next.arrival <= to) {
            self.waiting.extend(self.to_come.pop_front());
        }
        while to >= self.next_look {
            self.next_look += PERIOD.0;
            let spent = self.floor.spent(std::mem::take(&mut self.preemptions));
            self.load.observe(Period {
                worker_time: PERIOD,
                idle: Nanos(std::mem::take(&mut self.idle)),
                spent,
            });
            self.floor.adapt(&self.load);
        }
    }
}

/// The median of the p99 with three seeds.
fn median(mix: &Mix, load: f64, rule: Rule, cost: Nanos) -> f64 {
    let mut all: Vec<u64> = (1..=3)
        .map(|seed| Simulation::p99(mix, load, seed, rule, cost))
        .collect();
    all.sort_unstable();
    all[1] as f64
}

/// What the bounds tell apart: a floor that rises whenever nothing idles for 10 ms, and that wants
/// a preempted request to have ten times the cost left, comes out at 1.05, 1.15 and 1.11 times
/// c-FCFS at 80 % of `hi` for 3.5, 7 and 10 us, and at 1.0 times for 40 % of `mid` and 7 us.
#[test]
fn it_is_better_than_first_come_first_served_or_as_good() {
    let nanos = Nanos;
    for (mix, load, cost, at_most) in [
        (HIGH, 0.4, nanos(10_000), 0.35),
        (HIGH, 0.6, nanos(3_500), 0.25),
        (HIGH, 0.8, nanos(3_500), 0.8),
        (HIGH, 0.8, nanos(30_000), 1.02),
        (MIDDLE, 0.4, nanos(7_000), 0.8),
        (MIDDLE, 0.6, nanos(3_500), 0.7),
        (MIDDLE, 0.6, nanos(10_000), 1.02),
        (MIDDLE, 0.8, nanos(7_000), 1.02),
        (ALIKE, 0.6, nanos(300), 1.1),
    ] {
        let auto = median(mix, load, Rule::Auto { told: cost }, cost);
        let never = median(mix, load, Rule::Never, cost);
        assert!(
            auto <= never * at_most,
            "{mix:?} at {load}, {cost:?}: {auto} us, never preempted {never} us"
        );
    }
}

#[test]
fn it_is_near_the_best_fixed_quantum() {
    for (mix, load, cost, at_most) in [
        (HIGH, 0.4, Nanos(3_500), 1.6),
        (HIGH, 0.6, Nanos(3_500), 1.4),
        (MIDDLE, 0.6, Nanos(3_500), 1.3),
    ] {
        let auto = median(mix, load, Rule::Auto { told: cost }, cost);
        let best = [10_000, 20_000, 50_000]
            .map(|quantum| median(mix, load, Rule::After(quantum), cost))
            .into_iter()
            .fold(f64::INFINITY, f64::min);
        assert!(
            auto <= best * at_most,
            "{mix:?} at {load}: {auto}, {best} us"
        );
    }
}

#[test]
fn a_cost_that_was_measured_too_low_by_half_does_little_harm() {
    for (mix, load) in [(HIGH, 0.8), (MIDDLE, 0.4), (MIDDLE, 0.8)] {
        let auto = Rule::Auto { told: Nanos(3_500) };
        let (auto, never) = (
            median(mix, load, auto, COST),
            median(mix, load, Rule::Never, COST),
        );
        assert!(
            auto <= never * 1.02,
            "{mix:?} at {load}: {auto}, {never} us"
        );
    }
}
