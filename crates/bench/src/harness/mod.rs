//! What all benches share: options, one session from start to report, contenders in turn, ratios
//! of pairs, targets, and the format of results.json.
//!
//! A bench begins a [`Session`], measures its points by [`Session::interleave`], puts what it found
//! into a type of its own that is [`Measured`], and ends the session with it.

mod compare;
mod options;
mod process;
mod results;
mod session;
mod target;

pub use compare::{Comparison, Runs, by_repetition, comparisons};
#[cfg(test)]
pub use options::parse;
pub use options::{Efforts, Options, Settings};
pub(crate) use process::{PATIENCE, POLL, Process, cpu_seconds};
pub use results::{Measured, Results, SCHEMA, Section};
pub use session::Session;
pub use target::{Goal, Target, Verdict, passes, targets};

/// The distinct items, in the order of their first appearance.
pub(crate) fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}
