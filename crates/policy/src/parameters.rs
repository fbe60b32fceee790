//! What policies are built from, and why one could not be built.
//!
//! [`Parameters`] holds what any policy of the [`registry`](crate::registry) needs. Each policy
//! reads its own part and ignores the rest, so that one configuration can be tried under every
//! policy.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use crate::learner::FIRST_SLO;
use crate::{BestEffort, ClassId, Nanos, Policy};

/// The parameters of a policy.
///
/// ```
/// use shinjuku_policy::{Nanos, Parameters, registry};
///
/// let mut parameters = Parameters::new(1024, 8);
/// parameters.quantum = Nanos::from_micros(10);
/// let policy = registry::named("c-pre-sq")?.build(&parameters)?;
/// assert_eq!(policy.name(), "c-PRE-SQ(10us)");
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// Task slots: requests in the system at most.
    pub capacity: usize,
    /// Workers, numbered from 0.
    pub workers: usize,
    /// The seed of policies that draw at random: the same seed gives the same choices.
    pub seed: u64,
    /// How long a request runs before it is preempted if others wait; [`Nanos::MAX`]: to
    /// completion.
    pub quantum: Nanos,
    /// Where a preempted request goes; `None`: to the tail, or as is [learnt](Self::learns).
    pub requeue: Option<Requeue>,
    /// Whether classes without an SLO of their own, and queues without a place for preempted
    /// requests, have those [learnt](crate::learner). The policy is built for it: whoever builds it
    /// also has to let it learn.
    pub learns: bool,
    /// The request classes, numbered in this order. Policies by class treat a class number beyond
    /// the last as the last class.
    pub classes: Vec<ClassParameters>,
    /// Classes that run only in what the others leave idle.
    pub best_effort: BestEffortParameters,
}

/// Which classes are [best effort](crate::best_effort), and how much room they have. By default
/// there are none, and no bounds.
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BestEffortParameters {
    /// The classes. They need no SLO.
    pub classes: Vec<ClassId>,
    /// How many requests of these classes may wait unstarted; more are refused.
    pub queue: usize,
    /// How many requests of these classes may have started and not finished: each holds a context.
    pub started: usize,
}

impl Default for BestEffortParameters {
    fn default() -> Self {
        Self {
            classes: Vec::new(),
            queue: usize::MAX,
            started: usize::MAX,
        }
    }
}

/// The parameters of one class of requests.
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClassParameters {
    /// Service-level objective on latency.
    pub slo: Option<Nanos>,
    /// The class's own quantum; `None`: that of all classes.
    pub quantum: Option<Nanos>,
    /// The class's own place for preempted requests; `None`: that of all classes.
    pub requeue: Option<Requeue>,
    /// Deadline minus arrival, in ns, for policies by deadline; negative for requests that are late
    /// when they arrive. `None`: the SLO.
    pub budget_ns: Option<i64>,
    /// For policies by priority: the lower number goes first. `None`: the class's number.
    pub priority: Option<u16>,
}

/// Where in its queue a preempted request waits for its next quantum.
///
/// Shinjuku (NSDI 2019, section 3.4) makes this a choice per queue. The tail suits service times
/// that vary widely: a short request then waits for one round at most. The head suits requests of
/// about equal length, where taking turns only makes all of them late.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Requeue {
    /// Behind all waiting requests: round robin, which nears processor sharing as the quantum
    /// shrinks.
    #[default]
    Tail,
    /// Before all waiting requests: first come, first served, whatever the preemptions.
    Head,
}

impl Parameters {
    /// Room for `capacity` requests over `workers` workers; a quantum of 5 us, preempted requests
    /// to the tail, nothing learnt, one class, seed 0.
    #[must_use]
    pub fn new(capacity: usize, workers: usize) -> Self {
        Self {
            capacity,
            workers,
            seed: 0,
            quantum: Nanos::from_micros(5),
            requeue: None,
            learns: false,
            classes: vec![ClassParameters::default()],
            best_effort: BestEffortParameters::default(),
        }
    }

    /// The policy that `build` makes of these parameters, with the best-effort classes behind it if
    /// there are any.
    ///
    /// # Errors
    /// As `build`; [`ParameterError::ZeroQueueBound`] for a bound on best effort that is zero.
    pub fn build_with(
        &self,
        build: impl FnOnce(&Self) -> Result<Box<dyn Policy>, ParameterError>,
    ) -> Result<Box<dyn Policy>, ParameterError> {
        let best_effort = &self.best_effort;
        if best_effort.classes.is_empty() {
            return build(self);
        }
        let mut others = self.clone();
        for class in &best_effort.classes {
            if let Some(class) = others.classes.get_mut(usize::from(class.0)) {
                // The policy never sees such a request, but asks every class for an SLO.
                class.slo = class.slo.or(Some(Nanos::MAX));
            }
        }
        let policy = BestEffort::around(build(&others)?, self.capacity, best_effort)?;
        Ok(Box::new(policy))
    }

    /// Each class's quantum: its own, or that of all classes.
    pub fn quanta(&self) -> impl ExactSizeIterator<Item = Nanos> {
        let own = |class: &ClassParameters| class.quantum.unwrap_or(self.quantum);
        self.classes.iter().map(own)
    }

    /// Whether the SLO of this class is learnt.
    pub(crate) fn learns_slo(&self, class: &ClassParameters) -> bool {
        self.learns && class.slo.is_none() && class.budget_ns.is_none()
    }

    /// Whether it is learnt where this class's preempted requests go.
    pub(crate) fn learns_requeue(&self, class: &ClassParameters) -> bool {
        self.learns && class.requeue.or(self.requeue).is_none()
    }

    /// The SLO of a class of which nothing is known yet.
    pub(crate) fn first_slo(&self) -> Nanos {
        let given = self.classes.iter().filter_map(|class| class.slo);
        given.min().map_or(FIRST_SLO, |least| least.min(FIRST_SLO))
    }

    /// The SLO of `class`, which has the parameters `own`; at first, if it is learnt.
    ///
    /// # Errors
    /// [`ParameterError::MissingSlo`] if there is none.
    pub(crate) fn slo_of(
        &self,
        class: ClassId,
        own: &ClassParameters,
    ) -> Result<Nanos, ParameterError> {
        let first = || self.learns_slo(own).then(|| self.first_slo());
        own.slo
            .or_else(first)
            .ok_or(ParameterError::MissingSlo { class })
    }

    /// What `find` returns for each class, or its first error.
    pub(crate) fn by_class<T>(
        &self,
        find: impl Fn(ClassId, &ClassParameters) -> Result<T, ParameterError>,
    ) -> Result<Vec<T>, ParameterError> {
        ParameterError::check_classes(self.classes.len())?;
        (0..)
            .map(ClassId)
            .zip(&self.classes)
            .map(|(number, class)| find(number, class))
            .collect()
    }
}

impl ClassParameters {
    /// A class with this SLO.
    #[must_use]
    pub fn with_slo(slo: Nanos) -> Self {
        Self {
            slo: Some(slo),
            ..Self::default()
        }
    }
}

/// A parameter that a policy's constructor rejects. Nothing has been built.
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParameterError {
    /// The capacity is zero, or its slots cannot be numbered by a [`TaskId`](crate::TaskId).
    Capacity {
        /// The capacity asked for.
        given: usize,
    },
    /// The number of workers is zero, or they cannot be numbered by a
    /// [`WorkerId`](crate::WorkerId).
    Workers {
        /// The number asked for.
        given: usize,
    },
    /// The number of classes is zero, or they cannot be numbered by a [`ClassId`].
    Classes {
        /// The number asked for.
        given: usize,
    },
    /// A class has no SLO, and the policy goes by it.
    MissingSlo {
        /// The class.
        class: ClassId,
    },
    /// The quantum is zero: no request would make progress.
    ZeroQuantum {
        /// The class it was given for.
        class: ClassId,
    },
    /// The SLO is zero: waiting time in proportion to it has no meaning.
    ZeroSlo {
        /// The class it was given for.
        class: ClassId,
    },
    /// The bound on a single queue, or on best effort, is zero: every request would be refused.
    ZeroQueueBound,
    /// The progress rule is to fire after zero preemptions.
    ZeroProgressLimit,
}

impl fmt::Display for ParameterError {
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
            Self::MissingSlo { class } => write!(
                f,
                "class {} has no SLO: give one, since the policy goes by it",
                class.0
            ),
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

impl core::error::Error for ParameterError {}

/// Slots are numbered by `u32`s, of which the largest marks the end of a list.
const LARGEST_CAPACITY: usize = u32::MAX as usize - 1;

/// How many workers or classes a `u16` can number.
const MOST_NUMBERS: usize = 1 << 16;

impl ParameterError {
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

    /// Checks the classes' quanta, which are in the order of the classes.
    pub(crate) fn check_quanta(given: impl Iterator<Item = Nanos>) -> Result<(), Self> {
        match (0..)
            .map(ClassId)
            .zip(given)
            .find(|(_, quantum)| *quantum == Nanos(0))
        {
            Some((class, _)) => Err(Self::ZeroQuantum { class }),
            None => Ok(()),
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
