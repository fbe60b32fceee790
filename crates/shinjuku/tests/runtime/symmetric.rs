//! The runtime's tests in the layout `symmetric`, and the tests of that layout alone: that loops
//! help each other.

#[path = "suite/mod.rs"]
mod suite;

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use shinjuku::net::Refusal;
use shinjuku::net::udp::{Datagram, Udp, UdpConfig};
use shinjuku::policy::{ClassId, FlowId};
use shinjuku::{
    ClassConfig, Config, Handle, Help, LayoutKind, MechanismKind, PolicyConfig, Runtime,
    SubmitOptions, TicketError, handler_fn, preempt_point, without_preemption,
};
use shinjuku_preempt::Realtime;
use shinjuku_tests_support::process::{must_pass, this_test};
use shinjuku_tests_support::{PATIENCE, wait_for};

use self::suite::{Job, config, jobs, spin_for};

/// Two loops, and no thread to relieve them.
fn two_loops(mechanism: MechanismKind) -> Config {
    config(2, mechanism).spare_workers(0)
}

/// Submits to the loop that is home to this flow.
fn submit(handle: &Handle<Job, u64>, flow: u64, job: Job) -> shinjuku::Ticket<u64> {
    let options = SubmitOptions::new(ClassId(0)).flow(FlowId(flow));
    handle.submit_with(options, job).unwrap()
}

/// Computes, without a probe, until `condition` holds.
fn spin_until(condition: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > PATIENCE {
            return false;
        }
        std::hint::spin_loop();
    }
    true
}

/// The first request keeps its loop busy until the second, which came to the same loop, has run.
#[test]
fn what_waits_at_a_busy_loop_is_served_by_the_other() {
    let runtime = jobs(two_loops(MechanismKind::None));
    let handle = runtime.handle();
    for round in 0..200 {
        let done = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&done);
        let busy = move || u64::from(spin_until(|| seen.load(Ordering::Acquire)));
        let busy = submit(&handle, round % 2, Box::new(busy));
        let other = move || {
            done.store(true, Ordering::Release);
            2
        };
        let mut other = submit(&handle, round % 2, Box::new(other));
        assert_eq!(other.wait_timeout(PATIENCE), Some(Ok(2)), "round {round}");
        assert_eq!(busy.wait(), Ok(1));
    }
    let report = runtime.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
    // In each round one of the two ran at a loop that was not its own.
    let helped = report.statistics.map(|statistics| statistics.helped);
    assert!(
        helped.is_some_and(|helped| (200..=400).contains(&helped)),
        "{helped:?}"
    );
}

/// A request waits for one that has no context, and its loop waits with it. Then requests of the
/// other loop put contexts back.
#[test]
fn what_waits_for_a_context_starts_at_an_idle_loop_when_there_is_one_again() {
    let runtime = jobs(
        config(2, MechanismKind::Probe)
            .contexts(8)
            .spare_workers(10),
    );
    for _ in 0..3 {
        let handle = runtime.handle();
        let (release, blocked) = mpsc::sync_channel::<()>(7);
        let blocked = Arc::new(std::sync::Mutex::new(blocked));
        let holding = Arc::new(AtomicU64::new(0));
        // All contexts but the one that the other loop keeps.
        let hold: Vec<_> = (0..7)
            .map(|_| {
                let (blocked, holds) = (Arc::clone(&blocked), Arc::clone(&holding));
                let job = move || {
                    holds.fetch_add(1, Ordering::Relaxed);
                    u64::from(blocked.lock().unwrap().recv().is_ok())
                };
                submit(&handle, 1, Box::new(job))
            })
            .collect();
        wait_for("seven", || holding.load(Ordering::Relaxed) == 7);
        let (send, receive) = mpsc::channel();
        let theirs = handle.clone();
        let waits = submit(
            &handle,
            0,
            Box::new(move || {
                let sends = Box::new(move || u64::from(send.send(()).is_ok()));
                let ticket = submit(&theirs, 0, sends);
                let has_come = receive.recv_timeout(PATIENCE / 2).is_ok();
                drop(ticket);
                has_come.into()
            }),
        );
        // By then the other loop has looked for a context in vain, and sleeps.
        std::thread::sleep(Duration::from_millis(50));
        for _ in 0..7 {
            release.send(()).unwrap();
        }
        assert_eq!(waits.wait(), Ok(1), "it waited for a request in vain");
        for one in hold {
            assert_eq!(one.wait(), Ok(1));
        }
    }
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// A loop that runs best effort leaves it for an urgent request that waits at another loop.
#[test]
fn a_loop_within_best_effort_serves_what_waits_elsewhere() {
    let classes = ["interactive", "batch"].map(ClassConfig::new);
    let policy = PolicyConfig::new("c-fcfs").best_effort(["batch"]);
    let runtime = jobs(
        two_loops(MechanismKind::Probe)
            .class(classes)
            .policy(policy),
    );
    let handle = runtime.handle();
    for round in 0..50_u64 {
        let [runs, all_done] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (tells, gate) = (Arc::clone(&runs), Arc::clone(&all_done));
        let batch = move || {
            tells.store(true, Ordering::Release);
            u64::from(spin_until(|| {
                preempt_point();
                gate.load(Ordering::Acquire)
            }))
        };
        let home = round % 2;
        let options = SubmitOptions::new(ClassId(1)).flow(FlowId(home + 1));
        let batch = handle.submit_with(options, Box::new(batch) as Job).unwrap();
        wait_for("the batch job", || runs.load(Ordering::Acquire));
        // One request keeps a loop busy, without a probe, until the one behind it has run.
        let gate = Arc::clone(&all_done);
        let busy = move || u64::from(spin_until(|| gate.load(Ordering::Acquire)));
        let busy = submit(&handle, home, Box::new(busy));
        let done = Arc::clone(&all_done);
        let behind = move || {
            done.store(true, Ordering::Release);
            2
        };
        let mut behind = submit(&handle, home, Box::new(behind));
        assert_eq!(behind.wait_timeout(PATIENCE), Some(Ok(2)), "round {round}");
        assert_eq!((busy.wait(), batch.wait()), (Ok(1), Ok(1)), "round {round}");
    }
    let report = runtime.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
}

/// All loops are within requests without a quantum, which spin for a lock that a best-effort
/// request at another dispatcher holds.
#[test]
fn best_effort_that_holds_a_lock_goes_on_though_all_loops_are_busy() {
    let classes = ["interactive", "batch"].map(ClassConfig::new);
    let policy = PolicyConfig::new("c-fcfs").best_effort(["batch"]);
    let config = two_loops(MechanismKind::Probe);
    let runtime = jobs(config.class(classes).policy(policy));
    let handle = runtime.handle();
    for _ in 0..10 {
        let [held, released] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let waiting = Arc::new(AtomicU64::new(0));
        let until = |condition: &dyn Fn() -> bool| {
            u64::from(spin_until(|| {
                preempt_point();
                condition()
            }))
        };
        let (holds, releases, waits) = (held.clone(), released.clone(), waiting.clone());
        let batch = move || {
            holds.store(true, Ordering::Release);
            let all_wait = until(&|| waits.load(Ordering::Acquire) == 2);
            releases.store(true, Ordering::Release);
            all_wait
        };
        let options = SubmitOptions::new(ClassId(1)).flow(FlowId(0));
        let batch = handle.submit_with(options, Box::new(batch) as Job).unwrap();
        wait_for("the lock", || held.load(Ordering::Acquire));
        let spin = || {
            let (released, waiting) = (released.clone(), waiting.clone());
            let job = move || {
                waiting.fetch_add(1, Ordering::AcqRel);
                until(&|| released.load(Ordering::Acquire))
            };
            submit(&handle, 1, Box::new(job))
        };
        for mut ticket in [spin(), spin(), batch] {
            assert_eq!(ticket.wait_timeout(PATIENCE), Some(Ok(1)));
        }
    }
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// Loops that do not help: a request that comes to a busy loop waits for it, one that comes to the
/// other does not, and each loop is woken for the requests that only it may serve.
#[test]
fn without_help_requests_wait_for_their_own_loop() {
    let runtime = jobs(two_loops(MechanismKind::None).help(Help::None));
    let handle = runtime.handle();
    for round in 0..100 {
        let has_ended = Arc::new(AtomicBool::new(false));
        let may_end = Arc::new(AtomicBool::new(false));
        let (gate, end) = (Arc::clone(&may_end), Arc::clone(&has_ended));
        let busy = move || {
            let in_time = spin_until(|| gate.load(Ordering::Acquire));
            end.store(true, Ordering::Release);
            u64::from(in_time)
        };
        let busy = submit(&handle, round % 2, Box::new(busy));
        let seen = Arc::clone(&has_ended);
        let behind = move || u64::from(seen.load(Ordering::Acquire));
        let mut behind = submit(&handle, round % 2, Box::new(behind));
        let mut other = submit(&handle, (round + 1) % 2, Box::new(|| 2));
        assert_eq!(other.wait_timeout(PATIENCE), Some(Ok(2)), "round {round}");
        may_end.store(true, Ordering::Release);
        assert_eq!(busy.wait(), Ok(1));
        assert_eq!(behind.wait_timeout(PATIENCE), Some(Ok(1)), "round {round}");
        if round % 10 == 0 {
            // Both park.
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let report = runtime.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
    assert_eq!(
        report.statistics.map(|statistics| statistics.helped),
        Some(0)
    );
}

/// Loops that serve what others have polled: of two requests that a loop polled together, the
/// second runs at the other loop, while the first waits for that.
#[test]
fn what_a_busy_loop_has_polled_can_be_stolen() {
    let config = two_loops(MechanismKind::None).help(Help::Polled);
    let runtime = jobs(config.policy(PolicyConfig::new("stealing")));
    let handle = runtime.handle();
    for round in 0..100_u64 {
        let all_came = Arc::new(AtomicBool::new(false));
        let gate = Arc::clone(&all_came);
        let begun = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&begun);
        let first = move || {
            begins.store(true, Ordering::Release);
            u64::from(spin_until(|| gate.load(Ordering::Acquire)))
        };
        let first = submit(&handle, round % 2, Box::new(first));
        wait_for("the first request", || begun.load(Ordering::Acquire));
        let done = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&done);
        let busy = move || u64::from(spin_until(|| seen.load(Ordering::Acquire)));
        // It has another flow of the same home, since requests of one flow run one after the other.
        let busy = submit(&handle, round % 2 + 2, Box::new(busy));
        let stolen = move || {
            done.store(true, Ordering::Release);
            2
        };
        let mut stolen = submit(&handle, round % 2 + 4, Box::new(stolen));
        all_came.store(true, Ordering::Release);
        assert_eq!(stolen.wait_timeout(PATIENCE), Some(Ok(2)), "round {round}");
        assert_eq!((first.wait(), busy.wait()), (Ok(1), Ok(1)));
    }
    let report = runtime.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
    let helped = report.statistics.map(|statistics| statistics.helped);
    assert!(helped.is_some_and(|helped| helped >= 100), "{helped:?}");
}

/// A suspended request finishes while another that came to the same loop computes for as long as
/// that takes.
#[test]
fn what_was_suspended_at_a_busy_loop_goes_on_at_the_other() {
    let runtime = jobs(two_loops(MechanismKind::Probe));
    let handle = runtime.handle();
    for round in 0..50 {
        let started = Arc::new(AtomicU64::new(0));
        let done = Arc::new(AtomicBool::new(false));
        let both_started = {
            let started = Arc::clone(&started);
            move || started.load(Ordering::Acquire) == 2
        };
        // The request gets on only after both others have begun, so it is suspended by then.
        let (gate, end) = (both_started.clone(), Arc::clone(&done));
        let suspended = move || {
            let start = Instant::now();
            while !gate() && start.elapsed() < PATIENCE {
                preempt_point();
            }
            end.store(true, Ordering::Release);
            1
        };
        let mut suspended = submit(&handle, round % 2, Box::new(suspended));
        let other = |until: Box<dyn Fn() -> bool + Send>| {
            let started = Arc::clone(&started);
            let other = move || {
                started.fetch_add(1, Ordering::AcqRel);
                u64::from(spin_until(until))
            };
            submit(&handle, round % 2, Box::new(other))
        };
        let brief = other(Box::new(both_started.clone()));
        let seen = Arc::clone(&done);
        let busy = other(Box::new(move || seen.load(Ordering::Acquire)));
        assert_eq!(suspended.wait_timeout(PATIENCE), Some(Ok(1)));
        assert_eq!((brief.wait(), busy.wait()), (Ok(1), Ok(1)));
    }
    assert!(runtime.statistics().preemptions.taken() >= 50);
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// A suspended request finishes while the thread of the loop that it came to is held off its core,
/// within another request.
#[test]
fn what_was_suspended_goes_on_while_its_loop_is_held_off_its_core() {
    if let Err(error) = Realtime::enter(1).map(drop) {
        return eprintln!(
            "SKIPPED what_was_suspended_goes_on_while_its_loop_is_held_off_its_core: {error}"
        );
    }
    let runtime = jobs(two_loops(MechanismKind::Probe).rescue_after_ms(60_000.0));
    let handle = runtime.handle();
    let flags = || <Arc<[AtomicBool; 2]>>::default();
    let [other, suspended, held, hog] = [flags(), flags(), flags(), flags()];
    let begin = |flags: &[AtomicBool; 2]| flags[0].store(true, Ordering::Release);
    let has_begun = |flags: &[AtomicBool; 2]| flags[0].load(Ordering::Acquire);
    let may_end = |flags: &[AtomicBool; 2]| flags[1].load(Ordering::Acquire);
    let let_end = |flags: &[AtomicBool; 2]| flags[1].store(true, Ordering::Release);

    // The other loop is busy meanwhile.
    let its = Arc::clone(&other);
    let busy = move || {
        begin(&its);
        u64::from(spin_until(|| may_end(&its)))
    };
    let busy = submit(&handle, 1, Box::new(busy));
    wait_for("the other loop", || has_begun(&other));
    let its = Arc::clone(&suspended);
    let goes_on = move || {
        begin(&its);
        let start = Instant::now();
        while !may_end(&its) && start.elapsed() < PATIENCE {
            preempt_point();
        }
        1
    };
    let mut goes_on = submit(&handle, 0, Box::new(goes_on));
    wait_for("its start", || has_begun(&suspended));
    // When this request runs, the one before is suspended.
    let (its, by) = (Arc::clone(&held), Arc::clone(&hog));
    let held_off = move || {
        without_preemption(|| {
            let core = only(rustix::thread::sched_getcpu());
            rustix::thread::sched_setaffinity(None, &core).unwrap();
            let hog = std::thread::spawn(move || {
                let _realtime = Realtime::enter(1).unwrap();
                begin(&by);
                spin_until(|| may_end(&by))
            });
            let was_held = spin_until(|| may_end(&its));
            u64::from(was_held && hog.join().unwrap())
        })
    };
    let held_off = submit(&handle, 0, Box::new(held_off));
    wait_for("the loop that is held", || has_begun(&hog));
    let_end(&other);
    let_end(&suspended);
    let finished = goes_on.wait_timeout(PATIENCE / 2);
    let fresh = submit(&handle, 0, Box::new(|| 3)).wait_timeout(PATIENCE / 2);
    let was_held = !may_end(&held);
    let_end(&hog);
    let_end(&held);
    assert_eq!(
        (finished, fresh, was_held),
        (Some(Ok(1)), Some(Ok(3)), true)
    );
    assert_eq!((busy.wait(), held_off.wait()), (Ok(1), Ok(1)));
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

fn only(core: usize) -> rustix::thread::CpuSet {
    let mut only = rustix::thread::CpuSet::new();
    only.set(core);
    only
}

/// Which of the swamp's requests each loop ran last, and how often another one's turn began there.
#[derive(Default)]
struct Turns([LoopTurns; 2]);

#[derive(Default)]
struct LoopTurns {
    /// The loop's thread; 0: not seen yet.
    thread: AtomicU64,
    last: AtomicU64,
    begun: AtomicU64,
}

impl Turns {
    /// Those of the loop that runs the caller.
    fn here(&self) -> &LoopTurns {
        let thread = u64::from(
            rustix::thread::gettid()
                .as_raw_nonzero()
                .get()
                .unsigned_abs(),
        );
        let is_here = |one: &&LoopTurns| {
            let (order, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
            let taken = one.thread.compare_exchange(0, thread, order, relaxed);
            taken.is_ok() || taken == Err(thread)
        };
        self.0.iter().find(is_here).expect("there are two loops")
    }
}

/// One loop is swamped with requests that never end, and the other helps it. What comes to the
/// other waits for the guest that runs there, and for no further one: neither before it starts nor
/// where it is preempted itself. So it waits for a quantum longer at most than if its loop helped
/// nobody.
#[test]
fn what_comes_to_a_loop_that_helps_waits_for_one_guest_at_most() {
    const SWAMP: u64 = 6;
    const ROUNDS: u64 = 100;
    let runtime = jobs(two_loops(MechanismKind::Probe));
    let handle = runtime.handle();
    let (turns, is_over) = <(Arc<Turns>, Arc<AtomicBool>)>::default();
    let guests: Vec<_> = (1..=SWAMP)
        .map(|number| {
            let (turns, is_over) = (Arc::clone(&turns), Arc::clone(&is_over));
            let guest = move || {
                let start = Instant::now();
                while !is_over.load(Ordering::Acquire) && start.elapsed() < PATIENCE {
                    let here = turns.here();
                    if here.last.swap(number, Ordering::Relaxed) != number {
                        here.begun.fetch_add(1, Ordering::AcqRel);
                    }
                    preempt_point();
                }
                number
            };
            submit(&handle, 0, Box::new(guest))
        })
        .collect();
    let begun = |at: usize| turns.0[at].begun.load(Ordering::Acquire);
    wait_for("both loops in the swamp", || begun(0) > 0 && begun(1) > 0);
    let mut at_home = 0;
    for round in 0..ROUNDS {
        let (tell, told) = mpsc::channel();
        let theirs = Arc::clone(&turns);
        let own = move || {
            let here = theirs.here();
            let at_start = here.begun.load(Ordering::Acquire);
            let is_home = thread_name().trim_end().ends_with("loop-1");
            // Some quanta.
            spin_for(Duration::from_micros(350));
            let at_end = theirs.here().begun.load(Ordering::Acquire);
            let place = theirs.0.iter().position(|one| std::ptr::eq(one, here));
            tell.send((is_home, place, at_start, at_end)).unwrap();
            0
        };
        let mut own = submit(&handle, 1, Box::new(own));
        // What begins before this is not counted, if that takes the submitting thread as long.
        let before = [begun(0), begun(1)];
        assert_eq!(own.wait_timeout(PATIENCE), Some(Ok(0)), "round {round}");
        let (is_home, place, at_start, at_end) = told.recv().unwrap();
        let place = place.expect("it ran at a loop");
        // While its loop is in a turn of the swamp's dispatcher, the other one may take it.
        if is_home {
            at_home += 1;
            let met = at_start.saturating_sub(before[place]);
            assert!(met <= 1, "round {round}: {met} guests began before it");
            assert_eq!(at_end, at_start, "round {round}: guests within it");
        }
        wait_for("a guest", || begun(place) > at_end);
    }
    assert!(at_home > ROUNDS / 2, "{at_home} of {ROUNDS} at home");
    is_over.store(true, Ordering::Release);
    for (number, guest) in (1..).zip(guests) {
        assert_eq!(guest.wait(), Ok(number));
    }
    let report = runtime.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
    let helped = report.statistics.map(|statistics| statistics.helped);
    assert!(helped.is_some_and(|helped| helped >= ROUNDS), "{helped:?}");
}

/// A request that sleeps for longer than its quantum is not preempted at once, and only what it
/// computes is its service time.
#[test]
fn quanta_and_service_times_are_time_on_the_cpu() {
    let mut config = two_loops(MechanismKind::Probe).rescue_after_ms(60_000.0);
    config.policy.quantum_us = 5_000.0;
    let runtime = jobs(config);
    let sleeps = || {
        let before = shinjuku_preempt::preemptions();
        std::thread::sleep(Duration::from_millis(50));
        preempt_point();
        shinjuku_preempt::preemptions() - before
    };
    assert_eq!(submit(&runtime.handle(), 0, Box::new(sleeps)).wait(), Ok(0));
    let report = runtime.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
    let service = report.statistics.unwrap().classes[0].service_nanos;
    assert!(service < 40_000_000, "{service} ns");
}

/// A dispatcher has half of the queue. Requests beyond that wait for it, and are not refused.
#[test]
fn what_comes_to_one_dispatcher_can_be_more_than_its_share() {
    let runtime = jobs(two_loops(MechanismKind::None).queue(4));
    let handle = runtime.handle();
    let open = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..2)
        .map(|flow| {
            let gate = Arc::clone(&open);
            let busy = move || u64::from(spin_until(|| gate.load(Ordering::Acquire)));
            submit(&handle, flow, Box::new(busy))
        })
        .collect();
    let rest: Vec<_> = (0..1_000)
        .map(|n| submit(&handle, 0, Box::new(move || n)))
        .collect();
    open.store(true, Ordering::Release);
    for ticket in busy {
        assert_eq!(ticket.wait(), Ok(1));
    }
    for (n, ticket) in (0..).zip(rest) {
        assert_eq!(ticket.wait(), Ok(n));
    }
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// Requests that came to a loop are served although its thread and the other loop's are blocked.
#[test]
fn threads_that_stand_by_take_the_place_of_all_loops_that_are_blocked() {
    let runtime = jobs(config(2, MechanismKind::Probe).spare_workers(3));
    let handle = runtime.handle();
    for _ in 0..5 {
        let (tell, told) = mpsc::channel::<()>();
        let told = Arc::new(std::sync::Mutex::new(told));
        let blocked: Vec<_> = (0..3)
            .map(|flow| {
                let told = Arc::clone(&told);
                let job = move || {
                    let told = told.lock().unwrap();
                    u64::from(told.recv_timeout(PATIENCE).is_ok())
                };
                submit(&handle, flow, Box::new(job))
            })
            .collect();
        let tellers: Vec<_> = (0..3)
            .map(|flow| {
                let tell = tell.clone();
                submit(
                    &handle,
                    flow,
                    Box::new(move || tell.send(()).is_ok().into()),
                )
            })
            .collect();
        for mut ticket in blocked.into_iter().chain(tellers) {
            assert_eq!(ticket.wait_timeout(PATIENCE), Some(Ok(1)));
        }
    }
    let statistics = runtime.statistics();
    assert!(statistics.rescued > 0, "{statistics}");
    let report = runtime.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
}

/// The name of the thread that the caller's context runs on.
fn thread_name() -> String {
    std::fs::read_to_string("/proc/thread-self/comm").unwrap()
}

/// Two requests of the first loop's dispatcher, both held within, one at each loop: the one at its
/// own loop, and then the one that the other loop runs.
fn held_at_both_loops(handle: &Handle<Job, u64>, after: fn()) -> [Held; 2] {
    let mut held = [0, 1].map(|_| {
        let (started, open) = <(Arc<AtomicU64>, Arc<AtomicBool>)>::default();
        let (starts, gate) = (Arc::clone(&started), Arc::clone(&open));
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        let job = move || {
            let at_home = thread_name().starts_with("shinjuku-loop-0");
            starts.store(1 + u64::from(at_home), Ordering::Release);
            wait_for("the gate", || gate.load(Ordering::Acquire));
            after();
            is_done.store(true, Ordering::Release);
            1
        };
        let ticket = submit(handle, 0, Box::new(job));
        Held {
            started,
            open,
            done,
            ticket,
        }
    });
    for held in &held {
        wait_for("both starts", || held.started.load(Ordering::Acquire) > 0);
    }
    held.sort_by_key(|held| std::cmp::Reverse(held.started.load(Ordering::Acquire)));
    held
}

struct Held {
    /// 0: not yet; 2: by the loop whose home it came to.
    started: Arc<AtomicU64>,
    open: Arc<AtomicBool>,
    done: Arc<AtomicBool>,
    ticket: shinjuku::Ticket<u64>,
}

/// Requests that wait, that have started, and that run, as the gauges say.
fn gauges(runtime: &Runtime<Job, u64>) -> (u64, u64, u64) {
    let now = runtime.statistics();
    (now.waiting, now.started, now.running)
}

/// Nobody looks after a dispatcher while its own loop is within a request and nothing is to be done
/// there. So what the other loop does there has to show at once.
#[test]
fn the_gauges_know_of_what_a_loop_that_helps_runs_and_leaves() {
    let runtime = jobs(two_loops(MechanismKind::None));
    let handle = runtime.handle();
    for round in 0..20 {
        wait_for("quiet", || gauges(&runtime) == (0, 0, 0));
        let [at_home, elsewhere] = held_at_both_loops(&handle, || ());
        assert_eq!(gauges(&runtime), (0, 2, 2), "round {round}");
        // The loop that helps goes home.
        let (started, open) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let (starts, gate) = (Arc::clone(&started), Arc::clone(&open));
        let next = move || {
            starts.store(true, Ordering::Release);
            wait_for("the gate", || gate.load(Ordering::Acquire));
            2
        };
        let next = submit(&handle, 1, Box::new(next));
        elsewhere.open.store(true, Ordering::Release);
        wait_for("the way home", || started.load(Ordering::Acquire));
        assert_eq!(gauges(&runtime), (0, 2, 2), "round {round}, at home");
        at_home.open.store(true, Ordering::Release);
        open.store(true, Ordering::Release);
        let answers = [at_home.ticket, elsewhere.ticket, next].map(shinjuku::Ticket::wait);
        assert_eq!(answers, [Ok(1), Ok(1), Ok(2)]);
    }
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// At the end, one loop is within a request for long. The other looks after both dispatchers, so a
/// started request goes on, even if it is preempted later.
#[test]
fn what_one_loop_runs_at_the_end_goes_on_at_either() {
    let runtime = jobs(two_loops(MechanismKind::Probe));
    let preempted = || spin_for(Duration::from_millis(20));
    let [at_home, elsewhere] = held_at_both_loops(&runtime.handle(), preempted);
    at_home.open.store(true, Ordering::Release);
    assert_eq!(at_home.ticket.wait(), Ok(1));
    // Its reply is there before its loop has answered.
    wait_for("its end", || gauges(&runtime) == (0, 1, 1));
    let report = runtime.shutdown(Duration::from_millis(20));
    assert_eq!(report.unfinished, ["default"], "{report}");
    elsewhere.open.store(true, Ordering::Release);
    wait_for("its end", || elsewhere.done.load(Ordering::Acquire));
    drop(elsewhere.ticket);
}

/// A request runs at the end although it came to the dispatcher of a loop that is within another
/// request until this one has run.
#[test]
fn what_waits_at_the_end_is_served_by_the_loop_that_is_free() {
    let runtime = jobs(two_loops(MechanismKind::None));
    let handle = runtime.handle();
    let [at_home, elsewhere] = held_at_both_loops(&handle, || ());
    let gate = Arc::clone(&elsewhere.open);
    let waits = submit(
        &handle,
        1,
        Box::new(move || {
            gate.store(true, Ordering::Release);
            2
        }),
    );
    let report = std::thread::scope(|scope| {
        let ended = scope.spawn(|| runtime.shutdown(PATIENCE));
        // By then the runtime most likely drains. If it does not, the test shows nothing.
        std::thread::sleep(Duration::from_millis(50));
        at_home.open.store(true, Ordering::Release);
        ended.join().unwrap()
    });
    assert!(report.is_clean(), "{report}");
    let answers = [at_home.ticket, elsewhere.ticket, waits].map(shinjuku::Ticket::wait);
    assert_eq!(answers, [Ok(1), Ok(1), Ok(2)]);
}

/// Under a policy without preemption, requests of one flow start in the order in which they came,
/// whichever loop serves. One loop is held up meanwhile, since two loops could start a request each
/// at the same time, in either order.
#[test]
fn requests_of_a_flow_start_in_their_order() {
    const REQUESTS: u64 = 500;
    let mut config = two_loops(MechanismKind::None);
    config.policy.kind = "c-fcfs".into();
    let runtime = jobs(config);
    let handle = runtime.handle();
    for flow in [0, 1].repeat(4) {
        let (held, open) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let (is_held, gate) = (Arc::clone(&held), Arc::clone(&open));
        let hold = move || {
            is_held.store(true, Ordering::Release);
            u64::from(spin_until(|| gate.load(Ordering::Acquire)))
        };
        let hold = submit(&handle, 0, Box::new(hold));
        wait_for("the loop that is held", || held.load(Ordering::Acquire));
        let last = Arc::new(AtomicU64::new(0));
        let tickets: Vec<_> = (1..=REQUESTS)
            .map(|number| {
                let last = Arc::clone(&last);
                let job = move || last.swap(number, Ordering::SeqCst);
                submit(&handle, flow, Box::new(job))
            })
            .collect();
        for (before, ticket) in (0..).zip(tickets) {
            assert_eq!(ticket.wait(), Ok(before), "flow {flow}");
        }
        open.store(true, Ordering::Release);
        assert_eq!(hold.wait(), Ok(1));
    }
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// Works for a time that the seed gives; some seeds block the thread for a moment.
fn work(seed: u64, handle: &Handle<u64, u64>) -> u64 {
    match seed % 101 {
        0 => std::thread::sleep(Duration::from_micros(seed % 700)),
        1 => spin_for(Duration::from_micros(500)),
        // Handlers submit, too, and wait for nothing.
        2 if seed.is_multiple_of(4) => drop(handle.submit(ClassId(0), 3)),
        _ => spin_for(Duration::from_micros(seed % 10)),
    }
    seed
}

/// Four threads submit while the runtime shuts down: each request has its own answer, or is
/// refused, and every answer is counted.
#[test]
fn of_a_hundred_thousand_requests_none_is_lost() {
    const ROUNDS: u64 = 10;
    const EACH: u64 = 2_500;
    for round in 0..ROUNDS {
        let known = Arc::new(std::sync::OnceLock::<Handle<u64, u64>>::new());
        let theirs = Arc::clone(&known);
        let handler = move |seed: u64| work(seed, theirs.get().expect("set before the first"));
        let mut config = config(2, MechanismKind::Probe);
        config.policy.quantum_us = 20.0;
        let builder = Runtime::builder(handler_fn(handler)).config(config);
        let runtime = builder.start().unwrap();
        let handle = runtime.handle();
        known.set(handle.clone()).ok().unwrap();
        let submitted = AtomicU64::new(0);
        let (answered, report) = std::thread::scope(|scope| {
            let submitted = &submitted;
            let threads: Vec<_> = (0..4)
                .map(|thread| {
                    let handle = handle.clone();
                    scope.spawn(move || submit_many(&handle, round * 4 + thread, EACH, submitted))
                })
                .collect();
            // Half of the rounds end in the middle.
            let until = if round % 2 == 0 { 2 * EACH } else { 4 * EACH };
            wait_for("requests", || submitted.load(Ordering::Relaxed) >= until);
            let report = runtime.shutdown(PATIENCE);
            let answered = threads.into_iter().map(|thread| thread.join().unwrap());
            (answered.sum::<u64>(), report)
        });
        assert!(report.is_clean(), "{report}");
        let statistics = report.statistics.unwrap();
        // What handlers submitted is served, too.
        assert!(statistics.finished() >= answered, "{statistics}");
        assert_eq!(statistics.in_system(), 0, "{statistics}");
    }
}

/// Submits, and gives the number of requests that were answered.
fn submit_many(handle: &Handle<u64, u64>, thread: u64, count: u64, submitted: &AtomicU64) -> u64 {
    let (mut answered, mut tickets) = (0, Vec::new());
    let mut settle = |tickets: &mut Vec<(u64, shinjuku::Ticket<u64>)>| {
        for (seed, mut ticket) in tickets.drain(..) {
            match ticket.wait_timeout(PATIENCE).expect("none hangs") {
                Ok(answer) => {
                    assert_eq!(answer, seed);
                    answered += 1;
                }
                Err(error) => assert_eq!(error, TicketError::Refused(Refusal::ShuttingDown)),
            }
        }
    };
    let mut seed = thread.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..count {
        seed = (seed ^ (seed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) + 1;
        if let Ok(ticket) = handle.submit(ClassId(0), seed) {
            tickets.push((seed, ticket));
        }
        submitted.fetch_add(1, Ordering::Relaxed);
        if tickets.len() == 1 + (seed % 64) as usize {
            settle(&mut tickets);
        }
    }
    settle(&mut tickets);
    answered
}

/// Idle loops park. The test has a process of its own, whose time on the CPU it reads.
#[test]
fn an_idle_runtime_is_parked() {
    const CHILD: &str = "SHINJUKU_TEST_IDLE_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let mut command = this_test("symmetric::an_idle_runtime_is_parked");
        must_pass(command.env(CHILD, "1"));
        return;
    }
    let config = Config::default().layout(LayoutKind::Symmetric).workers(2);
    let builder = Runtime::builder(handler_fn(|n: u64| n)).config(config);
    let runtime = builder.start().unwrap();
    assert_eq!(
        runtime.handle().submit(ClassId(0), 1).unwrap().wait(),
        Ok(1)
    );
    std::thread::sleep(Duration::from_millis(20));
    let before = time_on_cpu();
    std::thread::sleep(Duration::from_secs(1));
    let spent = time_on_cpu() - before;
    // Loops that spun would have spent two seconds, or what the machine grants.
    assert!(spent < Duration::from_millis(100), "{spent:?} of a second");
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

fn time_on_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Echoes over UDP by two loops: one transport, or one for each loop.
fn echo_over_udp(transports: Vec<Udp>) {
    let addresses: Vec<_> = transports.iter().map(Udp::local_addr).collect();
    let count = transports.len();
    let echo = handler_fn(|request: Datagram| {
        spin_for(Duration::from_micros(50));
        Some(request.echo())
    });
    let mut config = config(2, MechanismKind::Probe);
    config.policy.quantum_us = 10.0;
    let builder = Runtime::builder(echo).config(config);
    let server = builder.serve_each(transports).unwrap();
    let clients: Vec<_> = (0..8)
        .map(|n| {
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            client.connect(addresses[n % count]).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client
        })
        .collect();
    for round in 0..100u32 {
        for client in &clients {
            client.send(&round.to_le_bytes()).unwrap();
        }
        for client in &clients {
            let mut reply = [0; 4];
            assert_eq!(client.recv(&mut reply).expect("a reply in time"), 4);
            assert_eq!(u32::from_le_bytes(reply), round);
        }
    }
    let (report, transports) = server.shutdown_each(PATIENCE);
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.statistics.unwrap().finished(), 800);
    assert_eq!(transports.len(), count);
}

fn udp() -> Udp {
    Udp::bind(UdpConfig::new("127.0.0.1:0".parse().unwrap())).unwrap()
}

#[test]
fn two_loops_serve_one_network_transport() {
    echo_over_udp(vec![udp()]);
}

#[test]
fn two_loops_serve_a_network_transport_each() {
    echo_over_udp(vec![udp(), udp()]);
}

/// Only polling tells of requests at a socket, so an idle loop polls for the busy one.
#[test]
fn what_comes_to_the_socket_of_a_busy_loop_is_served_by_the_other() {
    let transports = vec![udp(), udp()];
    let addresses: Vec<_> = transports.iter().map(Udp::local_addr).collect();
    let opened = Arc::new(AtomicU64::new(0));
    let (theirs, started) = (Arc::clone(&opened), Arc::new(AtomicU64::new(0)));
    let starts = Arc::clone(&started);
    let handler = handler_fn(move |request: Datagram| {
        let round = u64::from(request[1]);
        match request[0] {
            0 => {
                starts.store(round, Ordering::Release);
                spin_until(|| theirs.load(Ordering::Acquire) == round);
            }
            _ => theirs.store(round, Ordering::Release),
        }
        Some(request.echo())
    });
    let config = two_loops(MechanismKind::None).policy(PolicyConfig::new("c-fcfs"));
    let server = Runtime::builder(handler).config(config);
    let server = server.serve_each(transports).unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(PATIENCE / 2)).unwrap();
    for round in 1..=20u8 {
        let address = addresses[usize::from(round) % 2];
        client.send_to(&[0, round], address).unwrap();
        wait_for("the first", || {
            started.load(Ordering::Acquire) == u64::from(round)
        });
        client.send_to(&[1, round], address).unwrap();
        for _ in 0..2 {
            let mut reply = [0; 2];
            client.recv(&mut reply).expect("a reply in time");
            assert_eq!(reply[1], round);
        }
    }
    assert!(server.shutdown_each(PATIENCE).0.is_clean());
}

#[test]
fn there_is_a_loop_for_each_transport() {
    let start = |config: Config, count: usize| {
        let echo = handler_fn(|request: Datagram| Some(request.echo()));
        let builder = Runtime::builder(echo).config(config);
        let started = builder.serve_each((0..count).map(|_| udp()));
        started.map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(start(config(2, MechanismKind::Probe), 2), Ok(()));
    for (config, count, most) in [
        (config(2, MechanismKind::Probe), 3, "1 to 2"),
        (config(2, MechanismKind::Probe), 0, "1 to 2"),
        (Config::default().layout(LayoutKind::Inline), 2, "1 to 1"),
    ] {
        let error = start(config, count).unwrap_err();
        assert!(error.contains(most), "{error}");
    }
}
