//! Loops that help each other under everything at once: requests preempted at any instruction,
//! handlers that allocate, lock and block, and busy threads outside that have Linux deschedule the
//! loops.
//!
//! `SHINJUKU_SOAK_PREEMPTIONS` sets how many preemptions there are to be; a run of a million takes
//! some minutes.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shinjuku::policy::ClassId;
use shinjuku::{Handle, LayoutKind, MechanismKind, Runtime, Ticket, handler_fn, preempt_point};
use shinjuku_tests_support::runtime::{config, token};
use shinjuku_tests_support::{PATIENCE, turn};

/// How many preemptions a run has by default.
const FEW: u64 = 3_000;
/// Threads that compute beside the loops.
const OUTSIDE: usize = 3;

thread_local! {
    static LOCAL: Cell<u64> = const { Cell::new(0) };
}

/// How many requests found something of their own changed.
static ERRORS: AtomicU64 = AtomicU64::new(0);
static LOCK: Mutex<[u64; 4]> = Mutex::new([0; 4]);

fn check(is_right: bool) {
    if !is_right {
        ERRORS.fetch_add(1, Ordering::Relaxed);
    }
}

/// All that is a request's own must be unchanged after every preemption: its stack and vectors, its
/// thread-locals, the memory that it has allocated, and the value that it has locked.
fn handle_one(seed: u64) -> u64 {
    LOCAL.set(seed);
    let mut block = vec![seed as u8; 64 + (seed % 5_000) as usize];
    let end = Instant::now() + Duration::from_micros(20 + seed % 800);
    let (mut sum, mut step) = (0.0f64, 0u64);
    while Instant::now() < end {
        step += 1;
        sum += step as f64;
        if seed.is_multiple_of(3) {
            preempt_point();
        }
        if step.is_multiple_of(64) {
            block.resize(64 + ((seed ^ step) % 5_000) as usize, seed as u8);
        }
    }
    check(sum == (step * (step + 1)) as f64 / 2.0);
    check(block.iter().all(|&byte| byte == seed as u8));
    check(LOCAL.get() == seed);
    if seed.is_multiple_of(5) {
        let mut held = LOCK.lock().unwrap();
        let value = held[0] + 1;
        for place in held.iter_mut() {
            preempt_point();
            *place = value;
        }
        check(held.iter().all(|&place| place == value));
    }
    if seed.is_multiple_of(97) {
        std::thread::sleep(Duration::from_micros(seed % 2_000));
    }
    seed ^ 0x5555
}

fn preemptions_wanted() -> u64 {
    let set = std::env::var("SHINJUKU_SOAK_PREEMPTIONS").ok();
    set.and_then(|set| set.parse().ok()).unwrap_or(FEW)
}

fn wait(tickets: &mut Vec<(u64, Ticket<u64>)>) {
    for (seed, mut ticket) in tickets.drain(..) {
        let answer = ticket.wait_timeout(PATIENCE).expect("no request hangs");
        check(answer == Ok(seed ^ 0x5555));
    }
}

fn submit_until(stop: &AtomicBool, handle: &Handle<u64, u64>, mut seed: u64) {
    let mut tickets = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        seed = (seed ^ (seed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) + 1;
        let ticket = handle.submit(ClassId(0), seed).expect("few are submitted");
        tickets.push((seed, ticket));
        if tickets.len() > (seed % 32) as usize {
            wait(&mut tickets);
        }
    }
    wait(&mut tickets);
}

#[test]
fn nothing_is_lost_or_spoilt_while_loops_help_each_other_and_are_descheduled() {
    let _turn = turn();
    for mechanism in [MechanismKind::Signal, MechanismKind::Escalation] {
        let mut config = config(2, mechanism)
            .layout(LayoutKind::Symmetric)
            .contexts(32)
            .spare_workers(8);
        config.policy.quantum_us = 50.0;
        config.preemption.grace_us = 20.0;
        let runtime = Runtime::builder(handler_fn(handle_one))
            .config(config)
            .allow_hard_preemption(token())
            .start()
            .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let outside: Vec<_> = (0..OUTSIDE)
            .map(|_| {
                let stop = Arc::clone(&stop);
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                })
            })
            .collect();
        let wanted = preemptions_wanted();
        std::thread::scope(|scope| {
            for submitter in 1..=3 {
                let (stop, handle) = (Arc::clone(&stop), runtime.handle());
                scope.spawn(move || submit_until(&stop, &handle, submitter));
            }
            let (start, mut last) = (Instant::now(), 0);
            let mut since = start;
            loop {
                let taken = runtime.statistics().preemptions.taken();
                if taken >= wanted {
                    break;
                }
                if taken > last {
                    (last, since) = (taken, Instant::now());
                }
                assert!(
                    since.elapsed() < PATIENCE,
                    "stuck after {taken} preemptions"
                );
                std::thread::sleep(Duration::from_millis(1));
            }
            stop.store(true, Ordering::Relaxed);
        });
        for thread in outside {
            thread.join().unwrap();
        }
        let statistics = runtime.statistics();
        assert!(statistics.preemptions.migrations > 0, "{statistics}");
        let report = runtime.shutdown(PATIENCE);
        assert!(report.is_clean(), "{report}");
        println!("{mechanism}: {statistics}");
    }
    assert_eq!(ERRORS.load(Ordering::Relaxed), 0);
}
