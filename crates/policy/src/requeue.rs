//! Where a preempted request goes.

/// Where in its queue a preempted request waits for its next quantum.
///
/// Shinjuku (NSDI 2019) makes it a choice per queue: the tail suits service times that vary
/// widely, because a short request then waits one round at most; the head suits requests that are about
/// equally long, where taking turns only makes all of them late.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Requeue {
    /// Behind everything that waits: round robin, the finer the quantum the closer to processor sharing.
    #[default]
    Tail,
    /// Before everything that waits: first come, first served, whatever the preemptions.
    Head,
}
