//! Contenders compared seed by seed: the same arrivals for both, so that what differs is theirs.

use shinjuku_workload::repeat::PairedRatio;

use super::contender::Contender;
use super::mixes::BenchMix;
use super::point::Point;
use crate::report::results::Paired;

/// Confidence of each bound.
const CONFIDENCE: f64 = 0.95;

/// Every contender against c-FCFS, by the p99 of the mix's leading class.
pub fn pair(mix: &BenchMix, load: f64, contenders: &[Contender], points: &[Point]) -> Vec<Paired> {
    let Some(base) = contenders.iter().position(|one| *one == Contender::FCFS) else {
        return Vec::new();
    };
    let class = mix.leading_class();
    let against = points[base].p99s_us(mix, class);
    (0..contenders.len())
        .filter(|&at| at != base)
        .map(|at| {
            let measured = !points[base].is_saturated() && !points[at].is_saturated();
            let pairs = if measured {
                by_seed(&points[at].p99s_us(mix, class), &against)
            } else {
                Vec::new()
            };
            let ratio = Ratio::of(&pairs);
            Paired {
                mix: mix.mix.name().to_owned(),
                load,
                class,
                contender: contenders[at].name(),
                against: contenders[base].name(),
                pairs: pairs.len() as u32,
                ratio: ratio.median,
                ratio_low: ratio.low,
                ratio_high: ratio.high,
                confidence: ratio.confidence,
            }
        })
        .collect()
}

/// The pairs of which both are there.
fn by_seed(own: &[Option<f64>], against: &[Option<f64>]) -> Vec<(f64, f64)> {
    own.iter()
        .zip(against)
        .filter_map(|(own, against)| own.zip(*against))
        .collect()
}

/// What pairs say together.
#[derive(Debug, PartialEq)]
struct Ratio {
    median: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    confidence: Option<f64>,
}

impl Ratio {
    /// With too few pairs for a bound of [`CONFIDENCE`], the range seen and no confidence.
    fn of(pairs: &[(f64, f64)]) -> Self {
        let ratio = PairedRatio::of(pairs, CONFIDENCE);
        let bounds = ratio.and_then(|ratio| ratio.lower.zip(ratio.upper));
        let range = ratio.map(|ratio| (ratio.ratio.min, ratio.ratio.max));
        let (low, high) = bounds.or(range).unzip();
        Self {
            median: ratio.map(|ratio| ratio.ratio.median),
            low,
            high,
            confidence: bounds.map(|_| CONFIDENCE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_repetition_shifts_no_pair() {
        let own = [Some(1.0), None, Some(3.0)];
        let against = [Some(10.0), Some(20.0), Some(30.0)];
        assert_eq!(by_seed(&own, &against), [(1.0, 10.0), (3.0, 30.0)]);
        assert_eq!(by_seed(&against, &own), [(10.0, 1.0), (30.0, 3.0)]);
    }

    #[test]
    fn four_pairs_have_a_range_and_five_a_confidence() {
        let pairs = [(1.0, 1.0), (2.0, 1.0), (3.0, 1.0), (4.0, 1.0), (5.0, 1.0)];
        let few = Ratio::of(&pairs[..4]);
        assert_eq!((few.median, few.confidence), (Some(2.5), None));
        assert_eq!((few.low, few.high), (Some(1.0), Some(4.0)));
        assert_eq!(Ratio::of(&pairs).confidence, Some(CONFIDENCE));
        assert_eq!(Ratio::of(&pairs).high, Some(5.0));
    }

    #[test]
    fn without_pairs_nothing_is_claimed() {
        let none = Ratio::of(&[]);
        assert_eq!(
            (none.median, none.high, none.confidence),
            (None, None, None)
        );
    }
}
