//! The operations of the table of costs that one thread can time by itself, one iteration a batch.
#![allow(missing_docs)]
#![forbid(unsafe_code)]

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use shinjuku_bench::costs::operations;

fn costs(criterion: &mut Criterion) {
    for mut operation in operations::all().expect("the operations can be set up") {
        let (group, row) = operation.name.split_once('/').expect("group/row");
        let (group, row) = (group.to_owned(), row.to_owned());
        let mut group = criterion.benchmark_group(group);
        group.throughput(Throughput::Elements(operation.batch));
        group.bench_function(row, |bencher| {
            bencher.iter_custom(|iterations| operation.time(iterations));
        });
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600));
    targets = costs
}
criterion_main!(benches);
