//! Which threads run, in which order, and how much.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use shinjuku_elevate::{Config, Elevation, OnSleep, Pattern, Table, Target};
use shinjuku_tests_support::{PATIENCE, need, test_name, wait_for};

use super::{AT_MOST, Core, Process, supervisor};

/// Threads that note whenever another one than before runs.
struct Noting {
    tids: Vec<u32>,
    stop: Arc<AtomicBool>,
    log: Arc<Log>,
}

#[derive(Default)]
struct Log {
    begun: AtomicBool,
    last: AtomicU8,
    length: AtomicUsize,
    entries: Vec<AtomicU8>,
}

impl Noting {
    fn start(threads: u8) -> Self {
        let log = Arc::new(Log {
            last: AtomicU8::new(u8::MAX),
            entries: (0..600).map(|_| AtomicU8::new(0)).collect(),
            ..Log::default()
        });
        let stop = Arc::new(AtomicBool::new(false));
        let start = |number: u8| {
            let (log, stop) = (Arc::clone(&log), Arc::clone(&stop));
            let (sender, receiver) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let tid = rustix::thread::gettid().as_raw_pid().cast_unsigned();
                sender.send(tid).unwrap();
                let deadline = Instant::now() + AT_MOST;
                while !stop.load(Relaxed) && Instant::now() < deadline {
                    if log.begun.load(Relaxed) && log.last.swap(number, Relaxed) != number {
                        let at = log.length.fetch_add(1, Relaxed);
                        if let Some(entry) = log.entries.get(at) {
                            entry.store(number, Relaxed);
                        }
                    }
                }
            });
            receiver.recv().unwrap()
        };
        let tids = (0..threads).map(start).collect();
        Self { tids, stop, log }
    }

    /// Schedules them until enough has been noted; the share of what was noted that follows the
    /// order, of 0, 1, 2 and so on.
    fn share_in_order(&self, config: Config) -> f64 {
        let targets: Vec<_> = self.tids.iter().map(|tid| Target::Thread(*tid)).collect();
        let elevation = Elevation::start(config, &targets, None).unwrap();
        self.log.begun.store(true, Relaxed);
        let noted = self.log.entries.len();
        wait_for("switches", || {
            self.log.length.load(Relaxed) >= noted || elevation.is_over()
        });
        let report = elevation.stop().unwrap();
        assert!(report.switches > 300, "{report:?}");
        let log: Vec<_> = self.log.entries.iter().collect();
        let next = |one: u8| (one + 1) % self.tids.len() as u8;
        let pairs = log.windows(2);
        let right = pairs.filter(|pair| pair[1].load(Relaxed) == next(pair[0].load(Relaxed)));
        right.count() as f64 / (log.len() - 1) as f64
    }
}

impl Drop for Noting {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

#[test]
fn threads_run_in_the_order_of_the_table() {
    let core = need!(Core::take(test_name!()));
    let noting = Noting::start(3);
    let share = noting.share_in_order(
        core.config(Table::round_robin(3).unwrap())
            .slice(Duration::from_micros(500)),
    );
    assert!(share > 0.9, "in order: {share}");
}

#[test]
fn a_scheduler_on_a_core_of_its_own_keeps_the_order() {
    const TEST: &str = "a_scheduler_on_a_core_of_its_own_keeps_the_order";
    let core = need!(Core::take(TEST));
    let cores = rustix::thread::sched_getaffinity(None).unwrap();
    let others = (0..core.number).rev().find(|other| cores.is_set(*other));
    let Some(other) = others else {
        println!("SKIPPED {TEST}: there is one core");
        return;
    };
    let noting = Noting::start(3);
    let share = noting.share_in_order(
        core.config(Table::round_robin(3).unwrap())
            .slice(Duration::from_micros(200))
            .pattern(Pattern::Dedicated { core: other }),
    );
    assert!(share > 0.9, "in order: {share}");
}

#[test]
fn processes_get_the_shares_of_the_table() {
    let core = need!(Core::take(test_name!()));
    for order in ["A-A-B-C", "A-B-A-C"] {
        let busy = [Process::busy(), Process::busy(), Process::busy()];
        let targets = busy.each_ref().map(|one| Target::Process(one.pid()));
        let config = core
            .config(Table::named(order, &["A", "B", "C"]).unwrap())
            .slice(Duration::from_millis(1));
        let start = Instant::now();
        // Others may have the core for a part of one attempt.
        loop {
            let config = config.clone();
            let elevation = Elevation::start(config, &targets, Some(supervisor())).unwrap();
            let before = busy.each_ref().map(Process::has_run);
            std::thread::sleep(Duration::from_millis(400));
            let after = busy.each_ref().map(Process::has_run);
            let report = elevation.stop().unwrap();
            let ran = [0, 1, 2].map(|one| (after[one] - before[one]) as f64);
            let [a, b, c] = ran.map(|one| one / ran.iter().sum::<f64>());
            let others_are = [b, c].iter().all(|share| (0.1..0.4).contains(share));
            if (0.35..0.65).contains(&a) && others_are {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{order}: {ran:?} {report:?}");
        }
    }
}

#[test]
fn who_sleeps_is_noticed_and_passed_over() {
    let core = need!(Core::take(test_name!()));
    let (sleeper, busy) = (Process::asleep(), Process::busy());
    let targets = [sleeper.pid(), busy.pid()].map(Target::Process);
    let table = Table::round_robin(2).unwrap();
    let run = |on_sleep| {
        let config = core
            .config(table.clone())
            .slice(Duration::from_millis(5))
            .on_sleep(on_sleep);
        let elevation = Elevation::start(config, &targets, Some(supervisor())).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        elevation.stop().unwrap()
    };
    let next = run(OnSleep::Next);
    assert!(next.slept >= next.slots / 4 && next.slept > 0, "{next:?}");
    let keep = run(OnSleep::Keep);
    assert_eq!((keep.slept, keep.all_slept), (0, 0), "{keep:?}");
}

#[test]
fn while_all_sleep_the_core_is_left_alone_and_who_wakes_runs() {
    let core = need!(Core::take(test_name!()));
    // The shell wakes for each of its children, which have no priority.
    let waking = Process::start("while :; do sleep 0.02; done");
    let config = core
        .config(Table::round_robin(1).unwrap())
        .slice(Duration::from_millis(1));
    let before = waking.has_run();
    let target = [Target::Process(waking.pid())];
    let elevation = Elevation::start(config, &target, Some(supervisor())).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let report = elevation.stop().unwrap();
    assert!(report.all_slept > 10, "{report:?}");
    assert!(waking.has_run() > before, "it ran when it woke");
}

#[test]
fn all_threads_of_a_process_take_turns_and_new_ones_join() {
    let core = need!(Core::take(test_name!()));
    // This very process, whose test threads sleep.
    let first = Noting::start(2);
    let config = core
        .config(Table::round_robin(1).unwrap())
        .slice(Duration::from_micros(500));
    let own = Target::Process(std::process::id());
    let elevation = Elevation::start(config, &[own], Some(supervisor())).unwrap();
    first.log.begun.store(true, Relaxed);
    let count = || first.log.length.load(Relaxed);
    let begun = count();
    wait_for("turns", || count() > begun + 20 || elevation.is_over());
    let second = Noting::start(1);
    let class = || shinjuku_preempt::SchedulingClass::of(second.tids[0]);
    wait_for("the new thread's elevation", || {
        class().is_ok_and(|class| class.fifo_priority().is_some()) || elevation.is_over()
    });
    assert!(!elevation.is_over(), "{:?}", elevation.stop());
    elevation.stop().unwrap();
    assert_eq!(class().unwrap().fifo_priority(), None);
    // It was born on the one core of the scheduled; its process had all.
    let cores = |tid: u32| {
        let tid = rustix::process::Pid::from_raw(tid.cast_signed());
        rustix::thread::sched_getaffinity(tid).unwrap()
    };
    assert_eq!(cores(second.tids[0]), cores(std::process::id()));
}

#[test]
fn qemus_vcpus_are_found_by_their_names_and_scheduled() {
    const TEST: &str = "qemus_vcpus_are_found_by_their_names_and_scheduled";
    let core = need!(Core::take(TEST));
    let there = std::process::Command::new("qemu-system-x86_64")
        .arg("--version")
        .output();
    if let Err(error) = there {
        println!("SKIPPED {TEST}: qemu-system-x86_64: {error}");
        return;
    }
    // Without a disk the firmware looks for one, on two CPUs.
    let guest = Process::start(
        "exec qemu-system-x86_64 -name guest,debug-threads=on -smp 2 -display none -nodefaults",
    );
    let vcpus = Target::Vcpus(guest.pid());
    wait_for("two vCPUs", || {
        vcpus.threads().is_ok_and(|vcpus| vcpus.len() == 2)
    });
    let other = Process::busy();
    let config = core.config(Table::round_robin(2).unwrap());
    let targets = [vcpus, Target::Process(other.pid())];
    let elevation = Elevation::start(config, &targets, Some(supervisor())).unwrap();
    let is_elevated = |tid: &u32| {
        let class = shinjuku_preempt::SchedulingClass::of(*tid).unwrap();
        class.fifo_priority().is_some()
    };
    let tids = vcpus.threads().unwrap();
    assert!(tids.iter().all(is_elevated));
    assert!(!guest.is_elevated(), "QEMU's own thread is none");
    std::thread::sleep(Duration::from_millis(100));
    elevation.stop().unwrap();
    assert!(!tids.iter().any(is_elevated));
}
