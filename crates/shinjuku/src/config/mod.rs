//! The runtime's configuration: [`Config`] and its parts, in code and in TOML under the same names.
//!
//! Each key is a public field, and a method of the same name that sets it and gives the whole back:
//!
//! ```
//! use shinjuku::config::{ClassConfig, Config, CoresConfig, PolicyConfig};
//!
//! let config = Config::default()
//!     .workers(2)
//!     .cores(CoresConfig::default().share(true))
//!     .policy(PolicyConfig::new("c-pre-mq").quantum_us(5.0))
//!     .class([
//!         ClassConfig::new("get").slo_us(50.0),
//!         ClassConfig::new("range").slo_us(500.0),
//!     ]);
//! config.validate()?;
//! # Ok::<(), shinjuku::config::ConfigError>(())
//! ```
//!
//! Where a key may be left out, its method takes the value itself, or an `Option` of it. A newer
//! version may add keys and kinds, so the types are `#[non_exhaustive]`.
//!
//! [`Config::from_toml`] and [`Config::from_file`] read a configuration; [`read_toml`] reads a
//! server's own file that has one within it.

mod check;
mod error;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use shinjuku_policy::{ClassId, ClassParameters, Nanos, Parameters, PolicyName, Requeue};

pub use error::ConfigError;

use crate::layout::Layout;

/// Every key of [`Config`], with what its setter takes and what it makes of that: the one list from
/// which `Config` and [`Builder`](crate::Builder) have their setters.
macro_rules! config_keys {
    ($setters:ident) => {
        $setters! {
            Config:
            workers: impl Into<Option<usize>> => workers.into();
            contexts: usize => contexts;
            context_kind: ContextKind => context_kind;
            stack_kib: usize => stack_kib;
            queue: usize => queue;
            depth: impl Into<Option<usize>> => depth.into();
            spare_workers: impl Into<Option<usize>> => spare_workers.into();
            rescue_after_ms: f64 => rescue_after_ms;
            idle_backoff_us: f64 => idle_backoff_us;
            realtime_priority: impl Into<Option<i32>> => realtime_priority.into();
            strict: bool => strict;
            watch: impl Into<Option<std::path::PathBuf>> => watch.into();
            layout: LayoutKind => layout;
            help: Help => help;
            cores: CoresConfig => cores;
            dispatcher: DispatcherConfig => dispatcher;
            policy: PolicyConfig => policy;
            class: impl IntoIterator<Item = ClassConfig> => class.into_iter().collect();
            preemption: PreemptionConfig => preemption;
            stalls: StallsConfig => stalls;
        }
    };
}
pub(crate) use config_keys;

/// A setter for each of these keys, which takes the configuration and gives it back.
macro_rules! setters {
    ($config:ident: $($key:ident: $type:ty => $value:expr;)*) => {
        $(
            #[doc = concat!("Sets [`", stringify!($key), "`](field@", stringify!($config), "::", stringify!($key), ").")]
            #[must_use]
            pub fn $key(mut self, $key: $type) -> Self {
                self.$key = $value;
                self
            }
        )*
    };
}
pub(crate) use setters;

/// How a runtime is to run. The default suits most servers: preemptive, one queue, all cores.
///
/// Every key may be left out, but for a class's name. An unknown key is an error. Values are
/// checked, alone and beside the others, when the runtime is built.
///
/// ```
/// use shinjuku::Config;
///
/// let config = Config::from_toml(
///     r#"
///     queue = 1000
///
///     [policy]
///     kind = "c-pre-mq"
///     quantum_us = 5
///
///     [[class]]
///     name = "get"
///     slo_us = 50
///
///     [[class]]
///     name = "range"
///     slo_us = 500
///     quantum_us = 10
///     "#,
/// )?;
/// assert_eq!(config.policy.kind, "c-pre-mq".into());
/// assert_eq!(config.class[1].quantum_us, Some(10.0));
/// assert_eq!(config.contexts, Config::default().contexts);
/// config.validate()?;
/// // The same, but for its other values, in code.
/// let config = Config::default().queue(1000).workers(2);
/// assert_eq!(config.workers, Some(2));
/// # Ok::<(), shinjuku::ConfigError>(())
/// ```
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Config {
    /// Worker threads, 1 to 1024; in the layout `symmetric`, loops. Default: as many as
    /// `cores.workers` lists; if it lists none, as many as the cores that the process may use (a
    /// cgroup's CPU quota counts), less one for the dispatcher if that has a thread of its own, at
    /// least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<usize>,
    /// Contexts: requests that have started and not finished, 1 to 65536, at least one per worker.
    /// Each takes a sleeping thread and a stack. Default 256.
    pub contexts: usize,
    /// What contexts are made of. Default `stack`.
    pub context_kind: ContextKind,
    /// Stack of a context in KiB, 16 to 1048576, touched lazily. Default 256.
    pub stack_kib: usize,
    /// Admission bound: requests that may wait unstarted, 1 to 16777216; more are refused. Default
    /// 16384.
    pub queue: usize,
    /// JBSQ depth: requests staged at a worker, the running one included, 1 to 4. More than 1
    /// spares a worker the wait for the dispatcher between short requests. Under c-pre-mq keep 1: a
    /// request staged already is ahead of a more urgent one that arrives later. Among several
    /// workers a staged one may wait while another worker idles. Default: 2 with one worker whose
    /// contexts are stacks, under policies that know no classes (c-fcfs, d-fcfs, stealing,
    /// c-pre-sq), else 1. Under `policy.best_effort` it is 1, and must be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<usize>,
    /// Threads that go on in the place of workers that are blocked in the kernel, 0 to 65535; with
    /// 0, a handler that blocks holds up its worker. Each handler that blocks for a lock takes a
    /// spare until the lock's suspended holder has run. The last spare is for suspended requests.
    /// If more of these want the lock than there are spares, the holder may never run.
    /// Spares are needed with signals too: a signal does not stop code that holds preemption off or
    /// masks signals. Default: as many as can be blocked at a time, one less than `contexts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spare_workers: Option<usize>,
    /// How long a worker may leave a preemption unanswered, or run beyond the policy's quantum, if
    /// there is one, before the dispatcher looks at its thread, in milliseconds, 0.1 to 60000. If
    /// the thread is blocked in the kernel, a spare goes on in its place. If the thread computes,
    /// the dispatcher waits; after ten times as long without an answer, a spare runs suspended
    /// requests beside it. Under `realtime_priority` no spare does that: it would never have the
    /// core. In the layouts `inline` and `symmetric`, another thread goes on beside a request that
    /// leaves its preemption unanswered, whether it is blocked or computes. Default 5.
    pub rescue_after_ms: f64,
    /// How long a loop polls without finding work before it sleeps, in microseconds, 0 to
    /// 3600000000. Waking up takes some tens of microseconds. 0: loops never sleep, and keep their
    /// cores busy. Default 100.
    pub idle_backoff_us: f64,
    /// Puts dispatcher and workers under SCHED_FIFO with this priority, 1 to 99; needs the
    /// permission. For measurements in short bursts: Linux throttles threads that run for longer.
    /// Default: ordinary scheduling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub realtime_priority: Option<i32>,
    /// Whether the start fails if the machine or the builder does not grant the mechanism that is
    /// asked for by name. Otherwise the runtime takes another one, and its description says so.
    /// Default false.
    pub strict: bool,
    /// Path of the Unix socket to make, on which `shinjuku top` and `shinjuku trace` watch the
    /// runtime; see [`Observer::listen`](crate::Observer::listen). Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watch: Option<PathBuf>,
    /// Which loops share a thread. Default `auto`.
    pub layout: LayoutKind,
    /// In the layout `symmetric`: what idle loops do for others. Default `all`.
    pub help: Help,
    /// Which thread runs on which core.
    pub cores: CoresConfig,
    /// What the dispatcher does when it has nothing to dispatch.
    pub dispatcher: DispatcherConfig,
    /// Which request runs next, and for how long.
    pub policy: PolicyConfig,
    /// Request classes, 1 to 65535, numbered in this order. Default: one, named `default`.
    pub class: Vec<ClassConfig>,
    /// How a running request is interrupted.
    pub preemption: PreemptionConfig,
    /// Which requests are reported for holding up others.
    pub stalls: StallsConfig,
}

/// What contexts are made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ContextKind {
    /// `stack`: a stack and a thread control block, which the workers' threads run in turn.
    #[default]
    Stack,
    /// `kernel-thread`: a kernel thread of its own for each started request, which is parked where
    /// it stands. The request keeps that thread to its end, so the mechanisms `signal` and
    /// `escalation`, and `auto` by these, need no token. It can notice that its thread has its
    /// worker's core and priority, that more system calls answer `EINTR`, and what an earlier
    /// request has left in the thread. A preemption costs one more switch between kernel threads,
    /// and so does the resumption. A request that runs to its end costs no such switch, as long as
    /// `depth` is 1. This kind needs the layout `threads`, which `auto` then means, and excludes
    /// the mechanisms `guest` and `dune`.
    KernelThread,
}

impl ContextKind {
    pub(crate) fn is_kernel_thread(self) -> bool {
        self == Self::KernelThread
    }
}

impl From<ContextKind> for shinjuku_preempt::ContextKind {
    fn from(kind: ContextKind) -> Self {
        match kind {
            ContextKind::Stack => Self::Stack,
            ContextKind::KernelThread => Self::KernelThread,
        }
    }
}

/// Which loops share a thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum LayoutKind {
    /// `auto`: `inline` if the process may use one core only, the configuration says nothing of
    /// workers and cores, and contexts are stacks. Otherwise `symmetric` on fewer than eight cores,
    /// and `threads` on more. `threads` on fewer as well in these cases: `workers`, or the cores
    /// listed for these, leave a core for the dispatcher, or share cores; the policy is your own,
    /// or tells workers apart (d-fcfs, stealing, darc); or something is asked for that needs a
    /// dispatcher's thread: a core for it, contexts that are kernel threads, a `depth` above 1,
    /// `dispatcher.works`, the mechanisms `compiled-probe`, `guest` and `dune`. In a
    /// [`Pool`](crate::Pool): `symmetric`, but for the last case. `description()` gives the choice
    /// and the reason.
    #[default]
    Auto,
    /// `threads`: networker and dispatcher on one thread, each worker on a thread of its own.
    Threads,
    /// `inline`: networker, dispatcher and one worker in turn on one thread, for one core. A
    /// request runs until a probe finds its deadline passed or a timer of the thread's stops it.
    /// Meanwhile no thread looks at the network.
    Inline,
    /// `symmetric`: as many loops as `workers` says, each of which is networker, dispatcher and
    /// worker in turn, as in `inline`, over its own part of the requests; a loop with nothing to do
    /// serves the others' parts. Each part has its share of `queue`. Unless the configuration lists
    /// cores or asks for real-time priority, no thread is pinned, and loops spin for 20
    /// microseconds at most before they sleep, since the process may do other things besides.
    Symmetric,
}

/// What idle loops of the layout `symmetric` do for others. All but the default are for
/// comparisons: under them requests wait at one loop while another idles.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Help {
    /// `all`: idle loops poll for others, and run fresh and suspended requests of theirs.
    #[default]
    All,
    /// `polled`: idle loops run what the others have polled. With the policy `stealing` that is
    /// ZygOS's stealing of flows, without its interrupts; a reply leaves from the loop on which the
    /// request ran.
    Polled,
    /// `none`: idle loops do nothing for others. With the policy `c-fcfs` that is IX.
    None,
}

/// Which thread runs on which core.
///
/// A core that is given is taken. For the other threads, unless `share` is set:
/// - The dispatcher takes the first core that the process may use, and each worker one of the
///   following.
/// - Cores isolated from the kernel's balancing (`isolcpus=`), where the process may use them, go
///   to workers first and to the dispatcher last: handlers suffer most from other threads. Isolated
///   cores outside of the process's set are used only if they are named here, since they may be
///   reserved for another process.
///
/// If only one core can be used and the configuration says nothing of cores or workers, dispatcher
/// and worker take turns on one thread ([`LayoutKind::Inline`]), or, with
/// [`LayoutKind::Threads`], share the core.
///
/// ```
/// use shinjuku::{Config, CoresConfig};
///
/// let cores = CoresConfig::default().dispatcher(0).workers([1, 2]);
/// let config = Config::default().cores(cores);
/// assert_eq!(config, Config::from_toml("cores = { dispatcher = 0, workers = [1, 2] }")?);
/// # Ok::<(), shinjuku::ConfigError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct CoresConfig {
    /// The dispatcher's core, by the kernel's number. Default: automatic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dispatcher: Option<usize>,
    /// A core per worker, by the kernel's numbers. Default (empty): automatic.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<usize>,
    /// Whether threads may share cores, so that there can be more of them than cores. Then a thread
    /// is pinned only if its core is given. Default false.
    pub share: bool,
}

/// What the dispatcher does when it has nothing to dispatch.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct DispatcherConfig {
    /// Whether it runs requests itself while all workers are busy and requests wait that never ran:
    /// one at a time, for some microseconds, or until a worker is idle. What has not finished by
    /// then goes on at any worker. A request that does not give way there, since it has no probes
    /// or blocks in the kernel, keeps everything from being dispatched for `rescue_after_ms`; then
    /// a second thread takes over. (Under `realtime_priority` it has to block for that.) So it is
    /// for handlers that probe. For the layout `threads`, the mechanism `probe`, policies of this
    /// project that preempt, and without best effort. Default false.
    pub works: bool,
}

/// Which request runs next, and for how long.
///
/// ```
/// use shinjuku::policy::Requeue;
/// use shinjuku::{Config, PolicyConfig};
///
/// let policy = PolicyConfig::new("c-pre-sq").quantum_us(10.0).requeue(Requeue::Head);
/// let config = Config::default().policy(policy);
/// let toml = "policy = { kind = 'c-pre-sq', quantum_us = 10, requeue = 'head' }";
/// assert_eq!(config, Config::from_toml(toml)?);
/// config.validate()?;
/// # Ok::<(), shinjuku::ConfigError>(())
/// ```
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct PolicyConfig {
    /// The policy, by a name of the [`registry`](shinjuku_policy::registry) or of
    /// [`Builder::policy_with`](crate::Builder::policy_with). Default `c-pre-sq`.
    pub kind: PolicyName,
    /// How long a request runs before it is preempted if others wait, in microseconds, 0.001 to
    /// 3600000000. The mechanism may impose a longer one. Policies without preemption ignore it.
    /// Default 5.
    pub quantum_us: f64,
    /// Where a preempted request goes: to the `tail` or the `head` of its queue. c-pre-sq and
    /// c-pre-mq go by it. Default: where `preemption.mechanism` is `auto`, as is learnt from
    /// service times; else `tail`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requeue: Option<Requeue>,
    /// How often in a row a request may be preempted, while other started requests wait, before
    /// these run first: 1 to 1000000. So a request that spins for a lock cannot starve the lock's
    /// holder. Default 16.
    pub progress_limit: u32,
    /// Names of classes that run only in what the others leave idle, and give way at once; at least
    /// one class must not be named. These classes need no SLO, may fill half of `queue` and hold
    /// half of `contexts`, and may starve. Default (empty): none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub best_effort: Vec<String>,
}

/// A class of requests.
///
/// ```
/// use shinjuku::{ClassConfig, Config};
///
/// let get = ClassConfig::new("get").slo_us(50.0).deadline_us(1_000.0);
/// let config = Config::default().class([get, ClassConfig::new("range")]);
/// let toml = "class = [{ name = 'get', slo_us = 50, deadline_us = 1000 }, { name = 'range' }]";
/// assert_eq!(config, Config::from_toml(toml)?);
/// config.validate()?;
/// # Ok::<(), shinjuku::ConfigError>(())
/// ```
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ClassConfig {
    /// Its name in statistics: not empty, and not another class's.
    pub name: String,
    /// Service-level objective on latency in microseconds, 0.001 to 3600000000. The policy c-pre-mq
    /// needs it for the ratios between classes, and edf makes deadlines of it; the others ignore
    /// it. Default: as is learnt from the class's service times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo_us: Option<f64>,
    /// Under policies by class (c-pre-mq, edf, priority), this class's own `policy.quantum_us`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantum_us: Option<f64>,
    /// Under c-pre-mq, this class's own `policy.requeue`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requeue: Option<Requeue>,
    /// Under `priority`, this class's priority, 0 to 65535; the lowest number goes first. Default:
    /// the class's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u16>,
    /// How long after its arrival a request that has not started is refused, in microseconds, 0.001
    /// to 3600000000. Default: it waits for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_us: Option<f64>,
}

/// How a running request is interrupted.
///
/// ```
/// use shinjuku::{Config, MechanismKind, PreemptionConfig, QuantaKind};
///
/// let preemption = PreemptionConfig::new(MechanismKind::Probe).quanta(QuantaKind::Raised);
/// let config = Config::default().preemption(preemption);
/// let toml = "preemption = { mechanism = 'probe', quanta = 'raised' }";
/// assert_eq!(config, Config::from_toml(toml)?);
/// config.validate()?;
/// # Ok::<(), shinjuku::ConfigError>(())
/// ```
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct PreemptionConfig {
    /// The mechanism. Names narrow what the builder's token allows and never grant it. Default
    /// `auto`.
    pub mechanism: MechanismKind,
    /// Whether the quanta in force are the policy's. Default `auto`.
    pub quanta: QuantaKind,
    /// Under escalation, how long the hard mechanism waits for the probe, in microseconds, 0 to
    /// 3600000000. Default 15.
    pub grace_us: f64,
}

/// Which requests are reported for holding up others.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct StallsConfig {
    /// How long a request runs without giving way, or blocks its worker, before it counts as a
    /// stall, in milliseconds, 1 to 60000. A `tracing` event reports it, once for each place in the
    /// code. In the layout `threads`, and by signals in process in `symmetric`, a request stalls
    /// only while others wait. With the feature `backtraces`, a real-time signal interrupts a
    /// request that computes, to take its backtrace; the manual's page
    /// [`watching`](crate::guide::watching) has more. Default: stalls are not looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report_after_ms: Option<f64>,
}

/// Whether the quantum in force is the policy's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum QuantaKind {
    /// `auto`: `raised` if the mechanism is `auto`, else `configured`.
    #[default]
    Auto,
    /// `configured`: the quantum in force is the policy's, whatever preemption costs.
    Configured,
    /// `raised`: the quantum in force is not below the shortest at which preempting is worth its
    /// measured cost under the present load, and nothing is preempted where that helps no request.
    /// Not for the mechanisms `guest` and `dune`, whose cost only `auto` measures.
    Raised,
}

/// The ways to interrupt a running request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MechanismKind {
    /// `auto`: picked at start, from what is allowed and what it costs on this machine.
    #[default]
    Auto,
    /// `none`: nothing is preempted, whatever the policy's quantum. A handler that blocks keeps its
    /// worker.
    None,
    /// `probe`: where the code polls.
    Probe,
    /// `compiled-probe`: where the code polls, and at function entries of crates that
    /// `cargo shinjuku` has built; needs the token.
    CompiledProbe,
    /// `signal`: anywhere; needs the token, unless contexts are kernel threads.
    Signal,
    /// `escalation`: by probe, hand-written or compiled, and after a grace period by a hard
    /// mechanism; needs the token, unless contexts are kernel threads.
    Escalation,
    /// `guest`: anywhere, with the workers in guest mode under /dev/kvm; needs the token and the
    /// feature `kvm`.
    Guest,
    /// `dune`: anywhere, with dispatcher and workers under Dune, where its kernel module is loaded;
    /// needs the token and the feature `libdune`.
    Dune,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            workers: None,
            contexts: 256,
            context_kind: ContextKind::default(),
            stack_kib: 256,
            queue: 16384,
            depth: None,
            spare_workers: None,
            rescue_after_ms: 5.0,
            idle_backoff_us: 100.0,
            realtime_priority: None,
            strict: false,
            watch: None,
            layout: LayoutKind::default(),
            help: Help::default(),
            cores: CoresConfig::default(),
            dispatcher: DispatcherConfig::default(),
            policy: PolicyConfig::default(),
            class: vec![ClassConfig::new("default")],
            preemption: PreemptionConfig::default(),
            stalls: StallsConfig::default(),
        }
    }
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self {
            kind: PolicyName::default(),
            quantum_us: 5.0,
            requeue: None,
            progress_limit: shinjuku_policy::verified::PROGRESS_LIMIT,
            best_effort: Vec::new(),
        }
    }
}

impl Default for PreemptionConfig {
    fn default() -> Self {
        Self {
            mechanism: MechanismKind::Auto,
            quanta: QuantaKind::Auto,
            grace_us: 15.0,
        }
    }
}

impl std::fmt::Display for MechanismKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Auto => "auto",
            Self::None => "none",
            Self::Probe => "probe",
            Self::CompiledProbe => "compiled-probe",
            Self::Signal => "signal",
            Self::Escalation => "escalation",
            Self::Guest => "guest",
            Self::Dune => "dune",
        })
    }
}

/// Reads a server's own TOML file, which has this crate's settings among others.
///
/// ```no_run
/// use std::net::SocketAddr;
///
/// use serde::Deserialize;
///
/// #[derive(Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct Settings {
///     #[serde(default)]
///     runtime: shinjuku::Config,
///     listen: SocketAddr,
/// }
///
/// let settings: Settings = shinjuku::config::read_toml("server.toml")?;
/// # Ok::<(), shinjuku::ConfigError>(())
/// ```
///
/// # Errors
/// [`ConfigError::Read`] if the file cannot be read, [`ConfigError::Syntax`] if it is not TOML, or
/// not what `T` takes.
pub fn read_toml<T: DeserializeOwned>(path: impl AsRef<Path>) -> Result<T, ConfigError> {
    let path = path.as_ref();
    let text = std::fs::read_to_string(path).map_err(|cause| ConfigError::Read {
        path: path.to_owned(),
        cause,
    })?;
    toml::from_str(&text).map_err(|error| ConfigError::syntax(Some(path), &text, error))
}

impl Config {
    config_keys!(setters);

    /// Reads TOML. What is left out takes its default; values are not checked yet, see
    /// [`validate`](Self::validate).
    ///
    /// # Errors
    /// [`ConfigError::Syntax`] if `text` is not TOML, has an unknown key, or a value of the wrong
    /// type.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| ConfigError::syntax(None, text, error))
    }

    /// Reads a TOML file like [`from_toml`](Self::from_toml).
    ///
    /// # Errors
    /// [`ConfigError::Read`] if the file cannot be read, [`ConfigError::Syntax`] as in
    /// [`from_toml`](Self::from_toml).
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        read_toml(path)
    }

    /// Checks every value, alone and beside the others, and against the cores that the calling
    /// thread may use. A policy of [`Builder::policy_with`](crate::Builder::policy_with) is unknown
    /// here; the builder checks again.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] for the first value that does not fit.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check::config(self, &[])
    }

    /// How many transports [`serve_each`](crate::Builder::serve_each) can be given with this
    /// configuration: in the layout `symmetric`, chosen by `auto` as well, one for each loop; else
    /// one.
    ///
    /// # Errors
    /// As [`validate`](Self::validate), for workers and cores.
    pub fn transports(&self) -> Result<usize, ConfigError> {
        Ok(Layout::plan(self)?.dispatchers())
    }

    /// As [`validate`](Self::validate), for a builder that has policies of these names.
    pub(crate) fn validate_with(&self, own_policies: &[&str]) -> Result<(), ConfigError> {
        check::config(self, own_policies)
    }

    /// What a policy is built from, for `capacity` tasks and `workers` workers.
    ///
    /// Two settings are not among the parameters. A policy's capacity does not tell unstarted
    /// requests from preempted ones, so the dispatcher keeps the admission bound `queue`. And
    /// `policy.progress_limit` is for [`Verified`](shinjuku_policy::Verified), which watches the
    /// policy.
    pub(crate) fn parameters(&self, capacity: usize, workers: usize) -> Parameters {
        let mut parameters = Parameters::new(capacity, workers);
        parameters.quantum = micros(self.policy.quantum_us);
        parameters.learns = true;
        parameters.requeue = match self.preemption.mechanism {
            MechanismKind::Auto => self.policy.requeue,
            _ => Some(self.policy.requeue.unwrap_or_default()),
        };
        parameters.classes = self.class.iter().map(ClassConfig::parameters).collect();
        let numbered = (0..).map(ClassId).zip(&self.class);
        let best_effort = &mut parameters.best_effort;
        best_effort.classes = numbered
            .filter(|(_, class)| self.is_best_effort(class))
            .map(|(number, _)| number)
            .collect();
        // Whatever best effort does, the other classes find room and contexts.
        best_effort.queue = self.queue.div_ceil(2);
        best_effort.started = (self.contexts / 2).max(1);
        parameters
    }

    /// Whether some classes run only in what the others leave idle.
    pub(crate) fn has_best_effort(&self) -> bool {
        !self.policy.best_effort.is_empty()
    }

    /// Whether this class is one of those.
    fn is_best_effort(&self, class: &ClassConfig) -> bool {
        self.policy.best_effort.contains(&class.name)
    }

    /// `depth`, or its default with so many workers. Where contexts are kernel threads, nothing is
    /// staged by default: a thread whose request has ended takes the worker's next request itself,
    /// but a staged one belongs to another thread.
    pub(crate) fn depth_at(&self, workers: usize) -> usize {
        let registered = self.policy.kind.registered();
        let knows_no_classes = registered.is_some_and(|policy| !policy.by_class);
        let on_stacks = !self.context_kind.is_kernel_thread();
        let automatic = if workers == 1 && knows_no_classes && on_stacks && !self.has_best_effort()
        {
            2
        } else {
            1
        };
        self.depth.unwrap_or(automatic)
    }

    /// Task slots: how many requests can be in the system, waiting, started, or staged at
    /// `workers` workers.
    pub(crate) fn task_capacity(&self, workers: usize) -> usize {
        self.queue
            .saturating_add(self.contexts)
            .saturating_add(workers.saturating_mul(self.depth_at(workers)))
    }

    /// This configuration for each of so many dispatchers: with its share of the queue, rounded up.
    /// Contexts are not divided: they go to whichever dispatcher needs them.
    pub(crate) fn share_of(&self, dispatchers: usize) -> Self {
        Self {
            queue: self.queue.div_ceil(dispatchers.max(1)),
            ..self.clone()
        }
    }

    /// `spare_workers`, or its default.
    pub(crate) fn spares(&self) -> usize {
        let blocked_at_most = self.contexts.saturating_sub(1);
        self.spare_workers.unwrap_or(blocked_at_most)
    }

    /// `stack_kib` in bytes.
    pub(crate) fn stack_bytes(&self) -> usize {
        self.stack_kib.saturating_mul(1024)
    }

    /// `rescue_after_ms` as a time.
    pub(crate) fn rescue_after(&self) -> Nanos {
        nanos(self.rescue_after_ms * 1e6)
    }

    /// `stalls.report_after_ms` as a time.
    pub(crate) fn report_stalls_after(&self) -> Option<Duration> {
        let after = self.stalls.report_after_ms?;
        Some(Duration::from_secs_f64(after / 1e3))
    }

    /// `idle_backoff_us` as a time; `None`: never sleep.
    pub(crate) fn idle_backoff(&self) -> Option<Nanos> {
        (self.idle_backoff_us > 0.0).then(|| micros(self.idle_backoff_us))
    }
}

impl CoresConfig {
    setters! {
        CoresConfig:
        dispatcher: impl Into<Option<usize>> => dispatcher.into();
        workers: impl IntoIterator<Item = usize> => workers.into_iter().collect();
        share: bool => share;
    }
}

impl DispatcherConfig {
    setters! {
        DispatcherConfig:
        works: bool => works;
    }
}

impl PolicyConfig {
    /// The policy of this name, with the defaults of everything else.
    pub fn new(kind: impl Into<PolicyName>) -> Self {
        Self {
            kind: kind.into(),
            ..Self::default()
        }
    }

    setters! {
        PolicyConfig:
        kind: impl Into<PolicyName> => kind.into();
        quantum_us: f64 => quantum_us;
        requeue: impl Into<Option<Requeue>> => requeue.into();
        progress_limit: u32 => progress_limit;
        best_effort: impl IntoIterator<Item = impl Into<String>> =>
            best_effort.into_iter().map(Into::into).collect();
    }
}

impl ClassConfig {
    /// A class of this name, all else left to the policy.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            slo_us: None,
            quantum_us: None,
            requeue: None,
            priority: None,
            deadline_us: None,
        }
    }

    setters! {
        ClassConfig:
        name: impl Into<String> => name.into();
        slo_us: impl Into<Option<f64>> => slo_us.into();
        quantum_us: impl Into<Option<f64>> => quantum_us.into();
        requeue: impl Into<Option<Requeue>> => requeue.into();
        priority: impl Into<Option<u16>> => priority.into();
        deadline_us: impl Into<Option<f64>> => deadline_us.into();
    }

    /// `deadline_us` as a time, if there is one.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        self.deadline_us.map(micros)
    }

    fn parameters(&self) -> ClassParameters {
        let mut parameters = ClassParameters::default();
        parameters.slo = self.slo_us.map(micros);
        parameters.quantum = self.quantum_us.map(micros);
        parameters.requeue = self.requeue;
        parameters.priority = self.priority;
        parameters
    }
}

impl PreemptionConfig {
    /// Preemption by this mechanism, with the defaults of everything else.
    pub fn new(mechanism: MechanismKind) -> Self {
        Self {
            mechanism,
            ..Self::default()
        }
    }

    setters! {
        PreemptionConfig:
        mechanism: MechanismKind => mechanism;
        quanta: QuantaKind => quanta;
        grace_us: f64 => grace_us;
    }

    /// Whether quanta are raised to what preemption is worth.
    pub(crate) fn raises_quanta(&self) -> bool {
        match self.quanta {
            QuantaKind::Auto => self.mechanism == MechanismKind::Auto,
            QuantaKind::Configured => false,
            QuantaKind::Raised => self.mechanism != MechanismKind::None,
        }
    }

    /// `grace_us` as a time.
    pub(crate) fn grace(&self) -> Nanos {
        micros(self.grace_us)
    }
}

impl StallsConfig {
    setters! {
        StallsConfig:
        report_after_ms: impl Into<Option<f64>> => report_after_ms.into();
    }
}

fn micros(us: f64) -> Nanos {
    nanos(us * 1e3)
}

/// Rounded; beyond the range, the nearest end of it.
fn nanos(ns: f64) -> Nanos {
    Nanos(ns.round() as u64)
}
