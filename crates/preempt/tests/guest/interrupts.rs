//! Interrupts in guest mode.

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shinjuku_preempt::guest::{self, GuestConfig, Irqchip, KernelCounters, Sending};
use shinjuku_preempt::{Completion, Delivery, without_preemption};
use shinjuku_tests_support::{need, test_name, wait_for};

use crate::stage::{Flag, Stage};

/// Floating-point numbers that depend on each other: wrong forever once a register is lost.
fn spin(stop: &Flag, turns: &AtomicU64) -> u64 {
    let (mut x, mut y) = (0.5f64, 3u64);
    let mut wrong = 0;
    while !stop.is_set() {
        let (start_x, start_y) = (x, y);
        for _ in 0..200 {
            x = (x * 1.000_001 + 0.1).sqrt();
            y = y.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        }
        let (mut again_x, mut again_y) = (start_x, start_y);
        for _ in 0..200 {
            again_x = (again_x * 1.000_001 + 0.1).sqrt();
            again_y = again_y
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
        }
        wrong += u64::from(again_x.to_bits() != x.to_bits() || again_y != y);
        turns.fetch_add(1, Ordering::Relaxed);
    }
    wrong
}

/// The counts while a job was preempted again and again.
struct Counted {
    /// How often KVM_RUN returned, the first few preemptions left out.
    returns: u64,
    /// Interrupts that arrived in guest mode.
    interrupts: u64,
    /// KVM's counts over all of them.
    kernel: Option<KernelCounters>,
    /// The reported delivery.
    delivery: Delivery,
}

/// Preempts a job `times` times, on the workers in turn.
fn preempt_often(mut stage: Stage, workers: usize, times: u64) -> Counted {
    let (stop, turns, wrong) = (
        Flag::default(),
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicU64::new(0)),
    );
    let (job_stop, job_turns, job_wrong) = (stop.clone(), Arc::clone(&turns), Arc::clone(&wrong));
    let job = stage.load(move || {
        job_wrong.store(spin(&job_stop, &job_turns), Ordering::Relaxed);
        0
    });
    let mut dispatched = stage.send(0, job);
    // The first ones meet memory that guest mode has not got yet.
    const FIRST: u64 = 10;
    let returns = |stage: &Stage| {
        (0..workers)
            .map(|worker| stage.guest_counters(worker).returns)
            .sum::<u64>()
    };
    let mut before = 0;
    for number in 0..FIRST + times {
        if number == FIRST {
            before = returns(&stage);
        }
        let (from, to) = (number as usize % workers, (number as usize + 1) % workers);
        let (seen, start) = (turns.load(Ordering::Relaxed), std::time::Instant::now());
        while turns.load(Ordering::Relaxed) == seen {
            assert!(
                start.elapsed() < shinjuku_tests_support::PATIENCE,
                "the job does not go on: {number}, {:?}",
                stage.guest_counters(from)
            );
            std::thread::yield_now();
        }
        let suspended = stage.preempt(from, &dispatched);
        dispatched = stage.send(to, suspended.into());
    }
    let counted = Counted {
        returns: returns(&stage) - before,
        interrupts: (0..workers)
            .map(|worker| stage.guest_counters(worker).interrupts)
            .sum(),
        kernel: (0..workers)
            .map(|worker| stage.kernel_counters(worker))
            .reduce(|a, b| Some(a? + b?))
            .flatten(),
        delivery: stage.delivery(),
    };
    assert_delivery(&counted);
    let (mut taken, mut migrations) = (0, 0);
    for worker in 0..workers {
        let counters = stage.counters(worker);
        taken += counters.taken_by_interrupt;
        migrations += counters.migrations;
    }
    assert!(taken >= times, "{taken} of {times}");
    assert!(
        workers == 1 || migrations >= times,
        "{migrations} of {times}"
    );
    stop.set();
    stage.finish((FIRST + times) as usize % workers);
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
    stage.end();
    counted
}

/// The reported delivery agrees with KVM's counts.
fn assert_delivery(counted: &Counted) {
    let arrived = counted.interrupts;
    let Some(kernel) = counted.kernel else {
        // An old kernel has no counts, and then nothing is claimed.
        assert!(!matches!(counted.delivery, Delivery::Posted(_)));
        return;
    };
    assert!(kernel.exits > 0, "{kernel:?}");
    let by_exits = arrived.min(kernel.injected.max(kernel.host_interrupts));
    let said = (counted.delivery, arrived, kernel);
    match said.0 {
        Delivery::Posted(_) => assert!(by_exits < arrived / 2, "{said:?}"),
        Delivery::Injected | Delivery::Software => assert!(by_exits >= arrived / 2, "{said:?}"),
        // Nothing is claimed.
        _ => {}
    }
}

#[test]
fn five_hundred_interrupts_without_a_return_to_the_host_side() {
    for sending in [Sending::Irqfd, Sending::Msi] {
        for irqchip in [Irqchip::Split, Irqchip::Kernel] {
            let config = GuestConfig { sending, irqchip };
            let stage = need!(Stage::with(test_name!(), config, 1));
            let times = if config == GuestConfig::default() {
                500
            } else {
                50
            };
            assert_eq!(preempt_often(stage, 1, times).returns, 0, "{config:?}");
        }
    }
}

/// Needs a kvm-intel that posts interrupts. `cargo xtask guest-test --bochs --apicv` has one, and
/// requires this test to run.
#[test]
fn five_hundred_interrupts_are_posted() {
    match guest::promised() {
        Delivery::Unproven("APICv") => {}
        otherwise => {
            println!("SKIPPED {}: interrupts here come {otherwise}", test_name!());
            return;
        }
    }
    let stage = need!(Stage::new(test_name!()));
    let counted = preempt_often(stage, 1, 500);
    let Some(kernel) = counted.kernel else {
        println!("SKIPPED {}: the kernel counts nothing", test_name!());
        return;
    };
    println!(
        "{:?}: {} interrupts, {} injected, {} exits, {} of them for the host's interrupts",
        counted.delivery, counted.interrupts, kernel.injected, kernel.exits, kernel.host_interrupts
    );
    assert!(counted.interrupts >= 500, "{}", counted.interrupts);
    assert_eq!(kernel.injected, 0, "{kernel:?}");
    assert_eq!(counted.delivery, Delivery::Posted("APICv"));
    assert_eq!(counted.returns, 0);
}

#[test]
fn a_dispatcher_in_guest_mode_posts_interrupts_by_itself() {
    let config = GuestConfig {
        sending: Sending::Apic,
        ..GuestConfig::default()
    };
    let stage = need!(Stage::with(test_name!(), config, 1));
    let guest = stage.guest.clone();
    let poster = guest.post_from_this_thread().unwrap();
    assert_eq!(preempt_often(stage, 1, 100).returns, 0);
    let counters = poster.counters();
    assert!(
        counters.returns > 0,
        "the dispatcher never was in guest mode: {counters:?}"
    );
    drop(poster);
}

#[test]
fn a_dispatcher_in_another_machine_does_not_post_into_that() {
    let config = GuestConfig {
        sending: Sending::Apic,
        ..GuestConfig::default()
    };
    let stage = need!(Stage::with(test_name!(), config, 1));
    let another = crate::stage::guest(test_name!(), config).unwrap();
    let poster = another.post_from_this_thread().unwrap();
    preempt_often(stage, 1, 5);
    assert_eq!(poster.counters().returns, 0);
}

#[test]
fn a_preemption_that_is_over_gives_up_no_call() {
    let mut stage = need!(Stage::new(test_name!()));
    let (started, go_on) = (Flag::default(), Flag::default());
    let (job_started, job_go_on) = (started.clone(), go_on.clone());
    let job = stage.load(move || {
        job_started.set();
        while !job_go_on.is_set() {
            std::hint::spin_loop();
        }
        u64::from(std::os::unix::process::parent_id())
    });
    let mut dispatched = stage.send(0, job);
    started.wait();
    for _ in 0..5 {
        let suspended = stage.preempt(0, &dispatched);
        dispatched = stage.send(0, suspended.into());
    }
    go_on.set();
    stage.finish(0);
    let counters = stage.guest_counters(0);
    assert!(
        counters.interrupts > 0 && counters.forwarded > 0,
        "{counters:?}"
    );
    assert_eq!(counters.given_up, 0, "{counters:?}");
    stage.end();
}

#[test]
fn contexts_migrate_between_workers_with_every_register_kept() {
    let stage = need!(Stage::with(test_name!(), GuestConfig::default(), 2));
    preempt_often(stage, 2, 100);
}

#[test]
fn contexts_migrate_between_machines() {
    let machine = || crate::stage::guest(test_name!(), GuestConfig::default());
    let (Some(one), Some(other)) = (machine(), machine()) else {
        return;
    };
    preempt_often(Stage::on(&[one, other]), 2, 20);
}

#[test]
fn a_late_interrupt_does_nothing() {
    let mut stage = need!(Stage::new(test_name!()));
    let go_on = Flag::default();
    let job = |go_on: Flag, started: Flag| {
        move || {
            started.set();
            while !go_on.is_set() {
                std::hint::spin_loop();
            }
            0
        }
    };
    let started = Flag::default();
    let first = stage.load(job(go_on.clone(), started.clone()));
    let over = stage.send(0, first);
    go_on.set();
    stage.finish(0);
    let (go_on, started) = (Flag::default(), Flag::default());
    let second = stage.load(job(go_on.clone(), started.clone()));
    stage.send(0, second);
    started.wait();
    let before = stage.guest_counters(0).interrupts + stage.counters(0).late;
    over.request();
    stage.interrupt(0);
    wait_for("the late interrupt", || {
        stage.guest_counters(0).interrupts + stage.counters(0).late != before
    });
    go_on.set();
    stage.finish(0);
    stage.end();
}

#[test]
fn the_guard_holds_an_interrupt_off_to_its_end() {
    let mut stage = need!(Stage::new(test_name!()));
    let (inside, go_on, outside) = (Flag::default(), Flag::default(), Flag::default());
    let flags = (inside.clone(), go_on.clone(), outside.clone());
    let job = stage.load(move || {
        without_preemption(|| {
            flags.0.set();
            while !flags.1.is_set() {
                std::hint::spin_loop();
            }
        });
        flags.2.set();
        0
    });
    let dispatched = stage.send(0, job);
    inside.wait();
    dispatched.request();
    stage.interrupt(0);
    wait_for("the interrupt", || stage.counters(0).deferred != 0);
    go_on.set();
    let Completion::Preempted(suspended) = stage.answer(0) else {
        panic!("the request was lost");
    };
    assert!(!outside.is_set(), "preempted later than at the guard's end");
    assert_eq!(stage.counters(0).taken_at_guard, 1);
    stage.send(0, suspended.into());
    stage.finish(0);
    stage.end();
}

#[test]
fn a_job_that_blocks_in_a_system_call_is_reached_and_the_call_goes_on() {
    let mut stage = need!(Stage::new(test_name!()));
    let (mut from, mut to) = std::io::pipe().unwrap();
    let about_to_read = Flag::default();
    let flag = about_to_read.clone();
    let job = stage.load(move || {
        let mut byte = [0];
        flag.set();
        from.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [42]);
        0
    });
    let mut dispatched = stage.send(0, job);
    about_to_read.wait();
    for _ in 0..20 {
        let suspended = stage.preempt(0, &dispatched);
        dispatched = stage.send(0, suspended.into());
        // The job enters the call again.
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let counters = stage.guest_counters(0);
    assert!(counters.given_up > 0, "{counters:?}");
    assert_eq!(counters.left, 0, "{counters:?}");
    to.write_all(&[42]).unwrap();
    stage.finish(0);
    stage.end();
}

#[test]
fn a_worker_that_is_out_of_guest_mode_is_reached_by_signal() {
    let mut stage = need!(Stage::new(test_name!()));
    let (started, stop) = (Flag::default(), Flag::default());
    let (job_started, job_stop) = (started.clone(), stop.clone());
    let job = stage.load(move || {
        std::thread::spawn(|| ()).join().unwrap();
        job_started.set();
        while !job_stop.is_set() {
            std::hint::spin_loop();
        }
        0
    });
    let mut dispatched = stage.send(0, job);
    started.wait();
    assert_eq!(stage.guest_counters(0).left, 1);
    // The first is a signal frame, which then comes back into guest mode, and leaves it by
    // `rt_sigreturn`.
    for _ in 0..20 {
        let suspended = stage.preempt(0, &dispatched);
        dispatched = stage.send(0, suspended.into());
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    stop.set();
    stage.finish(0);
    stage.end();
}
