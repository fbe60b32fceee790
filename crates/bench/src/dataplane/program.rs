//! `bench-dataplane`: building it, and its figures, a process each.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use shinjuku_bench_dataplane::Rates;

use crate::harness::Process;

const PACKAGE: &str = "shinjuku-bench-dataplane";
/// The least version of libdpdk.
const DPDK: &str = "22.11";

/// The program, built.
pub struct Program<'a> {
    pub(super) path: PathBuf,
    /// The version of the libdpdk that it is linked with.
    pub dpdk: Option<String>,
    /// Where its processes write.
    pub(super) directory: &'a Path,
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
        Process::start(&self.path, self.directory, arguments)?.result(seconds, self.stop)
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
