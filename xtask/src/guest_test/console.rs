//! What came over the guest's serial console, and what it means.
//!
//! `init.sh` writes marks at the beginning of a line; everything between is libtest's or the
//! kernel's.
//!
//! ```text
//!   @@ up                       the guest's first process runs
//!   @@ kvm yes | no             whether there is a /dev/kvm
//!   @@ begin NAME               a suite begins
//!   @@ end NAME STATUS          it ended
//!   @@ done                     all is over; the guest powers off
//! ```

use crate::test::libtest::{Reader, Tally};

/// How the shell calls the end by SIGKILL, which `timeout` sends.
const KILLED: i32 = 128 + 9;

/// A suite that began.
#[derive(Debug)]
struct Suite {
    name: String,
    /// How it ended.
    status: Option<i32>,
    /// The test that began and has not ended.
    running: Option<String>,
}

/// A console, read.
#[derive(Debug, Default)]
pub struct Console {
    text: Vec<String>,
    up: bool,
    kvm: Option<bool>,
    done: bool,
    /// Suites that began.
    suites: Vec<Suite>,
    /// Tests that libtest calls `ok`; some of them have skipped themselves.
    ok: Vec<String>,
    /// The tests of all suites.
    pub tally: Tally,
    /// Lines for the terminal: everything but what passing tests print.
    pub worth_showing: Vec<String>,
}

impl Console {
    /// Reads a console's text.
    pub fn read(text: &str) -> Self {
        let mut console = Self::default();
        let mut reader = Reader::default();
        for line in text.lines() {
            let line = line.trim_end_matches('\r');
            console.text.push(line.to_owned());
            if let Some(mark) = line.strip_prefix("@@ ") {
                console.mark(mark);
                continue;
            }
            console.follow(line);
            if reader.line(line) {
                console.worth_showing.push(line.to_owned());
            }
        }
        console.tally = reader.tally();
        console
    }

    /// libtest writes `test NAME ... ` when a test begins, and the result behind it when it ends;
    /// the kernel may write in between.
    fn follow(&mut self, line: &str) {
        let Some(suite) = self.suites.last_mut() else {
            return;
        };
        let is_result = |word: &str| {
            ["ok", "FAILED", "ignored"]
                .iter()
                .any(|result| word.starts_with(result))
        };
        let begun = line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... "));
        let (name, result) = match begun {
            Some((name, rest)) => (Some(name.to_owned()), rest),
            None => (suite.running.take(), line),
        };
        match name {
            Some(name) if result.starts_with("ok") => self.ok.push(name),
            Some(name) if !is_result(result) => suite.running = Some(name),
            _ => {}
        }
    }

    fn mark(&mut self, mark: &str) {
        let words: Vec<_> = mark.split_whitespace().collect();
        match words[..] {
            ["up"] => self.up = true,
            ["kvm", answer] => self.kvm = Some(answer == "yes"),
            ["done"] => self.done = true,
            ["begin", name] => {
                self.worth_showing.push(format!("== {name}, in the guest"));
                self.suites.push(Suite {
                    name: name.to_owned(),
                    status: None,
                    running: None,
                });
            }
            ["end", name, status] => {
                if let Some(suite) = self.suites.last_mut().filter(|suite| suite.name == name) {
                    suite.status = status.parse().ok();
                }
            }
            _ => {}
        }
    }

    /// Whether everything ran and passed; if not, why not.
    ///
    /// # Errors
    /// The first thing that went wrong, in words.
    pub fn verdict(&self) -> Result<(), String> {
        if !self.up {
            return Err("the kernel did not come up".to_owned());
        }
        match self.kvm {
            Some(true) => {}
            Some(false) => return Err("the guest has no /dev/kvm".to_owned()),
            None => return Err("the guest did not come as far as loading KVM".to_owned()),
        }
        if self.suites.is_empty() {
            return Err("no suite began".to_owned());
        }
        for Suite {
            name,
            status,
            running,
        } in &self.suites
        {
            let running = match running {
                Some(test) => format!(" while {test} ran"),
                None => String::new(),
            };
            match status {
                Some(0) => {}
                Some(KILLED) => {
                    return Err(format!("{name} was killed at its time limit{running}"));
                }
                Some(status) => return Err(format!("{name} ended with status {status}{running}")),
                None => return Err(format!("{name} did not end{running}")),
            }
        }
        if !self.done {
            return Err("the guest did not come to its end".to_owned());
        }
        if self.tally.passed == 0 {
            return Err("no test passed, nor failed: none was run".to_owned());
        }
        Ok(())
    }

    /// Whether the test `name` ran and passed; if not, why not.
    ///
    /// # Errors
    /// Its failure, its absence, or the reason for which it skipped itself, in words.
    pub fn insist_on(&self, name: &str) -> Result<(), String> {
        if let Some(skip) = self.tally.skipped.iter().find(|skip| skip.name == name) {
            return Err(format!("{name} was skipped: {}", skip.reason));
        }
        match self.ok.iter().any(|test| test == name) {
            true => Ok(()),
            false => Err(format!("{name} did not run, or failed")),
        }
    }

    /// What the guest's kernel says of a CPU of its own that stands still within the kernel. No
    /// program can bring that about, so the fault is not the tests'.
    pub fn stall(&self) -> Option<&str> {
        let is_stall = |line: &&String| line.contains("watchdog: BUG: soft lockup");
        self.text.iter().find(is_stall).map(String::as_str)
    }

    /// The whole text with plain line ends.
    pub fn clean_text(&self) -> String {
        let mut text = self.text.join("\n");
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[    0.1] Linux\r\n@@ up\r\n@@ kvm yes\r\n@@ begin guest\r\nrunning 2 tests\r\ntest a ... ok\r\n\
                        test b ... ok\r\n\r\nsuccesses:\r\n\r\n---- b stdout ----\r\nSKIPPED b: no AVIC\r\n\r\n\
                        successes:\r\n    a\r\n    b\r\n\r\n\
                        test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s\r\n\
                        @@ end guest 0\r\n@@ done\r\n";

    #[test]
    fn a_good_run_passes_and_counts_what_was_skipped() {
        let console = Console::read(GOOD);
        assert_eq!(console.verdict(), Ok(()));
        assert_eq!((console.tally.passed, console.tally.failed), (1, 0));
        assert_eq!(console.tally.skipped[0].reason, "no AVIC");
        assert!(!console.clean_text().contains('\r'));
    }

    #[test]
    fn whatever_is_missing_from_a_run_is_its_failure() {
        for (gone, why) in [
            ("@@ up", "come up"),
            ("@@ kvm yes", "loading KVM"),
            ("@@ begin guest", "no suite began"),
            ("@@ end guest 0", "guest did not end"),
            ("@@ done", "come to its end"),
        ] {
            let console = Console::read(&GOOD.replace(gone, ""));
            let verdict = console.verdict().unwrap_err();
            assert!(verdict.contains(why), "without {gone}: {verdict}");
        }
    }

    #[test]
    fn a_bad_status_is_a_failure_in_words() {
        for (status, why) in [
            ("137", "killed at its time limit"),
            ("101", "status 101"),
            ("x", "did not end"),
        ] {
            let console = Console::read(&GOOD.replace("guest 0", &format!("guest {status}")));
            assert!(console.verdict().unwrap_err().contains(why));
        }
        assert!(Console::read("").verdict().is_err());
        let console = Console::read(&GOOD.replace("kvm yes", "kvm no"));
        assert!(console.verdict().unwrap_err().contains("no /dev/kvm"));
    }

    #[test]
    fn a_test_that_is_insisted_on_must_have_run_and_passed() {
        let console = Console::read(GOOD);
        assert_eq!(console.insist_on("a"), Ok(()));
        assert_eq!(
            console.insist_on("b").unwrap_err(),
            "b was skipped: no AVIC"
        );
        assert!(console.insist_on("c").unwrap_err().contains("did not run"));
        // The kernel writes where it likes.
        let disturbed = GOOD.replace("a ... ok", "a ... [   60.0] rcu: stall\r\nok");
        assert_eq!(Console::read(&disturbed).insist_on("a"), Ok(()));
        let failed = GOOD.replace("a ... ok", "a ... FAILED");
        assert!(Console::read(&failed).insist_on("a").is_err());
    }

    #[test]
    fn a_kernel_that_stands_still_is_told_from_a_test_that_does() {
        let begun = GOOD.split("ok\r\n\r\nsuccesses").next().unwrap();
        let slow = begun.to_owned() + "[   60.0] rcu: stall\r\n";
        assert_eq!(Console::read(&slow).stall(), None);
        let stall = "[   60.0] watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [a:1]";
        let text = format!("{begun}{stall}\r\n");
        assert!(Console::read(&text).stall().unwrap().ends_with(stall));
        assert!(Console::read(&text).verdict().is_err());
    }

    #[test]
    fn the_test_that_stands_still_is_named() {
        let begun = GOOD.split("ok\r\n\r\nsuccesses").next().unwrap();
        let killed = begun.to_owned() + "\r\n@@ end guest 137\r\n@@ done\r\n";
        let disturbed = begun.to_owned() + "[   60.0] rcu: stall\r\n";
        let with_another = killed.clone() + GOOD;
        for text in [begun, &killed, &disturbed, &with_another] {
            let why = Console::read(text).verdict().unwrap_err();
            assert!(why.ends_with(" while b ran"), "{why}");
        }
        let over = disturbed + "ok\r\n";
        let why = Console::read(&over).verdict().unwrap_err();
        assert_eq!(why, "guest did not end");
    }
}
