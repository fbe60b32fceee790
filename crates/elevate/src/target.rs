//! What can be scheduled: whatever has a thread number.

use std::fmt;
use std::fs;
use std::io;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One of the scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// One thread, by its number (`gettid`).
    Thread(u32),
    /// All threads of a process, those that it starts later included, but those of a scheduler
    /// not. They take turns: whenever the process may run, another of them is the first.
    Process(u32),
    /// The virtual CPUs of a process that is a virtual machine: the threads whose names begin with
    /// `CPU `, as QEMU names them with `-name guest,debug-threads=on`.
    Vcpus(u32),
}

/// How QEMU's names of vCPU threads begin: `CPU 0/KVM`.
const VCPU: &str = "CPU ";

/// Words that name no target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names nothing to schedule: write process:PID, thread:TID or vcpus:PID")]
pub struct NoTarget(String);

impl FromStr for Target {
    type Err = NoTarget;

    fn from_str(words: &str) -> Result<Self, NoTarget> {
        let nothing = || NoTarget(words.to_owned());
        let (kind, number) = words.split_once(':').unwrap_or(("process", words));
        let number = number.parse().ok().filter(|number| *number > 0);
        let number = number.ok_or_else(nothing)?;
        match kind {
            "thread" => Ok(Self::Thread(number)),
            "process" => Ok(Self::Process(number)),
            "vcpus" => Ok(Self::Vcpus(number)),
            _ => Err(nothing()),
        }
    }
}

/// As it is written on the command line.
impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, number) = match self {
            Self::Thread(tid) => ("thread", tid),
            Self::Process(pid) => ("process", pid),
            Self::Vcpus(pid) => ("vcpus", pid),
        };
        write!(formatter, "{kind}:{number}")
    }
}

impl Target {
    /// The threads there are now; none, if all have ended.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn threads(self) -> io::Result<Vec<u32>> {
        match self {
            Self::Thread(tid) => Ok(match born(tid)? {
                Some(_) => vec![tid],
                None => Vec::new(),
            }),
            Self::Process(pid) => tasks(pid),
            Self::Vcpus(pid) => {
                let mut threads = tasks(pid)?;
                threads.retain(|tid| {
                    let name = fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
                    name.is_ok_and(|name| name.starts_with(VCPU))
                });
                Ok(threads)
            }
        }
    }
}

/// The threads of schedulers in this process: they are never scheduled themselves.
static SCHEDULER_THREADS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// The calling thread is of a scheduler, until this is dropped.
#[derive(Debug)]
pub(crate) struct SchedulerThread(u32);

impl SchedulerThread {
    pub(crate) fn enter() -> Self {
        let tid = rustix::thread::gettid().as_raw_pid().cast_unsigned();
        scheduler_threads().push(tid);
        Self(tid)
    }
}

impl Drop for SchedulerThread {
    fn drop(&mut self) {
        scheduler_threads().retain(|tid| *tid != self.0);
    }
}

fn scheduler_threads() -> MutexGuard<'static, Vec<u32>> {
    SCHEDULER_THREADS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// The threads of a process, without a scheduler's, and without those that have ended and are not
/// yet waited for.
fn tasks(pid: u32) -> io::Result<Vec<u32>> {
    let entries = match fs::read_dir(format!("/proc/{pid}/task")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let excluded = scheduler_threads().clone();
    let mut threads = Vec::new();
    for entry in entries {
        // The process may end meanwhile.
        let Ok(entry) = entry else { break };
        let tid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let Some(tid) = tid else { continue };
        if !excluded.contains(&tid) && born(tid)?.is_some() {
            threads.push(tid);
        }
    }
    Ok(threads)
}

/// When a thread began, in the kernel's ticks since boot: with its number it names the thread for
/// good, since Linux gives numbers again. `None` if it has ended.
///
/// # Errors
/// `/proc` cannot be read.
pub(crate) fn born(tid: u32) -> io::Result<Option<u64>> {
    let stat = match fs::read_to_string(format!("/proc/{tid}/stat")) {
        // ESRCH: it ends as the file is read.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound
                || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) =>
        {
            return Ok(None);
        }
        stat => stat?,
    };
    // The name before may have spaces and parentheses of its own.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let mut fields = fields.split(' ');
    let state = fields.next().unwrap_or_default();
    let born = fields.nth(18).and_then(|ticks| ticks.parse().ok());
    match (state, born) {
        ("Z" | "X", _) => Ok(None),
        (_, Some(born)) => Ok(Some(born)),
        _ => Err(io::Error::other(format!(
            "/proc/{tid}/stat is not as expected"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_written_as_words() {
        for (words, target) in [
            ("thread:7", Target::Thread(7)),
            ("process:8", Target::Process(8)),
            ("9", Target::Process(9)),
            ("vcpus:10", Target::Vcpus(10)),
        ] {
            assert_eq!(words.parse(), Ok(target));
            assert_eq!(target.to_string().parse(), Ok(target));
        }
        for words in ["", "0", "-1", "thread:", "pid:7", "thread:4294967296"] {
            let error = words.parse::<Target>().unwrap_err();
            assert!(error.to_string().contains("process:PID"), "{error}");
        }
    }

    #[test]
    fn a_process_is_all_its_threads_and_its_vcpus_are_told_by_their_names() {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("CPU 0/KVM".to_owned());
        let thread = thread.spawn(move || receiver.recv().is_err()).unwrap();
        let own = std::process::id();
        // The thread names itself once it runs.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while Target::Vcpus(own).threads().unwrap().is_empty() {
            assert!(std::time::Instant::now() < deadline, "no vCPU is found");
            std::thread::yield_now();
        }
        let [vcpu] = Target::Vcpus(own).threads().unwrap()[..] else {
            panic!("one thread has such a name")
        };
        let all = Target::Process(own).threads().unwrap();
        assert!(all.contains(&own) && all.contains(&vcpu), "{all:?}");
        assert_eq!(Target::Thread(vcpu).threads().unwrap(), [vcpu]);
        drop(sender);
        assert!(thread.join().unwrap());
    }

    #[test]
    fn what_has_ended_has_no_threads() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert!(Target::Process(pid).threads().unwrap().is_empty());
        assert!(Target::Thread(pid).threads().unwrap().is_empty());
    }
}
