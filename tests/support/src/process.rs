//! Child processes: found beside the test, watched with a time limit, and ended by their own ids.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};

use crate::waiting::comes_true;

/// Whether a program of this name can be started.
#[must_use]
pub fn is_there(program: &str) -> bool {
    let mut command = Command::new(program);
    let command = command.arg("--version").stdin(Stdio::null());
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok()
}

/// The program at `path` below the directory of this build's programs. Cargo names the place only
/// indirectly, and builds the program only if it is told to.
#[must_use]
pub fn built(path: &str, remedy: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this process has a program");
    let directory = test.ancestors().nth(2).expect("tests are in `deps`");
    let program = directory.join(path);
    assert!(
        program.exists(),
        "{} is missing: {remedy}",
        program.display()
    );
    program
}

/// This test program once more, to run only its test `test`, which may be an ignored one.
#[must_use]
pub fn this_test(test: &str) -> Command {
    let program = std::env::current_exe().expect("this process has a program");
    let mut command = Command::new(program);
    command.args([
        test,
        "--exact",
        "--include-ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    command
}

/// Set in the process that [`as_child`] starts.
pub const CHILD: &str = "SHINJUKU_TEST_CHILD";

/// This test program once more, for the part of its test `test` that goes by [`is_child`].
#[must_use]
pub fn as_child(test: &str) -> Command {
    let mut command = this_test(test);
    command.env(CHILD, "1");
    command
}

/// Whether [`as_child`] has started this process.
#[must_use]
pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// A process that does not outlive this value.
#[derive(Debug)]
pub struct Process(pub Child);

impl Process {
    /// Starts `command`.
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        let child = command.spawn();
        Self(child.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Sends the process `signal`.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("a child can be sent signals");
    }

    /// How the process ended. `None`: not within [`PATIENCE`](crate::PATIENCE), and it has been
    /// killed.
    pub fn end(&mut self) -> Option<ExitStatus> {
        let mut status = None;
        comes_true(|| {
            status = self.0.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        if status.is_none() {
            self.kill();
        }
        status
    }

    /// Ends the process, unless it has ended.
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs `command` to its end. Returns how it ended, and all that it said.
pub fn run_to_the_end(command: &mut Command) -> (ExitStatus, String) {
    let mut output = tempfile::tempfile().expect("there is a temporary directory");
    let copy = || Stdio::from(output.try_clone().expect("descriptors are left"));
    let command = command.stdin(Stdio::null()).stdout(copy()).stderr(copy());
    let status = Process::start(command).end();
    let mut said = String::new();
    std::io::Seek::rewind(&mut output).expect("a file has a beginning");
    output.read_to_string(&mut said).expect("it says text");
    (
        status.unwrap_or_else(|| panic!("it does not end: {said}")),
        said,
    )
}

/// Runs `command`, which is of [`this_test`], to its end. Returns all that the process said.
pub fn must_pass(command: &mut Command) -> String {
    let (status, said) = run_to_the_end(command);
    // A name that fits no test would succeed as well.
    assert!(
        status.success() && said.contains("1 passed"),
        "{status}: {said}"
    );
    said
}

/// A process that serves, and says so on standard output.
#[derive(Debug)]
pub struct Server {
    /// The process.
    pub process: Process,
    /// What it said until it was ready.
    pub head: String,
    output: BufReader<ChildStdout>,
}

impl Server {
    /// Starts `command`, and waits until it says a line that begins with `ready`. What it says to
    /// standard error, if that is a pipe, is part of the refusal.
    ///
    /// # Errors
    /// What it said, if it ended instead.
    pub fn start(command: &mut Command, ready: &str) -> Result<Self, String> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Process::start(command);
        // A thread reads it, lest the pipe fill up.
        let errors = process.0.stderr.take().map(in_the_background);
        let output = process.0.stdout.take().expect("it is a pipe");
        let (output, head) = (BufReader::new(output), String::new());
        let mut server = Self {
            process,
            head,
            output,
        };
        loop {
            let line = server.line();
            server.head += &line;
            if line.starts_with(ready) {
                return Ok(server);
            }
            if line.is_empty() {
                let status = server.process.end();
                let errors = errors.map(|errors| errors.join().unwrap_or_default());
                let said = server.head + &errors.unwrap_or_default();
                return Err(format!("{command:?} ended ({status:?}): {said}"));
            }
        }
    }

    /// The next line that the server says; empty at the end.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it says text");
        line
    }

    /// The address behind `listening on` in the head.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        let mut addresses =
            (self.head.lines()).filter_map(|line| line.strip_prefix("listening on "));
        let address = addresses.find_map(|address| address.parse().ok());
        address.unwrap_or_else(|| panic!("no address is in {:?}", self.head))
    }

    /// Asks the server to end by `signal`. Returns what it has said since it was ready.
    pub fn end(self, signal: Signal) -> String {
        self.process.signal(signal);
        self.ended()
    }

    /// Waits until the server has ended. Returns what it has said since it was ready.
    pub fn ended(self) -> String {
        let (status, said) = self.exit();
        assert!(status.success(), "it ends well: {status}: {said}");
        said
    }

    /// Sends the server `signal`. Returns how it ended, and what it has said since it was ready.
    pub fn end_by(self, signal: Signal) -> (ExitStatus, String) {
        self.process.signal(signal);
        self.exit()
    }

    fn exit(mut self) -> (ExitStatus, String) {
        let status = self.process.end();
        let mut said = String::new();
        self.output.read_to_string(&mut said).expect("it says text");
        (
            status.unwrap_or_else(|| panic!("it does not end: {said}")),
            said,
        )
    }
}

fn in_the_background(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut said = String::new();
        let _ = pipe.read_to_string(&mut said);
        said
    })
}

/// Tells a process of this program which part of a test it is.
const PART: &str = "SHINJUKU_TEST_PART";

/// The part of a test that this process is to be, if it is one. A test program whose tests take
/// several processes has an ignored test `part`, which asks this.
#[must_use]
pub fn this_part() -> Option<String> {
    std::env::var(PART).ok()
}

/// The lines that this part is told. Ends when the process that started the part is gone.
#[must_use]
pub fn orders() -> Receiver<String> {
    let (order, orders) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if order.send(line).is_err() {
                break;
            }
        }
    });
    orders
}

/// A part of the test in another process.
#[derive(Debug)]
pub struct Part {
    process: Process,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Part {
    /// Starts `program`, which leads to [`this_test`]`("part")`, as the part.
    #[must_use]
    pub fn start(mut program: Command, part: &str) -> Self {
        let program = program.env(PART, part);
        let program = program.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(program);
        let output = process.0.stdout.take().expect("it is a pipe");
        let lines = BufReader::new(output).lines();
        Self { process, lines }
    }

    /// Tells the part `order`.
    pub fn say(&mut self, order: &str) {
        let orders = self.process.0.stdin.as_mut().expect("it is a pipe");
        writeln!(orders, "{order}").expect("the part reads orders");
    }

    /// The next line that begins with `start`; those before it are passed over.
    pub fn hears(&mut self, start: &str) -> String {
        let mut seen = String::new();
        for line in self.lines.by_ref().map_while(Result::ok) {
            if line.starts_with(start) {
                return line;
            }
            seen += &line;
            seen.push('\n');
        }
        panic!("{start} never came:\n{seen}");
    }
}
