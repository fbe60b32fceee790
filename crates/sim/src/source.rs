//! Draws requests: gaps, classes, service times and flows, from four non-overlapping streams of
//! random numbers.
//!
//! So with the same seed all policies meet the very same requests, and another load only stretches
//! the gaps.

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use shinjuku_workload::{Gaps, Mix};

use crate::Request;

/// The streams except that of the source's own gaps.
pub(crate) struct Draws {
    classes: Xoshiro256PlusPlus,
    services: Xoshiro256PlusPlus,
    flows: Xoshiro256PlusPlus,
    /// Varies the flows' numbers.
    salt: u64,
    /// For the gaps, and whatever else a model draws.
    pub(crate) gaps: Xoshiro256PlusPlus,
}

impl Draws {
    pub(crate) fn new(seed: u64) -> Self {
        let mut next = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut stream = || {
            let stream = next.clone();
            next.jump();
            stream
        };
        Self {
            classes: stream(),
            services: stream(),
            flows: stream(),
            salt: split_mix(seed, 0),
            gaps: stream(),
        }
    }

    /// A class, and a service time of it in ns.
    pub(crate) fn service(&mut self, mix: &Mix) -> (u16, u64) {
        let class = if mix.classes().len() == 1 {
            0
        } else {
            mix.sample_class(&mut self.classes)
        };
        let service = mix.classes()[usize::from(class)]
            .service
            .sample(&mut self.services);
        (class, (service.round() as u64).max(1))
    }

    /// A flow: one of `flows` equally likely ones, or, for `None`, one never seen before. Each
    /// replication numbers its flows differently, so that each hashes them anew.
    pub(crate) fn flow(&mut self, flows: Option<u32>) -> u64 {
        let random = self.flows.next_u64();
        match flows {
            None => random,
            Some(flows) => {
                let number = (u128::from(random) * u128::from(flows)) >> 64;
                split_mix(self.salt, number as u64)
            }
        }
    }
}

/// An endless series of requests, in the order of their times.
pub(crate) struct Source<'a> {
    mix: &'a Mix,
    gaps: Gaps,
    flows: Option<u32>,
    draws: Draws,
    at_ns: f64,
    number: u64,
}

impl<'a> Source<'a> {
    pub(crate) fn new(mix: &'a Mix, gaps: Gaps, flows: Option<u32>, seed: u64) -> Self {
        Self {
            mix,
            gaps,
            flows,
            draws: Draws::new(seed),
            at_ns: 0.0,
            number: 0,
        }
    }

    /// The next request; its tag is its number, from 0.
    pub(crate) fn next(&mut self) -> Request {
        self.at_ns += self.gaps.next_gap_ns(&mut self.draws.gaps);
        let (class, service_ns) = self.draws.service(self.mix);
        let tag = self.number;
        self.number += 1;
        Request {
            sent_ns: self.at_ns.round() as u64,
            service_ns,
            flow: self.draws.flow(self.flows),
            class,
            tag,
        }
    }
}

/// The seed of replication `number` of a run.
pub(crate) fn replication_seed(seed: u64, number: u64) -> u64 {
    split_mix(seed, number)
}

/// Output `number` of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) with this seed: distinct for
/// distinct numbers.
pub(crate) fn split_mix(seed: u64, number: u64) -> u64 {
    let mut state = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::machine::spread;

    #[test]
    fn each_replication_hashes_its_flows_anew() {
        let (flows, replications) = (300, 400);
        let counts: Vec<f64> = (0..replications)
            .map(|number| {
                let mut draws = Draws::new(replication_seed(1, number));
                let seen: BTreeSet<u64> = (0..8_000).map(|_| draws.flow(Some(flows))).collect();
                assert_eq!(seen.len(), flows as usize);
                seen.iter().filter(|flow| spread(**flow, 2) == 0).count() as f64
            })
            .collect();
        // On the first of two queues: Bin(300, 1/2). Four standard deviations are allowed.
        let n = replications as f64;
        let mean = counts.iter().sum::<f64>() / n;
        let variance = counts.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
        assert!((mean - 150.0).abs() < 4.0 * (75.0 / n).sqrt(), "{mean}");
        assert!(
            (variance / 75.0 - 1.0).abs() < 4.0 * (2.0 / n).sqrt(),
            "{variance}"
        );
    }
}
