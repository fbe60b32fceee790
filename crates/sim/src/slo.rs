//! SLOs by the rule of the Shinjuku paper.

use shinjuku_policy::{Nanos, single_queue};
use shinjuku_workload::{Class, Mix};

use crate::{Overheads, Scheduler, SimError, predict};

/// The mix, with each class's SLO set to the p99 that the class has alone: `workers` ideal workers
/// serve only its requests, at `load`, under c-PRE-SQ with `quantum`.
///
/// Source: Kaffes et al., *Shinjuku*, NSDI 2019, section 3.4, which runs each class on the real
/// system and does not say at which load.
///
/// # Errors
/// As [`predict`](fn@predict).
pub fn with_slos_alone(
    mix: &Mix,
    load: f64,
    workers: usize,
    quantum: Nanos,
) -> Result<Mix, SimError> {
    let policy = Scheduler::of(single_queue::REGISTERED).with_quantum(quantum);
    let alone = |class: &Class| {
        let only = Mix::new(mix.name(), vec![class.clone()])?;
        let prediction = predict(&only, load, workers, 1, &policy, Overheads::IDEAL)?;
        Ok(class.clone().with_slo_us(prediction.all.p99_us.value))
    };
    let classes: Result<Vec<_>, SimError> = mix.classes().iter().map(alone).collect();
    Ok(Mix::new(mix.name(), classes?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slo_of_a_class_does_not_depend_on_the_others() {
        let quantum = Nanos::from_micros(5);
        let slos = |mix: &str| {
            let mix = Mix::named(mix).unwrap();
            let mix = with_slos_alone(&mix, 0.7, 16, quantum).unwrap();
            let slos = mix.classes().iter().map(|class| class.slo_us.unwrap());
            slos.collect::<Vec<_>>()
        };
        let (two, three) = (slos("mid"), slos("tri"));
        assert_eq!([two[0], two[1]], [three[0], three[2]]);
        // Queueing makes them more than the service times, and at this load not much more.
        assert!(two[0] > 1.0 && two[0] < 2.0, "{two:?}");
        assert!(two[1] > 100.0 && two[1] < 200.0, "{two:?}");
    }
}
