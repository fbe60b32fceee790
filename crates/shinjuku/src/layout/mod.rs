//! Which thread runs on which core.

mod automatic;
mod machine;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use core_affinity::CoreId;
use shinjuku_preempt::Affinity;

use crate::config::{Config, ConfigError, LayoutKind};
pub(crate) use automatic::needs_dispatcher;
use machine::{CoreList, Machine};

/// How many cores can be numbered: as many as glibc's `cpu_set_t` holds.
pub(crate) const CORES: usize = 1024;

/// Beside other threads, Linux is asked to let a loop run for so long at a time. The threads that
/// bring requests and take replies then run sooner.
const SLICE: Duration = Duration::from_micros(100);
/// Beside other threads, an idle loop spins for so long at most, in nanoseconds.
const LONGEST_SPIN: u64 = 20_000;

/// A core for each thread; the kernel places a thread that has none. `CoresConfig` says how cores
/// are chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The dispatcher's core.
    pub dispatcher: Option<usize>,
    /// Each worker's core; its length is the number of workers.
    pub workers: Vec<Option<usize>>,
    /// Whether each worker's thread is dispatcher and worker in turn: one thread inline, any
    /// number in the layout `symmetric`.
    pub inline: bool,
    /// Whether this is the layout `symmetric`; `inline` is set then as well.
    pub symmetric: bool,
    /// For how long Linux is asked to let each loop run at a time, beside other threads.
    pub slice: Option<Duration>,
    /// Whether threads, the process's others included, may share a core, because `cores.share` says
    /// so or because there are too few. A loop that waits for another thread then has to give up
    /// the core meanwhile.
    pub shared: bool,
    /// Why `auto` chose this layout; `None`: it was asked for.
    pub why: Option<&'static str>,
}

/// A thread could not be pinned.
#[derive(Debug, thiserror::Error)]
#[error(
    "this thread cannot be pinned to core {core}: {cause}; the core is offline, or outside of the process's cpuset \
     (cgroup cpuset.cpus): name another in `cores`, or none"
)]
#[non_exhaustive]
pub struct LayoutError {
    /// The core.
    pub core: usize,
    /// The system's error.
    pub cause: std::io::Error,
}

/// The cores that a thread could run on before the first thread was pinned.
static BEFORE_PINNING: OnceLock<Affinity> = OnceLock::new();

/// Lets the calling thread run on all cores again that the process had before the first runtime
/// pinned a thread; for threads that handlers start.
///
/// A new thread inherits the core of the worker that starts it, where `cores` or the layout pin the
/// worker. There it competes with the worker. If the worker polls for ever under real-time priority
/// (`realtime_priority`, with an `idle_backoff_us` of 0), the new thread never runs. So a thread
/// that a handler starts calls this first:
/// ```
/// let thread = std::thread::spawn(|| {
///     shinjuku::unpin_current()?;
///     // ...
///     Ok::<(), std::io::Error>(())
/// });
/// # thread.join().unwrap().unwrap();
/// ```
/// A new thread does not inherit the priority. The call does nothing if no thread was pinned.
///
/// # Errors
/// The kernel's error, if the process has lost all of these cores.
pub fn unpin_current() -> std::io::Result<()> {
    BEFORE_PINNING.get().map_or(Ok(()), Affinity::apply)
}

/// Pins the calling thread to `core`.
///
/// # Errors
/// [`LayoutError`] if the kernel refuses; the thread stays where it was.
pub fn pin_current(core: usize) -> Result<(), LayoutError> {
    if let (None, Ok(affinity)) = (BEFORE_PINNING.get(), Affinity::of_current()) {
        BEFORE_PINNING.get_or_init(|| affinity);
    }
    if core < CORES && core_affinity::set_for_current(CoreId { id: core }) {
        return Ok(());
    }
    let cause = if core < CORES {
        std::io::Error::last_os_error()
    } else {
        std::io::ErrorKind::InvalidInput.into()
    };
    Err(LayoutError { core, cause })
}

impl Layout {
    /// Places the threads that `config` asks for on the cores that the calling thread may use.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] for a core that cannot be used or is taken, or more threads than
    /// cores; [`ConfigError::Cores`] if the kernel does not tell the cores.
    pub fn plan(config: &Config) -> Result<Self, ConfigError> {
        Self::plan_on(&Machine::detect()?, config)
    }

    fn plan_on(machine: &Machine, config: &Config) -> Result<Self, ConfigError> {
        if config.layout != LayoutKind::Auto {
            return Self::plan_chosen(machine, config);
        }
        let (kind, why) = automatic::choose(machine, config);
        let layout = Self::plan_chosen(machine, &config.clone().layout(kind))?;
        Ok(Self {
            why: Some(why),
            ..layout
        })
    }

    /// The layout that `config` names.
    fn plan_chosen(machine: &Machine, config: &Config) -> Result<Self, ConfigError> {
        let workers = machine.workers(config);
        check_given(machine, config, workers)?;
        match config.layout {
            LayoutKind::Symmetric => symmetric(machine, config, workers),
            LayoutKind::Inline => inline(machine, config, workers),
            LayoutKind::Threads | LayoutKind::Auto => threads(machine, config, workers),
        }
    }
}

impl Layout {
    /// How many dispatchers there can be.
    pub(crate) fn dispatchers(&self) -> usize {
        match self.symmetric {
            true => self.workers.len(),
            false => 1,
        }
    }

    /// Checks that there are loops for so many dispatchers.
    pub(crate) fn check_dispatchers(&self, dispatchers: usize) -> Result<(), ConfigError> {
        let most = self.dispatchers();
        if (1..=most).contains(&dispatchers) {
            return Ok(());
        }
        Err(ConfigError::invalid(
            "serve_each",
            format!("given {dispatchers} transports"),
            format!("given 1 to {most}"),
            "with layout = \"symmetric\" there can be as many as `workers`",
        ))
    }

    /// What thread `id` is called. The workers have the first numbers, then the spares.
    pub(crate) fn thread_name(&self, id: usize) -> String {
        match id.checked_sub(self.workers.len()) {
            Some(spare) => format!("spare-{spare}"),
            None if self.symmetric => format!("loop-{id}"),
            None if self.inline => "inline".to_owned(),
            None => format!("worker-{id}"),
        }
    }

    /// What timelines call thread `id`: its name, with its core if it has one.
    pub(crate) fn lane_name(&self, id: usize) -> String {
        let name = self.thread_name(id);
        match self.workers.get(id).copied().flatten() {
            Some(core) => format!("{name}, core {core}"),
            None => name,
        }
    }

    /// For how long an idle loop spins before it parks, in nanoseconds, where the configuration
    /// says `configured`; `None`: it never parks.
    pub(crate) fn spins_for(&self, configured: Option<u64>) -> Option<u64> {
        match self.slice {
            Some(_) => configured.map(|nanos| nanos.min(LONGEST_SPIN)),
            None => configured,
        }
    }
}

/// A thread for the dispatcher and one for each worker, on cores of their own unless these are
/// shared.
fn threads(machine: &Machine, config: &Config, workers: usize) -> Result<Layout, ConfigError> {
    let cores = &config.cores;
    if cores.share || automatic::has_only_core(machine, config) {
        let mut pinned: Vec<_> = cores.workers.iter().copied().map(Some).collect();
        pinned.resize(workers, None);
        return Ok(Layout {
            dispatcher: cores.dispatcher,
            workers: pinned,
            inline: false,
            symmetric: false,
            slice: None,
            shared: true,
            why: None,
        });
    }

    let is_isolated = |core: &usize| machine.isolated.contains(core);
    let mut free = machine.allowed.clone();
    free.retain(|core| cores.dispatcher != Some(*core) && !cores.workers.contains(core));
    // The sort is stable: within each kind cores stay in ascending order.
    free.sort_by_key(|core| !is_isolated(core));
    if free.len() < automatic_threads(config, workers) {
        return Err(too_many_threads(machine, workers));
    }
    let dispatcher = cores.dispatcher.unwrap_or_else(|| {
        let shared_with_others = free.iter().position(|core| !is_isolated(core));
        free.remove(shared_with_others.unwrap_or(0))
    });
    let workers = if cores.workers.is_empty() {
        free.truncate(workers);
        free
    } else {
        cores.workers.clone()
    };
    Ok(Layout {
        dispatcher: Some(dispatcher),
        workers: workers.into_iter().map(Some).collect(),
        inline: false,
        symmetric: false,
        slice: None,
        shared: false,
        why: None,
    })
}

/// A loop on each core that is given. If none is given, a loop on each core that the process may
/// use, if all of these are isolated, or if real-time priority takes them. Otherwise other threads
/// need the cores too, and loops run wherever the kernel puts them.
fn symmetric(machine: &Machine, config: &Config, loops: usize) -> Result<Layout, ConfigError> {
    let cores = &config.cores;
    if let Some(dispatcher) = cores.dispatcher {
        return Err(ConfigError::invalid(
            "cores.dispatcher",
            dispatcher,
            "left out, since layout is \"symmetric\"",
            "give the loops' cores in `cores.workers`, or choose layout = \"threads\"",
        ));
    }
    let own: &[usize] = match cores.workers.as_slice() {
        [] if cores.share => &[],
        [] if config.realtime_priority.is_some() => machine.allowed.as_slice(),
        [] => machine.own(),
        given => given,
    };
    let mut pinned: Vec<_> = own.iter().copied().map(Some).collect();
    if pinned.len() < loops {
        pinned.clear();
    }
    let is_beside_others = pinned.is_empty();
    pinned.resize(loops, None);
    Ok(Layout {
        dispatcher: None,
        workers: pinned,
        inline: true,
        symmetric: true,
        slice: (is_beside_others && config.realtime_priority.is_none()).then_some(SLICE),
        shared: cores.share
            || (machine.allowed.len() < loops || machine.allowed.len() == 1)
                && (is_beside_others || !machine.hides_all(own)),
        why: None,
    })
}

/// One thread, on the core that is given, or else on the first isolated core that the process may
/// use, or else on the first of all; with `cores.share`, wherever the kernel puts it.
fn inline(machine: &Machine, config: &Config, workers: usize) -> Result<Layout, ConfigError> {
    let cores = &config.cores;
    if config.workers.is_some_and(|workers| workers != 1) || cores.workers.len() > 1 {
        return Err(ConfigError::invalid(
            "workers",
            workers,
            "1, since layout is \"inline\"",
            "leave it out, or choose layout = \"threads\"",
        ));
    }
    let given = cores.workers.first().copied().or(cores.dispatcher);
    if cores
        .dispatcher
        .is_some_and(|dispatcher| Some(dispatcher) != given)
    {
        return Err(ConfigError::invalid(
            "cores.workers[0]",
            cores.workers[0],
            "the same core as `cores.dispatcher`, since layout is \"inline\"",
            "give one of the two, or choose layout = \"threads\"",
        ));
    }
    let isolated = machine
        .allowed
        .iter()
        .copied()
        .find(|core| machine.isolated.contains(core));
    let automatic = || isolated.or_else(|| machine.allowed.first().copied());
    let core = given.or_else(|| if cores.share { None } else { automatic() });
    Ok(Layout {
        dispatcher: core,
        workers: vec![core],
        inline: true,
        symmetric: false,
        slice: None,
        shared: cores.share
            || machine.allowed.len() == 1 && !core.is_some_and(|core| machine.hides_all(&[core])),
        why: None,
    })
}

/// Checks the cores that are given by number.
fn check_given(machine: &Machine, config: &Config, workers: usize) -> Result<(), ConfigError> {
    let cores = &config.cores;
    let given = cores.workers.len();
    if given != 0 && given != workers {
        return Err(ConfigError::invalid(
            "cores.workers",
            format!("a list of {given}"),
            format!("a list of {workers} cores, as `workers` says"),
            "give each worker a core, or leave one of the two out",
        ));
    }
    let worker_key = |worker| format!("cores.workers[{worker}]");
    let keys = cores
        .dispatcher
        .iter()
        .map(|&core| ("cores.dispatcher".to_owned(), core));
    let workers = cores
        .workers
        .iter()
        .enumerate()
        .map(|(worker, &core)| (worker_key(worker), core));
    let usable = machine.cores();
    for (key, core) in keys.chain(workers) {
        if !usable.contains(&core) {
            return Err(ConfigError::invalid(
                key,
                core,
                format!("a core that this process may use ({})", CoreList(&usable)),
                "choose one of these, or change the process's affinity (taskset, cgroup cpuset.cpus)",
            ));
        }
    }
    if cores.share || config.layout == LayoutKind::Inline {
        return Ok(());
    }
    for (worker, core) in cores.workers.iter().enumerate() {
        let taken_by = if let Some(first) = cores.workers[..worker].iter().position(|c| c == core) {
            worker_key(first)
        } else if cores.dispatcher == Some(*core) {
            "cores.dispatcher".to_owned()
        } else {
            continue;
        };
        return Err(ConfigError::invalid(
            worker_key(worker),
            core,
            format!("another core than `{taken_by}`"),
            "choose another, or set cores.share = true",
        ));
    }
    Ok(())
}

/// How many threads are left without a given core.
fn automatic_threads(config: &Config, workers: usize) -> usize {
    let cores = &config.cores;
    usize::from(cores.dispatcher.is_none()) + workers - cores.workers.len()
}

fn too_many_threads(machine: &Machine, workers: usize) -> ConfigError {
    let usable = machine.allowed.len();
    let most = usable.saturating_sub(1);
    let remedy = if most == 0 {
        ""
    } else {
        "lower `workers`, or "
    };
    ConfigError::invalid(
        "workers",
        workers,
        format!("at most {most} for each thread to have a core"),
        format!(
            "the dispatcher takes one too, and this process may use {usable} ({}): {remedy}set cores.share = true",
            CoreList(&machine.allowed)
        ),
    )
}

/// As the runtime logs it: `dispatcher on core 0, workers on cores 1-3`.
impl fmt::Display for Layout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.symmetric {
            let count = self.workers.len();
            let plural = if count == 1 { "" } else { "s" };
            write!(formatter, "{count} symmetric loop{plural} on ")?;
            let pinned: Vec<_> = self.workers.iter().copied().flatten().collect();
            return match pinned.len() {
                0 => formatter.write_str("any core"),
                1 => write!(formatter, "core {}", CoreList(&pinned)),
                _ => write!(formatter, "cores {}", CoreList(&pinned)),
            };
        }
        if self.inline {
            return match self.dispatcher {
                Some(core) => write!(formatter, "inline on core {core}"),
                None => formatter.write_str("inline on any core"),
            };
        }
        match self.dispatcher {
            Some(core) => write!(formatter, "dispatcher on core {core}, ")?,
            None => formatter.write_str("dispatcher on any core, ")?,
        }
        let pinned: Vec<_> = self.workers.iter().copied().flatten().collect();
        let count = self.workers.len();
        let plural = if count == 1 { "" } else { "s" };
        if pinned.is_empty() {
            write!(formatter, "{count} worker{plural} on any core")?;
        } else {
            write!(
                formatter,
                "worker{plural} on core{plural} {}",
                CoreList(&pinned)
            )?;
        }
        formatter.write_str(if self.shared { ", sharing cores" } else { "" })
    }
}
