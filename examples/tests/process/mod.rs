//! An example as a process: found beside the test, watched, and ended by its own id.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Loopback loses nothing that fits the buffers, but a test shall fail rather than hang.
const PATIENCE: Duration = Duration::from_secs(20);

/// Few threads, which may share a core with other tests'.
const CONFIG: &str = "
    workers = 1
    contexts = 16
    spare_workers = 1
    queue = 256
    cores = { share = true }
    class = [{ name = 'brief' }, { name = 'long' }]
";

/// `cargo test` also builds the examples; cargo tells their place only indirectly.
pub fn executable(example: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test
        .ancestors()
        .nth(2)
        .unwrap()
        .join("examples")
        .join(example);
    assert!(
        path.exists(),
        "{} is missing: run the whole package's tests, or `cargo build -p shinjuku-examples --examples`",
        path.display()
    );
    path
}

fn config_file() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, CONFIG).unwrap();
    file
}

/// A server that listens.
pub struct Server {
    child: Child,
    output: BufReader<ChildStdout>,
    /// The address where the server listens.
    address: SocketAddr,
    /// The server's output until it was ready.
    pub head: String,
    _config: tempfile::NamedTempFile,
}

impl Server {
    pub fn start(example: &str, arguments: &[&str]) -> Self {
        let config = config_file();
        let mut child = Command::new(executable(example))
            .args(["--listen", "127.0.0.1:0", "--config"])
            .arg(config.path())
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut head = String::new();
        // The address, and how it preempts.
        for _ in 0..2 {
            output.read_line(&mut head).unwrap();
        }
        let address = head
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("listening on "));
        let Some(address) = address.and_then(|address| address.parse().ok()) else {
            let _ = child.kill();
            panic!("{example} did not start: {head} {:?}", child.wait());
        };
        Self {
            child,
            output,
            address,
            head,
            _config: config,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it says next.
    pub fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    /// Asks the server to end by `signal`; returns its output since it was ready.
    pub fn end(self, signal: Signal) -> String {
        let (status, said) = self.end_by(signal);
        assert!(status.success(), "ends well when it is asked to: {said}");
        said
    }

    /// Sends the server `signal`, of which it must end in time; returns how it ended, and its
    /// output since it was ready.
    pub fn end_by(mut self, signal: Signal) -> (ExitStatus, String) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let status = end_of(&mut self.child);
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        let status = status.unwrap_or_else(|| panic!("survives {signal:?}: {said}"));
        (status, said)
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
    let config = config_file();
    let mut child = Command::new(executable(example))
        .args(["--listen", "127.0.0.1:0", "--config"])
        .arg(config.path())
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(after);
    kill_process(Pid::from_child(&child), by).unwrap();
    end_of(&mut child).is_some()
}

impl Drop for Server {
    fn drop(&mut self) {
        // For failing tests; a server that has ended is left alone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A socket that talks only to `server`, and waits for a bounded time.
pub fn client(server: &Server) -> UdpSocket {
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(server.address).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

/// Runs an example that ends by itself; returns whether it succeeded, and its whole output.
pub fn run_to_the_end(example: &str, arguments: &[&str]) -> (bool, String) {
    let mut output = tempfile::tempfile().unwrap();
    let mut child = Command::new(executable(example))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output.try_clone().unwrap())
        .spawn()
        .unwrap();
    let ended_well = wait(&mut child);
    let mut said = String::new();
    std::io::Seek::rewind(&mut output).unwrap();
    output.read_to_string(&mut said).unwrap();
    (ended_well, said)
}

/// Whether the process ended with success, in time; if it is late, kills it.
pub fn wait(child: &mut Child) -> bool {
    end_of(child).is_some_and(|status| status.success())
}

/// How the process ended. `None`: it was late, and has been killed.
fn end_of(child: &mut Child) -> Option<ExitStatus> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}
