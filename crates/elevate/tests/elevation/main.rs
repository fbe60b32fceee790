//! Real threads and processes, scheduled for a moment on one core.
//!
//! All that is elevated ends by itself: targets are killed by their own pid, and each elevation has
//! a supervisor with a deadline, or is of threads of this process that stop after a while.
#![allow(missing_docs)]

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use shinjuku_elevate::{Config, Table};
use shinjuku_preempt::SchedulingClass;
use shinjuku_tests_support::wait_for;

mod command;
mod given_back;
mod order;

/// The longest that anything is elevated here.
const AT_MOST: Duration = Duration::from_secs(10);

/// The core of the scheduled. The tests take turns there, those of another checkout's run included,
/// each on a thread that is bound to the other cores, if there are some.
struct Core {
    number: usize,
    _turn: MutexGuard<'static, ()>,
    _turn_of_all: UnixListener,
}

impl Core {
    /// `None`, and says so, if nothing may be elevated here.
    fn take(test: &str) -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let before = SchedulingClass::of(0).unwrap();
        if let Err(error) = SchedulingClass::fifo(1).give_to(0) {
            println!("SKIPPED {test}: SCHED_FIFO: {error}");
            return None;
        }
        before.give_back_to(0).unwrap();
        let name = SocketAddr::from_abstract_name("shinjuku-elevate tests").unwrap();
        let mut turn_of_all = None;
        wait_for("the machine's turn", || {
            turn_of_all = UnixListener::bind_addr(&name).ok();
            turn_of_all.is_some()
        });
        let mut others = sched_getaffinity(None).unwrap();
        let number = (0..CpuSet::MAX_CPU).rev().find(|core| others.is_set(*core));
        let number = number.unwrap();
        others.unset(number);
        if others.count() > 0 {
            sched_setaffinity(None, &others).unwrap();
        }
        Some(Self {
            number,
            _turn: turn,
            _turn_of_all: turn_of_all.unwrap(),
        })
    }

    fn config(&self, table: Table) -> Config {
        Config::new(self.number, table).at_most(AT_MOST)
    }
}

/// A process. Dropped, it is gone.
struct Process(Child);

impl Process {
    fn start(line: &str) -> Self {
        let child = Command::new("/bin/sh")
            .args(["-c", line])
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    fn busy() -> Self {
        Self::start("while :; do :; done")
    }

    fn asleep() -> Self {
        Self::start("exec sleep 600")
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn state(&self) -> (SchedulingClass, CpuSet) {
        let pid = Pid::from_raw(self.pid().cast_signed());
        (
            SchedulingClass::of(self.pid()).unwrap(),
            sched_getaffinity(pid).unwrap(),
        )
    }

    fn is_elevated(&self) -> bool {
        self.state().0.fifo_priority().is_some()
    }

    /// How long it has run, in ns.
    fn has_run(&self) -> u64 {
        let told = std::fs::read_to_string(format!("/proc/{}/schedstat", self.pid())).unwrap();
        told.split(' ').next().unwrap().parse().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn supervisor() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shinjuku-elevate"));
    command.arg("supervise");
    command
}
