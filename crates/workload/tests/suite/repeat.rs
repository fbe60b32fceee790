use rand_distr::{Distribution, Exp1};
use shinjuku_workload::repeat::{PairedRatio, Spread, median};

use crate::statistics::rng;

#[test]
fn medians_and_spreads() {
    assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
    assert_eq!(median(&[]), None);
    assert_eq!(median(&[1.0, f64::NAN]), None);
    let spread = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
    assert_eq!(
        spread,
        Spread {
            median: 2.0,
            min: 1.0,
            max: 3.0
        }
    );
    assert_eq!(format!("{spread:.1}"), "2.0 (1.0..3.0)");
    assert_eq!(spread.to_string(), "2 (1..3)");
}

/// Ratios 1, 2, ..., n in a scrambled order.
fn pairs(n: u32) -> Vec<(f64, f64)> {
    (0..n)
        .map(|i| (f64::from((i * 7) % n + 1) * 3.0, 3.0))
        .collect()
}

/// Ranks from tables of the binomial distribution.
#[test]
fn bounds_are_the_order_statistics_of_the_sign_test() {
    for (n, confidence, upper) in [
        (4, 0.95, None),      // 1 - 1/16 falls short
        (5, 0.95, Some(5.0)), // 1 - 1/32
        (8, 0.95, Some(7.0)), // 1 - 9/256
        (10, 0.95, Some(9.0)),
        (10, 0.94, Some(8.0)), // 1 - 56/1024
        (20, 0.95, Some(15.0)),
        (6, 0.99, None),
        (8, 0.99, Some(8.0)),
    ] {
        let compared = PairedRatio::of(&pairs(n), confidence).unwrap();
        assert_eq!(compared.upper, upper, "{n} pairs at {confidence}");
        assert_eq!(compared.lower, upper.map(|rank| f64::from(n) + 1.0 - rank));
        assert_eq!(compared.ratio.max, f64::from(n));
    }
    // Large n, by the normal approximation: 2500 + 1.645 * 35.36 + 1/2.
    let upper = PairedRatio::of(&pairs(5_001), 0.95).unwrap().upper.unwrap();
    assert!((2_556.0..2_562.0).contains(&upper), "{upper}");
}

/// How often a bound at 90 % holds for a skewed distribution with few pairs.
#[test]
fn bounds_hold_as_often_as_they_say() {
    let mut rng = rng(8);
    let trials = 2_000;
    let (mut above, mut below) = (0, 0);
    for _ in 0..trials {
        // The ratio of two exponentials has median 1.
        let mut draw = || -> f64 { Exp1.sample(&mut rng) };
        let pairs: Vec<_> = (0..7).map(|_| (draw(), draw())).collect();
        let compared = PairedRatio::of(&pairs, 0.9).unwrap();
        above += usize::from(compared.upper.unwrap() >= 1.0);
        below += usize::from(compared.lower.unwrap() <= 1.0);
    }
    // 7 pairs at 90 %: the sixth smallest, which holds in 1 - 8/128 of the cases.
    crate::statistics::assert_share("upper", above, trials, 1.0 - 8.0 / 128.0);
    crate::statistics::assert_share("lower", below, trials, 1.0 - 8.0 / 128.0);
}

#[test]
fn figures_that_have_no_ratio_are_refused() {
    assert_eq!(PairedRatio::of(&[], 0.95), None);
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(PairedRatio::of(&[(1.0, 2.0), (1.0, bad)], 0.95), None);
        assert_eq!(PairedRatio::of(&[(bad, 2.0)], 0.95), None);
    }
    for confidence in [0.5, 1.0, f64::NAN] {
        assert_eq!(PairedRatio::of(&[(1.0, 2.0)], confidence), None);
    }
}
