//! When a core is there for the server: other programs' work on it goes first.
//!
//! Bursts of such work come at random to each core, take a time at random, and queue behind each
//! other. To the server the core is gone until they are done (preemptive-resume priority), so an
//! M/M/1 server under it has a closed form: [`crate::theory::mm1_beside_bursts`].

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::Overheads;
use crate::calendar::NEVER;

/// One core's absences, drawn as time goes on.
pub(crate) struct Presence {
    every_ns: f64,
    burst_ns: f64,
    random: Xoshiro256PlusPlus,
    /// When the next burst comes that is not yet in the absence.
    next_burst_ns: f64,
    /// The last absence drawn, which no question asks beyond: its begin and its end.
    from_ns: u64,
    until_ns: u64,
}

impl Presence {
    pub(crate) fn new(overheads: &Overheads, seed: u64) -> Self {
        let mut presence = Self {
            every_ns: overheads.away_every_ns as f64,
            burst_ns: overheads.away_ns as f64,
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            next_burst_ns: 0.0,
            from_ns: NEVER,
            until_ns: NEVER,
        };
        if overheads.away_every_ns > 0 {
            presence.next_burst_ns = presence.draw(presence.every_ns);
            presence.advance();
        }
        presence
    }

    /// When work of `work_ns` is done that the core takes up at `from_ns`, or as soon as it is
    /// there. Questions come in the order of time.
    pub(crate) fn after(&mut self, mut from_ns: u64, mut work_ns: u64) -> u64 {
        loop {
            if self.until_ns <= from_ns {
                self.advance();
            } else if self.from_ns <= from_ns {
                from_ns = self.until_ns;
            } else if work_ns <= self.from_ns - from_ns {
                return from_ns + work_ns;
            } else {
                work_ns -= self.from_ns - from_ns;
                from_ns = self.until_ns;
            }
        }
    }

    fn draw(&mut self, mean_ns: f64) -> f64 {
        -mean_ns * (1.0 - self.random.random::<f64>()).ln()
    }

    /// Draws the next absence.
    fn advance(&mut self) {
        let begin_ns = self.next_burst_ns;
        let mut end_ns = begin_ns + self.draw(self.burst_ns);
        self.next_burst_ns += self.draw(self.every_ns);
        while self.next_burst_ns < end_ns {
            end_ns += self.draw(self.burst_ns);
            self.next_burst_ns += self.draw(self.every_ns);
        }
        (self.from_ns, self.until_ns) = (begin_ns.round() as u64, end_ns.round() as u64);
    }
}
