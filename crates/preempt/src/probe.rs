//! Preemption by probes alone: the code polls, nothing interrupts it.

use crate::mechanism::{InterruptError, Mechanism, WorkerLink};

/// Leaves it to the code's own [`preempt_point`](crate::preempt_point)s. Needs nothing and is
/// always on; the dispatcher's store to the context's cache line is all there is to send (Concord,
/// SOSP'23, section 3.1).
#[derive(Clone, Copy, Default, Debug)]
pub struct Probe;

impl Mechanism for Probe {
    fn name(&self) -> &'static str {
        "probe"
    }

    fn interrupt(&self, _: &WorkerLink) -> Result<(), InterruptError> {
        Ok(())
    }
}
