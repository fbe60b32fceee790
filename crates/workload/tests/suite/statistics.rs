//! Sample means and their standard errors, for the tests of several modules.

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

pub(crate) fn rng(seed: u64) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(seed)
}

/// Mean, and standard error of the mean of independent values.
pub(crate) fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / (n - 1.0);
    (mean, (variance / n).sqrt())
}

/// Asserts that independent values have the mean `expected`, within five standard errors, and that
/// there are enough of them to distinguish it from a mean that is 5 % off.
#[track_caller]
pub(crate) fn assert_mean(what: &str, values: &[f64], expected: f64) {
    let (mean, error) = mean_and_error(values);
    assert!(
        5.0 * error <= 0.05 * expected,
        "{what}: too few values, error {error} of {mean}"
    );
    assert!(
        (mean - expected).abs() <= 5.0 * error + 1e-9 * expected,
        "{what}: mean {mean}, not {expected}, with a standard error of {error}"
    );
}

/// Asserts that something of probability `expected` came up `hits` times in `n`, within five
/// standard errors.
#[track_caller]
pub(crate) fn assert_share(what: &str, hits: usize, n: usize, expected: f64) {
    let share = hits as f64 / n as f64;
    let error = (expected * (1.0 - expected) / n as f64).sqrt();
    assert!(
        (share - expected).abs() <= 5.0 * error,
        "{what}: share {share}, not {expected}"
    );
}
