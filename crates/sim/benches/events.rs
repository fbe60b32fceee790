//! How many events a second the simulator handles on one core.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use shinjuku_policy::Nanos;
use shinjuku_sim::{PolicySpec, Scenario};
use shinjuku_workload::Mix;

fn events(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("events");
    group.sample_size(10);
    let single_queue = || PolicySpec::SingleQueue {
        quantum: Nanos::from_micros(5),
    };
    let cases = [
        ("sq-16-cores-exp", "exp", single_queue()),
        ("sq-16-cores-hi", "hi", single_queue()),
        ("c-fcfs-16-cores-exp", "exp", PolicySpec::CFcfs),
        ("ps-16-cores-hi", "hi", PolicySpec::Sharing),
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
