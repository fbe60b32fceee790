//! Jobs that follow each other on one context, without a switch in between (`Worker::run_on`).

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use shinjuku_preempt::{
    Clock, Completion, Cycles, DeadlineTimer, Dispatched, Ended, HardPreemption, Panicked,
    PoolConfig, Runnable, Signal, Suspended, Worker, current_worker, mailbox, preempt_point,
};
use shinjuku_tests_support::contexts::{Job, OneThread};

const PATIENCE: Duration = Duration::from_secs(20);

/// A worker on this thread, with one context.
struct Stage(OneThread);

fn job(body: impl FnOnce() -> u64 + Send + 'static) -> Job {
    Box::new(body)
}

impl Stage {
    fn new() -> Self {
        let config = PoolConfig::default().contexts(1);
        Self(OneThread::new(config, |job: Job| job()))
    }

    /// Runs `first`, and then the jobs that `next` returns. `next` gets the last job's result, and
    /// the dispatch that asks the following job to give way.
    fn run_on(
        &mut self,
        first: impl Into<Runnable<Job, u64>>,
        mut next: impl FnMut(Ended<u64>, &mut Dispatched) -> Option<Job>,
    ) -> Option<Suspended<Job, u64>> {
        let thread = &mut self.0;
        let mut dispatched = thread.send(first);
        let (runnable, generation) = thread.receiver.poll().unwrap();
        let sender = &mut thread.sender;
        let completion = thread.worker.run_on(runnable, generation, &mut |ended| {
            // Requests made in `next` are for the job that it returns.
            let generation = sender.renew(&mut dispatched);
            Some((next(ended, &mut dispatched)?, generation))
        });
        thread.receiver.answer(completion);
        thread.answer()
    }

    fn load(&mut self, body: impl FnOnce() -> u64 + Send + 'static) -> Runnable<Job, u64> {
        self.0.load(job(body))
    }
}

#[test]
fn each_job_is_told_of_once_and_in_order() {
    thread_local! {
        static JOBS: Cell<u64> = const { Cell::new(0) };
    }
    let mut stage = Stage::new();
    let count = || {
        JOBS.set(JOBS.get() + 1);
        JOBS.get()
    };
    let mut told = Vec::new();
    let first = stage.load(count);
    let suspended = stage.run_on(first, |ended, _| {
        told.push(ended.result);
        match told.len() {
            100 => None,
            50 => Some(job(|| panic!("meant"))),
            _ => Some(job(count)),
        }
    });
    assert!(suspended.is_none());
    let (before, after) = ((1..=50).map(Ok), (51..=99).map(Ok));
    let expected: Vec<_> = before.chain([Err(Panicked)]).chain(after).collect();
    assert_eq!(told, expected, "the context's thread-local counts");

    // The context is intact, whether or not its last job was reported.
    assert_eq!(stage.0.run(job(count)).ok(), Some(100));
    assert_eq!(JOBS.get(), 0, "this thread's own");
}

#[test]
fn a_request_stops_the_job_that_it_is_for_and_no_later_one() {
    let mut stage = Stage::new();
    let first = stage.load(|| 1);
    let mut told = Vec::new();
    let suspended = stage.run_on(first, |ended, dispatched| {
        told.push(ended.result.unwrap());
        if told.len() == 2 {
            // This comes before the third begins, and must not be lost.
            dispatched.request();
        }
        (told.len() < 4).then(|| {
            let value = told.len() as u64 + 1;
            job(move || {
                preempt_point();
                value
            })
        })
    });
    let suspended = suspended.expect("the third was asked to give way");
    assert_eq!(told, [1, 2]);
    let counters = stage.0.counters();
    assert_eq!((counters.taken_at_guard, counters.taken()), (1, 1));

    // The third goes on, and the fourth, without a request, runs through. (The request itself is
    // spent.)
    let mut later = Vec::new();
    let rest = stage.run_on(suspended, |ended, _| {
        later.push(ended.result.unwrap());
        (later.len() < 2).then(|| job(|| 4))
    });
    assert!(rest.is_none());
    assert_eq!(later, [3, 4]);
    assert_eq!(stage.0.counters().taken(), 1);
}

#[test]
fn a_request_for_the_job_before_does_nothing() {
    let mut stage = Stage::new();
    let first = stage.load(|| 1);
    let thread = &mut stage.0;
    let mut dispatched = thread.send(first);
    let (runnable, generation) = thread.receiver.poll().unwrap();
    let sender = &mut thread.sender;
    let mut told = Vec::new();
    let completion = thread.worker.run_on(runnable, generation, &mut |ended| {
        told.push(ended.result.unwrap());
        // The job has ended, and the next one is another dispatch.
        dispatched.request();
        let generation = sender.renew(&mut dispatched);
        let second = job(|| {
            preempt_point();
            2
        });
        (told.len() < 2).then_some((second, generation))
    });
    let Completion::Finished(idle) = completion else {
        panic!("the second was not asked to give way");
    };
    assert_eq!(told, [1, 2]);
    assert_eq!(thread.counters().taken(), 0);
    thread.idle.push(idle);
}

#[test]
fn the_worker_that_resumes_a_job_is_told_of_its_end() {
    let mut stage = Stage::new();
    let first = stage.load(|| 1);
    let mut told = Vec::new();
    let suspended = stage.run_on(first, |ended, dispatched| {
        told.push(ended.result.unwrap());
        dispatched.request();
        Some(job(|| u64::from(current_worker().unwrap())))
    });
    let mut suspended = suspended.expect("asked to give way");
    suspended.add_run_time(Cycles(7));
    suspended.note_start(Cycles(3));
    suspended.note_start(Cycles(5));

    let elsewhere = std::thread::spawn(move || {
        let mut worker = Worker::bind(2).unwrap();
        let (mut sender, mut receiver) = mailbox(1);
        let Ok(mut dispatched) = sender.send(suspended.into()) else {
            panic!("no room");
        };
        let (runnable, generation) = receiver.poll().unwrap();
        let mut told = Vec::new();
        let completion = worker.run_on(runnable, generation, &mut |ended| {
            told.push((ended.result.unwrap(), ended.run_time, ended.first_start));
            let generation = sender.renew(&mut dispatched);
            (told.len() < 2).then(|| (job(|| 3), generation))
        });
        (completion, told)
    });
    let (completion, told_elsewhere) = elsewhere.join().unwrap();
    let Completion::Finished(idle) = completion else {
        panic!("no more requests were made");
    };
    stage.0.idle.push(idle);
    assert_eq!(told, [1], "and of no more");
    assert_eq!(
        told_elsewhere,
        [(2, Cycles(7), Some(Cycles(3))), (3, Cycles(0), None)],
        "each with its own time"
    );
}

#[test]
fn a_job_begun_in_succession_can_end_at_a_worker_that_wants_its_result() {
    let mut stage = Stage::new();
    let first = stage.load(|| 1);
    let suspended = stage.run_on(first, |_, dispatched| {
        dispatched.request();
        Some(job(|| 2))
    });
    let suspended = suspended.expect("asked to give way");
    stage.0.send(suspended);
    assert_eq!(stage.0.step().ok(), Some(2));
}

#[test]
fn a_panic_of_the_successor_is_the_workers_own() {
    let mut stage = Stage::new();
    let first = stage.load(|| 1);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        stage.run_on(first, |_, _| panic!("meant"))
    }));
    assert_eq!(*caught.unwrap_err().downcast::<&str>().unwrap(), "meant");
    assert!(!std::thread::panicking());
    // The job's context is leaked.
    stage.0.handles.take();
}

const QUANTUM: Duration = Duration::from_millis(2);

/// The timer stops the second job, which has no probes. The thread loses its core for `before` and
/// `after`, the times before and after the job's moment is stored. A timer of the first job, of a
/// tenth of the time, is left over.
fn stop_the_second(before: Duration, after: Duration) {
    let mut stage = Stage::new();
    // SAFETY: the test's jobs rely on nothing that the token's contract excludes.
    let signal = Signal::install(unsafe { HardPreemption::allow() }).unwrap();
    let mut timer = DeadlineTimer::new(signal).unwrap();
    let quantum = Clock::get().to_cycles(QUANTUM.as_nanos() as u64);
    let first = stage.load(|| 1);
    let left_over = Cycles(quantum.0 / 10);
    timer.arm(left_over);
    let suspended = stage.run_on(first, |ended, dispatched| {
        if ended.result == Ok(2) {
            return None;
        }
        timer.disarm();
        // In a dispatcher's order: an approximate moment, the timer, the exact moment.
        dispatched.request_at(Cycles(Cycles::now().0 + quantum.0));
        let start = timer.arm(quantum);
        std::thread::sleep(before);
        dispatched.request_at(Cycles(start.0 + quantum.0));
        std::thread::sleep(after);
        Some(job(|| {
            let start = Instant::now();
            while start.elapsed() < PATIENCE {
                std::hint::spin_loop();
            }
            2
        }))
    });
    timer.disarm();
    assert!(suspended.is_some(), "it was not stopped");
    assert_eq!(stage.0.counters().taken(), 1);
    // The job is not resumed, and its context not handed back: it would spin on.
    stage.0.handles.take();
}

#[test]
fn the_timer_stops_a_later_job() {
    stop_the_second(Duration::ZERO, Duration::ZERO);
}

#[test]
fn a_timer_left_over_that_fires_before_the_moment_is_said_fires_again() {
    stop_the_second(QUANTUM / 2, Duration::ZERO);
}

#[test]
fn a_timer_that_fires_on_the_way_into_a_later_job_is_not_lost() {
    stop_the_second(Duration::ZERO, 2 * QUANTUM);
}
