//! Reads what libtest prints and counts it.
//!
//! libtest knows no "skipped while running": a test that finds that this machine cannot run it must
//! return, and is printed as passed. Such a test prints `SKIPPED <test name>: <reason>`, and is
//! counted here as skipped. Output of passing tests appears only under `--show-output`, in a
//! section headed `successes:`; of that section only the skip lines are worth showing.

use std::collections::BTreeMap;

/// Counts over all test binaries of one step.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tally {
    /// Tests that ran and passed.
    pub passed: u64,
    /// Tests that ran and failed.
    pub failed: u64,
    /// Tests that did not run, with the reason.
    pub skipped: Vec<Skip>,
}

/// A test that did not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skip {
    /// The test's name.
    pub name: String,
    /// Why it did not run.
    pub reason: String,
}

/// Reads the output of one step, line by line.
#[derive(Debug, Default)]
pub struct Reader {
    passed: u64,
    failed: u64,
    /// Reasons by test binary (counted) and test.
    skipped: BTreeMap<(u64, String), String>,
    binary: u64,
    section: Section,
    /// What this binary's results say so far. A line that a test has written into is in neither.
    seen: Counts,
}

/// The part of libtest's output a line belongs to. With `--show-output` a binary prints its
/// results, what passing tests printed, their names, what failing tests printed, their names, and
/// the counts; empty parts are left out.
#[derive(Debug, Default, PartialEq, Eq)]
enum Section {
    #[default]
    Results,
    /// What passing tests printed: of this test, once it is known.
    Passing(Option<String>),
    PassingNames,
    Failing,
    FailingNames,
}

impl Reader {
    /// Takes in one line of standard output. Returns whether it is worth showing.
    pub fn line(&mut self, line: &str) -> bool {
        let next = match (&self.section, line) {
            (Section::Results, "successes:") => Section::Passing(None),
            (Section::Passing(_), "successes:") => Section::PassingNames,
            (Section::Results | Section::PassingNames, "failures:") => Section::Failing,
            (Section::Failing, "failures:") => Section::FailingNames,
            // What tests printed is never read as a result, whatever it looks like.
            (Section::Failing, _) => return true,
            (Section::Passing(_), _) => {
                let heading = line
                    .strip_prefix("---- ")
                    .and_then(|rest| rest.strip_suffix(" stdout ----"));
                match heading {
                    Some(test) => Section::Passing(Some(test.to_owned())),
                    None => return self.skip(line),
                }
            }
            (section, _) => {
                let in_names = *section == Section::PassingNames;
                if *section == Section::Results {
                    self.seen.add(line);
                }
                if let Some(counts) = Counts::parse(line) {
                    if *section == Section::FailingNames && !counts.are_of(&self.seen) {
                        // Another libtest's, run and shown by the test that failed.
                        self.section = Section::Failing;
                        return true;
                    }
                    self.seen = Counts::default();
                    self.passed += counts.passed;
                    self.failed += counts.failed;
                    self.binary += 1;
                    self.section = Section::Results;
                    return true;
                }
                if let Some((name, reason)) = ignored(line) {
                    self.skipped
                        .insert((self.binary, name.to_owned()), reason.to_owned());
                }
                // A test that writes past the capture, or one without libtest's harness, says it
                // here.
                return self.skip(line) || !in_names;
            }
        };
        let shown = matches!(next, Section::Failing | Section::FailingNames);
        self.section = next;
        shown
    }

    /// Takes in a skip line from standard error or standard output. Returns whether the line was
    /// one.
    pub fn skip(&mut self, line: &str) -> bool {
        let Some((name, reason)) = line
            .strip_prefix("SKIPPED ")
            .and_then(|rest| rest.split_once(": "))
        else {
            return false;
        };
        // libtest's heading is the surer name: a test counts as one skip, however often it says so,
        // and whatever name it gives.
        let name = match &self.section {
            Section::Passing(Some(test)) => test.clone(),
            _ => name.trim().to_owned(),
        };
        self.skipped
            .entry((self.binary, name))
            .or_insert_with(|| reason.trim().to_owned());
        true
    }

    /// The counts so far.
    pub fn tally(&self) -> Tally {
        // libtest has counted as passed whatever skipped itself, but not what it ignored.
        let ignored = self
            .skipped
            .values()
            .filter(|reason| reason.starts_with(IGNORED))
            .count() as u64;
        let skipped = self.skipped.len() as u64;
        Tally {
            passed: self.passed.saturating_sub(skipped - ignored),
            failed: self.failed,
            skipped: self
                .skipped
                .iter()
                .map(|((_, name), reason)| Skip {
                    name: name.clone(),
                    reason: reason.clone(),
                })
                .collect(),
        }
    }
}

/// How the reason of a test with `#[ignore]` begins.
const IGNORED: &str = "ignored";

/// The name of a test with `#[ignore]`, and `ignored` with its reason, from a line such as
/// `test name ... ignored, reason`.
fn ignored(line: &str) -> Option<(&str, &str)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    result.starts_with(IGNORED).then_some((name, result))
}

/// The numbers of a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
#[derive(Debug, Default)]
struct Counts {
    passed: u64,
    failed: u64,
}

impl Counts {
    /// Counts a line such as `test tests::reads ... ok`.
    fn add(&mut self, line: &str) {
        if line.starts_with("test ") {
            self.passed += u64::from(line.ends_with(" ok"));
            self.failed += u64::from(line.ends_with(" FAILED"));
        }
    }

    /// Whether these can be the counts of the binary whose results were `seen`.
    fn are_of(&self, seen: &Self) -> bool {
        self.passed >= seen.passed && self.failed >= seen.failed
    }

    fn parse(line: &str) -> Option<Self> {
        let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let number = |what: &str| {
            counts
                .split("; ")
                .find_map(|part| part.strip_suffix(what)?.trim().parse().ok())
        };
        Some(Self {
            passed: number("passed")?,
            failed: number("failed")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
running 4 tests
test a ... ok
test b ... ok
test c ... FAILED
test d ... ignored, needs a NIC

successes:

---- a stdout ----
talk of a
---- b stdout ----
SKIPPED b: no /dev/kvm
SKIPPED b: no /dev/kvm again

successes:
    a
    b

failures:

---- c stdout ----
talk of c
successes:
SKIPPED c: it did not

failures:
    c

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    fn read(output: &str) -> (Tally, Vec<&str>) {
        let mut reader = Reader::default();
        let shown = output.lines().filter(|line| reader.line(line)).collect();
        (reader.tally(), shown)
    }

    #[test]
    fn skipped_tests_are_not_passed_ones() {
        let (tally, _) = read(OUTPUT);
        assert_eq!((tally.passed, tally.failed), (1, 1));
        let skipped: Vec<_> = tally
            .skipped
            .iter()
            .map(|s| (s.name.as_str(), s.reason.as_str()))
            .collect();
        assert_eq!(
            skipped,
            [("b", "no /dev/kvm"), ("d", "ignored, needs a NIC")]
        );
    }

    #[test]
    fn passing_tests_are_silent_and_failing_ones_are_not() {
        let (_, shown) = read(OUTPUT);
        assert!(!shown.contains(&"talk of a"));
        assert!(shown.contains(&"talk of c"));
        assert!(shown.contains(&"SKIPPED b: no /dev/kvm"));
        assert!(shown.contains(&"test c ... FAILED"));
    }

    #[test]
    fn what_tests_print_is_no_result() {
        let result = "test result: ok. 50 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        let output = OUTPUT
            .replace("talk of a", result)
            .replace("talk of c", result);
        assert_ne!(output, OUTPUT);
        assert_eq!(read(&output).0, read(OUTPUT).0);
    }

    /// As where a test runs another one, in a process of its own.
    #[test]
    fn what_another_libtest_prints_is_no_result() {
        let of_a_child = "
running 1 test
test c ... FAILED

failures:

---- c stdout ----
talk

failures:
    c

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0.00s
";
        let output = OUTPUT.replace("talk of c", of_a_child);
        assert_ne!(output, OUTPUT);
        assert_eq!(read(&output).0, read(OUTPUT).0);
        let (tally, _) = read(&output.repeat(3));
        assert_eq!((tally.passed, tally.failed), (3, 3));
    }

    #[test]
    fn equal_names_in_two_binaries_are_two_tests() {
        let (tally, _) = read(&OUTPUT.repeat(2));
        assert_eq!((tally.passed, tally.failed, tally.skipped.len()), (2, 2, 4));
    }

    #[test]
    fn a_skip_line_outside_any_section_counts() {
        let mut reader = Reader::default();
        assert!(
            reader
                .line("test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out")
        );
        assert!(reader.skip("SKIPPED net::memif: no DPDK"));
        assert!(!reader.skip("SKIPPED without a reason"));
        assert_eq!(reader.tally().passed, 0);
        assert_eq!(reader.tally().skipped[0].name, "net::memif");
    }
}
