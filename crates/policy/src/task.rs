//! What a policy sees of a request: identity, class, flow and arrival time, never its payload.

use core::fmt;

/// Nanoseconds on the dispatcher's monotonic clock (or the simulator's virtual one).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The largest representable time; used for "never".
    pub const MAX: Self = Self(u64::MAX);

    /// `micros` microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros * 1_000)
    }

    /// `millis` milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    /// The time from `earlier` to `self`, zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// `self` in microseconds, with a fraction.
    #[must_use]
    pub fn as_micros_f64(self) -> f64 {
        self.0 as f64 / 1_000.0
    }
}

/// In the largest unit that needs no fraction: `5us`, `1500ns`.
impl fmt::Display for Nanos {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            u64::MAX => formatter.write_str("never"),
            0 => formatter.write_str("0ns"),
            ns if ns % 1_000_000 == 0 => write!(formatter, "{}ms", ns / 1_000_000),
            ns if ns % 1_000 == 0 => write!(formatter, "{}us", ns / 1_000),
            ns => write!(formatter, "{ns}ns"),
        }
    }
}

impl fmt::Debug for Nanos {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}ns", self.0)
    }
}

/// A request's slot in the dispatcher's table: unique among the requests admitted and not yet
/// finished, always below the capacity that the policy was built with, reused afterwards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskId(pub u32);

/// A worker, numbered from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkerId(pub u16);

/// A request class (request type, with its own SLO), numbered from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ClassId(pub u16);

/// A flow: requests of one flow come from one client connection (or one address pair).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FlowId(pub u64);

/// One request as the policy sees it. A preempted request keeps its arrival time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Task {
    /// Slot in the dispatcher's table.
    pub id: TaskId,
    /// Request class.
    pub class: ClassId,
    /// Flow it belongs to.
    pub flow: FlowId,
    /// When it arrived.
    pub arrival: Nanos,
    /// Whether it has run already, and so holds a context.
    pub started: bool,
}
