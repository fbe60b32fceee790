//! How many events a second the simulator handles on one core.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use shinjuku_policy::{Nanos, cfcfs, single_queue};
use shinjuku_sim::{Scenario, Scheduler};
use shinjuku_workload::Mix;

fn events(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("events");
    group.sample_size(10);
    let single_queue =
        || Scheduler::of(single_queue::REGISTERED).with_quantum(Nanos::from_micros(5));
    let cases = [
        ("sq-16-cores-exp", "exp", single_queue()),
        ("sq-16-cores-hi", "hi", single_queue()),
        (
            "c-fcfs-16-cores-exp",
            "exp",
            Scheduler::of(cfcfs::REGISTERED),
        ),
        ("ps-16-cores-hi", "hi", Scheduler::sharing()),
    ];
    for (name, mix, policy) in cases {
        let mix = Mix::named(mix).expect("a named mix");
        let scenario = Scenario::new(mix, 0.8, policy, 16).with_requests(200_000);
        let events = scenario.run(1).expect("the scenario is valid").events;
        group.throughput(Throughput::Elements(events));
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| black_box(scenario.run(1)));
        });
    }
    group.finish();
}

criterion_group!(benches, events);
criterion_main!(benches);
