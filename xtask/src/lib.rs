//! The project's own commands, run as `cargo xtask <command>`: one module per command.
//!
//! - [`mod@bench`]: contenders over the same arrivals, in one run.
//! - [`mod@test`]: the whole test-suite, with a time limit per step and an honest count of what was
//!   skipped.
//! - [`doctor`]: what this machine offers, what is missing, and what to do about it.
//! - [`figures`]: every simulated figure of the papers.
//! - [`guest_test`]: the guest-mode tests under an emulator, on hardware that this machine does not
//!   have.
//! - [`report`]: turns measurements ([`report::results::Results`]) into tables, plots, CSV and one
//!   HTML page.
//! - [`stress`]: ordinary code under hostile preemption, and what went wrong.
//! - [`machine`]: what a report says about the machine it was measured on.
//!
//! The binary only parses arguments; everything else is here, so that `tests/` can reach it.

#![deny(unsafe_code)]

pub mod bench;
pub mod doctor;
pub mod figures;
pub mod guest_test;
pub mod machine;
pub mod paths;
pub mod report;
pub mod stress;
pub mod test;
