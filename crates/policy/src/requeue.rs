//! Where a preempted request goes.

/// Where in its queue a preempted request waits for its next quantum.
///
/// Shinjuku (NSDI 2019, section 3.4) leaves the choice to the application or to measurements: by
/// its rule of thumb the tail is for multi-modal or heavy-tailed service times, the head for
/// light-tailed ones. The reasons are ours: at the tail a short request waits one round at most;
/// among requests that are about equally long, taking turns only makes all of them late.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Requeue {
    /// Behind everything that waits: round robin, the finer the quantum the closer to processor sharing.
    #[default]
    Tail,
    /// Before everything that waits: first come, first served, whatever the preemptions.
    Head,
}
