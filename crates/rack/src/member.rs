//! A server as the control sees it.
//!
//! ```text
//!             silent for too long                     told to drain
//!      +---------------------------- open -----------------------------+
//!      v                             ^  ^ added again                  v
//!   failed --a reply, or the retry---+  +-------------------------- draining
//!      |                                                               |
//!      +-----> leaving: told to be removed, or its lease <-------------+
//!              is over; gone when its requests' entries have aged
//! ```
//!
//! Only an open server gets requests. All of them keep those that they have, and their replies pass
//! the switch, until they are gone.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{FailureConfig, ServerConfig};
use crate::tables::Activity;

/// The longest time between two tries is the first one's, doubled so often.
const MOST_DOUBLINGS: u32 = 6;

/// Whether a server gets requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It gets requests.
    Open,
    /// It answers those that it has, and gets no others.
    Draining,
    /// It has been silent for too long.
    Failed,
    /// It is being removed.
    Leaving,
}

/// What happened to a server by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// Silent for too long.
    Failed,
    /// It replied after all.
    Returned,
    /// It is tried again.
    Retried,
    /// Its lease is over.
    Expired,
    /// It has been removed, and no request can lead there.
    Gone,
}

/// A server with its state.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) config: ServerConfig,
    pub(crate) state: State,
    /// When its lease ends; `None`: it has none, and stays.
    pub(crate) lease: Option<Duration>,
    /// When the state ends by itself.
    until: Option<Duration>,
    /// Replies that it had given when it failed.
    replies: u64,
    /// Failures since it last replied.
    failures: u32,
}

impl Member {
    pub(crate) fn new(config: ServerConfig) -> Self {
        Self {
            config,
            state: State::Open,
            lease: None,
            until: None,
            replies: 0,
            failures: 0,
        }
    }

    /// It gets requests again.
    pub(crate) fn open(&mut self) {
        self.state = State::Open;
        self.until = None;
    }

    /// It gets no further requests.
    pub(crate) fn drain(&mut self) {
        self.state = State::Draining;
        self.until = None;
    }

    /// It is gone at `until`.
    pub(crate) fn remove(&mut self, until: Duration) {
        self.state = State::Leaving;
        self.until = Some(until);
    }

    /// Whether it serves a type of this name.
    pub(crate) fn serves(&self, name: &str) -> bool {
        let types = self.config.types.as_ref();
        types.is_none_or(|types| types.iter().any(|one| one == name))
    }

    /// Looks at what the server has done by `now`, of the clock of `activity`.
    pub(crate) fn observe(
        &mut self,
        activity: &Activity,
        now: Duration,
        config: &FailureConfig,
    ) -> Option<Change> {
        let is_over = self.until.is_some_and(|until| now >= until);
        let has_expired = self.lease.is_some_and(|until| now >= until);
        if has_expired && self.state != State::Leaving {
            return Some(Change::Expired);
        }
        match self.state {
            State::Open => {
                if activity.replies > self.replies {
                    self.failures = 0;
                }
                let waiting_since = Duration::from_nanos(activity.waiting_since);
                let silence = now.saturating_sub(waiting_since);
                let is_silent = activity.unanswered() >= config.requests
                    && silence >= Duration::from_millis(config.silence_ms);
                is_silent.then(|| self.fail(activity, now, config))
            }
            State::Failed if activity.replies > self.replies => {
                self.open();
                Some(Change::Returned)
            }
            State::Failed if is_over => {
                self.open();
                Some(Change::Retried)
            }
            State::Leaving if is_over => Some(Change::Gone),
            State::Failed | State::Leaving | State::Draining => None,
        }
    }

    fn fail(&mut self, activity: &Activity, now: Duration, config: &FailureConfig) -> Change {
        self.state = State::Failed;
        self.replies = activity.replies;
        let retry = Duration::from_millis(config.retry_ms);
        let doubled = retry * (1 << self.failures.min(MOST_DOUBLINGS));
        self.until = (config.retry_ms > 0).then(|| now + doubled);
        self.failures += 1;
        Change::Failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: FailureConfig = FailureConfig {
        silence_ms: 100,
        requests: 3,
        retry_ms: 50,
    };

    fn member() -> Member {
        Member::new(ServerConfig {
            name: "a".into(),
            address: [10, 0, 0, 1].into(),
            workers: 1,
            types: Some(vec!["short".into()]),
            mac: None,
            interface: None,
        })
    }

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn activity(replies: u64, unanswered: u64, since_millis: u64) -> Activity {
        Activity {
            sent: replies + unanswered,
            replies,
            answered: replies,
            waiting_since: since_millis * 1_000_000,
        }
    }

    #[test]
    fn silence_alone_is_no_failure_and_neither_is_a_lost_reply() {
        let mut member = member();
        assert_eq!(member.observe(&activity(5, 0, 0), at(1000), &CONFIG), None);
        assert_eq!(member.observe(&activity(5, 2, 0), at(1000), &CONFIG), None);
        assert_eq!(
            member.observe(&activity(5, 9, 950), at(1000), &CONFIG),
            None
        );
        let failed = member.observe(&activity(5, 3, 900), at(1000), &CONFIG);
        assert_eq!(
            (failed, member.state),
            (Some(Change::Failed), State::Failed)
        );
    }

    #[test]
    fn a_late_reply_brings_it_back_at_once() {
        let mut member = member();
        member.observe(&activity(5, 3, 0), at(100), &CONFIG);
        assert_eq!(member.observe(&activity(5, 3, 0), at(101), &CONFIG), None);
        let returned = member.observe(&activity(6, 0, 0), at(102), &CONFIG);
        assert_eq!(
            (returned, member.state),
            (Some(Change::Returned), State::Open)
        );
    }

    #[test]
    fn tries_come_at_growing_intervals_until_it_replies() {
        let mut member = member();
        let mut now = 100;
        for interval in [50, 100, 200, 400, 800, 1600, 3200, 3200] {
            let failed = member.observe(&activity(5, 3, now - 100), at(now), &CONFIG);
            assert_eq!(failed, Some(Change::Failed));
            let silent = activity(5, 3, now - 100);
            assert_eq!(
                member.observe(&silent, at(now + interval - 1), &CONFIG),
                None
            );
            now += interval;
            assert_eq!(
                member.observe(&silent, at(now), &CONFIG),
                Some(Change::Retried)
            );
            now += 100;
        }
        assert_eq!(member.observe(&activity(6, 0, 0), at(now), &CONFIG), None);
        member.observe(&activity(6, 3, now), at(now + 100), &CONFIG);
        let retried = member.observe(&activity(6, 3, now), at(now + 150), &CONFIG);
        assert_eq!(retried, Some(Change::Retried));
        let never = FailureConfig {
            retry_ms: 0,
            ..CONFIG
        };
        member.observe(&activity(6, 3, 0), at(now + 1000), &never);
        assert_eq!(
            member.observe(&activity(6, 3, 0), at(1 << 40), &never),
            None
        );
    }

    #[test]
    fn a_lease_ends_in_any_state() {
        let mut member = member();
        member.lease = Some(at(1000));
        assert_eq!(member.observe(&activity(5, 0, 0), at(999), &CONFIG), None);
        member.drain();
        let expired = member.observe(&activity(5, 0, 0), at(1000), &CONFIG);
        assert_eq!(expired, Some(Change::Expired));
        member.remove(at(1500));
        assert_eq!(member.observe(&activity(5, 0, 0), at(1499), &CONFIG), None);
        let gone = member.observe(&activity(5, 0, 0), at(1500), &CONFIG);
        assert_eq!(gone, Some(Change::Gone));
    }

    #[test]
    fn a_drained_server_stays_and_a_removed_one_goes_in_time() {
        let mut member = member();
        member.drain();
        assert_eq!(member.observe(&activity(5, 9, 0), at(1000), &CONFIG), None);
        member.remove(at(2000));
        assert_eq!(member.observe(&activity(5, 9, 0), at(1999), &CONFIG), None);
        let gone = member.observe(&activity(5, 9, 0), at(2000), &CONFIG);
        assert_eq!(gone, Some(Change::Gone));
        assert!(member.serves("short") && !member.serves("long"));
    }
}
