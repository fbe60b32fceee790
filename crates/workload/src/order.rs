//! Exact order statistics.

/// The nearest-rank percentile of values sorted upwards: the `ceil(permille / 1000 * n)`-th
/// smallest. Computed in whole numbers, since 0.999 has no exact binary form and a rank rounded
/// wrongly selects another value.
///
/// # Panics
/// If `sorted` is empty, or `permille` is not between 1 and 1000.
#[must_use]
pub fn nearest_rank<T: Copy>(sorted: &[T], permille: usize) -> T {
    assert!(
        (1..=1_000).contains(&permille),
        "permille is {permille}, not between 1 and 1000"
    );
    let rank = (sorted.len() * permille).div_ceil(1_000);
    sorted[rank - 1]
}
