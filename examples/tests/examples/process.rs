//! Examples as processes.

use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::process::Signal;
use shinjuku_tests_support::PATIENCE;
use shinjuku_tests_support::process::{self, Process, built};

/// Few threads, which may share a core with other tests'.
const CONFIG: &str = "
    workers = 1
    contexts = 16
    spare_workers = 1
    queue = 256
    cores = { share = true }
    class = [{ name = 'brief' }, { name = 'long' }]
";

/// `cargo test` builds the examples, too.
pub fn executable(example: &str) -> PathBuf {
    let remedy = "run the whole package's tests, or `cargo build -p shinjuku-examples --examples`";
    built(&format!("examples/{example}"), remedy)
}

/// A server that is to listen on loopback, and the file of its configuration.
fn on_loopback(example: &str, arguments: &[&str]) -> (Command, tempfile::NamedTempFile) {
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&config, CONFIG).unwrap();
    let mut command = Command::new(executable(example));
    command.args(["--listen", "127.0.0.1:0", "--config"]);
    command.arg(config.path()).args(arguments);
    (command, config)
}

/// A server that listens.
pub struct Server {
    server: process::Server,
    _config: tempfile::NamedTempFile,
}

impl Server {
    pub fn start(example: &str, arguments: &[&str]) -> Self {
        let (mut command, config) = on_loopback(example, arguments);
        let mut server = process::Server::start(&mut command, "listening on ").unwrap();
        let preempts = server.line();
        server.head += &preempts;
        Self {
            server,
            _config: config,
        }
    }

    /// The server's address, and how it preempts.
    pub fn head(&self) -> &str {
        &self.server.head
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The server's next line.
    pub fn line(&mut self) -> String {
        self.server.line()
    }

    /// A socket that talks only to the server, and waits for a bounded time.
    pub fn client(&self) -> UdpSocket {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(self.address()).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    }

    /// Asks the server to end by `signal`; returns its output since it was ready.
    pub fn end(self, signal: Signal) -> String {
        self.server.end(signal)
    }

    /// Sends the server `signal`, of which it must end in time; returns how it ended, and its
    /// output since it was ready.
    pub fn end_by(self, signal: Signal) -> (ExitStatus, String) {
        self.server.end_by(signal)
    }
}

/// Starts a server and tells it to end `after` that time, however far its start is by then. Returns
/// whether it ended in time.
pub fn ends_while_it_starts(
    example: &str,
    arguments: &[&str],
    after: Duration,
    by: Signal,
) -> bool {
    let (mut command, _config) = on_loopback(example, arguments);
    let mut process = Process::start(command.stdout(std::process::Stdio::null()));
    std::thread::sleep(after);
    process.signal(by);
    process.end().is_some()
}

/// Runs an example that ends by itself; returns whether it succeeded, and its whole output.
pub fn run_to_the_end(example: &str, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(executable(example));
    let (status, said) = process::run_to_the_end(command.args(arguments));
    (status.success(), said)
}
