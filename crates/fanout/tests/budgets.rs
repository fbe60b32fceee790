//! The unloaded latency against what is computed another way: from sorted samples, by a formula,
//! and by the simulator.
#![forbid(unsafe_code)]

use proptest::prelude::*;
use shinjuku_fanout::{Latencies, unloaded_nanos};
use shinjuku_sim::fanout::tail_guard_budget_ns;

fn measured(samples: &[u64]) -> Latencies {
    let mut latencies = Latencies::new(u32::MAX);
    samples.iter().for_each(|&sample| latencies.record(sample));
    latencies.refresh();
    latencies
}

/// The least time at which the product of the shares reaches `percentile`, value by value.
fn slow_and_obvious(servers: &[Vec<u64>], percentile: f64) -> u64 {
    let mut times: Vec<u64> = servers.iter().flatten().copied().collect();
    times.sort_unstable();
    let share = |samples: &Vec<u64>, time| {
        let within = samples.iter().filter(|&&sample| sample <= time).count();
        within as f64 / samples.len() as f64
    };
    let reached = |&&time: &&u64| {
        let product: f64 = servers.iter().map(|samples| share(samples, time)).product();
        product >= percentile
    };
    *times.iter().find(reached).expect("all are within the last")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_products_percentile_as_computed_value_by_value(
        servers in prop::collection::vec(
            prop::collection::vec(1_u64..5_000_000, 1..300), 1..6),
        percentile in 0.5..0.999,
    ) {
        let latencies: Vec<_> = servers.iter().map(|samples| measured(samples)).collect();
        let ours = unloaded_nanos(latencies.iter(), percentile);
        // A share exactly at the percentile may fall to either side of it.
        let least = slow_and_obvious(&servers, percentile - 1e-6);
        let most = slow_and_obvious(&servers, (percentile + 1e-6).min(1.0));
        prop_assert!(ours >= least, "{ours} {least}");
        prop_assert!(ours <= most + most / 64, "{ours} {most}");
    }
}

/// Exponential times have a closed form: the longest of k is below t with (1 - exp(-t / mean))^k.
#[test]
fn as_the_closed_form_of_exponential_times() {
    let mean = 100_000.0;
    let count = 200_000;
    // The quantiles themselves, in an order that mixes them: no chance is involved.
    let sample = |number: usize| {
        let share = ((number * 7_919) % count) as f64 + 0.5;
        (-mean * (1.0 - share / count as f64).ln()) as u64
    };
    let samples: Vec<_> = (0..count).map(sample).collect();
    let latencies = measured(&samples);
    for fanout in [1, 10, 100] {
        let ours = unloaded_nanos(std::iter::repeat_n(&latencies, fanout), 0.99) as f64;
        let exact = -mean * (1.0 - 0.99_f64.powf(1.0 / fanout as f64)).ln();
        assert!(
            (ours / exact - 1.0).abs() < 0.03,
            "{fanout}: {ours} {exact}"
        );
    }
}

/// The simulator has the whole distribution, sorted; the client a histogram.
#[test]
fn as_the_simulators_budgets() {
    let times: Vec<u64> = (0..50_000_u64)
        .map(|number| 1_000 + number * number / 500)
        .collect();
    let latencies = measured(&times);
    let slo = 10_000_000;
    for fanout in [1, 3, 30, 300] {
        let simulated = tail_guard_budget_ns(&times, slo, fanout, 0.95);
        let unloaded = unloaded_nanos(std::iter::repeat_n(&latencies, fanout), 0.95);
        let difference = simulated - (slo as i64 - unloaded as i64);
        // A bucket is 1.6 % wide.
        assert!(
            difference.abs() <= unloaded as i64 / 60,
            "{fanout}: {difference}"
        );
    }
}
