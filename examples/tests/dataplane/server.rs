//! The example `dataplane` as a process.

use std::process::{Command, Stdio};

use rustix::process::Signal;
use shinjuku_tests_support::process;

/// A dispatcher with few threads, which may share a core with other tests'; a class for each of its
/// ports, up to three.
pub const DISPATCHER: &str = "
    [[dispatcher]]
    workers = 1
    contexts = 16
    spare_workers = 1
    queue = 1024
    cores = { share = true }
    class = [{ name = 'type-0' }, { name = 'type-1' }, { name = 'type-2' }]
";

/// A server that listens.
pub struct Server {
    server: process::Server,
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
        let command = command.arg(file.path()).env("RUST_BACKTRACE", "0");
        let server = process::Server::start(command.stderr(Stdio::piped()), "listening on ")?;
        Ok(Self {
            server,
            _config: file,
        })
    }

    /// The server's output until it was ready.
    pub fn head(&self) -> &str {
        &self.server.head
    }

    /// Asks the server to end. Returns its output since it was ready, which must say that it
    /// answered `requests`, or more.
    pub fn end_having_answered(self, requests: u64) -> String {
        let said = self.server.end(Signal::TERM);
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
