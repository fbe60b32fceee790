//! Tests that take several processes: a test runs its own program again, to be a part of it.
//!
//! Such a test program has an ignored test `part`, which does what [`this_part`] says.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver};

/// Says which part a process is.
const PART: &str = "SHINJUKU_DPDK_PART";

/// What this process is to do; `None`: it is no part.
pub fn this_part() -> Option<String> {
    std::env::var(PART).ok()
}

/// The lines that this part is told. Ends when whoever started it is gone.
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

/// A process that does not outlive the test.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A part of the test in another process, which ends by itself after a time.
pub struct Part {
    process: Running,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Part {
    /// Starts `program`, which is this one, as the part.
    pub fn start(mut program: Command, part: &str) -> Self {
        let mut process = program
            .args(["part", "--exact", "--ignored", "--nocapture"])
            .env(PART, part)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self {
            process: Running(process),
            lines,
        }
    }

    pub fn say(&mut self, order: &str) {
        writeln!(self.process.0.stdin.as_mut().unwrap(), "{order}").unwrap();
    }

    /// The line that begins with `start`; those before it are nobody's.
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
