//! When a point is saturated: it cannot keep up with what it is offered, so its latency is a matter
//! of how long one waits.

use std::iter::Sum;
use std::ops::AddAssign;

use super::results::{COUNTING_NOISE, SATURATION_THROUGHPUT};

/// Requests of one class, counted over one burst or several.
///
/// `offered` and `finished` are counted in one window, from the first fifth of a burst to its last
/// arrival; windows of several bursts are pooled before they are judged, since what happens to wait
/// at one window's end says little.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Arrived in the window.
    pub offered: u64,
    /// Finished in the window, whenever they arrived.
    pub finished: u64,
    /// Refused, at any time.
    pub refused: u64,
    /// Neither finished nor refused when patience ended.
    pub unfinished: u64,
}

impl Counts {
    /// Whether requests were lost, or clearly fewer finished than arrived: fewer than
    /// [`SATURATION_THROUGHPUT`] of them, and by more than [`COUNTING_NOISE`]. Of 900 requests 1 %
    /// is nine, and a stable queue is as long as that at times; of 90,000 and more the 1 % alone
    /// decides.
    fn falls_behind(&self) -> bool {
        let offered = self.offered as f64;
        let missing = offered - self.finished as f64;
        self.refused > 0
            || self.unfinished > 0
            || missing
                > ((1.0 - SATURATION_THROUGHPUT) * offered).max(COUNTING_NOISE * offered.sqrt())
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.offered += other.offered;
        self.finished += other.finished;
        self.refused += other.refused;
        self.unfinished += other.unfinished;
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |mut sum, one| {
            sum += one;
            sum
        })
    }
}

/// Whether a point with these classes is saturated: all of them together, or one that a policy
/// starves for the others.
pub fn is_saturated(classes: &[Counts]) -> bool {
    let all: Counts = classes.iter().copied().sum();
    all.falls_behind() || classes.iter().any(Counts::falls_behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(offered: u64, finished: u64) -> Counts {
        Counts {
            offered,
            finished,
            ..Counts::default()
        }
    }

    #[test]
    fn one_per_cent_decides_where_it_can_be_told() {
        assert!(!is_saturated(&[counts(200_000, 198_001)]));
        assert!(is_saturated(&[counts(200_000, 197_999)]));
    }

    #[test]
    fn few_requests_may_be_short_by_their_counting_noise() {
        assert!(!is_saturated(&[counts(900, 811)]));
        assert!(is_saturated(&[counts(900, 809)]));
        assert!(!is_saturated(&[counts(0, 3)]));
    }

    #[test]
    fn a_starved_class_saturates_the_point() {
        let well = counts(100_000, 100_000);
        assert!(!is_saturated(&[well, counts(500, 480)]));
        assert!(is_saturated(&[well, counts(500, 400)]));
    }

    #[test]
    fn a_lost_request_saturates_the_point() {
        let well = counts(100_000, 100_000);
        let refused = Counts { refused: 1, ..well };
        let unfinished = Counts {
            unfinished: 1,
            ..well
        };
        assert!(is_saturated(&[well, refused]) && is_saturated(&[unfinished, well]));
    }
}
