//! `cargo xtask <command>`: the argument parser. Each command lives in its own module of the
//! library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "The project's own commands"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure the contenders on this machine; tables, plots and one page to read.
    Bench(Box<shinjuku_bench::Options>),
    /// Measure two checkouts of this project in turn: what got slower, what faster.
    Compare(shinjuku_bench::versions::Options),
    /// Reproduce the papers item by item: our numbers beside theirs, with a verdict each.
    Paper(shinjuku_bench::paper::Options),
    /// Measure priority elevation, beside what its authors' slides say; tables, plots and one page.
    Elevate(Box<shinjuku_bench::elevate::Options>),
    /// Run every test of the workspace: unit, end-to-end, documentation and model-checked tests.
    Test(xtask::test::Options),
    /// Preempt ordinary code at a hostile rate and count what goes wrong.
    Stress(xtask::stress::Options),
    /// Say what this machine offers, what is missing, and what to do about it.
    Doctor(xtask::doctor::Options),
    /// Run the guest-mode tests under an emulator, with the kernel's KVM on hardware that this
    /// machine may not have.
    GuestTest(xtask::guest_test::Options),
    /// Simulate the papers' figures; plots, CSV and one page to read.
    Figures(xtask::figures::Options),
    /// Draw a picture of a recorded timeline.
    Timeline(xtask::timeline::Options),
    /// Draw the tables, plots and the page of a results.json again.
    #[command(hide = true)]
    Report(shinjuku_bench::report::Options),
}

fn main() -> anyhow::Result<ExitCode> {
    match Arguments::parse().command {
        Command::Bench(options) => shinjuku_bench::run(&options),
        Command::Compare(options) => shinjuku_bench::versions::run(&options),
        Command::Paper(options) => shinjuku_bench::paper::run(&options, &xtask::figures::Figures),
        Command::Elevate(options) => shinjuku_bench::elevate::run(&options),
        Command::Test(options) => xtask::test::run(&options),
        Command::Stress(options) => xtask::stress::run(&options),
        Command::Doctor(options) => xtask::doctor::run(&options),
        Command::GuestTest(options) => xtask::guest_test::run(&options),
        Command::Figures(options) => xtask::figures::run(&options),
        Command::Timeline(options) => xtask::timeline::run(&options),
        Command::Report(options) => shinjuku_bench::report::run(&options),
    }
}
