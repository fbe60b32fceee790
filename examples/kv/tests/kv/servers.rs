//! Servers as separate processes: `kv`, and a Redis to compare it with.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use shinjuku_tests_support::process::{self, Process, is_there};
use shinjuku_tests_support::{Usage, comes_true};

use crate::client::{Client, array};

/// Few threads, which may share a core with other tests'.
const CONFIG: &str = "
    layout = 'threads'
    workers = 1
    contexts = 32
    idle_backoff_us = 10
    cores = { share = true }
";

/// A `kv`, ended when it is dropped.
pub struct Server {
    server: process::Server,
    /// The address where the server listens.
    pub address: SocketAddr,
    /// How the server preempts, in its own words.
    pub description: String,
    _config: tempfile::NamedTempFile,
}

impl Server {
    /// Starts `kv`, with `tcp` in the table of that name.
    pub fn kv(tcp: &str, arguments: &[&str]) -> Self {
        let config = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&config, format!("{CONFIG}\n[tcp]\n{tcp}")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kv"));
        command.args(["--listen", "127.0.0.1:0", "--config"]);
        command.arg(config.path()).args(arguments);
        let mut server = process::Server::start(&mut command, "listening on ").unwrap();
        Self {
            address: server.address(),
            description: server.line(),
            server,
            _config: config,
        }
    }

    /// Starts `kv` with its workers in guest mode. `None`: this machine has no guest mode, or not
    /// for this user; then says that the test is skipped.
    pub fn kv_in_guest_mode(test: &str, arguments: &[&str]) -> Option<Self> {
        // Software virtualisation takes some ten microseconds for an interrupt.
        let guest = ["--preemption", "guest", "--quantum", "200us"];
        let server = Self::kv("", &[&guest, arguments].concat());
        let said = &server.description;
        match said.split_once(", because ") {
            Some((_, why)) if why.contains("/dev/kvm") => {
                println!("SKIPPED {test}: {why}");
                return None;
            }
            _ => assert!(said.contains("preemption guest ("), "{said}"),
        }
        Some(server)
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    pub fn usage(&self) -> Usage {
        Usage::of(self.server.process.0.id())
    }

    /// Asks the server to end by `signal`; returns its last output.
    pub fn end(self, signal: Signal) -> String {
        self.server.end(signal)
    }

    /// Waits until the server has ended; returns its last output.
    pub fn ended(self) -> String {
        self.server.ended()
    }
}

/// A Redis, ended when it is dropped.
pub struct Redis {
    _process: Process,
    /// The address where it listens.
    pub address: SocketAddr,
}

impl Redis {
    /// Starts a Redis on a free port. `None`, having said so: this machine has no Redis, and `test`
    /// is skipped.
    pub fn start(test: &str) -> Option<Self> {
        if !is_there("redis-server") {
            println!("SKIPPED {test}: there is no redis-server (Debian: redis-server)");
            return None;
        }
        // Between its release and its use another process may take the port: then this retries.
        let server = (0..20).find_map(|_| {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = free.local_addr().unwrap();
            drop(free);
            Self::at(address)
        });
        Some(server.expect("redis-server gets one of twenty ports"))
    }

    /// Starts a Redis at `address`. `None`: another process has the address. That process may be a
    /// Redis, too, so the one that answers has to tell the number of the process started here.
    pub fn at(address: SocketAddr) -> Option<Self> {
        let mut command = Command::new("redis-server");
        command.args(["--bind", &address.ip().to_string()]);
        command.args(["--port", &address.port().to_string()]);
        command.args(["--save", "", "--appendonly", "no"]);
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = Process::start(command);
        let mut answers = false;
        comes_true(|| {
            answers = process_that_answers(address) == Some(process.0.id());
            answers || process.0.try_wait().unwrap().is_some()
        });
        answers.then_some(Self {
            _process: process,
            address,
        })
    }
}

/// The number of the process that speaks Redis's protocol at `address`, if one does.
fn process_that_answers(address: SocketAddr) -> Option<u32> {
    let mut stream = TcpStream::connect(address).ok()?;
    // The process at the address may be silent.
    let patience = Some(Duration::from_secs(5));
    stream.set_read_timeout(patience).ok()?;
    stream.set_write_timeout(patience).ok()?;
    let last = [array(&["INFO", "server"]), array(&["QUIT"])].concat();
    stream.write_all(&last).ok()?;
    let mut said = Vec::new();
    stream.read_to_end(&mut said).ok()?;
    let said = String::from_utf8_lossy(&said);
    let number = said
        .lines()
        .find_map(|line| line.strip_prefix("process_id:"));
    number?.trim().parse().ok()
}
