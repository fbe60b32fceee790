//! What can be wrong with a workload's description or its files.

use std::path::PathBuf;

/// A workload that cannot be built; the message says what is wrong, where, and what would be right.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum WorkloadError {
    /// A parameter outside its range.
    #[error("{what} is {value}: {expected}")]
    Parameter {
        /// Which parameter, with its unit.
        what: &'static str,
        value: f64,
        expected: &'static str,
    },

    /// A mix, or a list of values, without an entry.
    #[error("{what} is empty: give at least one entry")]
    Empty { what: &'static str },

    /// More entries than the type holds, or than fit in memory.
    #[error("{what}: {count} is too many, at most {limit} are allowed")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many were asked for.
        count: f64,
        limit: usize,
    },

    /// A class of a mix is longer, in the mean, than the class after it.
    #[error("mix {mix}: class {class} is longer than the next; list classes from short to long")]
    ClassOrder {
        mix: String,
        /// The class that is out of order.
        class: String,
    },

    /// No mix has this name.
    #[error("no mix is named {name:?}; the named mixes are {}", crate::Mix::NAMES.join(", "))]
    UnknownMix {
        /// The name that was asked for.
        name: String,
    },

    /// A file of values that cannot be opened.
    #[error("cannot open {path}: {cause}", path = path.display())]
    Open {
        path: PathBuf,
        cause: std::io::Error,
    },

    /// A line of a file that cannot be read (an I/O error, or not UTF-8).
    #[error("{path}:{line}: cannot read: {cause}", path = path.display())]
    Read {
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        cause: std::io::Error,
    },

    /// A line of a file that is not the number it must be.
    #[error("{path}:{line}: {text:?} is not {expected}", path = path.display())]
    Value {
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        text: String,
        expected: &'static str,
    },

    /// A file without a single value.
    #[error("{path}: no values; write one number a line", path = path.display())]
    NoValues { path: PathBuf },
}

/// `value`, if it is finite and above zero.
pub(crate) fn positive(what: &'static str, value: f64) -> Result<f64, WorkloadError> {
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    let expected = "it must be finite and above zero";
    Err(WorkloadError::Parameter {
        what,
        value,
        expected,
    })
}

/// `value`, if it lies strictly between zero and one.
pub(crate) fn fraction(what: &'static str, value: f64) -> Result<f64, WorkloadError> {
    if value > 0.0 && value < 1.0 {
        return Ok(value);
    }
    let expected = "it must lie strictly between 0 and 1";
    Err(WorkloadError::Parameter {
        what,
        value,
        expected,
    })
}
