//! How a simulated server schedules: by a policy of the registry, by one of your own, or by
//! processor sharing.

use std::fmt;
use std::sync::Arc;

use shinjuku_policy::{
    ClassId, ClassParameters, Learner, Nanos, ParameterError, Parameters, Policy, Registered,
    Requeue, Verified, registry,
};
use shinjuku_workload::Mix;

use crate::SimError;

/// Builds a policy. Capacity, workers and seed are the simulated server's.
type Build = Arc<dyn Fn(&Parameters) -> Result<Box<dyn Policy>, ParameterError> + Send + Sync>;

/// How a server schedules.
///
/// ```
/// use shinjuku_policy::{Nanos, cfcfs, single_queue};
/// use shinjuku_sim::Scheduler;
///
/// let policies = [
///     Scheduler::of(cfcfs::REGISTERED),
///     Scheduler::of(single_queue::REGISTERED).with_quantum(Nanos::from_micros(5)),
/// ];
/// assert_eq!(policies.map(|one| one.to_string()), ["c-FCFS", "c-PRE-SQ(5us)"]);
/// ```
#[derive(Clone)]
pub struct Scheduler {
    label: String,
    parameters: Parameters,
    /// Whether requests that are preempted often have longer quanta.
    stretches: bool,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Registered(Registered),
    Own(Build),
    Sharing,
    PartitionedSharing,
}

/// What a server is built from.
pub(crate) enum Built {
    Policy(Box<Verified>),
    Sharing,
    PartitionedSharing,
}

impl Scheduler {
    /// A policy of the registry, with a quantum of 5 us if it has one.
    #[must_use]
    pub fn of(registered: Registered) -> Self {
        Self::new(registered.label, Kind::Registered(registered))
    }

    /// Ideal processor sharing over all cores: the limit of c-PRE-SQ as the quantum goes to zero.
    /// Computed exactly. Without a dispatcher, depth and overheads do not apply.
    #[must_use]
    pub fn sharing() -> Self {
        Self::new("PS", Kind::Sharing)
    }

    /// Ideal processor sharing, each core separate, by flow.
    #[must_use]
    pub fn partitioned_sharing() -> Self {
        Self::new("d-PS", Kind::PartitionedSharing)
    }

    /// A policy of your own, called `label` in reports.
    pub fn own(
        label: impl Into<String>,
        build: impl Fn(&Parameters) -> Result<Box<dyn Policy>, ParameterError> + Send + Sync + 'static,
    ) -> Self {
        Self::new(label, Kind::Own(Arc::new(build)))
    }

    /// A scheduler by its name, in either case: a policy of the registry, `PS` or `d-PS`. SLOs are
    /// those of the mix's classes; a class without one gets ten times its mean service time.
    ///
    /// # Errors
    /// [`SimError::UnknownPolicy`] for another name.
    pub fn named(name: &str, mix: &Mix, quantum: Nanos) -> Result<Self, SimError> {
        match name.to_ascii_lowercase().as_str() {
            "ps" => Ok(Self::sharing()),
            "d-ps" => Ok(Self::partitioned_sharing()),
            name => {
                let scheduler = Self::of(registry::named(name)?);
                Ok(scheduler.with_classes(classes(mix)).with_quantum(quantum))
            }
        }
    }

    /// The same with another quantum; [`Nanos::MAX`]: every request runs to completion.
    #[must_use]
    pub fn with_quantum(mut self, quantum: Nanos) -> Self {
        self.parameters.quantum = quantum;
        self
    }

    /// The same with another place for preempted requests.
    #[must_use]
    pub fn with_requeue(mut self, requeue: Requeue) -> Self {
        self.parameters.requeue = Some(requeue);
        self
    }

    /// The same with these classes.
    #[must_use]
    pub fn with_classes(mut self, classes: Vec<ClassParameters>) -> Self {
        self.parameters.classes = classes;
        self
    }

    /// The same, which learns from service times what was not given: SLOs of classes, and the place
    /// for preempted requests.
    #[must_use]
    pub fn learning(mut self) -> Self {
        self.parameters.learns = true;
        self
    }

    /// The same with [longer quanta](shinjuku_policy::verified) for requests that are preempted
    /// often.
    #[must_use]
    pub fn with_longer_quanta(mut self) -> Self {
        self.stretches = true;
        self
    }

    /// The same with these classes behind the policy, in what it leaves idle. Their requests may
    /// take half of the server's room. Processor sharing takes no notice.
    #[must_use]
    pub fn with_best_effort(mut self, classes: Vec<ClassId>) -> Self {
        self.parameters.best_effort.classes = classes;
        self
    }

    /// Whether some classes are best effort.
    #[must_use]
    pub fn has_best_effort(&self) -> bool {
        !self.parameters.best_effort.classes.is_empty()
    }

    /// Whether the quantum matters.
    #[must_use]
    pub fn preempts(&self) -> bool {
        matches!(self.kind, Kind::Registered(registered) if registered.preempts)
    }

    /// Whether this is one of the two kinds of processor sharing.
    #[must_use]
    pub fn is_sharing(&self) -> bool {
        matches!(self.kind, Kind::Sharing | Kind::PartitionedSharing)
    }

    pub(crate) fn build(
        &self,
        capacity: usize,
        workers: usize,
        seed: u64,
    ) -> Result<Built, ParameterError> {
        let mut parameters = self.parameters.clone();
        (parameters.capacity, parameters.workers, parameters.seed) = (capacity, workers, seed);
        parameters.best_effort.queue = capacity.div_ceil(2);
        Ok(match &self.kind {
            Kind::Registered(registered) => {
                let learner = Learner::new(*registered, &parameters);
                self.watched(registered.build(&parameters)?, capacity, learner)?
            }
            Kind::Own(build) => {
                let policy = parameters.build_with(|own| build(own))?;
                self.watched(policy, capacity, None)?
            }
            Kind::Sharing => Built::Sharing,
            Kind::PartitionedSharing => Built::PartitionedSharing,
        })
    }

    fn watched(
        &self,
        policy: Box<dyn Policy>,
        capacity: usize,
        learner: Option<Learner>,
    ) -> Result<Built, ParameterError> {
        let watched = Verified::new(policy, capacity)?.with_learner(learner);
        let watched = watched.with_longer_quanta(self.stretches);
        Ok(Built::Policy(Box::new(watched)))
    }

    fn new(label: impl Into<String>, kind: Kind) -> Self {
        Self {
            label: label.into(),
            parameters: Parameters::new(1, 1),
            stretches: false,
            kind,
        }
    }
}

/// The classes of the mix, each with its SLO, or with ten times its mean service time.
#[must_use]
pub fn classes(mix: &Mix) -> Vec<ClassParameters> {
    let class = |class: &shinjuku_workload::Class| {
        let mean_ns = class.service.mean_ns();
        let slo_ns = class.slo_us.map_or(10.0 * mean_ns, |us| us * 1_000.0);
        ClassParameters::with_slo(Nanos((slo_ns.round() as u64).max(1)))
    };
    mix.classes().iter().map(class).collect()
}

/// The name in the literature, with the quantum if there is one.
impl fmt::Display for Scheduler {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.label)?;
        if self.preempts() {
            write!(formatter, "({})", self.parameters.quantum)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Scheduler({self})")
    }
}
