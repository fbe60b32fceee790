//! The quanta in force, and how `auto` moves them, for threads that ask and for the log.
//!
//! ```text
//!   dispatcher ──every period──▶ InForce ──▶ description()
//!                                   └──once a second──▶ shinjuku-auto ──a change──▶ tracing event
//! ```
//!
//! The dispatcher only stores numbers (`change_log.rs` has the thread that logs). Two numbers that
//! are read together may be of different periods.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use shinjuku_policy::Nanos;
use shinjuku_policy::verified::GIVES_WAY;

use crate::change_log::Changing;
use crate::load_profile::LoadProfile;
use crate::observer::Observer;
use crate::quantum_floor::QuantumFloor;

/// What the dispatcher publishes of the mechanisms and of the load.
#[derive(Debug)]
pub(crate) struct InForce {
    mechanisms: Vec<Published>,
    /// Share of the workers' time that requests take, in thousandths.
    busy: AtomicU64,
    /// The length of the longest requests, in nanoseconds.
    longest: AtomicU64,
    /// How often a quantum has changed.
    changes: AtomicU64,
}

/// What is published of one mechanism.
#[derive(Debug)]
struct Published {
    name: String,
    /// The floor under its quantum, in nanoseconds.
    quantum: AtomicU64,
}

impl InForce {
    /// Begins with mechanisms of these names and their first floors.
    pub(crate) fn new<'a>(
        mechanisms: impl IntoIterator<Item = (&'a str, &'a QuantumFloor)>,
    ) -> Self {
        let published = |(name, floor): (&str, &QuantumFloor)| Published {
            name: name.to_owned(),
            quantum: AtomicU64::new(floor.raise(Nanos(0)).0),
        };
        Self {
            mechanisms: mechanisms.into_iter().map(published).collect(),
            busy: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            changes: AtomicU64::new(0),
        }
    }

    /// Publishes a period's floors, in the order of the names, and the load that they suit.
    pub(crate) fn publish(&self, floors: &[&QuantumFloor], load: &LoadProfile) {
        self.busy.store((load.busy() * 1e3) as u64, Relaxed);
        self.longest.store(load.longest() as u64, Relaxed);
        for (published, floor) in self.mechanisms.iter().zip(floors) {
            let quantum = floor.raise(Nanos(0)).0;
            if published.quantum.swap(quantum, Relaxed) != quantum {
                self.changes.fetch_add(1, Relaxed);
            }
        }
    }

    /// The floor under each mechanism's quantum.
    pub(crate) fn floors(&self) -> impl Iterator<Item = (&str, Nanos)> {
        let floor = |one: &Published| Nanos(one.quantum.load(Relaxed));
        (self.mechanisms.iter()).map(move |one| (one.name.as_str(), floor(one)))
    }
}

impl Changing for InForce {
    fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }
}

/// For how long requests of a class run before one mechanism stops them, if others wait; see
/// [`Observer::quanta_in_force`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QuantumInForce {
    /// The class's name.
    pub class: String,
    /// `probe`, `signal` and so on as `auto` has them; `configured`, where nothing raises quanta.
    pub mechanism: String,
    /// The longer of the policy's quantum and of the floor that `auto` keeps under it; zero: gives
    /// way at once, as best effort. `None`: runs to completion. Where there are such floors, a
    /// request that is preempted often runs for up to four times as long.
    pub quantum: Option<Duration>,
}

impl Observer {
    /// The quantum in force now, of each class by each mechanism. Empty under a policy of the
    /// program's own, which alone knows. Allocates.
    ///
    /// ```
    /// use shinjuku::{Pool, PolicyConfig};
    ///
    /// let pool = Pool::builder(["batch"])
    ///     .policy(PolicyConfig::default().quantum_us(50.0))
    ///     .start()?;
    /// let quanta = pool.observer().quanta_in_force();
    /// assert!(quanta.iter().all(|one| one.quantum.unwrap().as_micros() >= 50));
    /// # Ok::<(), shinjuku::StartError>(())
    /// ```
    #[must_use]
    pub fn quanta_in_force(&self) -> Vec<QuantumInForce> {
        let floors: Vec<_> = match &self.in_force {
            Some(in_force) => in_force.floors().collect(),
            None => vec![("configured", Nanos(0))],
        };
        let of_class = |(class, quantum): (&String, &Option<Nanos>)| {
            let by_mechanism = floors.iter().map(|&(mechanism, floor)| QuantumInForce {
                class: class.clone(),
                mechanism: mechanism.to_owned(),
                quantum: quantum.map(|quantum| match quantum {
                    GIVES_WAY => Duration::ZERO,
                    _ => Duration::from_nanos(quantum.max(floor).0),
                }),
            });
            by_mechanism.collect::<Vec<_>>()
        };
        let quanta = &self.arrangement.quanta;
        (self.class_names.iter().zip(quanta))
            .flat_map(of_class)
            .collect()
    }
}

/// Says what is in force, and why.
impl fmt::Display for InForce {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = Nanos(self.longest.load(Relaxed));
        for mechanism in &self.mechanisms {
            let quantum = Nanos(mechanism.quantum.load(Relaxed));
            let micros = quantum.as_micros_f64();
            let why = match quantum < longest {
                true => "short requests wait least so",
                false => "no request takes as long: stopping them is not worth its cost",
            };
            write!(
                formatter,
                "{}: no quantum below {micros:.1} us ({why}); ",
                mechanism.name
            )?;
        }
        let busy = self.busy.load(Relaxed) as f64 / 10.0;
        write!(
            formatter,
            "workers {busy:.0} % busy, requests of up to {:.1} us",
            longest.as_micros_f64()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_profile::Period;
    use crate::quantum_floor::PreemptedFor;

    const COST: Nanos = Nanos(8_000);

    /// Requests of two lengths in nanoseconds, and workers that are half busy.
    fn load(short: u64, long: u64) -> LoadProfile {
        let mut load = LoadProfile::new();
        (0..995).for_each(|_| load.finished(Nanos(short)));
        (0..5).for_each(|_| load.finished(Nanos(long)));
        load.observe(Period {
            worker_time: Nanos(1_000),
            idle: Nanos(500),
            spent: Nanos(0),
        });
        load
    }

    #[test]
    fn a_quantum_that_changes_is_told_with_its_reason() {
        let mut floor = QuantumFloor::at_cost(COST);
        let in_force = InForce::new([("signal", &floor)]);
        in_force.publish(&[&floor], &load(500, 500_000));
        assert_eq!(in_force.changes(), 0);
        floor.suit(&load(500, 500_000), PreemptedFor::Anyone);
        in_force.publish(&[&floor], &load(500, 500_000));
        assert_eq!(in_force.changes(), 1);
        assert_eq!(
            in_force.to_string(),
            "signal: no quantum below 40.0 us (short requests wait least so); workers 50 % busy, \
             requests of up to 500.0 us"
        );
    }

    #[test]
    fn that_nothing_is_preempted_is_told_as_well() {
        let mut floor = QuantumFloor::at_cost(COST);
        let in_force = InForce::new([("signal", &floor)]);
        floor.suit(&load(100_000, 100_000), PreemptedFor::Anyone);
        in_force.publish(&[&floor], &load(100_000, 100_000));
        let said = in_force.to_string();
        assert!(
            said.contains("below 200.0 us (no request takes as long"),
            "{said}"
        );
    }
}
