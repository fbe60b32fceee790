//! What becomes of requests, counted by the thread that sends them.

use std::ops::Range;

use hdrhistogram::Histogram;

/// Longest latency told from longer ones: 100 s. Three digits are kept.
const LONGEST_NS: u64 = 100_000_000_000;

/// How many errors' texts are kept of a class.
const ERRORS_SHOWN: usize = 3;

/// An empty histogram of nanoseconds.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are constants")
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// When it was to be sent, in ns from the start.
    pub(crate) due_ns: u64,
    /// Which tally it is counted in: its class, or, of a probing connection, its class and the
    /// number of classes.
    pub(crate) tally: u16,
}

/// Requests of a class. All but `errors_shown` count those that were due in the window.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// Were to be sent.
    pub(crate) due: u64,
    /// Were answered, not with an error.
    pub(crate) answered: u64,
    /// Were answered with an error.
    pub(crate) errors: u64,
    /// The first errors' texts, whenever they came.
    pub(crate) errors_shown: Vec<String>,
    /// Went down with their connection.
    pub(crate) lost: u64,
    /// Waited longer than the time-out.
    pub(crate) timed_out: u64,
    /// Had no answer when the run ended.
    pub(crate) unanswered: u64,
    /// Were never sent: too many were under way, or no connection was left.
    pub(crate) unsent: u64,
    /// Answers that came in the window, whenever their requests were due: the throughput.
    pub(crate) completed: u64,
    /// From the intended moment to the answer; for those unanswered or timed out, to when they were
    /// given up.
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

/// All that a thread notes down.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) tallies: Vec<Tally>,
    /// How much later than intended requests were written, in ns; of those due in the window.
    pub(crate) lateness: Histogram<u64>,
    /// Of these, later than `late_ns`.
    pub(crate) late: u64,
    pub(crate) late_ns: u64,
    /// What is measured: requests due in it.
    pub(crate) window: Range<u64>,
    /// Of all requests, for the live line.
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) failed: u64,
    /// Replies that belong to no request: pushed, of unknown stamp, or come twice.
    pub(crate) strays: u64,
    /// Connections given up because what came was not RESP.
    pub(crate) malformed: u64,
    /// The first errors that answered no request.
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

    /// Was written at `now_ns`.
    pub(crate) fn sent(&mut self, request: Sent, now_ns: u64) {
        self.sent += 1;
        if let Some(tally) = self.measured(request) {
            tally.due += 1;
            let late = now_ns.saturating_sub(request.due_ns);
            self.late += u64::from(late > self.late_ns);
            self.lateness.saturating_record(late);
        }
    }

    /// Could not be sent.
    pub(crate) fn unsent(&mut self, request: Sent) {
        self.failed += 1;
        if let Some(tally) = self.measured(request) {
            tally.due += 1;
            tally.unsent += 1;
        }
    }

    /// Its answer was read at `now_ns`; `error` is its text if it is one.
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

    /// Came without having been asked for.
    pub(crate) fn stray_error(&mut self, error: Option<&[u8]>) {
        if let Some(text) = error {
            show(&mut self.stray_errors, &String::from_utf8_lossy(text));
        }
    }

    /// Its connection is gone.
    pub(crate) fn lost(&mut self, request: Sent) {
        self.failed += 1;
        if let Some(tally) = self.measured(request) {
            tally.lost += 1;
        }
    }

    /// Was given up at `now_ns`: its latency is at least its age.
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

/// Why an answer is no longer waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GivenUp {
    /// It took longer than the time-out.
    TimeOut,
    /// The run is over.
    End,
}

/// Keeps a text, once.
fn show(shown: &mut Vec<String>, text: &str) {
    if shown.len() < ERRORS_SHOWN && !shown.iter().any(|one| one == text) {
        shown.push(text.to_owned());
    }
}
