//! Whatever happens, the scheduled get back what they had.

use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use shinjuku_elevate::{Config, ElevateError, Elevation, Table, Target};
use shinjuku_tests_support::{need, wait_for};

use super::{Core, Process, supervisor};

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// Two busy processes, one of them less nice than it was born.
fn busy() -> [Process; 2] {
    let niced = Process::start("exec nice -n 5 sh -c 'while :; do :; done'");
    wait_for("nice", || {
        let told = std::fs::read_to_string(format!("/proc/{}/cmdline", niced.pid()));
        told.is_ok_and(|told| told.starts_with("sh\0-c\0while"))
    });
    [Process::busy(), niced]
}

fn targets(busy: &[Process; 2]) -> [Target; 2] {
    busy.each_ref().map(|one| Target::Process(one.pid()))
}

#[test]
fn after_a_normal_end_and_after_being_dropped() {
    let core = need!(Core::take("after_a_normal_end_and_after_being_dropped"));
    let busy = busy();
    let before = busy.each_ref().map(Process::state);
    let start = || {
        let config = core.config(Table::round_robin(2).unwrap());
        let elevation = Elevation::start(config, &targets(&busy), Some(supervisor())).unwrap();
        assert!(busy.iter().all(Process::is_elevated));
        elevation
    };
    let elevation = start();
    std::thread::sleep(Duration::from_millis(150));
    assert!(elevation.stop().unwrap().switches > 0);
    assert_eq!(busy.each_ref().map(Process::state), before);
    drop(start());
    assert_eq!(busy.each_ref().map(Process::state), before);
}

#[test]
fn when_the_time_is_over() {
    let core = need!(Core::take("when_the_time_is_over"));
    let busy = busy();
    let before = busy.each_ref().map(Process::state);
    let config = core
        .config(Table::round_robin(2).unwrap())
        .at_most(Duration::from_millis(100));
    let elevation = Elevation::start(config, &targets(&busy), Some(supervisor())).unwrap();
    wait_for("the end", || elevation.is_over());
    assert_eq!(busy.each_ref().map(Process::state), before);
    elevation.stop().unwrap();
}

#[test]
fn after_an_error_at_the_start() {
    let core = need!(Core::take("after_an_error_at_the_start"));
    let busy = busy();
    let before = busy.each_ref().map(Process::state);
    let start = |config: Config, targets: &[Target], supervisor| {
        let error = Elevation::start(config, targets, supervisor).unwrap_err();
        assert_eq!(busy.each_ref().map(Process::state), before);
        error
    };
    let config = || core.config(Table::round_robin(2).unwrap());
    // One that has ended.
    let gone = Process::busy().pid();
    let [first, _] = targets(&busy);
    let error = start(
        config(),
        &[first, Target::Process(gone)],
        Some(supervisor()),
    );
    assert!(matches!(error, ElevateError::Nothing { .. }), "{error}");
    let main_thread = Target::Thread(busy[0].pid());
    let error = start(config(), &[first, main_thread], Some(supervisor()));
    assert!(matches!(error, ElevateError::Twice { .. }), "{error}");
    let error = start(config(), &targets(&busy), None);
    assert!(
        matches!(error, ElevateError::Unsupervised { .. }),
        "{error}"
    );
    let error = start(config(), &targets(&busy), Some(Command::new("false")));
    let is_of_supervisor = matches!(
        error,
        ElevateError::Supervisor(_) | ElevateError::SupervisorGone
    );
    assert!(is_of_supervisor, "{error}");
    let nowhere = config().core(1023);
    let error = start(nowhere, &targets(&busy), Some(supervisor()));
    assert!(
        matches!(error, ElevateError::Core { core: 1023, .. }),
        "{error}"
    );
    let slow = config().slice(Duration::from_secs(1));
    let error = start(slow, &targets(&busy), Some(supervisor()));
    assert!(error.to_string().contains("1 us to 100 ms"), "{error}");
    let high = config().lowest_priority(96);
    let error = start(high, &targets(&busy), Some(supervisor()));
    assert!(error.to_string().contains("must be 1 to 95"), "{error}");
    let error = start(config(), &[first], Some(supervisor()));
    assert!(matches!(error, ElevateError::Count { .. }), "{error}");
}

#[test]
fn after_the_supervisor_is_killed() {
    let core = need!(Core::take("after_the_supervisor_is_killed"));
    let busy = busy();
    let before = busy.each_ref().map(Process::state);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pid");
    let mut supervisor = Command::new("/bin/sh");
    let program = env!("CARGO_BIN_EXE_shinjuku-elevate");
    let line = format!("echo $$ > '{}'; exec '{program}' supervise", file.display());
    supervisor.args(["-c", &line]);
    let config = core.config(Table::round_robin(2).unwrap());
    let elevation = Elevation::start(config, &targets(&busy), Some(supervisor)).unwrap();
    let pid = std::fs::read_to_string(&file).unwrap();
    signal(pid.trim().parse().unwrap(), Signal::KILL);
    wait_for("the end", || elevation.is_over());
    assert_eq!(busy.each_ref().map(Process::state), before);
    let error = elevation.stop().unwrap_err();
    assert!(matches!(error, ElevateError::SupervisorGone), "{error}");
}

/// The command, at work on `busy`.
fn command(core: &Core, busy: &[Process; 2]) -> Process {
    let program = env!("CARGO_BIN_EXE_shinjuku-elevate");
    let [a, b] = busy.each_ref().map(Process::pid);
    let core = core.number;
    let scheduler = Process::start(&format!(
        "exec '{program}' run --core {core} --slice-us 200 --seconds 10 A=process:{a} B=process:{b}"
    ));
    wait_for("elevation", || busy.iter().all(Process::is_elevated));
    scheduler
}

#[test]
fn after_the_scheduler_is_killed() {
    let core = need!(Core::take("after_the_scheduler_is_killed"));
    let busy = busy();
    let before = busy.each_ref().map(Process::state);
    let scheduler = command(&core, &busy);
    signal(scheduler.pid(), Signal::KILL);
    wait_for("what they had", || {
        busy.each_ref().map(Process::state) == before
    });
}

#[test]
fn after_the_scheduler_is_stopped_and_it_does_not_go_on() {
    let core = need!(Core::take(
        "after_the_scheduler_is_stopped_and_it_does_not_go_on"
    ));
    let busy = busy();
    let before = busy.each_ref().map(Process::state);
    let mut scheduler = command(&core, &busy);
    signal(scheduler.pid(), Signal::STOP);
    wait_for("what they had", || {
        busy.each_ref().map(Process::state) == before
    });
    signal(scheduler.pid(), Signal::CONT);
    wait_for("the scheduler's end", || {
        scheduler.0.try_wait().unwrap().is_some()
    });
    assert!(!scheduler.0.wait().unwrap().success());
    assert_eq!(busy.each_ref().map(Process::state), before);
}

#[test]
fn after_control_c() {
    let core = need!(Core::take("after_control_c"));
    let busy = busy();
    let before = busy.each_ref().map(Process::state);
    let mut scheduler = command(&core, &busy);
    signal(scheduler.pid(), Signal::INT);
    wait_for("the end", || scheduler.0.try_wait().unwrap().is_some());
    assert!(scheduler.0.wait().unwrap().success());
    assert_eq!(busy.each_ref().map(Process::state), before);
}

#[test]
fn after_one_of_them_has_died() {
    let core = need!(Core::take("after_one_of_them_has_died"));
    let [first, second] = busy();
    let before = second.state();
    let config = core.config(Table::round_robin(2).unwrap());
    let targets = [first.pid(), second.pid()].map(Target::Process);
    let elevation = Elevation::start(config, &targets, Some(supervisor())).unwrap();
    drop(first);
    let has_run = second.has_run();
    wait_for("the other to go on", || {
        second.has_run() > has_run + 30_000_000 || elevation.is_over()
    });
    assert!(!elevation.is_over());
    elevation.stop().unwrap();
    assert_eq!(second.state(), before);
    // With the last one, it ends by itself.
    let config = core.config(Table::round_robin(1).unwrap());
    let elevation = Elevation::start(config, &targets[1..], Some(supervisor())).unwrap();
    drop(second);
    wait_for("the end", || elevation.is_over());
    elevation.stop().unwrap();
}
