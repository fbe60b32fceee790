//! `shinjuku-rack`: starts a rack, and commands one that is at work.

#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use shinjuku_rack::control::{Answer, Control, Order, command};
use shinjuku_rack::exporter::Exporter;
use shinjuku_rack::registration::{LONGEST_LEASE_MS, Registrar, Registration};
use shinjuku_rack::{Config, Mac, Rack, RackError, ServerConfig, TICK, default_control};
use signal_hook::consts::{SIGINT, SIGTERM};

/// How old metrics may be.
const METRICS_AGE: Duration = Duration::from_secs(1);
/// A rack ends when the kernel has refused so many ticks in a row: a second's.
const MOST_REFUSED: u32 = 50;

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
    /// On a server's host: registers it, and renews that until control-C or SIGTERM; then it
    /// leaves.
    Register {
        /// Where the switch listens, the key `registration.listen` of its configuration.
        switch: SocketAddrV4,
        /// The server's name.
        name: String,
        /// Its weight.
        #[arg(long, default_value_t = 1)]
        workers: u16,
        /// The types that it serves [default: all].
        #[arg(long, value_delimiter = ',')]
        types: Option<Vec<String>>,
        /// How long the switch keeps it without a renewal, in milliseconds.
        #[arg(long, default_value_t = 3000, value_name = "MS",
              value_parser = clap::value_parser!(u64).range(100..=LONGEST_LEASE_MS))]
        lease_ms: u64,
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
            warn(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Says something of a rack or a server that goes on, whether or not anybody listens.
fn say(words: &impl Display) {
    let _ = writeln!(io::stdout(), "{words}");
}

/// The same of what is wrong.
fn warn(words: &str) {
    let _ = writeln!(io::stderr(), "shinjuku-rack: {words}");
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
        Task::Register {
            switch,
            name,
            workers,
            types,
            lease_ms,
        } => {
            let registration = Registration {
                name,
                workers,
                types,
                lease_ms,
            };
            return register(switch, &registration);
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
    let mut output = io::stdout();
    match command(&at.control, &Order::Status)? {
        Answer::Status(status) if json => writeln!(output, "{}", serde_json::to_string(&status)?)?,
        Answer::Status(status) => writeln!(output, "{status}")?,
        Answer::Refused(why) => bail!(why),
        Answer::Done => bail!("the rack answered something else"),
    }
    Ok(())
}

/// Set once the process is told to end.
fn told_to_end() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = signal_hook::flag::register(signal, Arc::clone(&stop));
        registered.context("cannot watch for signals")?;
    }
    Ok(stop)
}

/// Renews a third into the lease, and says each renewal up to three times: so two datagrams may be
/// lost, of a lease of 200 ms or more. Soon tries again what is refused.
fn register(switch: SocketAddrV4, registration: &Registration) -> anyhow::Result<()> {
    let stop = told_to_end()?;
    let mut said = None;
    while !stop.load(Ordering::Relaxed) {
        let (state, wait) = match registration.send(switch) {
            Ok(()) => ("registered".to_owned(), registration.lease_ms / 3),
            Err(error) => (error.to_string(), 200),
        };
        if said.as_ref() != Some(&state) {
            say(&state);
            said = Some(state);
        }
        let until = Instant::now() + Duration::from_millis(wait);
        while Instant::now() < until && !stop.load(Ordering::Relaxed) {
            thread::sleep(TICK);
        }
    }
    let leaving = Registration {
        lease_ms: 0,
        ..registration.clone()
    };
    Ok(leaving.send(switch)?)
}

fn start(path: &std::path::Path) -> anyhow::Result<()> {
    let stop = told_to_end()?;
    let config = Config::from_file(path)?;
    let mut control = Control::listen(&config.control)?;
    let registrar = config.registration.as_ref().map(Registrar::listen);
    let registrar = registrar.transpose()?;
    let exporter = config.metrics.map(Exporter::listen).transpose()?;
    let mut rack = Rack::start(config, warn)?;
    say(&rack.status()?);
    if let Some(exporter) = &exporter {
        exporter.publish(&rack.status()?);
        say(&format!("metrics at http://{}/metrics", exporter.address()));
    }
    say(&"ready");
    let mut published = Instant::now();
    let mut refusals = Refusals::default();
    while !stop.load(Ordering::Relaxed) && !control.serve(&mut rack) {
        // Before the tick: a renewal that waits is in time, however long this process stood still.
        if let Some(registrar) = &registrar {
            for event in registrar.serve(&mut rack) {
                say(&event);
            }
        }
        for event in refusals.bear(rack.tick(), warn)?.unwrap_or_default() {
            say(&event);
        }
        if let Some(exporter) = &exporter
            && published.elapsed() >= METRICS_AGE
        {
            match rack.status() {
                Ok(status) => exporter.publish(&status),
                Err(error) => warn(&error.to_string()),
            }
            published = Instant::now();
        }
        thread::sleep(TICK);
    }
    say(&rack.status()?);
    Ok(())
}

/// Ticks in a row that the kernel has refused. One that is out of memory for a moment must not end
/// a rack whose packets it leads all the same.
#[derive(Default)]
struct Refusals(u32);

impl Refusals {
    /// What a tick returned; `None`: it was refused, and that has been said by `warn`.
    fn bear<T>(
        &mut self,
        tick: Result<T, RackError>,
        warn: impl FnOnce(&str),
    ) -> Result<Option<T>, RackError> {
        match tick {
            Ok(result) => {
                self.0 = 0;
                Ok(Some(result))
            }
            Err(error) if self.0 + 1 < MOST_REFUSED => {
                self.0 += 1;
                warn(&error.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_tick_is_borne_unless_all_are_refused() {
        let mut refusals = Refusals::default();
        let mut said = 0;
        let mut refuse = |refusals: &mut Refusals| {
            let refused = Err::<(), _>(RackError::Server("no memory".to_owned()));
            refusals.bear(refused, |_| said += 1)
        };
        for _ in 0..3 {
            for _ in 1..MOST_REFUSED {
                assert_eq!(refuse(&mut refusals).unwrap(), None);
            }
            assert_eq!(refusals.bear(Ok(()), warn).unwrap(), Some(()));
        }
        for _ in 1..MOST_REFUSED {
            refuse(&mut refusals).unwrap();
        }
        refuse(&mut refusals).unwrap_err();
        assert_eq!(said, 4 * (MOST_REFUSED - 1));
    }
}
