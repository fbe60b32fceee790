//! `shinjuku`: watches a running server through its socket (the configuration's key `watch`).
//!
//! ```text
//! shinjuku top /run/kv.watch                     a screen, drawn every second; q ends it
//! shinjuku statistics /run/kv.watch              the counts so far, once, as JSON
//! shinjuku trace /run/kv.watch -o trace.json     a timeline for https://ui.perfetto.dev
//! ```
//!
//! | file | |
//! |---|---|
//! | `snapshot` | asking the socket; a server's answer, and what happened between two answers |
//! | `screen` | `top`: the numbers as a screen, and the keys |
#![forbid(unsafe_code)]

mod screen;
mod snapshot;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use snapshot::Snapshot;

/// Watches a running server that was given a socket for that (`watch = "/run/kv.watch"`).
#[derive(Debug, Parser)]
#[command(name = "shinjuku", version)]
enum Command {
    /// Classes, queues and preemptions on a screen that is drawn anew again and again.
    Top {
        /// The server's socket.
        socket: PathBuf,
        /// How often it is drawn, in milliseconds.
        #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(50..=60_000))]
        every_ms: u64,
    },
    /// The counts since the server's start, as JSON.
    Statistics {
        /// The server's socket.
        socket: PathBuf,
    },
    /// Records which request runs where, as a file for <https://ui.perfetto.dev>.
    Trace {
        /// The server's socket.
        socket: PathBuf,
        /// For how long, in milliseconds.
        #[arg(long = "for", value_name = "MILLISECONDS", default_value_t = 100,
              value_parser = clap::value_parser!(u64).range(1..=10_000))]
        milliseconds: u64,
        /// Where to.
        #[arg(short, long, value_name = "FILE", default_value = "trace.json")]
        output: PathBuf,
    },
}

fn main() -> ExitCode {
    match run(&Command::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shinjuku: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<()> {
    match command {
        Command::Top { socket, every_ms } => screen::top(socket, Duration::from_millis(*every_ms)),
        Command::Statistics { socket } => {
            let answer = snapshot::ask(socket, "statistics", Duration::ZERO)?;
            // This reports an error that the server answers, and an answer that is cut off.
            Snapshot::parse(&answer)?;
            print!("{answer}");
            Ok(())
        }
        Command::Trace {
            socket,
            milliseconds,
            output,
        } => trace(socket, Duration::from_millis(*milliseconds), output),
    }
}

fn trace(socket: &Path, duration: Duration, output: &Path) -> Result<()> {
    println!("recording for {duration:?}");
    let line = format!("trace {}", duration.as_micros());
    let answer = snapshot::ask(socket, &line, duration)?;
    let file: serde_json::Value =
        serde_json::from_str(&answer).context("the server's answer is cut off")?;
    ensure!(
        file["error"].is_null(),
        "the server says: {}",
        file["error"]
    );
    std::fs::write(output, &answer).with_context(|| format!("writing {}", output.display()))?;
    let events = file["traceEvents"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let slices = events.iter().filter(|event| event["ph"] == "X").count();
    println!(
        "{}: {slices} slices; open it in https://ui.perfetto.dev",
        output.display()
    );
    Ok(())
}
