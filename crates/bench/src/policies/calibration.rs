//! The bench's check of itself: whether the work ran as fast as it was calibrated to.
//!
//! The runtime counts how long requests ran. From that goes what preempting them took: for each
//! preemption the price that the table of costs of the same run has, by what took it. What is left
//! was the work, whose length is known. The prices are of all that a preemption takes of its
//! worker, and a part of that is not in the requests' time; so what comes out is a lower bound.
//! Expensive preemptions alone mark no point. Work that itself runs slower does: a p99 is marked if
//! the repetition that it is of ran slower, and its spread if any other repetition did. So a single
//! slow repetition is neither hidden by a median nor held against a latency that it is not in.

use std::collections::BTreeMap;

use shinjuku::{ContextKind, MechanismKind};

use super::burst::Outcome;
use super::contender::Contender;
use super::mixes::BenchMix;
use super::point::Point;
use super::results::{Policies, Run};
use crate::harness::distinct;

/// Requests whose work is shorter are not compared, ns: entering and leaving a context is too much
/// of their time.
const SHORTEST: f64 = 10_000.0;

/// What of the requests' time is not their work, ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// The price of a preemption by probe, or at the end of a section that held preemption off.
    preemption: f64,
    /// The price of a preemption by interrupt.
    interrupt: f64,
}

impl Prices {
    /// What the table of costs has for a contender, whose workers were in guest mode or not; `None`
    /// where a price is missing.
    fn of(
        contender: &Contender,
        in_guest_mode: bool,
        costs: &BTreeMap<String, f64>,
    ) -> Option<Self> {
        let cost = |name: &str| costs.get(name).copied();
        let interrupt = match contender.mechanism {
            MechanismKind::None => {
                return Some(Self {
                    preemption: 0.0,
                    interrupt: 0.0,
                });
            }
            MechanismKind::Probe => 0.0,
            MechanismKind::Dune => return None,
            // Whichever `auto` and escalation picked.
            _ if in_guest_mode => cost("preempt/guest")?,
            _ => cost(contender.preemption_row())?,
        };
        // A kernel thread goes and comes back by two switches.
        let preemption = match contender.contexts {
            ContextKind::KernelThread => 2.0 * cost("switch/kernel-thread")?,
            _ => cost("preempt/probe")?,
        };
        Some(Self {
            preemption,
            interrupt,
        })
    }
}

/// Where the time of the longest class's requests went in one burst: means over these.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Time that a request ran, ns.
    ran: f64,
    /// Work in it as calibrated, ns.
    work: f64,
    /// Preemptions not taken by interrupt.
    preemptions: f64,
    /// Interrupts that came, whether they preempted or not.
    interrupts: f64,
}

impl Pace {
    /// `None` for mixes whose work has no known length, or is short, and where no long request
    /// finished.
    pub fn of(mix: &BenchMix, outcome: &Outcome) -> Option<Self> {
        let class = mix.mix.classes().len() - 1;
        let served = outcome.served.get(class)?;
        let long = (outcome.records.iter()).filter(|record| usize::from(record.class) == class);
        let (count, work) = long.fold((0u64, 0u64), |(count, work), record| {
            (count + 1, work + record.service_ns)
        });
        let work = work as f64 / count.max(1) as f64;
        if mix.is_real_code() || work < SHORTEST || served.finished == 0 {
            return None;
        }
        let all: u64 = (outcome.served.iter())
            .map(|served| served.preemptions)
            .sum();
        // Interrupts are counted for all classes together: they go where the preemptions went.
        let share = served.preemptions as f64 / all.max(1) as f64;
        let each = |number: f64| number / served.finished as f64;
        let of_class = |interrupts: u64| each(interrupts as f64 * share);
        let preempted = of_class(outcome.interrupts.preempted);
        Some(Self {
            ran: each(served.ran_ns as f64),
            work,
            preemptions: (each(served.preemptions as f64) - preempted).max(0.0),
            interrupts: of_class(outcome.interrupts.came),
        })
    }

    /// The time that requests ran over their work as calibrated, whatever else is in it.
    pub fn over_work(&self) -> f64 {
        self.ran / self.work
    }

    /// How many times slower the work ran than calibrated, at least.
    pub fn times_slower(&self, prices: &Prices) -> f64 {
        let preempting = self.preemptions * prices.preemption + self.interrupts * prices.interrupt;
        (self.ran - preempting) / self.work
    }
}

/// Writes into the rows of one point how fast its work ran.
pub fn complete(
    runs: &mut [Run],
    mix: &BenchMix,
    point: &Point,
    contender: &Contender,
    costs: &BTreeMap<String, f64>,
) {
    let in_guest_mode = contender.mechanism == MechanismKind::Guest
        || runs.iter().any(|run| run.delivery.is_some());
    let Some(prices) = Prices::of(contender, in_guest_mode, costs) else {
        return;
    };
    for run in runs {
        // Prices that add up to more than the requests' time were disturbed themselves, and tell
        // nothing.
        let times = point.times_slower(mix, run.class, &prices);
        let times = times.filter(|(reported, _)| *reported > 0.0);
        (run.times_slower, run.times_slower_max) = times.unzip();
    }
}

/// What the report must say before its figures.
pub fn note(results: &Policies) -> Option<String> {
    if results.costs.is_empty() {
        return Some(
            "Whether the work ran as fast as calibrated was checked without preemption only: the prices of preemptions are in the \
             table of costs, which was left out."
                .to_owned(),
        );
    }
    marked(results.runs.iter().chain(&results.quantum_sweep))
}

/// What it must say of `runs` that are marked.
fn marked<'a>(runs: impl Iterator<Item = &'a Run>) -> Option<String> {
    let marked: Vec<_> = runs.filter(|run| run.slow().is_some()).collect();
    let points = distinct((marked.iter()).map(|run| (&run.mix, run.load, run.contender())));
    let most = marked
        .iter()
        .filter_map(|run| run.slow())
        .reduce(f64::max)?;
    Some(format!(
        "At {} points, marked with *, the work ran slower than calibrated, up to {most:.1} times: these latencies are not the \
         policies' alone.",
        points.len()
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shinjuku_workload::Record;

    use super::super::burst::{Interrupts, Served};
    use super::*;

    /// Ten requests of 500 us, each preempted a hundred times, that ran for so long; and a thousand
    /// short ones.
    fn outcome(ran_us: u64, interrupts: u64) -> Outcome {
        let interrupts = Interrupts {
            came: interrupts,
            preempted: interrupts,
        };
        let record = |class, service_ns| Record {
            arrival_ns: 0,
            service_ns,
            finish_ns: 1_000_000,
            class,
        };
        let short = std::iter::repeat_n(record(0, 500), 1000);
        Outcome {
            records: short
                .chain(std::iter::repeat_n(record(1, 500_000), 10))
                .collect(),
            counts: Vec::new(),
            served: vec![
                Served {
                    finished: 1000,
                    ran_ns: 700_000,
                    preemptions: 0,
                },
                Served {
                    finished: 10,
                    ran_ns: ran_us * 10_000,
                    preemptions: 1000,
                },
            ],
            interrupts,
            dispatcher_busy: Duration::ZERO,
            description: String::new(),
            delivery: None,
            window_ns: 1,
        }
    }

    fn costs() -> BTreeMap<String, f64> {
        [("preempt/probe", 300.0), ("preempt/signal", 9_700.0)]
            .map(|(name, nanos)| (name.to_owned(), nanos))
            .into()
    }

    fn times_slower(contender: &Contender, outcome: Outcome) -> Option<f64> {
        let mix = BenchMix::spinning("hi").unwrap();
        let mut point = Point::default();
        let mut runs = vec![];
        point
            .add(
                &mix,
                Outcome {
                    counts: vec![Default::default(); 2],
                    ..outcome
                },
            )
            .unwrap();
        runs.extend(point.runs(&mix, 0.6, contender));
        complete(&mut runs, &mix, &point, contender, &costs());
        let found: Vec<_> = runs.iter().map(|run| run.times_slower).collect();
        assert!(found.iter().all(|times| *times == found[0]), "{found:?}");
        assert_eq!(
            marked(runs.iter()).is_some(),
            found[0].is_some_and(|times| times > 1.1)
        );
        found[0]
    }

    #[test]
    fn work_slower_than_calibrated_is_told_from_expensive_preemptions() {
        // A hundred preemptions at 0.3 us beside 500 us of work, all in the requests' time: as
        // calibrated.
        assert_eq!(
            times_slower(&Contender::probe(5.0), outcome(530, 0)),
            Some(1.0)
        );
        // The same with work that takes 1.6 times as long.
        assert_eq!(
            times_slower(&Contender::probe(5.0), outcome(830, 0)),
            Some(1.6)
        );
        // A hundred signals at 9.7 us are expensive, and the work is as fast as it should be.
        assert_eq!(
            times_slower(&Contender::signal(50.0), outcome(1470, 1000)),
            Some(1.0)
        );
        assert_eq!(
            times_slower(&Contender::signal(50.0), outcome(1570, 1000)),
            Some(1.2)
        );
        // Signals that all came too late: probes had preempted.
        let mut late = outcome(1500, 1000);
        late.interrupts.preempted = 0;
        assert_eq!(times_slower(&Contender::signal(50.0), late), Some(1.0));
        // Nothing is taken off where nothing preempts.
        assert_eq!(times_slower(&Contender::FCFS, outcome(550, 0)), Some(1.1));
    }

    /// Three repetitions, the second with slow work: where short requests of that one had the
    /// middle latency, the p99 is marked; where they had the highest or lowest, its spread alone.
    #[test]
    fn one_slow_repetition_marks_what_it_is_in() {
        let mix = BenchMix::spinning("hi").unwrap();
        let marks = |short_us: [u64; 3]| {
            let mut point = Point::default();
            for (short_us, ran_us) in short_us.into_iter().zip([530, 830, 530]) {
                let mut outcome = outcome(ran_us, 0);
                outcome.counts = vec![Default::default(); 2];
                for record in outcome.records.iter_mut().filter(|one| one.class == 0) {
                    record.finish_ns = short_us * 1000;
                }
                point.add(&mix, outcome).unwrap();
            }
            let contender = Contender::probe(5.0);
            let mut runs = point.runs(&mix, 0.6, &contender);
            complete(&mut runs, &mix, &point, &contender, &costs());
            assert_eq!(runs[0].times_slower_max, Some(1.6));
            (runs[0].slow(), runs[0].slow_in_spread())
        };
        assert_eq!(marks([10, 20, 30]), (Some(1.6), None));
        assert_eq!(marks([10, 30, 20]), (None, Some(1.6)));
        assert_eq!(marks([20, 10, 30]), (None, Some(1.6)));
    }

    #[test]
    fn what_auto_picked_has_its_own_price() {
        let mut costs = costs();
        costs.insert("preempt/guest".to_owned(), 50_000.0);
        let auto = |in_guest_mode| Prices::of(&Contender::AUTO, in_guest_mode, &costs).unwrap();
        assert_eq!(auto(false).interrupt, 9_700.0);
        assert_eq!(auto(true).interrupt, 50_000.0);
    }

    #[test]
    fn what_has_no_price_or_no_known_length_is_not_compared() {
        assert_eq!(times_slower(&Contender::DUNE, outcome(5000, 0)), None);
        let without = Prices::of(&Contender::probe(5.0), false, &BTreeMap::new());
        assert_eq!(without, None);
        // Preemptions that would have taken longer than the requests ran.
        let cheap = outcome(700, 1000);
        assert_eq!(times_slower(&Contender::signal(50.0), cheap), None);
        let short = BenchMix::spinning("fixed").unwrap();
        let mut outcome = outcome(5000, 0);
        outcome.served.truncate(1);
        assert_eq!(Pace::of(&short, &outcome), None);
    }
}
