//! What is asked for on the command line.

use anyhow::Result;
use clap::Args;

use crate::harness::{self, Efforts, Settings};

/// The parts, a file each.
const PARTS: [&str; 6] = [
    "stages",
    "round-trips",
    "reply-sizes",
    "outgoing",
    "dispatchers",
    "imbalance",
];

/// Options of `cargo xtask bench dataplane`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) common: harness::Options,
    /// Only this part (may be given several times).
    #[arg(long, value_name = "PART", value_parser = PARTS)]
    only: Vec<String>,
}

const EFFORTS: Efforts = Efforts {
    quick: (3, 0.3),
    default: (7, 0.5),
    full: (15, 0.5),
    seconds: 0.05..=10.0,
};

impl Options {
    /// # Errors
    /// If they are out of range.
    pub(super) fn settings(&self) -> Result<Settings> {
        self.common.settings(&EFFORTS, !self.only.is_empty())
    }

    pub(super) fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|one| one == part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Result<Options, String> {
        harness::parse(line)
    }

    #[test]
    fn all_parts_are_wanted_unless_some_are_named() {
        assert!(
            PARTS
                .iter()
                .all(|part| options("dataplane").unwrap().wants(part))
        );
        let only = options("dataplane --only stages --only imbalance").unwrap();
        let wanted: Vec<_> = PARTS.into_iter().filter(|part| only.wants(part)).collect();
        assert_eq!(wanted, ["stages", "imbalance"]);
    }

    #[test]
    fn an_unknown_part_is_refused_in_words() {
        let error = options("dataplane --only everything").unwrap_err();
        assert!(error.contains("round-trips"), "{error}");
    }
}
