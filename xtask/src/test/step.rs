//! One step of the test-suite: a command with a time limit, its output streamed and counted.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};

use super::libtest::{Reader, Tally};

/// How long to wait for output that processes left behind may still hold back after a step's end.
const LINGER: Duration = Duration::from_secs(2);
/// How often to look whether the step has ended or must end.
const POLL: Duration = Duration::from_millis(50);

/// A command of the test-suite.
#[derive(Debug, Clone)]
pub struct Step {
    /// Short name, for the command line and the final table.
    pub name: &'static str,
    /// The program.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Environment variables to set.
    pub environment: Vec<(String, String)>,
    /// The time it may take.
    pub limit: Duration,
    /// Whether it must run at least one test: a filter that matches nothing would pass for ever.
    pub has_tests: bool,
    /// What the machine must have, or the step is skipped.
    pub need: Option<Need>,
}

/// Something that a machine may have or not.
#[derive(Debug, Clone)]
pub struct Need {
    /// A command that succeeds where it is there.
    pub probe: &'static str,
    /// What is missing otherwise, and how to get it.
    pub missing: &'static str,
}

impl Need {
    fn is_met(&self) -> bool {
        let mut words = self.probe.split_whitespace();
        words.next().is_some_and(|program| {
            let mut command = Command::new(program);
            command.args(words).stdin(Stdio::null());
            let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        })
    }
}

/// How a [`Step`] ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It did what it should.
    Passed,
    /// It ended by itself, badly; in words.
    Failed(String),
    /// It was killed at its time limit.
    TimedOut,
    /// It was killed because the whole run was asked to stop.
    Interrupted,
}

/// What a [`Step`] brought.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// The tests it ran.
    pub tally: Tally,
    /// The time it took.
    pub elapsed: Duration,
}

/// One line of a child's output.
enum Line {
    Out(String),
    Err(String),
}

impl Step {
    /// Runs the step in `directory` and kills it with everything it started once its limit has
    /// passed or `stop` is set. `show` gets the lines of its output that are worth showing, as they
    /// come.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn run(
        &self,
        directory: &Path,
        stop: &AtomicBool,
        show: &mut dyn FnMut(&str),
    ) -> Result<Outcome> {
        let started = Instant::now();
        if let Some(need) = self.need.as_ref().filter(|need| !need.is_met()) {
            let mut reader = Reader::default();
            let line = format!("SKIPPED step {}: {}", self.name, need.missing);
            show(&line);
            reader.skip(&line);
            return Ok(Outcome {
                end: End::Passed,
                tally: reader.tally(),
                elapsed: started.elapsed(),
            });
        }
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A group of its own, so that a hanging test dies with the cargo that started it.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program))?;

        let (sender, lines) = mpsc::channel();
        if let Some(out) = child.stdout.take() {
            forward(out, sender.clone(), Line::Out);
        }
        if let Some(err) = child.stderr.take() {
            forward(err, sender, Line::Err);
        }
        let mut reader = Reader::default();
        let mut take = |line| match line {
            Line::Out(line) => {
                if reader.line(&line) {
                    show(&line);
                }
            }
            Line::Err(line) => {
                reader.skip(&line);
                show(&line);
            }
        };
        let killed = self.watch(&mut child, &lines, &mut take, started, stop)?;
        let status = child.wait().context("cannot wait for the step")?;
        // What is left in the pipes; but a process left behind may hold them open for ever.
        let until = Instant::now() + LINGER;
        while let Ok(line) = lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            take(line);
        }

        let tally = reader.tally();
        let end = killed.unwrap_or_else(|| self.verdict(status, &tally));
        Ok(Outcome {
            end,
            tally,
            elapsed: started.elapsed(),
        })
    }

    /// Takes lines until the child ends (`None`) or has been killed (the reason).
    fn watch(
        &self,
        child: &mut Child,
        lines: &Receiver<Line>,
        take: &mut dyn FnMut(Line),
        started: Instant,
        stop: &AtomicBool,
    ) -> Result<Option<End>> {
        loop {
            match lines.recv_timeout(POLL) {
                Ok(line) => take(line),
                // Both pipes are closed: the child is about to end.
                Err(RecvTimeoutError::Disconnected) => thread::sleep(POLL),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if child
                .try_wait()
                .context("cannot ask for the step's state")?
                .is_some()
            {
                return Ok(None);
            }
            let reason = if stop.load(Ordering::Relaxed) {
                End::Interrupted
            } else if started.elapsed() >= self.limit {
                End::TimedOut
            } else {
                continue;
            };
            // The child has not been waited for, so its id still names its group and no other.
            kill_process_group(Pid::from_child(child), Signal::KILL)
                .context("cannot kill the step")?;
            return Ok(Some(reason));
        }
    }

    fn verdict(&self, status: ExitStatus, tally: &Tally) -> End {
        if !status.success() {
            return End::Failed(status.to_string());
        }
        let ran = tally.passed + tally.failed + tally.skipped.len() as u64;
        if self.has_tests && ran == 0 {
            End::Failed("ran no test".to_owned())
        } else {
            End::Passed
        }
    }
}

/// Reads lines on a thread of its own until the pipe closes.
fn forward(pipe: impl Read + Send + 'static, lines: Sender<Line>, kind: fn(String) -> Line) {
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut bytes = Vec::new();
        // Bytes, because tests may print what is not UTF-8.
        while pipe.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
            let line = String::from_utf8_lossy(&bytes);
            if lines
                .send(kind(line.trim_end_matches(['\n', '\r']).to_owned()))
                .is_err()
            {
                return;
            }
            bytes.clear();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(script: &str, limit: Duration, has_tests: bool) -> Step {
        Step {
            name: "shell",
            program: "sh".into(),
            arguments: vec!["-c".into(), script.into()],
            environment: vec![("WORD".into(), "value".into())],
            limit,
            has_tests,
            need: None,
        }
    }

    fn run(step: &Step, stopped: bool) -> Outcome {
        step.run(Path::new("/"), &AtomicBool::new(stopped), &mut |_| {})
            .unwrap()
    }

    fn shell(text: &str, limit: Duration, has_tests: bool) -> Outcome {
        run(&script(text, limit, has_tests), false)
    }

    const LONG: Duration = Duration::from_secs(60);
    const RESULT: &str =
        "echo 'test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out'";

    #[test]
    fn a_step_that_ends_well_passes_with_its_counts() {
        let outcome = shell(
            &format!("test $WORD = value && {RESULT}; echo 'SKIPPED x: y' >&2"),
            LONG,
            true,
        );
        assert_eq!(outcome.end, End::Passed);
        assert_eq!((outcome.tally.passed, outcome.tally.skipped.len()), (1, 1));
    }

    #[test]
    fn a_step_without_what_it_needs_is_skipped_by_name() {
        let needy = |probe| {
            let missing = "install it";
            let step = Step {
                need: Some(Need { probe, missing }),
                ..script("false", LONG, true)
            };
            run(&step, false)
        };
        for probe in ["false", "no-such-program --exists x"] {
            let outcome = needy(probe);
            assert_eq!(outcome.end, End::Passed, "{probe}");
            let skipped = &outcome.tally.skipped[0];
            assert_eq!(
                (skipped.name.as_str(), skipped.reason.as_str()),
                ("step shell", "install it")
            );
        }
        assert!(matches!(needy("true").end, End::Failed(_)), "it was run");
    }

    #[test]
    fn a_bad_status_fails_the_step_and_so_does_a_run_without_tests() {
        assert!(
            matches!(shell(&format!("{RESULT}; exit 3"), LONG, true).end, End::Failed(why) if why.contains('3'))
        );
        assert_eq!(
            shell("true", LONG, true).end,
            End::Failed("ran no test".into())
        );
        assert_eq!(shell("true", LONG, false).end, End::Passed);
    }

    #[test]
    fn a_hanging_step_is_killed_with_its_children() {
        let started = Instant::now();
        // The grandchild holds the pipe: only a kill of the whole group closes it before LINGER
        // runs out.
        let outcome = shell(
            "echo started; sleep 1000 & wait",
            Duration::from_millis(200),
            false,
        );
        assert_eq!(outcome.end, End::TimedOut);
        assert!(started.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn a_stopped_run_ends_its_step() {
        let outcome = run(&script("sleep 1000", LONG, false), true);
        assert_eq!(outcome.end, End::Interrupted);
    }
}
