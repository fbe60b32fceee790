//! What the policy has learnt of its classes, for threads that ask and for the log.
//!
//! The first dispatcher publishes it every period, as numbers, beside the quanta in force
//! (`preemption/in_force.rs`). What the others learn of the same classes differs little.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use shinjuku_policy::{Lesson, Nanos, Requeue};

use crate::change_log::Changing;
use crate::config::ClassConfig;

/// What is learnt, as it is now.
#[derive(Debug)]
pub(crate) struct Learned {
    subjects: Vec<Published>,
    /// How often anything has changed.
    changes: AtomicU64,
}

/// What is published of a class, or of all classes together.
#[derive(Debug)]
struct Published {
    /// The class's name; `None`: all classes.
    class: Option<String>,
    /// The SLO in nanoseconds, if it is learnt.
    slo: Option<AtomicU64>,
    /// Whether preempted requests go to the head of their queue, if that is learnt.
    head: Option<AtomicBool>,
}

impl Learned {
    /// What `lessons` say at the start.
    pub(crate) fn new(lessons: impl Iterator<Item = Lesson>, classes: &[ClassConfig]) -> Self {
        let published = |lesson: Lesson| Published {
            class: lesson
                .class
                .map(|class| classes[usize::from(class.0)].name.clone()),
            slo: lesson.slo.map(|slo| AtomicU64::new(slo.0)),
            head: lesson.requeue.map(|place| AtomicBool::new(is_head(place))),
        };
        Self {
            subjects: lessons.map(published).collect(),
            changes: AtomicU64::new(0),
        }
    }

    /// Publishes what is learnt by now, in the same order.
    pub(crate) fn publish(&self, lessons: impl Iterator<Item = Lesson>) {
        for (published, lesson) in self.subjects.iter().zip(lessons) {
            let slo = (published.slo.as_ref()).zip(lesson.slo);
            let head = (published.head.as_ref()).zip(lesson.requeue);
            let has_changed = slo.is_some_and(|(old, new)| old.swap(new.0, Relaxed) != new.0)
                | head.is_some_and(|(old, new)| old.swap(is_head(new), Relaxed) != is_head(new));
            if has_changed {
                self.changes.fetch_add(1, Relaxed);
            }
        }
    }

    /// What is to be learnt, for the description: `SLO (get, range), tail or head`.
    pub(crate) fn subjects(&self) -> String {
        let of = |what: &str, is_learnt: fn(&Published) -> bool| {
            let learnt: Vec<_> = (self.subjects.iter())
                .filter(|one| is_learnt(one))
                .collect();
            let names: Vec<_> = learnt
                .iter()
                .filter_map(|one| one.class.as_deref())
                .collect();
            match (learnt.is_empty(), names.is_empty()) {
                (true, _) => None,
                (false, true) => Some(what.to_owned()),
                (false, false) => Some(format!("{what} ({})", names.join(", "))),
            }
        };
        let slos = of("SLO", |one| one.slo.is_some());
        let places = of("tail or head", |one| one.head.is_some());
        let both: Vec<_> = slos.into_iter().chain(places).collect();
        both.join(", ")
    }
}

impl Changing for Learned {
    fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }
}

/// Says what is in force, and why.
impl fmt::Display for Learned {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, one) in self.subjects.iter().enumerate() {
            let semicolon = if at > 0 { "; " } else { "" };
            let class = one.class.as_deref().unwrap_or("all requests");
            write!(formatter, "{semicolon}{class}: ")?;
            if let Some(slo) = &one.slo {
                let micros = Nanos(slo.load(Relaxed)).as_micros_f64();
                write!(
                    formatter,
                    "SLO {micros:.1} us (its p99 alone, as estimated)"
                )?;
            }
            if let Some(head) = &one.head {
                let comma = if one.slo.is_some() { ", " } else { "" };
                let place = match head.load(Relaxed) {
                    true => "to the head (those that run on are not expected to be long)",
                    false => "to the tail (those that run on may be long)",
                };
                write!(formatter, "{comma}preempted {place}")?;
            }
        }
        Ok(())
    }
}

fn is_head(place: Requeue) -> bool {
    place == Requeue::Head
}

#[cfg(test)]
mod tests {
    use shinjuku_policy::{ClassParameters, Learner, Parameters, multi_queue, single_queue};

    use super::*;

    fn learner(policy: shinjuku_policy::Registered) -> Learner {
        let mut parameters = Parameters::new(8, 1);
        parameters.classes = vec![ClassParameters::default(); 2];
        parameters.learns = true;
        Learner::new(policy, &parameters).unwrap()
    }

    fn classes() -> [ClassConfig; 2] {
        ["get", "scan"].map(ClassConfig::new)
    }

    #[test]
    fn what_has_changed_is_told_by_class() {
        let mut learner = learner(multi_queue::REGISTERED);
        let learned = Learned::new(learner.lessons(), &classes());
        assert_eq!(
            learned.subjects(),
            "SLO (get, scan), tail or head (get, scan)"
        );
        learned.publish(learner.lessons());
        assert_eq!(learned.changes(), 0);
        for _ in 0..shinjuku_policy::learner::HEAD_AFTER {
            learner.finished(shinjuku_policy::ClassId(0), Nanos(2_000));
        }
        learned.publish(learner.lessons());
        assert_eq!(learned.changes(), 1);
        let said = learned.to_string();
        assert!(
            said.starts_with(
                "get: SLO 16.0 us (its p99 alone, as estimated), preempted to the head"
            ) && said.contains(
                "; scan: SLO 1000.0 us (its p99 alone, as estimated), preempted to the tail"
            ),
            "{said}"
        );
    }

    #[test]
    fn one_queue_is_told_of_as_all_requests() {
        let learner = learner(single_queue::REGISTERED);
        let learned = Learned::new(learner.lessons(), &classes());
        assert_eq!(learned.subjects(), "tail or head");
        let said = learned.to_string();
        assert!(
            said.starts_with("all requests: preempted to the tail"),
            "{said}"
        );
    }
}
