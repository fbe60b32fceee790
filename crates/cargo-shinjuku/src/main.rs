//! `cargo shinjuku build | run | test | bench`: cargo, with a probe at the entry of every function
//! of the program and its dependencies, for the runtime of the crate `shinjuku`.
//!
//! The stock compiler makes the probes, by LLVM's coverage pass with gated callbacks. This program
//! sets itself as cargo's rustc wrapper, and decides for each crate that cargo builds whether it is
//! instrumented:
//!
//! ```text
//!   cargo shinjuku build ──▶ checks rustc, writes the plan ──▶ cargo build, RUSTC_WRAPPER = itself
//!                                                                 │  for each crate
//!                                                                 ▼
//!                            the plan's verdict ──▶ [the user's own wrapper] rustc ... [flags]
//! ```
//!
//! Of a package's C and C++ code it decides in the same way, in the compiler's place.
//!
//! | file | |
//! |---|---|
//! | `compiler.rs` | what rustc must be, the flags, and the library for programs without the runtime |
//! | `workspace.rs` | what cargo tells of the packages, and what their manifests skip |
//! | `plan.rs` | which packages are instrumented, and why the others are not; where artifacts go |
//! | `wrapper.rs` | between cargo and rustc |
//! | `c_code.rs` | C and C++ code: which clang, and between build scripts and it |
//! | `command.rs` | starting cargo |
//! | `configuration.rs` | what cargo's configuration says: its wrapper, and what is built for |
//! | `show.rs` | `cargo shinjuku show` |
#![forbid(unsafe_code)]

mod c_code;
mod command;
mod compiler;
mod configuration;
mod plan;
mod show;
mod workspace;
mod wrapper;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

/// Cargo, with a probe at the entry of every function of the program and its dependencies.
#[derive(Debug, Parser)]
#[command(name = "cargo shinjuku", bin_name = "cargo shinjuku", version)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// As `cargo build`.
    Build(CargoArguments),
    /// As `cargo run`.
    Run(CargoArguments),
    /// As `cargo test`.
    Test(CargoArguments),
    /// As `cargo bench`.
    Bench(CargoArguments),
    /// Lists the packages that are instrumented, and why the others are not. Takes the arguments of
    /// `cargo metadata`.
    Show(CargoArguments),
}

#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
struct CargoArguments {
    /// Arguments for cargo.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

fn main() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<ExitCode> {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(link) = arguments.first().and_then(|own| c_code::called_as(own)) {
        return c_code::run(link, &arguments[1..]);
    }
    // Cargo names the subcommand first, and as a wrapper the program to run.
    if arguments.get(1).is_some_and(|first| first == "shinjuku") {
        arguments.remove(1);
    } else if let Some(plan) = wrapper::plan_of_this_build() {
        return wrapper::run(&plan?, &arguments[1..]);
    }
    let (subcommand, CargoArguments { arguments }) = match Options::parse_from(arguments).command {
        Command::Build(arguments) => ("build", arguments),
        Command::Run(arguments) => ("run", arguments),
        Command::Test(arguments) => ("test", arguments),
        Command::Bench(arguments) => ("bench", arguments),
        Command::Show(CargoArguments { arguments }) => return show::run(&arguments),
    };
    command::run(subcommand, arguments)
}
