//! Estimates with confidence intervals.

use serde::{Deserialize, Serialize};

/// A mean over independent values, with the half-width of its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The mean.
    pub value: f64,
    /// The true value lies within this distance of the mean with a confidence of 95 %; infinite for
    /// a single value.
    pub half_width: f64,
}

impl Estimate {
    /// The mean of `values`, with its interval by Student's t. The mean of no values is NaN.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let n = values.len() as f64;
        let value = values.iter().sum::<f64>() / n;
        if values.len() < 2 {
            return Self {
                value,
                half_width: f64::INFINITY,
            };
        }
        let squares: f64 = values.iter().map(|each| (each - value).powi(2)).sum();
        let deviation = (squares / (n - 1.0)).sqrt();
        Self {
            value,
            half_width: student_975(values.len() - 1) * deviation / n.sqrt(),
        }
    }

    /// The half-width over the value.
    #[must_use]
    pub fn relative(&self) -> f64 {
        if self.value == 0.0 {
            return if self.half_width == 0.0 {
                0.0
            } else {
                f64::INFINITY
            };
        }
        (self.half_width / self.value).abs()
    }

    /// Whether `truth` lies within `widths` half-widths of the value.
    #[must_use]
    pub fn agrees_with(&self, truth: f64, widths: f64) -> bool {
        (self.value - truth).abs() <= widths * self.half_width
    }

    /// The lower end of the interval.
    #[must_use]
    pub fn low(&self) -> f64 {
        self.value - self.half_width
    }

    /// The upper end of the interval.
    #[must_use]
    pub fn high(&self) -> f64 {
        self.value + self.half_width
    }
}

/// Prints `value ± half-width`, with the precision asked for.
impl std::fmt::Display for Estimate {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = formatter.precision().unwrap_or(3);
        write!(formatter, "{:.digits$}", self.value)?;
        if self.half_width.is_finite() {
            write!(formatter, " ± {:.digits$}", self.half_width)?;
        }
        Ok(())
    }
}

/// The 97.5th percentile of Student's t: a table for few degrees of freedom, Fisher's expansion
/// beyond.
fn student_975(degrees: usize) -> f64 {
    const TABLE: [f64; 10] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    ];
    if let Some(quantile) = degrees.checked_sub(1).and_then(|at| TABLE.get(at)) {
        return *quantile;
    }
    let (z, n) = (1.959_964_f64, degrees.max(1) as f64);
    z + (z.powi(3) + z) / (4.0 * n)
        + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n * n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn student_meets_its_table() {
        for (degrees, quantile) in [
            (1, 12.706),
            (9, 2.262),
            (15, 2.131),
            (30, 2.042),
            (120, 1.980),
        ] {
            assert!((student_975(degrees) - quantile).abs() < 1e-3, "{degrees}");
        }
    }

    #[test]
    fn intervals_of_known_values() {
        let estimate = Estimate::of(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(estimate.value, 3.0);
        assert!((estimate.half_width - 2.776 * 0.5_f64.sqrt()).abs() < 1e-9);
        assert!(Estimate::of(&[1.0]).half_width.is_infinite());
        assert_eq!(format!("{estimate:.2}"), "3.00 ± 1.96");
    }
}
