//! `bench-dataplane` as child processes, each ended by its own pid whatever happens.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use shinjuku_bench_dataplane::Rates;

const PACKAGE: &str = "shinjuku-bench-dataplane";
/// The least version of libdpdk.
const DPDK: &str = "22.11";
/// What a measurement may take beyond its time, on a machine that does something else as well.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// How often to look.
pub(super) const POLL: Duration = Duration::from_millis(5);

/// The program, built.
pub struct Program<'a> {
    path: PathBuf,
    /// The version of the libdpdk that it is linked with.
    pub dpdk: Option<String>,
    /// Where its processes write.
    directory: &'a Path,
    pub(super) stop: &'a AtomicBool,
}

impl<'a> Program<'a> {
    /// Builds it, with DPDK if that is there; if not, the notes say what is missing.
    ///
    /// # Errors
    /// It cannot be built.
    pub fn build(
        directory: &'a Path,
        stop: &'a AtomicBool,
        notes: &mut Vec<String>,
    ) -> Result<Self> {
        let dpdk = libdpdk();
        if dpdk.is_none() {
            notes.push(format!(
                "skipped: net_ring and memif, which take libdpdk {DPDK} or later and pkg-config (Debian: libdpdk-dev pkg-config). \
                 A wire in memory stands in for net_ring where it can."
            ));
        }
        let mut command = crate::paths::cargo();
        command.args(["build", "--quiet", "--release", "--package", PACKAGE]);
        if dpdk.is_some() {
            command.args(["--features", "dpdk"]);
        }
        eprintln!("building {PACKAGE}");
        let status = command.status().context("cannot run cargo")?;
        ensure!(status.success(), "building {PACKAGE} failed ({status})");
        let path = crate::paths::target_dir()
            .join("release")
            .join("bench-dataplane");
        Ok(Self {
            path,
            dpdk,
            directory,
            stop,
        })
    }

    /// What stands for the device where client and server are one process.
    pub fn wire(&self) -> &'static str {
        match self.dpdk {
            Some(_) => "net_ring",
            None => "memory",
        }
    }

    /// To measure requests a second through a stage, for so many seconds.
    pub fn rates(&'a self, stage: &str, seconds: f64) -> RatesOf<'a> {
        let line = format!(
            "rates --wire {} --stage {stage} --seconds {seconds}",
            self.wire()
        );
        RatesOf {
            program: self,
            seconds,
            arguments: line.split(' ').map(str::to_owned).collect(),
        }
    }

    /// Runs it until it has printed what it found.
    ///
    /// # Errors
    /// It fails, takes `seconds` and far longer, or was interrupted.
    pub fn run<T: DeserializeOwned>(&self, arguments: &[&str], seconds: f64) -> Result<T> {
        let mut process = Process::start(self, arguments)?;
        let status = process.wait(Duration::from_secs_f64(seconds) + PATIENCE, self.stop)?;
        ensure!(status.success(), "{status}; {}", process.last_words());
        let told = process.told()?;
        serde_json::from_str(&told).with_context(|| format!("this is no result: {told:?}"))
    }
}

/// A measurement of requests a second, to be run.
pub struct RatesOf<'a> {
    program: &'a Program<'a>,
    seconds: f64,
    arguments: Vec<String>,
}

impl RatesOf<'_> {
    fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.arguments.extend([name.to_owned(), value.to_string()]);
        self
    }

    /// With a dispatcher on each of these cores.
    pub fn cores(self, cores: &[usize]) -> Self {
        let all = self.with("--dispatchers", cores.len());
        cores.iter().fold(all, |all, core| all.with("--core", core))
    }

    /// With replies of so many bytes.
    pub fn reply(self, bytes: u16) -> Self {
        self.with("--reply", bytes)
    }

    /// With so many flows from each client, spread by software.
    pub fn software(mut self, flows: u16) -> Self {
        self.arguments.push("--software".to_owned());
        self.with("--flows", flows)
    }

    /// Measures.
    ///
    /// # Errors
    /// As [`Program::run`].
    pub fn run(self) -> Result<Rates> {
        let arguments: Vec<_> = self.arguments.iter().map(String::as_str).collect();
        self.program.run(&arguments, self.seconds)
    }
}

/// libdpdk's version, if it is there and will do.
fn libdpdk() -> Option<String> {
    let ask = |question: &str| {
        let mut command = Command::new("pkg-config");
        let output = command.args([question, "libdpdk"]).output().ok()?;
        output.status.success().then_some(output.stdout)
    };
    ask(&format!("--atleast-version={DPDK}"))?;
    let version = ask("--modversion")?;
    Some(String::from_utf8_lossy(&version).trim().to_owned())
}

/// A process. Dropped, it is gone.
pub(super) struct Process {
    pub(super) child: Child,
    /// What it was asked for.
    pub(super) line: String,
    out: PathBuf,
    error: PathBuf,
}

impl Process {
    pub(super) fn start(program: &Program, arguments: &[&str]) -> Result<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Relaxed);
        let [out, error] = ["out", "err"]
            .map(|ending| program.directory.join(format!("process-{number}.{ending}")));
        let create = |path: &Path| {
            File::create(path).with_context(|| format!("cannot write {}", path.display()))
        };
        let child = Command::new(&program.path)
            .args(arguments)
            // It ends with whoever has the other end.
            .stdin(Stdio::piped())
            .stdout(create(&out)?)
            .stderr(create(&error)?)
            .spawn()
            .with_context(|| format!("cannot start {}", program.path.display()))?;
        Ok(Self {
            child,
            line: arguments.join(" "),
            out,
            error,
        })
    }

    /// Waits for its end.
    fn wait(&mut self, patience: Duration, stop: &AtomicBool) -> Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(!stop.load(Relaxed), "interrupted");
            if Instant::now() > deadline {
                bail!("{:?} has not ended within {patience:?}", self.line);
            }
            thread::sleep(POLL);
        }
    }

    pub(super) fn told(&self) -> Result<String> {
        std::fs::read_to_string(&self.out)
            .with_context(|| format!("cannot read {}", self.out.display()))
    }

    /// What it was asked for, and the end of what it said of that.
    pub(super) fn last_words(&self) -> String {
        let told = std::fs::read_to_string(&self.error).unwrap_or_default();
        let last = told.lines().rev().find(|line| !line.trim().is_empty());
        format!("{:?} said last: {:?}", self.line, last.unwrap_or_default())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors: it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for path in [&self.out, &self.error] {
            let _ = std::fs::remove_file(path);
        }
    }
}
