//! The mailbox by itself, both ends on one thread: a context there and back without being run. What
//! the two cores' caches add is in the cost table (`cache-line/...`).
#![allow(missing_docs)]
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use shinjuku_preempt::{
    Completion, Idle, Pool, PoolConfig, Receiver, Runnable, Sender, mailbox as new_mailbox,
};

type Ends = (Sender<u64, ()>, Receiver<u64, ()>);

/// The worker's part: takes a context, its job unserved, and answers.
fn serve((_, receiver): &mut Ends) {
    let Some((Runnable::Ready(ready), _)) = receiver.poll() else {
        unreachable!("one was sent")
    };
    let (idle, job) = ready.unload();
    black_box(job);
    receiver.answer(Completion::Finished(idle));
}

fn send((sender, _): &mut Ends, idle: Idle<u64, ()>) {
    let sent = sender.send(idle.load(1).into());
    assert!(sent.is_ok(), "there is room");
}

fn poll((sender, _): &mut Ends) -> Idle<u64, ()> {
    match sender.poll() {
        Some((_, Completion::Finished(idle))) => idle,
        other => unreachable!("one was answered, not {other:?}"),
    }
}

fn mailbox(criterion: &mut Criterion) {
    let config = PoolConfig {
        contexts: 4,
        name: "bench".into(),
        ..PoolConfig::default()
    };
    let Pool { mut idle, handles } = Pool::new(config, |_: u64| ()).unwrap();
    let mut group = criterion.benchmark_group("mailbox");
    group.throughput(Throughput::Elements(1));
    group.bench_function("empty-poll", |bencher| {
        let (_, mut receiver) = new_mailbox::<u64, ()>(1);
        bencher.iter(|| receiver.poll().is_none());
    });
    group.bench_function("there-and-back", |bencher| {
        let mut ends = new_mailbox(1);
        bencher.iter(|| {
            let context = idle.pop().expect("it came back");
            send(&mut ends, context);
            serve(&mut ends);
            idle.push(poll(&mut ends));
        });
    });
    group.bench_function("send-and-recall", |bencher| {
        let (mut sender, _receiver) = new_mailbox(1);
        bencher.iter(|| {
            let context = idle.pop().expect("it came back");
            assert!(sender.send(context.load(1).into()).is_ok());
            match sender.recall() {
                Some(Runnable::Ready(ready)) => idle.push(ready.unload().0),
                other => unreachable!("nobody took it, but {other:?}"),
            }
        });
    });
    group.throughput(Throughput::Elements(4));
    group.bench_function("four-there-and-back", |bencher| {
        let mut ends = new_mailbox(4);
        bencher.iter(|| {
            for context in idle.drain(..) {
                send(&mut ends, context);
            }
            for _ in 0..4 {
                serve(&mut ends);
            }
            for _ in 0..4 {
                idle.push(poll(&mut ends));
            }
        });
    });
    group.finish();
    handles.hand_back(idle, Duration::from_secs(1));
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600));
    targets = mailbox
}
criterion_main!(benches);
