//! The supervisor: a process that gives the scheduled their classes back if the scheduler cannot.
//!
//! ```text
//!    scheduler ──────────── pipe: who is elevated, "alive" every 100 ms, "done" ───────▶ supervisor
//!       │                                                                                   │
//!       │ gives back what it took, when it ends by itself                                   │ gives back:
//!       ▼                                                                                   ▼
//!    scheduled ◀──── pipe closed without "done" (kill -9), nothing for 2 s, deadline over ──┘
//! ```
//!
//! Each of the two notices the end of the other: the kernel closes the pipe's end of the one that
//! ends. Only if both are killed within a moment does a thread keep what it was given. The
//! supervisor has the highest priority of all, and sleeps.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use shinjuku_preempt::SchedulingClass;

use crate::ElevateError;
use crate::member::Member;

/// How often the scheduler says that it is there.
pub(crate) const BEAT: Duration = Duration::from_millis(100);
/// How long the supervisor waits for that.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the scheduler may have stood still and go on: less, so that it does not take again what
/// the supervisor has given back.
pub(crate) const STANDSTILL: Duration = Duration::from_secs(1);
/// How long starting a process may take, and its end, on a machine that does something else.
const PROCESS: Duration = Duration::from_secs(30);

/// A line from the scheduler.
#[derive(Serialize, Deserialize)]
enum Message {
    /// The first: the supervisor's priority, and after how many milliseconds all ends at the
    /// latest.
    Begin {
        priority: u32,
        deadline_ms: Option<u64>,
    },
    /// One more is going to be elevated.
    Elevated(Member),
    /// The scheduler is there.
    Alive,
    /// The scheduler has given back everything.
    Done,
}

/// What the supervisor says once it stands by.
const READY: &[u8] = b"ready\n";

/// The scheduler's end. Dropped without a word, it is as if the scheduler were killed.
#[derive(Debug)]
pub(crate) struct Supervisor {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Supervisor {
    /// Starts `command`, which is to call [`supervise`].
    pub(crate) fn start(
        mut command: Command,
        priority: u32,
        deadline: Option<Duration>,
    ) -> Result<Self, ElevateError> {
        // In a process group of its own: control-C at a terminal is for the scheduler.
        let mut child = command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(ElevateError::Supervisor)?;
        let pipe = child.stdin.take();
        let mut supervisor = Self { child, pipe };
        let deadline_ms = deadline.map(|deadline| deadline.as_millis() as u64);
        supervisor.say(&Message::Begin {
            priority,
            deadline_ms,
        })?;
        supervisor.await_ready().map_err(ElevateError::Supervisor)?;
        Ok(supervisor)
    }

    fn await_ready(&mut self) -> io::Result<()> {
        let Some(mut output) = self.child.stdout.take() else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let deadline = Instant::now() + PROCESS;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\n") {
            if !readable(&output, Some(deadline))? {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut buffer = [0; 256];
            match output.read(&mut buffer)? {
                0 => break,
                read => answer.extend(&buffer[..read]),
            }
        }
        match answer == READY {
            true => Ok(()),
            false => {
                let said = String::from_utf8_lossy(&answer).trim().to_owned();
                Err(io::Error::other(format!("it said {said:?}")))
            }
        }
    }

    /// Tells of one that is going to be elevated.
    pub(crate) fn elevated(&mut self, member: &Member) -> Result<(), ElevateError> {
        self.say(&Message::Elevated(member.clone()))
    }

    /// Says that the scheduler is there.
    pub(crate) fn alive(&mut self) -> Result<(), ElevateError> {
        self.say(&Message::Alive)
    }

    fn say(&mut self, message: &Message) -> Result<(), ElevateError> {
        let mut line =
            serde_json::to_vec(message).map_err(|error| ElevateError::Supervisor(error.into()))?;
        line.push(b'\n');
        let pipe = self.pipe.as_mut();
        let said = pipe.is_some_and(|pipe| pipe.write_all(&line).is_ok());
        said.then_some(()).ok_or(ElevateError::SupervisorGone)
    }

    /// Ends it: all has been given back.
    pub(crate) fn done(mut self) {
        // Errors: it has gone before.
        let _ = self.say(&Message::Done);
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // Its input ends, so the process does.
        self.pipe = None;
        let deadline = Instant::now() + PROCESS;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Why the supervisor ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SupervisorEnd {
    /// The scheduler has given back everything itself.
    Done,
    /// The scheduler has gone without a word: killed, perhaps.
    SchedulerGone,
    /// The scheduler was silent: stopped, perhaps, or spinning somewhere.
    SchedulerSilent,
    /// The time that was asked for is over, and some more.
    Deadline,
}

/// Is the supervisor, in a process of its own, until the scheduler ends. The scheduler's lines come
/// from `input`, and the answer goes to `output`. In every case but [`SupervisorEnd::Done`] this
/// gives back everything that was elevated.
///
/// # Errors
/// A line makes no sense or cannot be read, SCHED_FIFO is refused, or a class cannot be given back.
pub fn supervise(input: impl Read + AsFd, mut output: impl Write) -> io::Result<SupervisorEnd> {
    let mut lines = Lines {
        input,
        read: Vec::new(),
    };
    let first = lines.next(Some(Instant::now() + PATIENCE))?;
    let Next::Message(Message::Begin {
        priority,
        deadline_ms,
    }) = first
    else {
        return Err(io::Error::other("this is no scheduler's first word"));
    };
    SchedulingClass::fifo(priority).give_to(0)?;
    output.write_all(READY)?;
    output.flush()?;
    let end = deadline_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
    let mut members = Vec::new();
    // Whatever happens from here on, what was elevated is given back.
    let why = loop {
        let silent = Instant::now() + PATIENCE;
        let until = end.map_or(silent, |end| silent.min(end));
        match lines.next(Some(until)) {
            Ok(Next::Message(Message::Elevated(member))) => members.push(member),
            Ok(Next::Message(Message::Done)) => return Ok(SupervisorEnd::Done),
            Ok(Next::Message(_)) => {}
            Ok(Next::End) => break Ok(SupervisorEnd::SchedulerGone),
            Ok(Next::Silence) if until < silent => break Ok(SupervisorEnd::Deadline),
            Ok(Next::Silence) => break Ok(SupervisorEnd::SchedulerSilent),
            Err(error) => break Err(error),
        }
        if end.is_some_and(|end| Instant::now() > end) {
            break Ok(SupervisorEnd::Deadline);
        }
    };
    let given_back: Vec<_> = members.iter().map(Member::give_back).collect();
    given_back.into_iter().collect::<io::Result<()>>()?;
    why
}

enum Next {
    Message(Message),
    Silence,
    End,
}

struct Lines<Input> {
    input: Input,
    read: Vec<u8>,
}

impl<Input: Read + AsFd> Lines<Input> {
    fn next(&mut self, until: Option<Instant>) -> io::Result<Next> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Ok(Next::Message(serde_json::from_slice(&line)?));
            }
            if !readable(&self.input, until)? {
                return Ok(Next::Silence);
            }
            let mut buffer = [0; 4096];
            match self.input.read(&mut buffer) {
                Ok(0) => return Ok(Next::End),
                Ok(read) => self.read.extend(&buffer[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Waits until there is something to read, or its end; whether there is, or `until` has passed.
fn readable(descriptor: &impl AsFd, until: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let patience = left.map(|left| Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
        match poll(&mut polled, patience.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            answer => return Ok(answer? > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// The supervisor's end, if that is none with an error, when it is told of a process that is
    /// elevated and then what `then` says; and whether the process has its class again.
    fn supervised(
        test: &str,
        deadline_ms: Option<u64>,
        then: impl FnOnce(&mut UnixStream),
    ) -> Option<(Option<SupervisorEnd>, bool)> {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id();
        let member = Member::of(pid).unwrap().unwrap();
        let before = SchedulingClass::of(pid).unwrap();
        let given = SchedulingClass::fifo(1).give_to(pid);
        let ended = given.as_ref().ok().map(|()| {
            let (mut scheduler, input) = UnixStream::pair().unwrap();
            let supervisor = thread::spawn(move || supervise(input, io::sink()));
            let begin = Message::Begin {
                priority: 5,
                deadline_ms,
            };
            for message in [begin, Message::Elevated(member), Message::Alive] {
                say(&mut scheduler, &message);
            }
            then(&mut scheduler);
            let end = supervisor.join().unwrap().ok();
            (end, SchedulingClass::of(pid).unwrap() == before)
        });
        child.kill().unwrap();
        child.wait().unwrap();
        if let Err(error) = given {
            println!("SKIPPED {test}: SCHED_FIFO: {error}");
        }
        ended
    }

    fn say(scheduler: &mut UnixStream, message: &Message) {
        let line = serde_json::to_string(message).unwrap() + "\n";
        // It may have gone already.
        let _ = scheduler.write_all(line.as_bytes());
    }

    #[test]
    fn a_scheduler_that_goes_without_a_word_is_made_up_for() {
        const TEST: &str = "a_scheduler_that_goes_without_a_word_is_made_up_for";
        let ended = supervised(TEST, None, |scheduler| {
            scheduler.shutdown(std::net::Shutdown::Both).unwrap();
        });
        if let Some(ended) = ended {
            assert_eq!(ended, (Some(SupervisorEnd::SchedulerGone), true));
        }
    }

    #[test]
    fn one_that_goes_on_beyond_its_time_is_overruled() {
        const TEST: &str = "one_that_goes_on_beyond_its_time_is_overruled";
        let ended = supervised(TEST, Some(100), |scheduler| {
            for _ in 0..30 {
                say(scheduler, &Message::Alive);
                thread::sleep(Duration::from_millis(10));
            }
        });
        if let Some(ended) = ended {
            assert_eq!(ended, (Some(SupervisorEnd::Deadline), true));
        }
    }

    #[test]
    fn one_that_is_silent_is_overruled() {
        if let Some(ended) = supervised("one_that_is_silent_is_overruled", None, |scheduler| {
            // The other end stays open for as long as this does.
            let scheduler = scheduler.try_clone().unwrap();
            thread::spawn(move || {
                thread::sleep(2 * PATIENCE);
                drop(scheduler);
            });
        }) {
            assert_eq!(ended, (Some(SupervisorEnd::SchedulerSilent), true));
        }
    }

    #[test]
    fn one_that_has_given_back_itself_is_left_alone() {
        const TEST: &str = "one_that_has_given_back_itself_is_left_alone";
        let ended = supervised(TEST, None, |scheduler| say(scheduler, &Message::Done));
        if let Some(ended) = ended {
            assert_eq!(ended, (Some(SupervisorEnd::Done), false));
        }
    }

    #[test]
    fn one_that_says_what_makes_no_sense_is_made_up_for() {
        const TEST: &str = "one_that_says_what_makes_no_sense_is_made_up_for";
        let ended = supervised(TEST, None, |scheduler| {
            scheduler.write_all(b"\"nonsense\"\n").unwrap();
        });
        if let Some(ended) = ended {
            assert_eq!(ended, (None, true));
        }
    }

    #[test]
    fn nobody_elses_words_are_taken() {
        for words in ["\n", "hello\n", "\"Done\"\n", ""] {
            let (mut scheduler, input) = UnixStream::pair().unwrap();
            scheduler.write_all(words.as_bytes()).unwrap();
            drop(scheduler);
            assert!(supervise(input, io::sink()).is_err(), "{words:?}");
        }
    }
}
