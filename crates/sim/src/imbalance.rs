//! How many connections hashing needs to spread them evenly over queues (after figure 4 of the
//! Shinjuku paper, section 3.6).
//!
//! A NIC hashes every connection to a queue, and a distributed-queue system serves each queue on
//! its own core or dispatcher. The *imbalance* of a draw is the fullest queue over the mean, minus
//! one. This measure is ours; the paper does not define its own.

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rayon::prelude::*;

use crate::source::replication_seed;

/// The share of `draws` random placements of `connections` on `queues` whose imbalance is below
/// `limit`, for example 0.1. The same seed gives the same share, whatever the number of threads.
///
/// # Panics
/// If there are no queues or no draws.
#[must_use]
pub fn balanced_share(connections: u32, queues: u32, limit: f64, draws: u32, seed: u64) -> f64 {
    assert!(queues > 0 && draws > 0, "there is nothing to draw");
    let most = (1.0 + limit) * f64::from(connections) / f64::from(queues);
    let balanced = (0..draws)
        .into_par_iter()
        .filter(|draw| {
            let mut random =
                Xoshiro256PlusPlus::seed_from_u64(replication_seed(seed, u64::from(*draw)));
            let mut lengths = vec![0_u32; queues as usize];
            for _ in 0..connections {
                lengths[random.random_range(0..queues as usize)] += 1;
            }
            lengths.iter().all(|length| f64::from(*length) < most)
        })
        .count();
    balanced as f64 / f64::from(draws)
}

/// About the smallest number of connections with which the share of draws whose imbalance is below
/// `limit` is at least `confidence`. Found by bisection over numbers of two significant digits.
///
/// # Panics
/// As [`balanced_share`]; or if ten million connections are not enough.
#[must_use]
pub fn connections_needed(queues: u32, limit: f64, confidence: f64, draws: u32, seed: u64) -> u32 {
    let candidates: Vec<u32> = (1..=6)
        .flat_map(|power| (10..100).map(move |digits| digits * 10_u32.pow(power - 1)))
        .collect();
    let enough =
        |connections| balanced_share(connections, queues, limit, draws, seed) >= confidence;
    let at = candidates.partition_point(|connections| !enough(*connections));
    assert!(
        at < candidates.len(),
        "ten million connections are not enough"
    );
    candidates[at]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_queues_agree_with_the_binomial() {
        // 300 connections on two queues: the fuller has fewer than 165, P(136 <= Bin(300, 1/2) <=
        // 164).
        let mut term = -300.0 * std::f64::consts::LN_2;
        let mut exact = 0.0;
        for k in 0..=164_u32 {
            if k >= 136 {
                exact += term.exp();
            }
            term += (f64::from(300 - k) / f64::from(k + 1)).ln();
        }
        let draws = 20_000;
        let drawn = balanced_share(300, 2, 0.1, draws, 1);
        let deviation = (exact * (1.0 - exact) / f64::from(draws)).sqrt();
        assert!((drawn - exact).abs() < 4.0 * deviation, "{drawn} {exact}");
    }

    #[test]
    fn one_queue_is_always_balanced() {
        assert_eq!(balanced_share(10, 1, 0.1, 10, 1), 1.0);
        assert_eq!(connections_needed(1, 0.1, 0.9, 10, 1), 10);
    }
}
