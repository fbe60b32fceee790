//! The project's own commands, run as `cargo xtask <command>`: one module per command.
//!
//! - [`mod@test`]: the whole test-suite, with a time limit per step and an honest count of what was
//!   skipped.
//! - [`doctor`]: what this machine offers, what is missing, and what to do about it.
//! - [`figures`]: every simulated figure of the papers.
//! - [`guest_test`]: the guest-mode tests under an emulator, on hardware that this machine does not
//!   have.
//! - [`stress`]: ordinary code under hostile preemption, a program of its own.
//! - [`timeline`]: a picture of a recorded timeline.
//!
//! `bench`, `elevate`, `paper` and `report` are the package `shinjuku-bench`.

#![forbid(unsafe_code)]

pub mod doctor;
pub mod figures;
pub mod guest_test;
pub mod stress;
pub mod test;
pub mod timeline;
