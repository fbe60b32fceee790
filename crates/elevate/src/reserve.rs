//! What Linux keeps for ordinary threads beside those under SCHED_FIFO.
//!
//! - Before Linux 6.12 there is *throttling*: once real-time threads have run for
//!   `sched_rt_runtime_us` of a `sched_rt_period_us` (950 ms of a second), none of them runs on the
//!   core until the period is over, whether another thread wants to run or not. Scheduler and
//!   scheduled stand still together.
//! - From 6.12 on there is the *fair server*: a core's ordinary threads that real-time threads have
//!   starved get 50 ms of each second. Without such threads on the core, nothing is lost.
//!
//! Both are what saves a machine from a real-time thread that never sleeps. So this crate leaves
//! them as they are, keeps its own time by what has really passed, and counts slices that ended
//! late.

use std::fmt;
use std::fs;
use std::time::Duration;

/// What ordinary threads of a core are sure of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reserve {
    /// Nothing: a thread under SCHED_FIFO that never sleeps keeps its core.
    Nothing,
    /// All threads under SCHED_FIFO pause after `runtime` of each `period`.
    Throttling {
        /// How long they may run.
        runtime: Duration,
        /// The period, of which `runtime` is a part.
        period: Duration,
    },
    /// Ordinary threads that wait get `runtime` of each `period`.
    FairServer {
        /// How long they run.
        runtime: Duration,
        /// The period, of which `runtime` is a part.
        period: Duration,
    },
    /// The kernel does not tell.
    Unknown,
}

impl Reserve {
    /// What the kernel says of a core.
    #[must_use]
    pub fn of(core: usize) -> Self {
        Self::told(core, |path| fs::read_to_string(path).ok())
    }

    fn told(core: usize, read: impl Fn(&str) -> Option<String>) -> Self {
        let number = |path: &str| read(path)?.trim().parse::<i64>().ok();
        let Some(release) = read("/proc/sys/kernel/osrelease") else {
            return Self::Unknown;
        };
        if version(&release) >= (6, 12) {
            // Only root sees them, and only with debugfs; these are the kernel's own values.
            let of = |what, default| {
                let told = number(&format!(
                    "/sys/kernel/debug/sched/fair_server/cpu{core}/{what}"
                ));
                Duration::from_nanos(told.map_or(default, i64::cast_unsigned))
            };
            return match (of("runtime", 50_000_000), of("period", 1_000_000_000)) {
                (Duration::ZERO, _) => Self::Nothing,
                (runtime, period) => Self::FairServer { runtime, period },
            };
        }
        let micros = |what| number(&format!("/proc/sys/kernel/sched_rt_{what}_us"));
        match (micros("runtime"), micros("period")) {
            (Some(-1), _) => Self::Nothing,
            (Some(runtime), Some(period)) => Self::Throttling {
                runtime: Duration::from_micros(runtime.cast_unsigned()),
                period: Duration::from_micros(period.cast_unsigned()),
            },
            _ => Self::Unknown,
        }
    }
}

/// The first two numbers of a kernel's release.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|character: char| !character.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

impl fmt::Display for Reserve {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => write!(
                formatter,
                "Linux keeps nothing for ordinary threads of this core: they run when the scheduled sleep"
            ),
            Self::Throttling { runtime, period } => write!(
                formatter,
                "Linux stops all real-time threads after {runtime:?} of each {period:?}, the scheduled among them \
                 (sched_rt_runtime_us); sysctl kernel.sched_rt_runtime_us=-1 ends that"
            ),
            Self::FairServer { runtime, period } => write!(
                formatter,
                "ordinary threads that wait for this core get {runtime:?} of each {period:?} (Linux's fair server); \
                 keep them off the core, or write 0 to fair_server/cpuN/runtime in /sys/kernel/debug/sched"
            ),
            Self::Unknown => write!(
                formatter,
                "the kernel does not tell what it keeps for ordinary threads"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(files: &[(&str, &str)]) -> Reserve {
        Reserve::told(3, |path| {
            let file = files.iter().find(|(name, _)| path.ends_with(name))?;
            Some(format!("{}\n", file.1))
        })
    }

    #[test]
    fn old_kernels_throttle_and_new_ones_serve() {
        let millis = Duration::from_millis;
        let old = ("osrelease", "6.1.0-18-amd64");
        let new = ("osrelease", "6.18.44");
        let period = ("rt_period_us", "1000000");
        let throttling = Reserve::Throttling {
            runtime: millis(950),
            period: millis(1000),
        };
        let runtime = ("rt_runtime_us", "950000");
        assert_eq!(told(&[old, runtime, period]), throttling);
        assert_eq!(
            told(&[old, ("rt_runtime_us", "-1"), period]),
            Reserve::Nothing
        );
        assert_eq!(told(&[old]), Reserve::Unknown);
        assert_eq!(told(&[]), Reserve::Unknown);
        let served = |runtime| Reserve::FairServer {
            runtime,
            period: millis(1000),
        };
        assert_eq!(told(&[new, runtime, period]), served(millis(50)));
        let set = |nanos| told(&[new, ("fair_server/cpu3/runtime", nanos)]);
        assert_eq!(set("20000000"), served(millis(20)));
        assert_eq!(set("0"), Reserve::Nothing);
        assert!(Reserve::of(0).to_string().len() > 20);
    }
}
