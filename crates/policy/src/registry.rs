//! Every policy by its name: the one list that runtime, simulator, benches and tests iterate.
//!
//! To add a policy, write one file (see [`single_queue`]) with its `REGISTERED`, and add
//! one line to [`ALL`]. Configuration files, plans and benches then know the policy's name.
//!
//! A policy outside this crate has a [`PolicyName`] like any other; the code that builds policies
//! (the runtime's builder, the simulator) is told how to build it.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::{
    ParameterError, Parameters, Policy, cfcfs, darc, dfcfs, edf, multi_queue, priority,
    single_queue, stealing,
};

/// The policies, the runtime's default first.
pub const ALL: &[Registered] = &[
    single_queue::REGISTERED,
    multi_queue::REGISTERED,
    cfcfs::REGISTERED,
    dfcfs::REGISTERED,
    stealing::REGISTERED,
    edf::REGISTERED,
    priority::REGISTERED,
    darc::REGISTERED,
];

/// A policy of [`ALL`]: its name, its description, and how to build it.
#[non_exhaustive]
#[derive(Clone, Copy)]
pub struct Registered {
    /// Its name in configuration files and on command lines: `c-pre-sq`.
    pub name: &'static str,
    /// Its name in the literature, for reports: `c-PRE-SQ`.
    pub label: &'static str,
    /// Its queues and its rule, in a few words.
    pub rule: &'static str,
    /// The system or paper that the policy follows.
    pub after: &'static str,
    /// Whether requests have a quantum. If not, they run to completion, whatever quantum the
    /// parameters give.
    pub preempts: bool,
    /// Whether every class needs an SLO, given or [learnt](crate::learner).
    pub needs_slo: bool,
    /// Whether preempted requests go to the tail or to the head of a queue, by choice.
    pub requeues: bool,
    /// Whether a request's class has a say in its turn or its quantum. A request staged ahead at a
    /// worker would then be out of turn.
    pub by_class: bool,
    /// Whether a request's flow has a say in where it runs.
    pub by_flow: bool,
    /// Whether it matters which worker asks: workers have queues of their own, or are reserved for
    /// some classes. Such a policy has to see all workers.
    pub by_worker: bool,
    pub(crate) build: fn(&Parameters) -> Result<Box<dyn Policy>, ParameterError>,
}

impl Registered {
    /// Builds the policy, with the best-effort classes behind it if there are any.
    ///
    /// # Errors
    /// [`ParameterError`] for a parameter that the policy needs and cannot use.
    pub fn build(&self, parameters: &Parameters) -> Result<Box<dyn Policy>, ParameterError> {
        parameters.build_with(self.build)
    }
}

/// The policy of this name, in either case: `c-pre-sq`, `c-PRE-SQ`.
///
/// # Errors
/// [`UnknownPolicy`] lists the names there are.
pub fn named(name: &str) -> Result<Registered, UnknownPolicy> {
    let is_it = |one: &&Registered| one.name.eq_ignore_ascii_case(name);
    ALL.iter()
        .find(is_it)
        .copied()
        .ok_or_else(|| UnknownPolicy {
            name: name.to_string(),
        })
}

impl FromStr for Registered {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        named(name)
    }
}

/// The name, as configuration files have it.
impl fmt::Display for Registered {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name)
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Registered({})", self.name)
    }
}

/// Names are unique.
impl PartialEq for Registered {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Registered {}

/// There is no policy of this name in [`ALL`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownPolicy {
    /// The name asked for.
    pub name: String,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = ALL.iter().map(|one| one.name).collect();
        write!(
            formatter,
            "no policy is called {:?}: there are {}",
            self.name,
            names.join(", ")
        )
    }
}

impl core::error::Error for UnknownPolicy {}

/// The name of a policy, of this crate or the user's own. Building the policy checks that the name
/// exists. The default is `c-pre-sq`.
///
/// A name of [`ALL`] is taken in either case, and kept as it stands there; a user's own is kept as
/// given:
///
/// ```
/// use shinjuku_policy::PolicyName;
///
/// assert_eq!(PolicyName::from("d-FCFS").as_str(), "d-fcfs");
/// assert_eq!(PolicyName::from("Mine").as_str(), "Mine");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "String"))]
pub struct PolicyName(Cow<'static, str>);

impl PolicyName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The policy of [`ALL`], unless it is a user's own.
    #[must_use]
    pub fn registered(&self) -> Option<Registered> {
        ALL.iter().find(|one| one.name == self.0).copied()
    }
}

impl Default for PolicyName {
    fn default() -> Self {
        ALL[0].into()
    }
}

impl From<&'static str> for PolicyName {
    fn from(name: &'static str) -> Self {
        match named(name) {
            Ok(registered) => registered.into(),
            Err(_) => Self(Cow::Borrowed(name)),
        }
    }
}

impl From<String> for PolicyName {
    fn from(name: String) -> Self {
        match named(&name) {
            Ok(registered) => registered.into(),
            Err(_) => Self(Cow::Owned(name)),
        }
    }
}

impl From<Registered> for PolicyName {
    fn from(policy: Registered) -> Self {
        Self(Cow::Borrowed(policy.name))
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.0)
    }
}
