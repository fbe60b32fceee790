//! Where a simulated server dispatches: a core of its own, or every core for itself.

use std::fmt;
use std::str::FromStr;

use crate::SimError;

/// How a server's cores share dispatching and serving.
///
/// | name | arrivals | a core's requests | idle cores |
/// |---|---|---|---|
/// | `central` | dispatcher | one queue at the dispatcher | wait for the dispatcher |
/// | `two-level` | dispatcher, to the core with the fewest | its own, in rotation | wait for the dispatcher |
/// | `symmetric` | by flow | its own | poll and serve for others |
/// | `ix` | by flow | its own | wait |
/// | `zygos` | by flow | its own | serve what others have polled; interrupt loops that do not poll |
/// | `zygos-no-interrupts` | by flow | its own | serve what others have polled |
///
/// In `central` and `two-level` the dispatcher has a core besides the workers. For what IX and
/// ZygOS are, take the policies `c-fcfs` and `stealing`: run to completion, flows in their order.
///
/// Sources: *Tiny Quanta*, ASPLOS 2024 (`two-level`); Belay et al., *IX*, OSDI 2014; Prekas,
/// Kogias and Bugnion, *ZygOS*, SOSP 2017. `symmetric` is the runtime's layout of that name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// [`crate::server`].
    #[default]
    Central,
    /// [`crate::loops`], with Tiny Quanta's dispatcher before it.
    TwoLevel,
    /// [`crate::loops`], all of which help each other.
    Symmetric,
    /// [`crate::loops`], none of which helps.
    Ix,
    /// [`crate::loops`] that steal requests and interrupt.
    ZygOs,
    /// [`crate::loops`] that steal requests.
    ZygOsNoInterrupts,
}

impl Layout {
    /// All layouts, in the order of the table.
    pub const ALL: [Self; 6] = [
        Self::Central,
        Self::TwoLevel,
        Self::Symmetric,
        Self::Ix,
        Self::ZygOs,
        Self::ZygOsNoInterrupts,
    ];

    /// Its name in plans.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Central => "central",
            Self::TwoLevel => "two-level",
            Self::Symmetric => "symmetric",
            Self::Ix => "ix",
            Self::ZygOs => "zygos",
            Self::ZygOsNoInterrupts => "zygos-no-interrupts",
        }
    }

    /// Idle loops serve requests of others.
    pub(crate) const fn steals(self) -> bool {
        matches!(
            self,
            Self::Symmetric | Self::ZygOs | Self::ZygOsNoInterrupts
        )
    }

    /// Idle loops poll what arrives for others.
    pub(crate) const fn polls_for_others(self) -> bool {
        matches!(self, Self::Symmetric)
    }

    /// A reply leaves from the core that the request's flow belongs to.
    pub(crate) const fn replies_at_home(self) -> bool {
        matches!(self, Self::ZygOs | Self::ZygOsNoInterrupts)
    }

    /// A loop within a request is interrupted for what arrives, or is to be sent, there.
    pub(crate) const fn interrupts(self) -> bool {
        matches!(self, Self::ZygOs)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Layout {
    type Err = SimError;

    fn from_str(text: &str) -> Result<Self, SimError> {
        let found = Self::ALL.into_iter().find(|layout| layout.name() == text);
        found.ok_or_else(|| {
            let expected =
                "it must be central, two-level, symmetric, ix, zygos or zygos-no-interrupts";
            SimError::parameter("layout", format!("{text:?}"), expected)
        })
    }
}
