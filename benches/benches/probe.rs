//! Probes that are never taken, and the guard, in a context: per iteration of a loop that waits for
//! memory, of one that the compiler would vectorise, and of one that only polls.
#![allow(missing_docs)]
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use shinjuku_preempt::{
    Generation, Outcome, Pool, PoolConfig, Worker, preempt_point, without_preemption,
};

/// 16 KiB: fits into the first-level cache.
const ELEMENTS: usize = 2048;

/// A loop over the numbers.
type Body = fn(&[usize]) -> usize;

const BODIES: [(&str, Body); 7] = [
    ("chase/bare", |ring| chase(ring, || ())),
    ("chase/probe", |ring| chase(ring, preempt_point)),
    ("sum/bare", |numbers| sum(numbers, || ())),
    ("sum/probe", |numbers| sum(numbers, preempt_point)),
    ("sum/probe-every-64", |numbers| {
        let strips = numbers.chunks(64);
        strips.fold(0, |total, strip| {
            preempt_point();
            total.wrapping_add(sum(strip, || ()))
        })
    }),
    ("poll/probe", |numbers| {
        numbers.iter().for_each(|_| preempt_point());
        0
    }),
    ("poll/guard", |numbers| {
        for number in numbers {
            without_preemption(|| black_box(number));
        }
        0
    }),
];

#[inline(always)]
fn chase(ring: &[usize], probe: impl Fn()) -> usize {
    let mut at = 0;
    for _ in 0..ring.len() {
        at = ring[at];
        probe();
    }
    at
}

#[inline(always)]
fn sum(numbers: &[usize], probe: impl Fn()) -> usize {
    let mut sum = 0usize;
    for number in numbers {
        sum = sum.wrapping_add(*number);
        probe();
    }
    sum
}

fn probe(criterion: &mut Criterion) {
    // One cycle through all elements: the stride is odd, and the number of elements a power of two.
    let ring: Vec<usize> = (0..ELEMENTS).map(|at| (at + 1021) % ELEMENTS).collect();
    let config = PoolConfig {
        contexts: 1,
        name: "bench".into(),
        ..PoolConfig::default()
    };
    let Pool { mut idle, handles } = Pool::new(config, move |(body, times): (Body, u64)| {
        let start = Instant::now();
        for _ in 0..times {
            black_box(body(black_box(&ring)));
        }
        start.elapsed()
    })
    .unwrap();
    let mut worker = Worker::bind(0).unwrap();
    let mut generation = 0;
    let mut group = criterion.benchmark_group("probe");
    group.throughput(Throughput::Elements(ELEMENTS as u64));
    for (name, body) in BODIES {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| {
                let context = idle.pop().expect("it came back");
                generation += 1;
                let ready = context.load((body, iterations)).into();
                let Outcome::Finished(finished) = worker.run(ready, Generation(generation)) else {
                    unreachable!("nobody asked for it")
                };
                let (context, time) = finished.take();
                idle.push(context);
                time.expect("no body panics")
            });
        });
    }
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
    targets = probe
}
criterion_main!(benches);
