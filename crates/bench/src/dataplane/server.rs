//! A server of `bench-dataplane`'s, and its client, as processes of their own.

use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use shinjuku_bench_dataplane::Calls;
use tempfile::TempDir;

use super::program::Program;
use crate::harness::{PATIENCE, POLL, Process};

/// What a server's packets go over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// DPDK's net_memif.
    Memif,
    /// The kernel's UDP on loopback.
    Udp,
}

/// What serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A loop that sends what it receives.
    Raw,
    /// The transport alone, over memif.
    Transport,
    /// The runtime, inline.
    Runtime,
}

/// A server as a process of its own. Dropped, it is gone.
pub struct Server<'a> {
    program: &'a Program<'a>,
    process: Process,
    over: Over,
    /// Where it is to be found, as it says: its address, or its file.
    at: String,
    /// The file's, which goes with it.
    _directory: TempDir,
    kind: Kind,
    /// What it says of itself.
    pub description: String,
}

impl<'a> Server<'a> {
    /// Starts it on `core`, and waits until it serves.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(program: &'a Program<'a>, over: Over, kind: Kind, core: usize) -> Result<Self> {
        let directory = tempfile::tempdir().context("no directory for a socket")?;
        let wanted = match over {
            // Not among the results: the kernel takes short names only.
            Over::Memif => directory.path().join("memif").display().to_string(),
            // The kernel picks a port, and the server tells it: no other process can take it in
            // between.
            Over::Udp => "127.0.0.1:0".to_owned(),
        };
        let core = core.to_string();
        let server = match kind {
            Kind::Raw => "raw",
            Kind::Transport => "transport",
            Kind::Runtime => "runtime",
        };
        let arguments = [
            "serve",
            "--over",
            over.name(),
            "--at",
            &wanted,
            "--server",
            server,
            "--core",
            &core,
        ];
        let mut process = Process::start(&program.path, program.directory, &arguments)?;
        let deadline = Instant::now() + PATIENCE;
        let (at, description) = loop {
            let told = process.told()?;
            let line = told.split_once('\n').map(|(line, _)| line);
            let said = line.and_then(|line| line.strip_prefix("ready at "));
            if let Some((at, description)) = said.and_then(|said| said.split_once(": ")) {
                break (at.to_owned(), description.to_owned());
            }
            if let Some(status) = process.child.try_wait()? {
                bail!("{status}; {}", process.last_words());
            }
            ensure!(!program.stop.load(Relaxed), "interrupted");
            ensure!(
                Instant::now() < deadline,
                "{} is not ready within {PATIENCE:?}",
                process.line
            );
            thread::sleep(POLL);
        };
        Ok(Self {
            program,
            process,
            over,
            at,
            _directory: directory,
            kind,
            description,
        })
    }

    /// Calls it from `core` with so many requests under way, for replies of each of these lengths.
    ///
    /// # Errors
    /// The client fails, or the server has ended.
    pub fn call(
        &mut self,
        window: u16,
        replies: &[u16],
        seconds: f64,
        core: usize,
    ) -> Result<Vec<Calls>> {
        let replies: Vec<_> = replies.iter().map(u16::to_string).collect();
        let [window, core] = [usize::from(window), core].map(|number| number.to_string());
        let each = seconds.to_string();
        let lengths = replies.join(",");
        let mut arguments = vec![
            "call",
            "--over",
            self.over.name(),
            "--at",
            &self.at,
            "--window",
            &window,
            "--reply",
            &lengths,
            "--seconds",
            &each,
            "--core",
            &core,
        ];
        if (self.over, self.kind) == (Over::Memif, Kind::Raw) {
            arguments.push("--raw");
        }
        let called = self.program.run(&arguments, seconds * replies.len() as f64);
        if let Some(status) = self.process.child.try_wait()? {
            bail!(
                "the server has ended: {status}; {}",
                self.process.last_words()
            );
        }
        called
    }
}

impl Over {
    fn name(self) -> &'static str {
        match self {
            Self::Memif => "memif",
            Self::Udp => "udp",
        }
    }
}
