//! Child processes that measure, each ended by its own pid whatever happens.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;

/// What a measurement may take beyond its time, on a machine that does something else as well.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How often to read what a process says of its progress.
const ASKED: Duration = Duration::from_secs(1);
/// How often to look whether a process has ended.
pub const POLL: Duration = Duration::from_millis(5);

/// A child process. When this is dropped, the process is killed.
#[derive(Debug)]
pub struct Process {
    pub child: Child,
    /// What it was asked for.
    pub line: String,
    out: PathBuf,
    error: PathBuf,
}

impl Process {
    /// Starts `program`, whose output goes to files in `directory`.
    ///
    /// # Errors
    /// It cannot be started, or the files not be written.
    pub fn start(program: &Path, directory: &Path, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments);
        Self::spawn(command, directory)
    }

    /// As [`start`](Self::start), with more to say of the program than its arguments.
    ///
    /// # Errors
    /// As there.
    pub fn spawn(mut command: Command, directory: &Path) -> Result<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Relaxed);
        let [out, error] =
            ["out", "err"].map(|ending| directory.join(format!("process-{number}.{ending}")));
        let create = |path: &Path| {
            File::create(path).with_context(|| format!("cannot write {}", path.display()))
        };
        let program = Path::new(command.get_program()).to_owned();
        let arguments = command
            .get_args()
            .map(|argument| argument.to_string_lossy());
        let line = arguments.collect::<Vec<_>>().join(" ");
        let child = command
            // The child ends when this process, which has the other end, does.
            .stdin(Stdio::piped())
            .stdout(create(&out)?)
            .stderr(create(&error)?)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self {
            child,
            line,
            out,
            error,
        })
    }

    /// What it prints, when it has measured for so many seconds and ended.
    ///
    /// # Errors
    /// It fails, takes far longer, was interrupted, or prints something else.
    pub fn result<T: DeserializeOwned>(mut self, seconds: f64, stop: &AtomicBool) -> Result<T> {
        let patience = Duration::from_secs_f64(seconds) + PATIENCE;
        let status = self.wait(patience, stop, |_| ())?;
        ensure!(status.success(), "{status}; {}", self.last_words());
        let told = self.told()?;
        serde_json::from_str(&told).with_context(|| format!("this is no result: {told:?}"))
    }

    /// Waits until it has ended well, and passes on what it says meanwhile: its last line on
    /// standard error, once a second.
    ///
    /// # Errors
    /// It fails, takes longer, or was interrupted.
    pub fn end(
        mut self,
        patience: Duration,
        stop: &AtomicBool,
        tell: impl FnMut(&str),
    ) -> Result<()> {
        self.wait_well(patience, stop, tell)
    }

    /// As [`end`](Self::end), and what it has [`told`](Self::told) is still there.
    ///
    /// # Errors
    /// As there.
    pub fn wait_well(
        &mut self,
        patience: Duration,
        stop: &AtomicBool,
        tell: impl FnMut(&str),
    ) -> Result<()> {
        let status = self.wait(patience, stop, tell)?;
        ensure!(status.success(), "{status}; {}", self.last_words());
        Ok(())
    }

    /// Waits for its end.
    fn wait(
        &mut self,
        patience: Duration,
        stop: &AtomicBool,
        mut tell: impl FnMut(&str),
    ) -> Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        let mut ask = Instant::now() + ASKED;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(!stop.load(Relaxed), "interrupted");
            if Instant::now() > deadline {
                bail!("{:?} has not ended within {patience:?}", self.line);
            }
            if Instant::now() > ask {
                tell(&self.last_line());
                ask += ASKED;
            }
            thread::sleep(POLL);
        }
    }

    /// What it has printed so far.
    ///
    /// # Errors
    /// That cannot be read.
    pub fn told(&self) -> Result<String> {
        std::fs::read_to_string(&self.out)
            .with_context(|| format!("cannot read {}", self.out.display()))
    }

    /// What it was asked for, and the end of what it said of that.
    pub fn last_words(&self) -> String {
        format!("{:?} said last: {:?}", self.line, self.last_line())
    }

    /// The last line of its standard error that is not empty; none, if it has said nothing.
    fn last_line(&self) -> String {
        let told = std::fs::read_to_string(&self.error).unwrap_or_default();
        let last = told.lines().rev().find(|line| !line.trim().is_empty());
        last.unwrap_or_default().trim().to_owned()
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

/// CPU time that the process `pid` has used, user's and system's, in seconds (in steps of the
/// kernel's 10 ms).
///
/// # Errors
/// It is gone.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    cpu_ticks(&stat)
        .map(|ticks| ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
        .with_context(|| format!("{path} is not as expected: {stat:?}"))
}

/// User's and system's ticks of a `/proc/PID/stat`.
fn cpu_ticks(stat: &str) -> Option<u64> {
    // The program's name comes in parentheses and may hold anything; behind it the fields are
    // counted from the third on.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(directory: &Path, script: &str) -> Process {
        Process::start(Path::new("/bin/sh"), directory, &["-c", script]).unwrap()
    }

    #[test]
    fn what_a_process_says_is_passed_on_while_it_runs() {
        let directory = tempfile::tempdir().unwrap();
        let process = shell(directory.path(), "echo 25 % >&2; sleep 2.5");
        let mut told = Vec::new();
        let ended = process.end(PATIENCE, &AtomicBool::new(false), |line| {
            told.push(line.to_owned());
        });
        ended.unwrap();
        assert!(
            !told.is_empty() && told.iter().all(|line| line == "25 %"),
            "{told:?}"
        );
    }

    #[test]
    fn a_process_that_takes_too_long_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        let process = shell(directory.path(), "exec sleep 100");
        let pid = process.child.id();
        let patience = Duration::from_millis(50);
        let error = process
            .end(patience, &AtomicBool::new(false), |_| ())
            .unwrap_err();
        assert!(error.to_string().contains("has not ended"), "{error}");
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{pid}");
    }

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 1 2 3 4 250 50 7 8 20 0 1 0 100 1 1";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(cpu_ticks("42 (a) S 1"), None);
    }
}
