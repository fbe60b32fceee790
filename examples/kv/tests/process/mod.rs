//! Servers as separate processes, found or started beside the test, watched, and ended by their own
//! ids; and a client that sends and reads bytes.
#![allow(
    dead_code,
    reason = "compiled into each test, of which each uses a part"
)]

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The longest wait of the tests, for slow machines.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Few threads, which may share a core with other tests'.
const CONFIG: &str = "
    layout = 'threads'
    workers = 1
    contexts = 32
    idle_backoff_us = 10
    cores = { share = true }
";

/// A server, ended when it is dropped.
pub struct Server {
    pub child: Child,
    /// The address where the server listens.
    pub address: SocketAddr,
    /// How the server preempts, in its own words.
    pub description: String,
    output: Option<BufReader<ChildStdout>>,
    _config: tempfile::NamedTempFile,
}

impl Server {
    /// Starts `kv`, with `tcp` in the table of that name.
    pub fn kv(tcp: &str, arguments: &[&str]) -> Self {
        let config = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&config, format!("{CONFIG}\n[tcp]\n{tcp}")).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_kv"))
            .args(["--listen", "127.0.0.1:0", "--config"])
            .arg(config.path())
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut head = String::new();
        output.read_line(&mut head).unwrap();
        let address = head.trim_end().strip_prefix("listening on ");
        let Some(address) = address.and_then(|address| address.parse().ok()) else {
            let _ = child.kill();
            panic!("kv did not start: {head} {:?}", child.wait());
        };
        let mut description = String::new();
        output.read_line(&mut description).unwrap();
        Self {
            child,
            address,
            description,
            output: Some(output),
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

    /// Starts a Redis on a free port. `None`: this machine has no Redis.
    pub fn redis() -> Option<Self> {
        if !is_there("redis-server") {
            return None;
        }
        // Between its release and its use another process may take the port: then this retries.
        let server = (0..20).find_map(|_| {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = free.local_addr().unwrap();
            drop(free);
            Self::redis_at(address)
        });
        Some(server.expect("redis-server gets one of twenty ports"))
    }

    /// Starts a Redis at `address`. `None`: another process has the address. That process may be a
    /// Redis, too, so the one that answers has to tell the number of the process started here.
    pub fn redis_at(address: SocketAddr) -> Option<Self> {
        let child = Command::new("redis-server")
            .args(["--bind", &address.ip().to_string()])
            .args(["--port", &address.port().to_string()])
            .args(["--save", "", "--appendonly", "no"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = Self {
            child,
            address,
            description: String::new(),
            output: None,
            _config: tempfile::NamedTempFile::new().unwrap(),
        };
        let mut answers = false;
        wait_for(|| {
            answers = process_that_answers(address) == Some(server.child.id());
            answers || server.child.try_wait().unwrap().is_some()
        });
        answers.then_some(server)
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// A number in `/proc/PID/status`.
    pub fn status(&self, key: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        let number =
            line.and_then(|line| line.split_whitespace().find_map(|word| word.parse().ok()));
        number.unwrap_or_else(|| panic!("{key} is in {status}"))
    }

    /// Memory in use, in KiB.
    pub fn resident_kib(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// Open files and sockets.
    pub fn descriptors(&self) -> usize {
        let path = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(path).unwrap().count()
    }

    /// Asks the server to end by `signal`; returns its last output.
    pub fn end(self, signal: Signal) -> String {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.wait()
    }

    /// Waits until the server has ended; returns its last output.
    pub fn wait(mut self) -> String {
        let mut status = None;
        wait_for(|| {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let status = status.expect("it ends when it is asked to");
        let mut said = String::new();
        let output = self.output.as_mut().unwrap();
        output.read_to_string(&mut said).unwrap();
        assert!(status.success(), "ends well: {said}");
        said
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether `condition` came to hold.
pub fn wait_for(mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
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

/// `arguments` as an array of bulk strings.
pub fn array<T: AsRef<[u8]>>(arguments: &[T]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        let argument = argument.as_ref();
        request.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        request.extend_from_slice(argument);
        request.extend_from_slice(b"\r\n");
    }
    request
}

/// A connection.
pub struct Client {
    pub stream: TcpStream,
    asked: u64,
}

/// The bytes that came back, and whether the connection is closed.
#[derive(Clone, PartialEq, Eq)]
pub struct Replies {
    pub bytes: Vec<u8>,
    pub closed: bool,
}

impl std::fmt::Debug for Replies {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = if self.closed { " and the end" } else { "" };
        let shown = &self.bytes[..self.bytes.len().min(2000)];
        write!(formatter, "\"{}\"{end}", shown.escape_ascii())
    }
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, asked: 0 }
    }

    /// The whole reply to `request`: everything before the reply to a further request.
    pub fn ask(&mut self, request: &[u8]) -> Replies {
        self.asked += 1;
        let mark = format!("mark {}", self.asked);
        let last = format!("${}\r\n{mark}\r\n", mark.len());
        let both = [request, &array(&["ECHO", &mark])].concat();
        // The server may close before it has read all of it.
        let _ = self.stream.write_all(&both);
        let mut bytes = Vec::new();
        let closed = self.read_until(&mut bytes, |bytes| bytes.ends_with(last.as_bytes()));
        if !closed {
            bytes.truncate(bytes.len() - last.len());
        }
        Replies { bytes, closed }
    }

    /// The reply to the command `arguments`.
    pub fn command<T: AsRef<[u8]>>(&mut self, arguments: &[T]) -> Replies {
        self.ask(&array(arguments))
    }

    /// The reply as text, from a connection that stays open.
    pub fn text(&mut self, arguments: &[&str]) -> String {
        let replies = self.command(arguments);
        assert!(!replies.closed, "{arguments:?}: {replies:?}");
        String::from_utf8(replies.bytes).unwrap()
    }

    /// INFO's value of `key`, a number.
    pub fn info(&mut self, key: &str) -> u64 {
        let info = self.text(&["INFO"]);
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let number = line.and_then(|number| number.parse().ok());
        number.unwrap_or_else(|| panic!("{key} is in {info}"))
    }

    /// Sends `bytes` and nothing more; returns everything that comes.
    pub fn last(mut self, bytes: &[u8]) -> Replies {
        let _ = self.stream.write_all(bytes);
        let _ = self.stream.shutdown(Shutdown::Write);
        let mut bytes = Vec::new();
        let closed = self.read_until(&mut bytes, |_| false);
        Replies { bytes, closed }
    }

    /// Whether the connection closed before there was `enough`.
    pub fn read_until(&mut self, bytes: &mut Vec<u8>, enough: impl Fn(&[u8]) -> bool) -> bool {
        let mut part = [0; 16 << 10];
        while !enough(bytes) {
            match self.stream.read(&mut part) {
                Ok(0) => return true,
                Ok(length) => bytes.extend_from_slice(&part[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return true,
                Err(error) => panic!("{error} after {:?}", bytes.escape_ascii().to_string()),
            }
        }
        false
    }
}

/// Whether a program of this name can be started.
pub fn is_there(program: &str) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    found.is_ok()
}
