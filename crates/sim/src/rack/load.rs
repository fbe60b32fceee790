//! What the switch knows of the servers' load, and how it learns.
//!
//! | [`LoadInfo`] | what the switch keeps | how it changes |
//! |---|---|---|
//! | `Exact` | each server's outstanding requests | at once, as no switch could |
//! | `Int1` | the same, per class | each reply carries its server's value, which overwrites |
//! | `Int2` | one server and its value, per class | a reply overwrites it if its value is lower, or it is from that server |
//! | `Int3` | each server's outstanding work, in ns, per class | as `Int1` |
//! | `Counters` | a counter per server | up when a request is sent, down at its reply; lost packets make it drift |
//!
//! Source: Zhu et al., *RackSched*, OSDI 2020, with the names of its published code.

use serde::{Deserialize, Serialize};

/// How the switch tracks load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadInfo {
    /// The truth, at once.
    Exact,
    /// Queue lengths carried by replies.
    Int1,
    /// The least loaded server alone, carried by replies.
    Int2,
    /// Outstanding work carried by replies.
    Int3,
    /// Counters kept in the switch.
    Counters,
}

/// A server's load as a reply carries it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Report {
    pub(super) requests: u64,
    pub(super) work_ns: u64,
}

impl std::iter::Sum for Report {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            requests: sum.requests + one.requests,
            work_ns: sum.work_ns + one.work_ns,
        })
    }
}

/// What the switch knows.
pub struct LoadView {
    info: LoadInfo,
    classes: usize,
    /// By server and class.
    known: Vec<u64>,
    /// Per class: the server, and its value (Int2).
    least: Vec<Option<(usize, u64)>>,
    /// Per server: requests sent less replies seen.
    counters: Vec<u64>,
    /// Per server: what its load is multiplied by, to be compared with others'.
    scales: Vec<u64>,
}

/// The scale of one worker, where servers have different numbers of them.
const SCALE: u64 = 1 << 20;

impl LoadView {
    /// Of servers with so many workers; if there are none of different size, loads are as reported.
    /// With one class all requests are told as that one.
    pub(super) fn new(info: LoadInfo, workers: &[usize], classes: usize) -> Self {
        let servers = workers.len();
        let equal = workers.iter().all(|&each| each == workers[0]);
        let scale = |&workers: &usize| if equal { 1 } else { SCALE / workers as u64 };
        Self {
            info,
            classes,
            known: vec![0; servers * classes],
            least: vec![None; classes],
            counters: vec![0; servers],
            scales: workers.iter().map(scale).collect(),
        }
    }

    /// The known load of `server` for requests of `class`; where servers differ in size, in
    /// proportion to their workers. With `Int2`, the one known server has zero and the others more.
    #[must_use]
    pub fn load(&self, server: usize, class: u16) -> u64 {
        self.scales[server].saturating_mul(self.reported(server, class))
    }

    /// How many servers there are, those included that are closed.
    #[must_use]
    pub fn servers(&self) -> usize {
        self.counters.len()
    }

    fn reported(&self, server: usize, class: u16) -> u64 {
        match self.info {
            LoadInfo::Counters => self.counters[server],
            LoadInfo::Int2 => match self.least[self.number(class)] {
                Some((known, _)) => u64::from(known != server),
                None => 0,
            },
            LoadInfo::Exact => {
                let row = server * self.classes..(server + 1) * self.classes;
                self.known[row].iter().sum()
            }
            LoadInfo::Int1 | LoadInfo::Int3 => self.known[self.entry(server, class)],
        }
    }

    /// Where a class is told apart from others, or not.
    fn number(&self, class: u16) -> usize {
        usize::from(class).min(self.classes - 1)
    }

    fn entry(&self, server: usize, class: u16) -> usize {
        server * self.classes + self.number(class)
    }

    /// Requests sent to `server` less replies seen from it.
    #[must_use]
    pub fn counter(&self, server: usize) -> u64 {
        self.counters[server]
    }

    /// A request leaves for `server`.
    pub(super) fn sent(&mut self, server: usize, class: u16) {
        self.counters[server] += 1;
        if self.info == LoadInfo::Exact {
            let entry = self.entry(server, class);
            self.known[entry] += 1;
        }
    }

    /// A request of `class` leaves the server, for whatever reason, at this very moment.
    pub(super) fn left(&mut self, server: usize, class: u16) {
        if self.info == LoadInfo::Exact {
            let entry = self.entry(server, class);
            self.known[entry] = self.known[entry].saturating_sub(1);
        }
    }

    /// A reply of `server` passes the switch; `None`: the balancer does not choose that server any
    /// more, so its load does not matter.
    pub(super) fn replied(&mut self, server: usize, class: u16, report: Option<Report>) {
        // A reply to a request sent before a counter was reset must not wrap it.
        self.counters[server] = self.counters[server].saturating_sub(1);
        let Some(report) = report else { return };
        let (entry, number) = (self.entry(server, class), self.number(class));
        match self.info {
            LoadInfo::Int1 => self.known[entry] = report.requests,
            LoadInfo::Int3 => self.known[entry] = report.work_ns,
            LoadInfo::Int2 => {
                let least = &mut self.least[number];
                if least.is_none_or(|(known, value)| known == server || report.requests < value) {
                    *least = Some((server, report.requests));
                }
            }
            LoadInfo::Exact | LoadInfo::Counters => {}
        }
    }

    /// Forgets what is known of `server`, which is gone or new.
    pub(super) fn forget(&mut self, server: usize) {
        self.counters[server] = 0;
        self.known[server * self.classes..(server + 1) * self.classes].fill(0);
        self.forget_least(server);
    }

    /// Forgets that `server` is the least loaded: the balancer does not choose it any more.
    pub(super) fn forget_least(&mut self, server: usize) {
        for least in &mut self.least {
            if least.is_some_and(|(known, _)| known == server) {
                *least = None;
            }
        }
    }
}
