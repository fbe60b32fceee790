//! How often to interrupt: as often as leaves code some time for progress.

use std::time::Duration;

use super::{Interruption, StressError, worker};
use crate::HardPreemption;
use crate::measure::{self, Interrupter};

/// A quantum in which code makes progress here, and the cost that it derives from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantum {
    /// A worker is interrupted about this often.
    pub length: Duration,
    /// A preemption's cost in worker time; `None` if it was not measured.
    pub preemption: Option<Duration>,
}

impl Quantum {
    /// The quantum where a preemption costs little.
    const LEAST: Duration = Duration::from_micros(50);
    /// The quantum for an unknown cost: the stress test passes with it on every machine tried.
    const UNMEASURED: Duration = Duration::from_micros(200);
    /// A cost that asks for more was measured on a machine that was busy.
    const MOST: Duration = Duration::from_millis(5);
    /// The quantum in preemptions. The measured preemptions disturb a loop. Ordinary code also
    /// meets page faults and system calls, each of which costs about as much in guest mode, and a
    /// worker may be interrupted after half a quantum.
    const PREEMPTIONS: u32 = 4;

    /// Measures a preemption's cost here, which takes about a second.
    ///
    /// # Errors
    /// [`StressError`] if the mechanism cannot be used. If only its cost cannot be measured, as on
    /// a machine with one core, [`preemption`](Self::preemption) is `None`.
    pub fn measured(interruption: Interruption) -> Result<Self, StressError> {
        // SAFETY: the measured loops rely on nothing that the contract excludes.
        let token = unsafe { HardPreemption::allow() };
        let by = match interruption {
            // Tenths of a microsecond on all machines.
            Interruption::Probe => {
                return Ok(Self {
                    length: Self::LEAST,
                    preemption: None,
                });
            }
            Interruption::Signal => Interrupter::Signal(token),
            Interruption::KernelThread => Interrupter::KernelThread,
            Interruption::Backend(name) => Interrupter::Backend(super::install(name, token)?),
        };
        let cost = match worker::allowed_cores()[..] {
            [worker_core, sender_core, ..] => {
                measure::preemption(&by, sender_core, worker_core).unwrap_or(None)
            }
            _ => None,
        };
        Ok(Self::at_cost(cost))
    }

    /// The quantum where a preemption takes `cost` of a worker's time.
    #[must_use]
    pub fn at_cost(cost: Option<Duration>) -> Self {
        let length = match cost {
            // An interrupt takes time: the measurement of this one was lost in noise, as where an
            // emulator's clock has little to do with what its code takes.
            None | Some(Duration::ZERO) => Self::UNMEASURED,
            Some(cost) => (cost * Self::PREEMPTIONS).clamp(Self::LEAST, Self::MOST),
        };
        Self {
            length,
            preemption: cost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantum_is_some_preemptions_long() {
        let at = |micros| Quantum::at_cost(Some(Duration::from_micros(micros))).length;
        let micros = Duration::from_micros;
        assert_eq!(at(0), micros(200));
        assert_eq!(at(1), micros(50));
        assert_eq!(at(8), micros(50));
        // Guest mode on software virtualisation: code makes no progress at 50 us, and does at 100
        // and 200.
        assert_eq!(at(54), micros(216));
        assert_eq!(at(1_000_000), micros(5_000));
        assert_eq!(Quantum::at_cost(None).length, micros(200));
    }

    #[test]
    fn the_cost_of_a_signal_is_measured_where_there_are_two_cores() {
        let quantum = Quantum::measured(Interruption::Signal).unwrap();
        assert_eq!(quantum, Quantum::at_cost(quantum.preemption));
        if worker::allowed_cores().len() < 2 {
            assert_eq!(quantum.preemption, None);
        }
    }
}
