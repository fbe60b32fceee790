//! Files of measured values: one number of nanoseconds a line; blank lines and lines that start
//! with `#` are skipped.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::WorkloadError;

/// What the numbers of a file may be.
#[derive(Clone, Copy)]
pub(crate) enum Accept {
    /// Service times: above zero.
    Positive,
    /// Gaps: zero means that requests came together.
    NonNegative,
}

impl Accept {
    fn admits(self, value: f64) -> bool {
        // The upper bound (30 years) keeps sums of squares finite.
        match self {
            Self::Positive => value > 0.0 && value <= 1e18,
            Self::NonNegative => (0.0..=1e18).contains(&value),
        }
    }

    fn expected(self) -> &'static str {
        match self {
            Self::Positive => "a number of nanoseconds above zero, at most 1e18",
            Self::NonNegative => "a number of nanoseconds from zero to 1e18",
        }
    }
}

/// All values of `path`, in order; at least one.
pub(crate) fn read(path: &Path, accept: Accept) -> Result<Vec<f64>, WorkloadError> {
    let file = File::open(path).map_err(|cause| WorkloadError::Open {
        path: path.to_owned(),
        cause,
    })?;
    let mut values = Vec::new();
    for (index, text) in BufReader::new(file).lines().enumerate() {
        let line = index + 1;
        let text = text.map_err(|cause| WorkloadError::Read {
            path: path.to_owned(),
            line,
            cause,
        })?;
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let value = text.parse().ok().filter(|&value| accept.admits(value));
        values.push(value.ok_or_else(|| WorkloadError::Value {
            path: path.to_owned(),
            line,
            text: text.to_owned(),
            expected: accept.expected(),
        })?);
    }
    if values.is_empty() {
        return Err(WorkloadError::NoValues {
            path: path.to_owned(),
        });
    }
    Ok(values)
}
