//! The dispatcher alone: requests a second through arrival, decision, message there and back, with
//! stub workers that answer from the other core without running anything. Every iteration is one
//! request.
#![allow(missing_docs)]

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use shinjuku::Config;
use shinjuku::stub::{Layout, StubWorkers};

fn dispatcher(criterion: &mut Criterion) {
    let layout = Layout::plan(&Config::default().workers(1)).expect("two cores");
    let mut group = criterion.benchmark_group("dispatcher");
    group
        .throughput(Throughput::Elements(1))
        .sample_size(20)
        .measurement_time(Duration::from_secs(2))
        .warm_up_time(Duration::from_millis(500));
    for name in ["c-fcfs", "c-pre-sq"] {
        for (workers, depth) in [(1, 1), (1, 4), (8, 1), (8, 4)] {
            let mut config = Config::default()
                .contexts(64)
                .queue(1024)
                .depth(depth)
                .realtime_priority(10);
            config.policy.kind = name.into();
            let mut stubs =
                StubWorkers::start(&config, &layout, workers, 128).expect("64 contexts");
            group.bench_function(
                format!("{name}/{workers}-workers/depth-{depth}"),
                |bencher| {
                    bencher.iter_custom(|iterations| {
                        let start = Instant::now();
                        stubs.serve(iterations);
                        start.elapsed()
                    });
                },
            );
        }
    }
    group.finish();
}

criterion_group!(benches, dispatcher);
criterion_main!(benches);
