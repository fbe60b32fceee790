//! Why a policy could not be built.

use core::fmt;

use crate::ClassId;

/// A parameter that a policy's constructor rejects. Nothing has been built.
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// The capacity is zero, or its slots cannot be numbered by a [`TaskId`](crate::TaskId).
    Capacity {
        /// The capacity asked for.
        given: usize,
    },
    /// The number of workers is zero, or they cannot be numbered by a [`WorkerId`](crate::WorkerId).
    Workers {
        /// The number asked for.
        given: usize,
    },
    /// The number of classes is zero, or they cannot be numbered by a [`ClassId`].
    Classes {
        /// The number asked for.
        given: usize,
    },
    /// The quantum is zero: no request would get anywhere.
    ZeroQuantum {
        /// The class it was given for.
        class: ClassId,
    },
    /// The SLO is zero: waiting time in proportion to it has no meaning.
    ZeroSlo {
        /// The class it was given for.
        class: ClassId,
    },
    /// The bound on a single queue is zero: every request would be refused.
    ZeroQueueBound,
    /// The progress rule is to fire after zero preemptions.
    ZeroProgressLimit,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capacity { given } => {
                write!(
                    f,
                    "capacity is {given} requests: choose 1 to {LARGEST_CAPACITY}"
                )
            }
            Self::Workers { given } => {
                write!(f, "{given} workers: choose 1 to {MOST_NUMBERS}")
            }
            Self::Classes { given } => {
                write!(f, "{given} request classes: choose 1 to {MOST_NUMBERS}")
            }
            Self::ZeroQuantum { class } => write!(
                f,
                "quantum of class {} is zero: choose at least 1 ns, or Nanos::MAX to run to completion",
                class.0
            ),
            Self::ZeroSlo { class } => {
                write!(f, "SLO of class {} is zero: choose at least 1 ns", class.0)
            }
            Self::ZeroQueueBound => {
                f.write_str("queue bound is zero: choose at least 1 request, or leave it out")
            }
            Self::ZeroProgressLimit => {
                f.write_str("progress limit is zero: choose at least 1 preemption")
            }
        }
    }
}

impl core::error::Error for ConfigError {}

/// The largest `u32` marks the end of a list.
const LARGEST_CAPACITY: usize = u32::MAX as usize - 1;

/// As many workers or classes as a `u16` can number.
const MOST_NUMBERS: usize = 1 << 16;

impl ConfigError {
    pub(crate) fn check_capacity(given: usize) -> Result<(), Self> {
        if (1..=LARGEST_CAPACITY).contains(&given) {
            Ok(())
        } else {
            Err(Self::Capacity { given })
        }
    }

    pub(crate) fn check_workers(given: usize) -> Result<(), Self> {
        if (1..=MOST_NUMBERS).contains(&given) {
            Ok(())
        } else {
            Err(Self::Workers { given })
        }
    }

    pub(crate) fn check_classes(given: usize) -> Result<(), Self> {
        if (1..=MOST_NUMBERS).contains(&given) {
            Ok(())
        } else {
            Err(Self::Classes { given })
        }
    }

    pub(crate) fn check_queue_bound(given: usize) -> Result<(), Self> {
        if given > 0 {
            Ok(())
        } else {
            Err(Self::ZeroQueueBound)
        }
    }
}
