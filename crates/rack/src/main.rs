//! `shinjuku-rack`: starts a rack, and commands one that is at work.

#![forbid(unsafe_code)]

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use shinjuku_rack::control::{Answer, Control, Order, command};
use shinjuku_rack::{Config, Mac, Rack, ServerConfig, default_control};
use signal_hook::consts::{SIGINT, SIGTERM};

/// How often commands and servers are looked at.
const TICK: Duration = Duration::from_millis(20);

/// A rack of servers that looks like one: requests scheduled by the kernel's XDP.
#[derive(Parser)]
#[command(version)]
struct Line {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Starts a rack, and stays until it is told to stop, or by control-C or SIGTERM.
    Start {
        /// The configuration, in TOML.
        config: PathBuf,
    },
    /// Prints what there is, and what it has done.
    Status {
        /// As JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        at: At,
    },
    /// Adds a server, or opens it again.
    Add {
        /// Its name.
        name: String,
        /// Its address.
        address: Ipv4Addr,
        /// Its weight.
        #[arg(long, default_value_t = 1)]
        workers: u16,
        /// The types that it serves [default: all].
        #[arg(long, value_delimiter = ',')]
        types: Option<Vec<String>>,
        /// Its Ethernet address, with `--interface` [default: as the kernel's ARP finds it].
        #[arg(long, requires = "interface")]
        mac: Option<Mac>,
        /// The interface that leads there.
        #[arg(long, requires = "mac")]
        interface: Option<String>,
        #[command(flatten)]
        at: At,
    },
    /// Gives a server no further requests; it answers those that it has.
    Drain {
        /// Its name.
        name: String,
        #[command(flatten)]
        at: At,
    },
    /// Gives a server no further requests, and forgets it.
    Remove {
        /// Its name.
        name: String,
        #[command(flatten)]
        at: At,
    },
    /// Ends the rack: all packets are the kernel's again.
    Stop {
        #[command(flatten)]
        at: At,
    },
}

#[derive(clap::Args)]
struct At {
    /// The rack's socket, the key `control` of its configuration.
    #[arg(long, default_value_os_t = default_control(), value_name = "SOCKET")]
    control: PathBuf,
}

fn main() -> ExitCode {
    match run(Line::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shinjuku-rack: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    let (at, order) = match task {
        Task::Start { config } => return start(&config),
        Task::Status { json, at } => return status(&at, json),
        Task::Add {
            name,
            address,
            workers,
            types,
            mac,
            interface,
            at,
        } => {
            let server = ServerConfig {
                name,
                address,
                workers,
                types,
                mac,
                interface,
            };
            (at, Order::Add(server))
        }
        Task::Drain { name, at } => (at, Order::Drain(name)),
        Task::Remove { name, at } => (at, Order::Remove(name)),
        Task::Stop { at } => (at, Order::Stop),
    };
    match command(&at.control, &order)? {
        Answer::Refused(why) => bail!(why),
        Answer::Done | Answer::Status(_) => Ok(()),
    }
}

fn status(at: &At, json: bool) -> anyhow::Result<()> {
    match command(&at.control, &Order::Status)? {
        Answer::Status(status) if json => println!("{}", serde_json::to_string(&status)?),
        Answer::Status(status) => println!("{status}"),
        Answer::Refused(why) => bail!(why),
        Answer::Done => bail!("the rack answered something else"),
    }
    Ok(())
}

fn start(path: &std::path::Path) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("cannot watch for signals")?;
    }
    let config = Config::from_file(path)?;
    let control = Control::listen(&config.control)?;
    let mut rack = Rack::start(config, |warning| eprintln!("shinjuku-rack: {warning}"))?;
    println!("{}", rack.status()?);
    println!("ready");
    while !stop.load(Ordering::Relaxed) && !control.serve(&mut rack) {
        for event in rack.tick()? {
            println!("{event}");
        }
        thread::sleep(TICK);
    }
    println!("{}", rack.status()?);
    Ok(())
}
