//! The SLOs that c-PRE-MQ is given: p99 of each class alone under SQ (the paper's rule, section
//! 3.4), as the simulator has it without any cost. One that was measured would have the machine's
//! noise in it, and the policy would follow that.

use anyhow::{Result, ensure};
use shinjuku::policy::Nanos;
use shinjuku::policy::single_queue;
use shinjuku_sim::{Overheads, Scheduler, predict};

use super::contender::Contender;
use super::mixes::BenchMix;
use super::scope::Scope;

/// Load at which a class runs alone.
const LOAD: f64 = 0.4;

/// The SLO of each class of `mix`, us: the one asked for, or the ideal with `contender`'s quantum.
///
/// # Errors
/// If the simulator refuses the mix.
pub fn of(
    scope: &Scope,
    mix: &BenchMix,
    contender: &Contender,
    workers: usize,
) -> Result<Vec<f64>> {
    let classes = mix.mix.classes().iter().enumerate();
    classes
        .map(|(at, class)| match scope.slos_us.get(&class.name) {
            Some(&given) => Ok(given),
            None => alone(mix, at, contender, workers),
        })
        .collect()
}

/// p99 of one class alone on `workers` workers, us.
fn alone(mix: &BenchMix, class: usize, contender: &Contender, workers: usize) -> Result<f64> {
    let quantum = Nanos((contender.quantum_us.unwrap_or_default() * 1e3) as u64);
    let policy = Scheduler::of(single_queue::REGISTERED).with_quantum(quantum);
    // The other classes keep their numbers but have no weight, so that the class's work stays its
    // own.
    let only = mix.with_only(class)?;
    let depth = contender.depth(workers);
    let ideal = predict(&only.mix, LOAD, workers, depth, &policy, Overheads::IDEAL)?;
    ensure!(
        !ideal.saturated,
        "class {} of {} alone saturates even a simulated server without costs: give its SLO with --slo",
        mix.mix.classes()[class].name,
        mix.mix.name()
    );
    Ok(ideal.all.p99_us.value)
}

#[cfg(test)]
mod tests {
    use super::super::scope::tests::scope;
    use super::*;

    fn slos(line: &str) -> Vec<f64> {
        let mix = BenchMix::spinning("mid").unwrap();
        of(&scope(line).unwrap(), &mix, &Contender::MQ, 1).unwrap()
    }

    /// Nothing of this machine is in them: a microsecond and a hundred of them, alone at 40 %.
    #[test]
    fn slos_are_those_of_an_ideal_machine() {
        let [short, long] = slos("bench --mix mid")[..] else {
            panic!("two classes")
        };
        // Short ones run one after the other, long ones in turns of a quantum, as if they shared
        // the worker.
        assert!((2.0..5.0).contains(&short), "{short}");
        assert!((200.0..800.0).contains(&long), "{long}");
    }

    #[test]
    fn a_given_slo_goes_before() {
        let found = slos("bench --mix mid --slo long=900 --slo short=42.5");
        assert_eq!(found, [42.5, 900.0]);
    }
}
