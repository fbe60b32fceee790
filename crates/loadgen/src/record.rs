//! The fates of requests, counted by the thread that sends them.

use std::ops::Range;

use hdrhistogram::Histogram;

/// The longest distinguishable latency: 100 s. Three digits are kept.
const LONGEST_NS: u64 = 100_000_000_000;

/// How many errors' texts are kept for a class.
const ERRORS_SHOWN: usize = 3;

/// An empty histogram of nanoseconds.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are constants")
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// When the request was to be sent, in ns from the start.
    pub(crate) due_ns: u64,
    /// The tally that counts the request: its class or, for a probing connection, its class plus
    /// the number of classes.
    pub(crate) tally: u16,
}

/// Requests of a class. All fields but `errors_shown` count requests that were due in the window.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// Requests to be sent.
    pub(crate) due: u64,
    /// Requests answered without an error.
    pub(crate) answered: u64,
    /// Requests answered with an error.
    pub(crate) errors: u64,
    /// The first errors' texts, whenever they came.
    pub(crate) errors_shown: Vec<String>,
    /// Requests that went down with their connection.
    pub(crate) lost: u64,
    /// Requests that waited longer than the time-out.
    pub(crate) timed_out: u64,
    /// Requests without an answer when the run ended.
    pub(crate) unanswered: u64,
    /// Requests never sent: too many were under way, or no connection was left.
    pub(crate) unsent: u64,
    /// Answers that came in the window, whenever their requests were due: the throughput.
    pub(crate) completed: u64,
    /// From the intended moment to the answer; for requests unanswered or timed out, to when they
    /// were given up.
    pub(crate) latency: Histogram<u64>,
}

impl Tally {
    fn new() -> Self {
        Self {
            due: 0,
            answered: 0,
            errors: 0,
            errors_shown: Vec::new(),
            lost: 0,
            timed_out: 0,
            unanswered: 0,
            unsent: 0,
            completed: 0,
            latency: histogram(),
        }
    }

    /// Adds another thread's.
    pub(crate) fn add(&mut self, other: &Self) {
        self.due += other.due;
        self.answered += other.answered;
        self.errors += other.errors;
        for text in &other.errors_shown {
            show(&mut self.errors_shown, text);
        }
        self.lost += other.lost;
        self.timed_out += other.timed_out;
        self.unanswered += other.unanswered;
        self.unsent += other.unsent;
        self.completed += other.completed;
        self.latency += &other.latency;
    }
}

/// All that a thread records.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) tallies: Vec<Tally>,
    /// How much later than intended requests were written, in ns; only requests due in the window.
    pub(crate) lateness: Histogram<u64>,
    /// The number of these later than `late_ns`.
    pub(crate) late: u64,
    pub(crate) late_ns: u64,
    /// The measurement's window: requests due in it count.
    pub(crate) window: Range<u64>,
    /// All requests, for the live line.
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) failed: u64,
    /// Replies that belong to no request: pushed, of unknown stamp, or duplicate.
    pub(crate) strays: u64,
    /// Connections given up because their data was not RESP.
    pub(crate) malformed: u64,
    /// The first errors that belong to no request.
    pub(crate) stray_errors: Vec<String>,
}

impl Record {
    pub(crate) fn new(tallies: usize, window: Range<u64>, late_ns: u64) -> Self {
        Self {
            tallies: vec![Tally::new(); tallies],
            lateness: histogram(),
            late: 0,
            late_ns,
            window,
            sent: 0,
            received: 0,
            failed: 0,
            strays: 0,
            malformed: 0,
            stray_errors: Vec::new(),
        }
    }

    /// Adds another thread's.
    pub(crate) fn add(&mut self, other: &Self) {
        for (own, other) in self.tallies.iter_mut().zip(&other.tallies) {
            own.add(other);
        }
        self.lateness += &other.lateness;
        self.late += other.late;
        self.sent += other.sent;
        self.received += other.received;
        self.failed += other.failed;
        self.strays += other.strays;
        self.malformed += other.malformed;
        for text in &other.stray_errors {
            show(&mut self.stray_errors, text);
        }
    }

    /// A request was written at `now_ns`.
    pub(crate) fn sent(&mut self, request: Sent, now_ns: u64) {
        self.sent += 1;
        if let Some(tally) = self.measured(request) {
            tally.due += 1;
            let late = now_ns.saturating_sub(request.due_ns);
            self.late += u64::from(late > self.late_ns);
            self.lateness.saturating_record(late);
        }
    }

    /// A request could not be sent.
    pub(crate) fn unsent(&mut self, request: Sent) {
        self.failed += 1;
        if let Some(tally) = self.measured(request) {
            tally.due += 1;
            tally.unsent += 1;
        }
    }

    /// A request's answer was read at `now_ns`; `error` is the text if the answer is an error.
    pub(crate) fn answered(&mut self, request: Sent, now_ns: u64, error: Option<&[u8]>) {
        self.received += 1;
        self.failed += u64::from(error.is_some());
        if error.is_none() && self.window.contains(&now_ns) {
            self.tallies[usize::from(request.tally)].completed += 1;
        }
        if let Some(text) = error {
            let shown = &mut self.tallies[usize::from(request.tally)].errors_shown;
            if shown.len() < ERRORS_SHOWN {
                show(shown, &String::from_utf8_lossy(text));
            }
        }
        let Some(tally) = self.measured(request) else {
            return;
        };
        match error {
            None => {
                tally.answered += 1;
                let latency = now_ns.saturating_sub(request.due_ns);
                tally.latency.saturating_record(latency);
            }
            Some(_) => tally.errors += 1,
        }
    }

    /// A reply came that no request had asked for.
    pub(crate) fn stray_error(&mut self, error: Option<&[u8]>) {
        if let Some(text) = error {
            show(&mut self.stray_errors, &String::from_utf8_lossy(text));
        }
    }

    /// A request's connection is gone.
    pub(crate) fn lost(&mut self, request: Sent) {
        self.failed += 1;
        if let Some(tally) = self.measured(request) {
            tally.lost += 1;
        }
    }

    /// A request was given up at `now_ns`: its latency is at least its age.
    pub(crate) fn given_up(&mut self, request: Sent, now_ns: u64, why: GivenUp) {
        self.failed += 1;
        if let Some(tally) = self.measured(request) {
            match why {
                GivenUp::TimeOut => tally.timed_out += 1,
                GivenUp::End => tally.unanswered += 1,
            }
            let age = now_ns.saturating_sub(request.due_ns);
            tally.latency.saturating_record(age);
        }
    }

    fn measured(&mut self, request: Sent) -> Option<&mut Tally> {
        let within = self.window.contains(&request.due_ns);
        within.then(|| &mut self.tallies[usize::from(request.tally)])
    }
}

/// Why an answer is no longer awaited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GivenUp {
    /// The answer took longer than the time-out.
    TimeOut,
    /// The run is over.
    End,
}

/// Keeps each text once.
fn show(shown: &mut Vec<String>, text: &str) {
    if shown.len() < ERRORS_SHOWN && !shown.iter().any(|one| one == text) {
        shown.push(text.to_owned());
    }
}
