//! Into a context and out again, on one thread: for a whole job, and for one that is preempted at
//! each probe. Beside it, the same with corosensei, whose coroutines keep the thread's own
//! thread-locals. The bare switches are in the cost table (`switch/...`).
#![allow(missing_docs)]
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use criterion::{Criterion, criterion_group, criterion_main};
use shinjuku_preempt::{
    Completion, Generation, Outcome, Pool, PoolConfig, Worker, mailbox, preempt_point,
};

/// Ends a [`Job::Probes`].
static STOP: AtomicBool = AtomicBool::new(false);

#[derive(Clone, Copy, PartialEq, Debug)]
enum Job {
    Empty,
    Probes,
}

fn switch(criterion: &mut Criterion) {
    let config = PoolConfig {
        contexts: 1,
        name: "bench".into(),
        ..PoolConfig::default()
    };
    let Pool { mut idle, handles } = Pool::new(config, |job| {
        while job == Job::Probes && !STOP.load(Ordering::Relaxed) {
            preempt_point();
        }
    })
    .unwrap();
    let mut worker = Worker::bind(0).unwrap();
    let mut group = criterion.benchmark_group("switch");

    let mut generation = 0;
    group.bench_function("start-finish", |bencher| {
        bencher.iter(|| {
            let context = idle.pop().expect("it came back");
            generation += 1;
            match worker.run(context.load(Job::Empty).into(), Generation(generation)) {
                Outcome::Finished(finished) => idle.push(finished.take().0),
                Outcome::Preempted(_) => unreachable!("nobody asked for it"),
            }
        });
    });

    let (mut sender, mut receiver) = mailbox::<Job, ()>(1);
    // Through the mailbox, since only what was sent can be asked to give way.
    group.bench_function("preempt-resume-through-mailbox", |bencher| {
        bencher.iter_custom(|iterations| {
            let context = idle.pop().expect("it came back");
            let mut runnable = context.load(Job::Probes).into();
            STOP.store(false, Ordering::Relaxed);
            let start = Instant::now();
            for _ in 0..iterations {
                let dispatched = sender.send(runnable).expect("there is room");
                dispatched.request();
                let (sent, dispatch) = receiver.poll().expect("it was sent");
                let Outcome::Preempted(suspended) = worker.run(sent, dispatch) else {
                    unreachable!("it was asked for, and has probes left")
                };
                receiver.answer(Completion::Preempted(suspended));
                let Some((_, Completion::Preempted(suspended))) = sender.poll() else {
                    unreachable!("it was answered")
                };
                runnable = suspended.into();
            }
            let time = start.elapsed();
            STOP.store(true, Ordering::Relaxed);
            // Above the generations of mailboxes.
            let Outcome::Finished(finished) =
                worker.run(runnable, Generation(u64::MAX - generation))
            else {
                unreachable!("it was told to stop, and not to give way")
            };
            generation += 1;
            idle.push(finished.take().0);
            time
        });
    });

    group.bench_function("corosensei-start-finish", |bencher| {
        let mut stack = Some(DefaultStack::new(256 * 1024).unwrap());
        bencher.iter(|| {
            let own = stack.take().expect("it came back");
            let mut coroutine = Coroutine::with_stack(own, |_: &Yielder<Job, ()>, job: Job| job);
            let end = coroutine.resume(Job::Empty);
            assert!(matches!(end, CoroutineResult::Return(Job::Empty)));
            stack = Some(coroutine.into_stack());
        });
    });
    group.finish();
    drop(worker);
    handles.hand_back(idle, Duration::from_secs(1));
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600));
    targets = switch
}
criterion_main!(benches);
