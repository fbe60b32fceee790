//! Draws requests: gaps, classes, service times and flows, from four streams of random numbers that do not overlap.
//!
//! So with the same seed all policies meet the very same requests, and another load only stretches the gaps.

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use shinjuku_workload::{Gaps, Mix};

use crate::Request;

/// The streams, except for the gaps.
pub(crate) struct Draws {
    classes: Xoshiro256PlusPlus,
    services: Xoshiro256PlusPlus,
    flows: Xoshiro256PlusPlus,
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

    /// A flow: one of `flows` equally likely ones, or, without a number, one never seen before.
    pub(crate) fn flow(&mut self, flows: Option<u32>) -> u64 {
        let random = self.flows.next_u64();
        match flows {
            None => random,
            Some(flows) => ((u128::from(random) * u128::from(flows)) >> 64) as u64,
        }
    }
}

/// Requests without end, in the order of their times.
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

/// The seed of replication `number` of a run: the output of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
pub(crate) fn replication_seed(seed: u64, number: u64) -> u64 {
    let mut state = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}
