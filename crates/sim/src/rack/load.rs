//! What the switch knows of the servers' load, and how it learns.
//!
//! | [`LoadInfo`] | what the switch keeps | how it changes |
//! |---|---|---|
//! | `Exact` | each server's outstanding requests | at once, as no switch could |
//! | `Int1` | the same, per class | each reply carries its server's value, which overwrites |
//! | `Int2` | one server and its value, per class | a reply overwrites it if its value is no higher, or it is from that server |
//! | `Int3` | each server's outstanding work, in ns, per class | as `Int1` |
//! | `Counters` | a counter per server | up when a request is sent, down at its reply; lost packets make it drift |
//!
//! Source: Zhu et al., *RackSched*, OSDI 2020, with the names of its published code, as far as that
//! has any: `switch_code/int2`, `switch_code/proactive` (our counters), `server_code/.../track_us`
//! (our INT3).

use std::cmp::Ordering;

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
    /// Per server: by how much its load is divided, to be compared with others'.
    weights: Vec<u64>,
}

impl LoadView {
    /// Of servers with these weights. With one class all requests are told as that one.
    pub(super) fn new(info: LoadInfo, weights: &[usize], classes: usize) -> Self {
        let servers = weights.len();
        Self {
            info,
            classes,
            known: vec![0; servers * classes],
            least: vec![None; classes],
            counters: vec![0; servers],
            weights: weights.iter().map(|weight| *weight as u64).collect(),
        }
    }

    /// How the known load of `one` for requests of `class` compares with that of `other`, each by
    /// its server's weight.
    #[must_use]
    pub fn compare(&self, one: usize, other: usize, class: u16) -> Ordering {
        let loads = [one, other].map(|server| self.load(server, class));
        self.compared((one, loads[0]), (other, loads[1]))
    }

    /// The same of loads that are given, without a division that rounds.
    fn compared(&self, one: (usize, u64), other: (usize, u64)) -> Ordering {
        let crossed = |load, other: usize| u128::from(load) * u128::from(self.weights[other]);
        crossed(one.1, other.0).cmp(&crossed(other.1, one.0))
    }

    /// How the switch tracks load.
    #[must_use]
    pub fn info(&self) -> LoadInfo {
        self.info
    }

    /// The one server that `Int2` knows for requests of `class`, if any.
    #[must_use]
    pub fn least(&self, class: u16) -> Option<usize> {
        self.least[self.number(class)].map(|(server, _)| server)
    }

    /// How many servers there are, those included that are closed.
    #[must_use]
    pub fn servers(&self) -> usize {
        self.counters.len()
    }

    /// The known load of `server` for requests of `class`, as it was reported or counted. With
    /// `Int2`, the one known server has zero and the others one.
    #[must_use]
    pub fn load(&self, server: usize, class: u16) -> u64 {
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
                let reported = (server, report.requests);
                let is_least = self.least[number].is_none_or(|known| {
                    known.0 == server || self.compared(reported, known).is_le()
                });
                if is_least {
                    self.least[number] = Some(reported);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn of(requests: u64) -> Option<Report> {
        Some(Report {
            requests,
            work_ns: 0,
        })
    }

    #[test]
    fn int2_keeps_the_last_of_the_least_loaded_by_their_weights() {
        let mut view = LoadView::new(LoadInfo::Int2, &[1, 1, 3], 1);
        assert_eq!(view.least(0), None);
        for (server, requests, least) in [
            (0, 7, 0),
            (1, 8, 0),
            // As many: the last one.
            (1, 7, 1),
            (1, 9, 1),
            // 28 of three workers are more than 9 of one, and 27 are not.
            (2, 28, 1),
            (2, 27, 2),
            (0, 10, 2),
            (0, 9, 0),
        ] {
            view.replied(server, 0, of(requests));
            assert_eq!(view.least(0), Some(least), "{server}: {requests}");
        }
        // One that is closed tells nothing, and is not known any more.
        view.replied(2, 0, None);
        view.forget_least(0);
        assert_eq!(view.least(0), None);
    }

    #[test]
    fn loads_compare_by_weights_without_rounding() {
        let mut view = LoadView::new(LoadInfo::Int1, &[1, 3, 7], 1);
        for (server, requests) in [(0, 2), (1, 6), (2, 13)] {
            view.replied(server, 0, of(requests));
        }
        assert!(view.compare(0, 1, 0).is_eq());
        assert!(view.compare(2, 0, 0).is_lt() && view.compare(1, 2, 0).is_gt());
    }
}
