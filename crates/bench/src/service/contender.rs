//! The contenders: `examples/web` as a child process, each time with another way to compute.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::harness::{Process, cpu_seconds};
use crate::paths;

/// What a server may take to make its data.
const START: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);

/// Names in results.
pub const INLINE: &str = "inline";
pub const SPAWN_BLOCKING: &str = "spawn_blocking";
/// What three lines give: without the token, `auto` is the probes that the code has.
pub const POOL: &str = "pool by default (probes by hand)";
pub const POOL_TOKEN: &str = "pool with the token (signals)";
pub const POOL_KERNEL_THREADS: &str = "pool with kernel threads";
pub const POOL_COMPILED: &str = "pool with compiled probes";

/// One way to compute.
#[derive(Debug)]
pub struct Contender {
    pub name: &'static str,
    /// What the server is started with.
    arguments: &'static [&'static str],
    /// Whether the instrumented program serves.
    instrumented: bool,
}

/// All of them, the reference first.
pub const CONTENDERS: [Contender; 9] = [
    contender(INLINE, &["--compute", "inline"]),
    contender(SPAWN_BLOCKING, &["--compute", "spawn-blocking"]),
    contender(
        "spawn_blocking, long only",
        &["--compute", "spawn-blocking-long"],
    ),
    contender("rayon", &["--compute", "rayon"]),
    contender("two runtimes", &["--compute", "two-runtimes"]),
    contender(POOL, &[]),
    contender(POOL_TOKEN, &["--preempt-anywhere"]),
    contender(POOL_KERNEL_THREADS, &["--kernel-threads"]),
    Contender {
        instrumented: true,
        // The layout of a pool's own choice leaves them out.
        ..contender(POOL_COMPILED, &["--preempt-anywhere", "--dispatcher"])
    },
];

const fn contender(name: &'static str, arguments: &'static [&'static str]) -> Contender {
    Contender {
        name,
        arguments,
        instrumented: false,
    }
}

/// The server's program, plain and with compiled probes.
#[derive(Debug)]
pub struct Programs {
    plain: PathBuf,
    instrumented: Option<PathBuf>,
}

impl Programs {
    /// Builds them, unless they are given. Without the instrumented one its contender is left out,
    /// which the notes say.
    ///
    /// # Errors
    /// The plain one cannot be built.
    pub fn find(
        plain: Option<&Path>,
        instrumented: Option<&Path>,
        notes: &mut Vec<String>,
    ) -> Result<Self> {
        if let Some(plain) = plain {
            return Ok(Self {
                plain: plain.to_owned(),
                instrumented: instrumented.map(Path::to_owned),
            });
        }
        const PACKAGE: [&str; 4] = ["--quiet", "--release", "--package", "shinjuku-web"];
        let target = paths::target_dir();
        let mut build = paths::cargo();
        build
            .arg("build")
            .args(PACKAGE)
            .args(["--package", "cargo-shinjuku"]);
        finish(build, "the server")?;
        let mut build = Command::new(target.join("release/cargo-shinjuku"));
        build
            .current_dir(paths::workspace_root())
            .arg("build")
            .args(PACKAGE);
        build.args(["--target", "x86_64-unknown-linux-gnu"]);
        let built = finish(build, "the server with compiled probes");
        if let Err(error) = &built {
            notes.push(format!("skipped: {POOL_COMPILED}: {error:#}"));
        }
        let path = target.join("shinjuku/x86_64-unknown-linux-gnu/release/web");
        Ok(Self {
            plain: target.join("release/web"),
            instrumented: built.is_ok().then_some(path),
        })
    }

    fn of(&self, contender: &Contender) -> Result<&Path> {
        match contender.instrumented {
            false => Ok(&self.plain),
            true => (self.instrumented.as_deref()).context("there is no instrumented program"),
        }
    }
}

fn finish(mut build: Command, what: &str) -> Result<()> {
    eprintln!("building {what}");
    let status = (build.status()).with_context(|| format!("cannot build {what}"))?;
    ensure!(status.success(), "building {what} failed ({status})");
    Ok(())
}

/// A running server, stopped except in its turns. Dropped, it is gone.
#[derive(Debug)]
pub struct Server {
    process: Process,
    pub address: SocketAddr,
    /// What it said of itself.
    pub description: String,
}

impl Server {
    /// Starts a contender on `cores`, and stops it once it listens.
    ///
    /// # Errors
    /// It ends, or does not listen.
    pub fn start(
        contender: &Contender,
        programs: &Programs,
        cores: &CpuSet,
        directory: &Path,
    ) -> Result<Self> {
        let program = programs.of(contender)?;
        // Stopped, it would outlive a bench that is killed.
        let mut arguments = vec!["--listen", "127.0.0.1:0", "--ends-with-parent"];
        arguments.extend(contender.arguments);
        // A child has the cores of the thread that makes it, and ends with this very thread: so not
        // one of its own for the cores.
        let own = sched_getaffinity(None).context("the bench's cores")?;
        sched_setaffinity(None, cores).context("the server's cores")?;
        let started = Process::start(program, directory, &arguments);
        sched_setaffinity(None, &own).context("the bench's cores")?;
        let mut process = started?;
        let deadline = Instant::now() + START;
        let told = loop {
            let told = process.told()?;
            if told.contains("listening on ") && told.ends_with('\n') {
                break told;
            }
            if let Some(status) = process.child.try_wait()? {
                bail!("it ended at once ({status}); {}", process.last_words());
            }
            ensure!(
                Instant::now() < deadline,
                "it does not listen; {}",
                process.last_words()
            );
            thread::sleep(POLL);
        };
        let (description, address) = (told.rsplit_once("listening on ")).context("its address")?;
        let server = Self {
            address: address.trim().parse().context("its address")?,
            description: description.trim().to_owned(),
            process,
        };
        server.signal(Signal::STOP)?;
        Ok(server)
    }

    /// Lets it go on for as long as `turn` takes.
    ///
    /// # Errors
    /// It is gone; or `turn`'s.
    pub fn in_turn<T>(&mut self, turn: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        if let Some(status) = self.process.child.try_wait()? {
            bail!(
                "the server has ended: {status}; {}",
                self.process.last_words()
            );
        }
        self.signal(Signal::CONT)?;
        let outcome = turn(self);
        self.signal(Signal::STOP)?;
        outcome
    }

    /// Whether its process is over.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.process.child.try_wait(), Ok(None))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        // Not reaped before it is dropped, so the pid is its own.
        let pid = Pid::from_child(&self.process.child);
        kill_process(pid, signal).context("cannot signal the server")
    }

    /// CPU time that it has used, user's and system's, all its threads'.
    ///
    /// # Errors
    /// It is gone.
    pub fn cpu_seconds(&self) -> Result<f64> {
        cpu_seconds(self.process.child.id())
    }

    /// The most memory that it has had so far (VmHWM), in MiB.
    ///
    /// # Errors
    /// It is gone.
    pub fn peak_mib(&self) -> Result<f64> {
        let path = format!("/proc/{}/status", self.process.child.id());
        let status =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        peak_kib(&status)
            .map(|kib| kib / 1024.0)
            .with_context(|| format!("{path} has no VmHWM"))
    }
}

fn peak_kib(status: &str) -> Option<f64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Which cores the server has, the first two, and which the client: those left, or the same.
pub fn share_cores(cores: impl IntoIterator<Item = usize>) -> (CpuSet, CpuSet, bool) {
    let cores: BTreeSet<usize> = cores.into_iter().collect();
    let set = |cores: &mut dyn Iterator<Item = &usize>| {
        let mut set = CpuSet::new();
        cores.for_each(|&core| set.set(core));
        set
    };
    let server = set(&mut cores.iter().take(2));
    let shares = cores.len() <= 2;
    let client = match shares {
        true => server,
        false => set(&mut cores.iter().skip(2)),
    };
    (server, client, shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_found_in_the_status() {
        let status = "Name:\tweb\nVmPeak:\t  999 kB\nVmHWM:\t   2048 kB\n";
        assert_eq!(peak_kib(status), Some(2048.0));
        assert_eq!(peak_kib("Name:\tweb\n"), None);
    }

    #[test]
    fn the_client_has_what_the_server_leaves() {
        let (server, client, shares) = share_cores([5, 3]);
        assert!(shares && server == client && server.is_set(3) && server.is_set(5));
        let (server, client, shares) = share_cores([0, 1, 2, 3]);
        assert!(!shares && server.count() == 2 && server.is_set(1));
        assert!(client.count() == 2 && client.is_set(2) && !client.is_set(1));
    }

    #[test]
    fn a_program_that_does_not_serve_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let programs = Programs {
            plain: "/bin/false".into(),
            instrumented: None,
        };
        let (cores, ..) = share_cores([0]);
        let start = |contender| Server::start(contender, &programs, &cores, directory.path());
        let error = start(&CONTENDERS[0]).unwrap_err();
        assert!(error.to_string().contains("ended at once"), "{error:#}");
        let error = start(&CONTENDERS[8]).unwrap_err();
        assert!(error.to_string().contains("instrumented"), "{error:#}");
    }
}
