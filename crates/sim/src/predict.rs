//! What a measured point should look like: the simulator's answer for a mix, a load, workers, a
//! policy and costs; and SLOs made of such answers.

use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};
use shinjuku_policy::{Nanos, single_queue};
use shinjuku_workload::{Class, Mix};

use crate::replicate::{Replicated, Until, replicate};
use crate::{Estimate, Measure, Overheads, Sample, Scenario, Scheduler, SimError};

/// Requests simulated by [`predict`], in all its replications: about a tenth of a second of
/// computing for most policies.
pub const REQUESTS: u64 = 200_000;

/// Replications of [`predict`]: enough for an interval.
const REPLICATIONS: u32 = 4;

/// Predicted figures of a class, or of all requests, each with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// Median sojourn time, us.
    pub p50_us: Estimate,
    /// 99th percentile of the sojourn time, us.
    pub p99_us: Estimate,
    /// 99.9th percentile of the sojourn time, us.
    pub p999_us: Estimate,
    /// 99th percentile of the slowdown.
    pub p99_slowdown: Estimate,
    /// Mean slowdown.
    pub mean_slowdown: Estimate,
}

/// A prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Of all requests.
    pub all: Predicted,
    /// Of each class of the mix, in its order.
    pub classes: Vec<Predicted>,
    /// Whether the simulated server is saturated: it refused requests, or they piled up in most
    /// replications. Its latencies then mean little. An overload of about one part in a hundred is
    /// too little to be seen, and more if service times vary much.
    pub saturated: bool,
}

/// Predicts a server of `workers` workers under `policy` (which has the quantum) at `load` of the
/// workers' capacity, with Poisson arrivals. A worker holds up to `depth` requests, the running one
/// included (JBSQ; 1: only the running one). With [`Overheads::IDEAL`] the prediction is the floor:
/// what the policy could reach if scheduling cost nothing. The same arguments always give the same
/// answer.
///
/// ```
/// use shinjuku_policy::{Nanos, single_queue};
/// use shinjuku_sim::{Overheads, Scheduler, predict};
/// use shinjuku_workload::Mix;
///
/// let mix = Mix::named("hi")?;
/// let policy = Scheduler::of(single_queue::REGISTERED).with_quantum(Nanos::from_micros(5));
/// let floor = predict(&mix, 0.6, 2, 1, &policy, Overheads::IDEAL)?;
/// let costs = Overheads { switch_ns: 100, preempt_receive_ns: 100, ..Overheads::IDEAL };
/// let priced = predict(&mix, 0.6, 2, 1, &policy, costs)?;
/// let short = usize::from(Mix::SHORT);
/// assert!(priced.classes[short].p99_us.value > floor.classes[short].p99_us.value);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A parameter is out of range, or the policy breaks its contract.
pub fn predict(
    mix: &Mix,
    load: f64,
    workers: usize,
    depth: usize,
    policy: &Scheduler,
    overheads: Overheads,
) -> Result<Prediction, SimError> {
    let mut scenario = Scenario::new(mix.clone(), load, policy.clone(), workers)
        .with_requests(REQUESTS / u64::from(REPLICATIONS));
    scenario.shape.depth = depth;
    scenario.shape.overheads = overheads;
    let growing = AtomicU32::new(0);
    let run = |seed| {
        let run = scenario.run(seed)?;
        growing.fetch_add(u32::from(run.growing), Ordering::Relaxed);
        Ok(Sample::from(run))
    };
    let result = replicate(run, 1, Until::Replications(REPLICATIONS), |_, _| {})?;
    let saturated = result.refused > 0 || growing.into_inner() > REPLICATIONS / 2;
    Ok(Prediction::of(&result, mix.classes().len(), saturated))
}

impl Prediction {
    fn of(result: &Replicated, classes: usize, saturated: bool) -> Self {
        let of = |class| {
            let estimate = |measure| result.estimate(measure, class);
            Predicted {
                p50_us: estimate(Measure::P50Us),
                p99_us: estimate(Measure::P99Us),
                p999_us: estimate(Measure::P999Us),
                p99_slowdown: estimate(Measure::P99Slowdown),
                mean_slowdown: estimate(Measure::MeanSlowdown),
            }
        };
        Self {
            all: of(None),
            classes: (0..classes as u16).map(|class| of(Some(class))).collect(),
            saturated,
        }
    }
}

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
