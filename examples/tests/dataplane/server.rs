//! The example `dataplane` as a process.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::process::wait;

/// A dispatcher with few threads, which may share a core with other tests'.
pub const DISPATCHER: &str = "
    [[dispatcher]]
    workers = 1
    contexts = 16
    spare_workers = 1
    queue = 1024
    cores = { share = true }
";

/// A server that listens.
pub struct Server {
    child: Child,
    output: BufReader<ChildStdout>,
    /// The server's output until it was ready.
    pub head: String,
    _config: tempfile::NamedTempFile,
}

impl Server {
    /// Starts `command` with a configuration, to which a dispatcher is added.
    pub fn start(command: Command, config: &str) -> Self {
        Self::try_start(command, config).unwrap_or_else(|refusal| panic!("{config}\n{refusal}"))
    }

    /// As [`start`](Self::start); if the server fails instead, returns its output.
    pub fn try_start(mut command: Command, config: &str) -> Result<Self, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, format!("{config}\n{DISPATCHER}")).unwrap();
        let mut child = command
            .arg(file.path())
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut errors = child.stderr.take().unwrap();
        // It prints little before it ends or listens; once it listens, no thread need read its
        // output.
        let errors = std::thread::spawn(move || {
            let mut said = String::new();
            let _ = errors.read_to_string(&mut said);
            said
        });
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut head = String::new();
        while !head.contains("listening on ") {
            if output.read_line(&mut head).unwrap() == 0 {
                assert!(
                    !wait(&mut child),
                    "it ends well, but never listened: {head}"
                );
                return Err(head + &errors.join().unwrap());
            }
        }
        Ok(Self {
            child,
            output,
            head,
            _config: file,
        })
    }

    /// Asks the server to end. Returns its output since it was ready, which must say that it
    /// answered `requests`, or more.
    pub fn end_having_answered(mut self, requests: u64) -> String {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let ended_well = wait(&mut self.child);
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        assert!(ended_well, "it does not end well: {said}");
        assert!(said.contains("everything finished"), "{said}");
        // The last count is the sum, if there is one.
        let replies = replies(&said).pop().expect("its counts");
        assert!(replies >= requests, "{requests} were answered: {said}");
        said
    }
}

/// The number of replies in each of the counts.
pub fn replies(said: &str) -> Vec<u64> {
    let words: Vec<_> = said.split_whitespace().collect();
    let counts = words.windows(2).filter(|pair| pair[1] == "replies;");
    counts.map(|pair| pair[0].parse().unwrap()).collect()
}

impl Drop for Server {
    fn drop(&mut self) {
        // For failing tests; a server that has ended is left alone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
