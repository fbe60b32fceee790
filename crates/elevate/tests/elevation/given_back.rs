//! Whatever happens, the scheduled get back what they had.

use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::CpuSet;
use shinjuku_elevate::{Config, ElevateError, Elevation, Table, Target};
use shinjuku_preempt::SchedulingClass;
use shinjuku_tests_support::{need, test_name, wait_for};

use super::{Core, Process, supervisor};

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// Two busy processes, one of them less nice than it was born, and what they had.
struct Busy {
    core: Core,
    both: [Process; 2],
    before: [(SchedulingClass, CpuSet); 2],
}

impl Busy {
    fn new(test: &str) -> Option<Self> {
        let core = Core::take(test)?;
        let niced = Process::start("exec nice -n 5 sh -c 'while :; do :; done'");
        wait_for("nice", || {
            let told = std::fs::read_to_string(format!("/proc/{}/cmdline", niced.pid()));
            told.is_ok_and(|told| told.starts_with("sh\0-c\0while"))
        });
        let both = [Process::busy(), niced];
        let before = both.each_ref().map(Process::state);
        Some(Self { core, both, before })
    }

    fn config(&self) -> Config {
        self.core.config(Table::round_robin(2).unwrap())
    }

    fn targets(&self) -> [Target; 2] {
        self.both.each_ref().map(|one| Target::Process(one.pid()))
    }

    fn start(&self, config: Config) -> Elevation {
        Elevation::start(config, &self.targets(), Some(supervisor())).unwrap()
    }

    fn is_elevated(&self) -> bool {
        self.both.iter().all(Process::is_elevated)
    }

    fn states(&self) -> [(SchedulingClass, CpuSet); 2] {
        self.both.each_ref().map(Process::state)
    }

    /// The command, at work on them.
    fn command(&self) -> Process {
        let program = env!("CARGO_BIN_EXE_shinjuku-elevate");
        let [a, b] = self.both.each_ref().map(Process::pid);
        let core = self.core.number;
        let scheduler = Process::start(&format!(
            "exec '{program}' run --core {core} --slice-us 200 --seconds 10 A=process:{a} B=process:{b}"
        ));
        wait_for("elevation", || self.is_elevated());
        scheduler
    }
}

#[test]
fn after_a_normal_end_and_after_being_dropped() {
    let busy = need!(Busy::new(test_name!()));
    let start = || {
        let elevation = busy.start(busy.config());
        assert!(busy.is_elevated());
        elevation
    };
    let elevation = start();
    std::thread::sleep(Duration::from_millis(150));
    assert!(elevation.stop().unwrap().switches > 0);
    assert_eq!(busy.states(), busy.before);
    drop(start());
    assert_eq!(busy.states(), busy.before);
}

#[test]
fn when_the_time_is_over() {
    let busy = need!(Busy::new(test_name!()));
    let elevation = busy.start(busy.config().at_most(Duration::from_millis(100)));
    wait_for("the end", || elevation.is_over());
    assert_eq!(busy.states(), busy.before);
    elevation.stop().unwrap();
}

#[test]
fn after_an_error_at_the_start() {
    let busy = need!(Busy::new(test_name!()));
    let start = |config: Config, targets: &[Target], supervisor| {
        let error = Elevation::start(config, targets, supervisor).unwrap_err();
        assert_eq!(busy.states(), busy.before);
        error
    };
    let config = || busy.config();
    // One that has ended.
    let gone = Process::busy().pid();
    let [first, _] = busy.targets();
    let error = start(
        config(),
        &[first, Target::Process(gone)],
        Some(supervisor()),
    );
    assert!(matches!(error, ElevateError::Nothing { .. }), "{error}");
    let main_thread = Target::Thread(busy.both[0].pid());
    let error = start(config(), &[first, main_thread], Some(supervisor()));
    assert!(matches!(error, ElevateError::Twice { .. }), "{error}");
    let error = start(config(), &busy.targets(), None);
    assert!(
        matches!(error, ElevateError::Unsupervised { .. }),
        "{error}"
    );
    let error = start(config(), &busy.targets(), Some(Command::new("false")));
    let is_of_supervisor = matches!(
        error,
        ElevateError::Supervisor(_) | ElevateError::SupervisorGone
    );
    assert!(is_of_supervisor, "{error}");
    let nowhere = config().core(1023);
    let error = start(nowhere, &busy.targets(), Some(supervisor()));
    assert!(
        matches!(error, ElevateError::Core { core: 1023, .. }),
        "{error}"
    );
    let slow = config().slice(Duration::from_secs(1));
    let error = start(slow, &busy.targets(), Some(supervisor()));
    assert!(error.to_string().contains("1 us to 100 ms"), "{error}");
    let high = config().lowest_priority(96);
    let error = start(high, &busy.targets(), Some(supervisor()));
    assert!(error.to_string().contains("must be 1 to 95"), "{error}");
    let error = start(config(), &[first], Some(supervisor()));
    assert!(matches!(error, ElevateError::Count { .. }), "{error}");
}

#[test]
fn after_the_supervisor_is_killed() {
    let busy = need!(Busy::new(test_name!()));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pid");
    let mut supervisor = Command::new("/bin/sh");
    let program = env!("CARGO_BIN_EXE_shinjuku-elevate");
    let line = format!("echo $$ > '{}'; exec '{program}' supervise", file.display());
    supervisor.args(["-c", &line]);
    let started = Elevation::start(busy.config(), &busy.targets(), Some(supervisor));
    let elevation = started.unwrap();
    let pid = std::fs::read_to_string(&file).unwrap();
    signal(pid.trim().parse().unwrap(), Signal::KILL);
    wait_for("the end", || elevation.is_over());
    assert_eq!(busy.states(), busy.before);
    let error = elevation.stop().unwrap_err();
    assert!(matches!(error, ElevateError::SupervisorGone), "{error}");
}

#[test]
fn after_the_scheduler_is_killed() {
    let busy = need!(Busy::new(test_name!()));
    let scheduler = busy.command();
    signal(scheduler.pid(), Signal::KILL);
    wait_for("what they had", || busy.states() == busy.before);
}

#[test]
fn after_the_scheduler_is_stopped_and_it_does_not_go_on() {
    let busy = need!(Busy::new(test_name!()));
    let mut scheduler = busy.command();
    signal(scheduler.pid(), Signal::STOP);
    wait_for("what they had", || busy.states() == busy.before);
    signal(scheduler.pid(), Signal::CONT);
    wait_for("the scheduler's end", || {
        scheduler.0.try_wait().unwrap().is_some()
    });
    assert!(!scheduler.0.wait().unwrap().success());
    assert_eq!(busy.states(), busy.before);
}

#[test]
fn after_control_c() {
    let busy = need!(Busy::new(test_name!()));
    let mut scheduler = busy.command();
    signal(scheduler.pid(), Signal::INT);
    wait_for("the end", || scheduler.0.try_wait().unwrap().is_some());
    assert!(scheduler.0.wait().unwrap().success());
    assert_eq!(busy.states(), busy.before);
}

#[test]
fn after_one_of_them_has_died() {
    let busy = need!(Busy::new(test_name!()));
    let elevation = busy.start(busy.config());
    let Busy { core, both, before } = busy;
    let [first, second] = both;
    drop(first);
    let has_run = second.has_run();
    wait_for("the other to go on", || {
        second.has_run() > has_run + 30_000_000 || elevation.is_over()
    });
    assert!(!elevation.is_over());
    elevation.stop().unwrap();
    assert_eq!(second.state(), before[1]);
    // With the last one, it ends by itself.
    let config = core.config(Table::round_robin(1).unwrap());
    let target = Target::Process(second.pid());
    let elevation = Elevation::start(config, &[target], Some(supervisor())).unwrap();
    drop(second);
    wait_for("the end", || elevation.is_over());
    elevation.stop().unwrap();
}
