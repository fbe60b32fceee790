//! Requests that hold from a moment on, and the worker's own timer. One worker on the test's
//! thread, as in the inline layout: the code that asks does not run meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shinjuku_preempt::{
    Clock, CountersSnapshot, Cycles, DeadlineTimer, Dispatched, HardPreemption, PoolConfig,
    QuantumEnd, Runnable, Signal, Suspended, preempt_point, preemptions, without_preemption,
};
use shinjuku_tests_support::contexts::{Job, OneThread};

const PATIENCE: Duration = Duration::from_secs(20);

/// A worker and its timer on this thread.
struct Stage {
    thread: OneThread,
    timer: DeadlineTimer,
    clock: Clock,
    /// A delay between setting the timer and running its request.
    delay: Duration,
    /// Whether the quantum is time on the CPU.
    on_cpu: bool,
}

impl Stage {
    fn new() -> Self {
        // SAFETY: the tests' jobs rely on nothing that the token's contract excludes.
        let signal = Signal::install(unsafe { HardPreemption::allow() }).unwrap();
        Self {
            thread: OneThread::new(PoolConfig::default().contexts(2), |job: Job| job()),
            timer: DeadlineTimer::new(signal).unwrap(),
            clock: Clock::get(),
            delay: Duration::ZERO,
            on_cpu: false,
        }
    }

    fn load(&mut self, job: impl FnOnce() -> u64 + Send + 'static) -> Runnable<Job, u64> {
        self.thread.load(Box::new(job))
    }

    /// Runs for `quantum`, after which the job shall give way; with the timer or by its probes
    /// alone.
    fn run(
        &mut self,
        runnable: Runnable<Job, u64>,
        quantum: Duration,
        timer: bool,
    ) -> Result<u64, Suspended<Job, u64>> {
        let quantum = self.clock.to_cycles(quantum.as_nanos() as u64);
        let now = if timer {
            self.timer.arm(quantum)
        } else {
            Cycles::now()
        };
        let moment = Cycles(now.0 + quantum.0);
        let dispatched = self.thread.send(runnable);
        match self.on_cpu {
            true if timer => dispatched.request_after(now, quantum, QuantumEnd::Timer),
            true => dispatched.request_after(now, quantum, QuantumEnd::Probes),
            false => dispatched.request_at(moment),
        }
        std::thread::sleep(self.delay);
        let outcome = self.thread.step();
        self.timer.disarm();
        outcome
    }

    /// Runs what is over long before [`SHORT`], with the timer. If Linux takes the thread off its
    /// core on the way in, the moment passes there and the job is stopped. It goes on then.
    fn run_short(&mut self, mut runnable: Runnable<Job, u64>) -> Short {
        let start = Instant::now();
        let mut stopped = 0;
        loop {
            match self.run(runnable, SHORT, true) {
                Ok(value) => return Short { value, stopped },
                Err(suspended) => runnable = suspended.into(),
            }
            stopped += 1;
            assert!(start.elapsed() < PATIENCE, "stopped {stopped} times");
        }
    }

    fn counters(&self) -> CountersSnapshot {
        self.thread.counters()
    }
}

/// How a job that is over at once has come to its end.
struct Short {
    value: u64,
    /// How often it was stopped on the way in.
    stopped: u64,
}

/// Spins with probes for `time`.
fn probe_for(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        preempt_point();
    }
}

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(5);

#[test]
fn a_probe_goes_on_before_the_moment_and_gives_way_after_it() {
    let mut stage = Stage::new();
    let job = stage.load(|| {
        probe_for(Duration::from_millis(2));
        1
    });
    assert_eq!(stage.run(job, LONG, false).unwrap(), 1);
    assert_eq!(stage.counters().taken(), 0, "an hour was not over");

    let start = Instant::now();
    let job = stage.load(|| {
        probe_for(PATIENCE);
        2
    });
    let suspended = stage.run(job, SHORT, false).unwrap_err();
    assert!(start.elapsed() >= SHORT);
    // On a busy machine the moment can come on the way in.
    assert_eq!(stage.counters().taken(), 1);
    // A resumed job has a quantum of its own.
    let again = Instant::now();
    let suspended = stage.run(suspended.into(), SHORT, false).unwrap_err();
    assert!(again.elapsed() >= SHORT);
    assert_eq!(stage.counters().taken(), 2);
    drop(suspended);
}

/// A moment is found within 384 probes (`stride`), however long these take.
#[test]
fn near_probes_find_each_of_many_moments() {
    const MANY: u64 = 1_000;
    const QUANTUM: Duration = Duration::from_micros(100);
    let mut stage = Stage::new();
    let (round, late) = <(Arc<AtomicU64>, Arc<AtomicU64>)>::default();
    let (in_round, too_late) = (Arc::clone(&round), Arc::clone(&late));
    let job = stage.load(move || {
        let end = Instant::now() + PATIENCE;
        let (mut seen, mut moment) = (0, end);
        while Instant::now() < end {
            let now = in_round.load(Ordering::Relaxed);
            if now != seen {
                // Resumed: the moment is at most a quantum away.
                (seen, moment) = (now, Instant::now() + QUANTUM);
            }
            let is_past = Instant::now() > moment;
            // Two nanoseconds apart: most of them only count.
            for _ in 0..MANY {
                preempt_point();
            }
            if is_past && in_round.load(Ordering::Relaxed) == seen {
                too_late.fetch_add(1, Ordering::Relaxed);
            }
        }
        1
    });
    let mut runnable = job;
    for moments in 1..=500 {
        round.store(moments, Ordering::Relaxed);
        let start = Instant::now();
        let suspended = stage.run(runnable, QUANTUM, false).unwrap_err();
        assert!(start.elapsed() >= QUANTUM, "early at {moments}");
        // On a busy machine the moment can come on the way in.
        assert_eq!(stage.counters().taken(), moments);
        assert_eq!(late.load(Ordering::Relaxed), 0, "late at {moments}");
        runnable = suspended.into();
    }
    drop(runnable);
}

#[test]
fn a_request_without_a_moment_is_found_by_the_first_probe_after_others_had_one() {
    let mut stage = Stage::new();
    // Ends in the middle of a long stride.
    let near = stage.load(|| {
        (0..100_100).for_each(|_| preempt_point());
        1
    });
    assert_eq!(stage.run(near, LONG, false).unwrap(), 1);
    let (hand_in, handed_in) = std::sync::mpsc::channel::<Dispatched>();
    let probes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&probes);
    let on_the_same_context = stage.load(move || {
        handed_in.recv().unwrap().request();
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            counted.fetch_add(1, Ordering::Relaxed);
            preempt_point();
        }
        2
    });
    let dispatched = stage.thread.send(on_the_same_context);
    hand_in.send(dispatched).unwrap();
    assert!(stage.thread.step().is_err());
    assert_eq!(probes.load(Ordering::Relaxed), 1);
}

#[test]
fn the_guard_holds_the_moment_off_and_its_end_looks() {
    let mut stage = Stage::new();
    let job = stage.load(|| {
        let start = Instant::now();
        without_preemption(|| {
            while start.elapsed() < 3 * SHORT {
                preempt_point();
            }
        });
        3
    });
    let suspended = stage.run(job, SHORT, true).unwrap_err();
    assert_eq!(stage.counters().taken_at_guard, 1);
    assert_eq!(stage.run(suspended.into(), LONG, true).unwrap(), 3);

    // A guard that ends before the moment is a plain call.
    let job = stage.load(|| without_preemption(|| 4));
    assert_eq!(stage.run(job, LONG, true).unwrap(), 4);
    assert_eq!(stage.counters().taken(), 1);
}

#[test]
fn the_timer_stops_code_without_probes() {
    let mut stage = Stage::new();
    let start = Instant::now();
    // On a busy machine the moment can come on the way in.
    for round in 1.. {
        let job = stage.load(|| {
            let start = Instant::now();
            while start.elapsed() < 4 * SHORT {
                std::hint::spin_loop();
            }
            5
        });
        let suspended = stage.run(job, SHORT, true).unwrap_err();
        let counters = stage.counters();
        assert_eq!(counters.taken(), round);
        assert_eq!(stage.run(suspended.into(), LONG, true).unwrap(), 5);
        if counters.taken_by_interrupt > 0 {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{counters:?}");
    }
}

/// Nobody has set the timer, so the code runs on after its moment until another thread sets it.
#[test]
fn a_timer_that_stands_by_is_set_by_who_wants_the_worker() {
    const UNWANTED: Duration = Duration::from_millis(50);
    let mut stage = Stage::new();
    let [runs, over] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let (tells, stop) = (Arc::clone(&runs), Arc::clone(&over));
    let has_run = Arc::clone(&runs);
    let spins = stage.load(move || {
        tells.store(true, Ordering::Release);
        let start = Instant::now();
        while !stop.load(Ordering::Acquire) && start.elapsed() < PATIENCE {
            std::hint::spin_loop();
        }
        7
    });
    let remote = stage.timer.remote().unwrap();
    let other = std::thread::spawn(move || {
        while !runs.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        std::thread::sleep(UNWANTED);
        remote.set(Cycles(0));
        // Dropped, it would take back the signal that is under way.
        remote
    });
    let start = Instant::now();
    let quantum = stage.clock.to_cycles(SHORT.as_nanos() as u64);
    let (mut runnable, mut stopped) = (spins, 0);
    // On a busy machine the moment can come on the way in.
    while !has_run.load(Ordering::Acquire) {
        assert!(start.elapsed() < PATIENCE, "it never begins");
        let now = stage.timer.stand_by();
        let dispatched = stage.thread.send(runnable);
        dispatched.request_after(now, quantum, QuantumEnd::Timer);
        runnable = stage.thread.step().unwrap_err().into();
        stage.timer.disarm();
        stopped += 1;
    }
    assert!(start.elapsed() >= UNWANTED);
    drop(other.join().unwrap());
    over.store(true, Ordering::Release);
    assert_eq!(stage.run(runnable, LONG, true).unwrap(), 7);
    assert_eq!(stage.counters().taken(), stopped);
}

#[test]
fn a_timer_outlives_its_thread_for_those_who_may_set_it() {
    let remote = std::thread::spawn(|| Stage::new().timer.remote().unwrap()).join();
    let remote = remote.unwrap();
    remote.set(Cycles(0));
    // Would be the number of a timer that is gone.
    let mut stage = Stage::new();
    remote.set(Cycles(0));
    let short = stage.load(|| 3);
    assert_eq!(stage.run_short(short).value, 3);
}

#[test]
fn a_timer_set_for_an_earlier_request_does_not_stop_the_next_before_its_time() {
    let mut stage = Stage::new();
    let mut taken = 0;
    for round in 0..20 {
        let short = stage.load(|| 6);
        let short = stage.run_short(short);
        assert_eq!(short.value, 6);
        taken += short.stopped;
        // It runs when the first one's timer fires, and is due long after.
        let next = stage.load(|| {
            let start = Instant::now();
            while start.elapsed() < 2 * SHORT {
                std::hint::spin_loop();
            }
            7
        });
        assert_eq!(stage.run(next, LONG, true).unwrap(), 7, "round {round}");
    }
    assert_eq!(stage.counters().taken(), taken);
}

#[test]
fn a_timer_that_fires_early_is_set_again_for_the_request_that_runs() {
    let mut stage = Stage::new();
    let short = stage.load(|| 8);
    assert_eq!(stage.run_short(short).value, 8);
    // `arm` sees a timer pending before this one's moment, and leaves it: the handler has to set it
    // again.
    let next = stage.load(|| {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            std::hint::spin_loop();
        }
        9
    });
    let start = Instant::now();
    let suspended = stage.run(next, 3 * SHORT, true).unwrap_err();
    assert!(start.elapsed() >= 3 * SHORT && start.elapsed() < PATIENCE);
    drop(suspended);
}

#[test]
fn a_timer_that_fires_on_the_way_into_the_request_fires_again() {
    let mut stage = Stage::new();
    // Leaves a timer pending, on which the next request relies; it fires before that request runs,
    // and long before it is due.
    let short = stage.load(|| 0);
    assert_eq!(stage.run_short(short).value, 0);
    stage.delay = 2 * SHORT;
    let long = stage.load(|| {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            std::hint::spin_loop();
        }
        11
    });
    let start = Instant::now();
    let suspended = stage.run(long, 8 * SHORT, true).unwrap_err();
    assert!(start.elapsed() < PATIENCE, "not only at its end");
    drop(suspended);
}

#[test]
fn the_timer_reaches_what_is_blocked_in_the_kernel() {
    let mut stage = Stage::new();
    let (sender, receiver) = std::sync::mpsc::channel();
    let job = stage.load(move || receiver.recv_timeout(PATIENCE).unwrap());
    let suspended = stage.run(job, SHORT, true).unwrap_err();
    sender.send(10).unwrap();
    let mut suspended = suspended;
    let start = Instant::now();
    let value = loop {
        match stage.run(suspended.into(), SHORT, true) {
            Ok(value) => break value,
            Err(again) => suspended = again,
        }
        assert!(start.elapsed() < PATIENCE);
    };
    assert_eq!(value, 10);
}

/// What the calling thread has spent on the CPU.
fn time_on_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// After a sleep that is longer than the quantum.
#[test]
fn a_quantum_on_the_cpu_is_not_over_after_a_sleep() {
    for (on_cpu, at_once) in [(false, 1), (true, 0)] {
        let mut stage = Stage::new();
        stage.on_cpu = on_cpu;
        let began = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&began);
        let job = stage.load(move || {
            let before = preemptions();
            begins.store(true, Ordering::Relaxed);
            std::thread::sleep(10 * SHORT);
            preempt_point();
            let at_once = preemptions() - before;
            let (start, patience) = (time_on_cpu(), Instant::now() + PATIENCE);
            while preemptions() == before && Instant::now() < patience {
                preempt_point();
            }
            assert!(at_once > 0 || time_on_cpu() - start > SHORT / 2);
            at_once
        });
        let mut suspended = stage.run(job, SHORT, false).unwrap_err();
        // On a busy machine the moment can come on the way in.
        let start = Instant::now();
        while !began.load(Ordering::Relaxed) {
            assert!(start.elapsed() < PATIENCE, "it never begins");
            suspended = stage.run(suspended.into(), SHORT, false).unwrap_err();
        }
        assert_eq!(stage.run(suspended.into(), LONG, false).unwrap(), at_once);
    }
}

/// Two threads compute on one core, which Linux gives to each in turn; this one gives way when it
/// has had its quantum.
#[test]
fn a_quantum_on_the_cpu_outlasts_the_slices_of_others() {
    const QUANTUM: Duration = Duration::from_millis(20);
    let over = Arc::new(AtomicU64::new(0));
    let ends = Arc::clone(&over);
    let core = rustix::thread::sched_getcpu();
    let mut only = rustix::thread::CpuSet::new();
    only.set(core);
    let other = std::thread::spawn(move || {
        let pinned = rustix::thread::sched_setaffinity(None, &only).is_ok();
        while pinned && ends.load(Ordering::Relaxed) == 0 {
            std::hint::spin_loop();
        }
    });
    let mut stage = Stage::new();
    stage.on_cpu = true;
    rustix::thread::sched_setaffinity(None, &only).unwrap();
    for timer in [false, true] {
        let job = stage.load(move || {
            let (before, start) = (preemptions(), time_on_cpu());
            let (mut last, patience) = (start, Instant::now() + PATIENCE);
            while preemptions() == before && Instant::now() < patience {
                last = time_on_cpu();
                if !timer {
                    preempt_point();
                }
            }
            (last - start).as_micros() as u64
        });
        let suspended = stage.run(job, QUANTUM, timer).unwrap_err();
        let ran = stage.run(suspended.into(), LONG, false).unwrap();
        // What is away for less than some microseconds at a time is not noticed.
        assert!(ran >= 19_000, "{ran} us of 20 ms, by timer: {timer}");
    }
    over.store(1, Ordering::Relaxed);
    other.join().unwrap();
}

/// When the guard ends, the time within it counts as the thread's absence, and the request goes on.
#[test]
fn the_timer_that_fired_within_a_guard_fires_again() {
    let mut stage = Stage::new();
    stage.on_cpu = true;
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let job = stage.load(move || {
        without_preemption(|| std::thread::sleep(4 * SHORT));
        let start = Instant::now();
        while !is_over.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
            std::hint::spin_loop();
        }
        start.elapsed().as_millis() as u64
    });
    let stopped = stage.run(job, SHORT, true);
    over.store(true, Ordering::Relaxed);
    let suspended = stopped.expect_err("the timer stops what has no probes");
    assert!(stage.run(suspended.into(), LONG, false).is_ok());
}
