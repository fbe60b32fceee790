//! Figures over repeated runs: one run's percentile is one draw, and a claim needs several.

use serde::{Deserialize, Serialize};

/// The median of `values` (of an even number, the mean of the middle two); `None` if there are none
/// or one is NaN.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values)?;
    let middle = sorted.len() / 2;
    Some(if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    })
}

/// Median, smallest and largest of a figure over repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// The spread of `values`; `None` if there are none or one is NaN.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let sorted = sorted(values)?;
        Some(Self {
            median: median(&sorted)?,
            min: sorted[0],
            max: sorted[sorted.len() - 1],
        })
    }
}

/// Prints `median (min..max)`, with the precision asked for.
impl std::fmt::Display for Spread {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { median, min, max } = self;
        match formatter.precision() {
            Some(digits) => write!(
                formatter,
                "{median:.digits$} ({min:.digits$}..{max:.digits$})"
            ),
            None => write!(formatter, "{median} ({min}..{max})"),
        }
    }
}

/// How two contenders compare over runs paired by seed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairedRatio {
    /// Median, smallest and largest of the ratios a / b.
    pub ratio: Spread,
    /// The true median ratio is at least this, with the confidence asked for; `None` if there are
    /// too few pairs to say.
    pub lower: Option<f64>,
    /// The true median ratio is at most this, with the confidence asked for; `None` if there are
    /// too few pairs to say.
    pub upper: Option<f64>,
}

impl PairedRatio {
    /// Compares `pairs` of figures (a, b), each pair from one seed, by the ratio a / b.
    ///
    /// `lower` and `upper` are each one-sided bounds at `confidence`; together they hold with
    /// `2 * confidence - 1`. They are order statistics, valid for independent pairs whatever the
    /// distribution: of n ratios, the number below the true median is binomial (n, 1/2), so the
    /// k-th smallest is an upper bound with confidence P(Bin(n, 1/2) < k), and the smallest such k
    /// is taken (Conover, Practical Nonparametric Statistics, 3.2). At 95 % it takes 5 pairs to say
    /// anything, and then the bounds are the smallest and the largest ratio.
    ///
    /// `None` if there are no pairs, a figure is not finite and above zero, or `confidence` is not
    /// strictly between 0.5 and 1.
    #[must_use]
    pub fn of(pairs: &[(f64, f64)], confidence: f64) -> Option<Self> {
        let valid = |figure: f64| figure.is_finite() && figure > 0.0;
        let all_valid = pairs.iter().all(|&(a, b)| valid(a) && valid(b));
        if !(all_valid && confidence > 0.5 && confidence < 1.0) {
            return None;
        }
        let ratios: Vec<_> = pairs.iter().map(|(a, b)| a / b).collect();
        let ratios = sorted(&ratios)?;
        let rank = bound_rank(ratios.len(), confidence);
        Some(Self {
            ratio: Spread::of(&ratios)?,
            lower: rank.map(|rank| ratios[ratios.len() - rank]),
            upper: rank.map(|rank| ratios[rank - 1]),
        })
    }
}

/// The smallest k, from 1, with P(Bin(n, 1/2) < k) >= confidence; `None` if even k = n falls short.
fn bound_rank(n: usize, confidence: f64) -> Option<usize> {
    // Logarithms, since 2^-n underflows beyond a thousand pairs.
    let mut log_term = -(n as f64) * std::f64::consts::LN_2;
    let mut below = 0.0;
    for k in 1..=n {
        below += log_term.exp();
        if below >= confidence {
            return Some(k);
        }
        log_term += ((n - k + 1) as f64 / k as f64).ln();
    }
    None
}

/// The values sorted upwards; `None` if there are none or one is NaN.
fn sorted(values: &[f64]) -> Option<Vec<f64>> {
    if values.is_empty() || values.iter().any(|value| value.is_nan()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    Some(sorted)
}
