//! A server's port for a type, as its requests and replies tell of it: whether it answers, and what
//! has been lost there.
//!
//! ```text
//!           silent for too long
//!    open ----------------------> failed
//!      ^                            |
//!      +-- a reply, or the retry ---+
//! ```
//!
//! One that is tried again is on trial until it replies: it has failed as soon as enough requests
//! are unanswered, however short the silence. Its load is forgotten, so it may be the one that all
//! requests go to. A trial that ends too early costs little, as the late reply opens the port.

use std::time::Duration;

use crate::config::FailureConfig;
use crate::tables::Activity;

/// The longest time between two tries is the first one's, doubled so often.
const MOST_DOUBLINGS: u32 = 6;

/// What happened at a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// Silent for too long.
    Failed,
    /// It replied after all.
    Returned,
    /// It is tried again.
    Retried,
}

/// Whether a server answers requests of a type.
#[derive(Clone, Default, Debug)]
pub(crate) struct Port {
    has_failed: bool,
    /// When one that has failed is tried again.
    until: Option<Duration>,
    /// Replies that it had given when it failed.
    replies: u64,
    /// Failures since it last replied.
    failures: u32,
}

impl Port {
    pub(crate) const fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// It gets requests again.
    pub(crate) fn open(&mut self) {
        self.has_failed = false;
        self.until = None;
    }

    /// Looks at what has been done there by `now` at the least, of the clock of `activity`.
    pub(crate) fn observe(
        &mut self,
        activity: &Activity,
        now: Duration,
        config: &FailureConfig,
    ) -> Option<Change> {
        let has_replied = activity.replies > self.replies;
        if !self.has_failed {
            if has_replied {
                self.failures = 0;
            }
            let waiting_since = Duration::from_nanos(activity.waiting_since);
            let silence = now.saturating_sub(waiting_since);
            let is_on_trial = self.failures > 0;
            let is_silent = activity.unanswered() >= config.requests
                && (is_on_trial || silence >= Duration::from_millis(config.silence_ms));
            return is_silent.then(|| self.fail(activity, now, config));
        }
        let is_over = self.until.is_some_and(|until| now >= until);
        let change = match () {
            () if has_replied => Change::Returned,
            () if is_over => Change::Retried,
            () => return None,
        };
        self.open();
        Some(change)
    }

    fn fail(&mut self, activity: &Activity, now: Duration, config: &FailureConfig) -> Change {
        self.has_failed = true;
        self.replies = activity.replies;
        let retry = Duration::from_millis(config.retry_ms);
        let doubled = retry * (1 << self.failures.min(MOST_DOUBLINGS));
        self.until = (config.retry_ms > 0).then(|| now + doubled);
        self.failures += 1;
        Change::Failed
    }
}

/// Requests whose replies were lost, where replies do not tell what they answer: those that were
/// sent longer than an age ago, beyond all replies since. So no more stay counted as outstanding
/// than have been sent within the last two ages.
#[derive(Clone, Default, Debug)]
pub(crate) struct Losses {
    /// A moment, and how many requests had been sent by then.
    mark: (Duration, u64),
    /// How many had been sent an age before that moment, or earlier.
    old: u64,
    /// Sent, less replies, less what is outstanding. Below zero: replies came twice.
    written_off: i64,
}

impl Losses {
    /// From `now` on; nothing is outstanding.
    pub(crate) fn since(now: Duration, activity: &Activity) -> Self {
        Self {
            mark: (now, activity.sent),
            old: 0,
            written_off: activity.sent.wrapping_sub(activity.replies).cast_signed(),
        }
    }

    /// How many more are known to be lost by `now`.
    pub(crate) fn observe(&mut self, activity: &Activity, now: Duration, age: Duration) -> u32 {
        if now.saturating_sub(self.mark.0) >= age {
            self.old = self.mark.1;
            self.mark = (now, activity.sent);
        }
        let ended = activity.replies.cast_signed() + self.written_off;
        // Replies that came twice do not make up for those that are lost later.
        self.written_off -= (ended - activity.sent.cast_signed()).max(0);
        let lost = (self.old.cast_signed() - ended).max(0);
        self.written_off += lost;
        lost.unsigned_abs().try_into().unwrap_or(u32::MAX)
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
        let mut port = Port::default();
        for few in [activity(5, 0, 0), activity(5, 2, 0), activity(5, 9, 950)] {
            assert_eq!(port.observe(&few, at(1000), &CONFIG), None);
        }
        let failed = port.observe(&activity(5, 3, 900), at(1000), &CONFIG);
        assert_eq!((failed, port.has_failed()), (Some(Change::Failed), true));
    }

    #[test]
    fn a_late_reply_brings_it_back_at_once() {
        let mut port = Port::default();
        port.observe(&activity(5, 3, 0), at(100), &CONFIG);
        assert_eq!(port.observe(&activity(5, 3, 0), at(101), &CONFIG), None);
        let returned = port.observe(&activity(6, 0, 0), at(102), &CONFIG);
        assert_eq!(
            (returned, port.has_failed()),
            (Some(Change::Returned), false)
        );
    }

    #[test]
    fn tries_come_at_growing_intervals_until_it_replies() {
        let mut port = Port::default();
        let mut now = 100;
        for interval in [50, 100, 200, 400, 800, 1600, 3200, 3200] {
            let silent = activity(5, 3, now - 100);
            let failed = port.observe(&silent, at(now), &CONFIG);
            assert_eq!(failed, Some(Change::Failed));
            let early = at(now + interval - 1);
            assert_eq!(port.observe(&silent, early, &CONFIG), None);
            now += interval;
            let retried = port.observe(&silent, at(now), &CONFIG);
            assert_eq!(retried, Some(Change::Retried));
            now += 100;
        }
        assert_eq!(port.observe(&activity(6, 0, 0), at(now), &CONFIG), None);
        port.observe(&activity(6, 3, now), at(now + 100), &CONFIG);
        let retried = port.observe(&activity(6, 3, now), at(now + 150), &CONFIG);
        assert_eq!(retried, Some(Change::Retried));
        let never = FailureConfig {
            retry_ms: 0,
            ..CONFIG
        };
        port.observe(&activity(6, 3, 0), at(now + 1000), &never);
        let much_later = port.observe(&activity(6, 3, 0), at(1 << 40), &never);
        assert_eq!(much_later, None);
    }

    /// It may be dead still, and its load is forgotten: it must not take requests for a silence.
    #[test]
    fn a_port_on_trial_fails_at_once_and_a_late_reply_ends_the_trial() {
        let mut port = Port::default();
        port.observe(&activity(5, 3, 0), at(100), &CONFIG);
        let retried = port.observe(&activity(5, 3, 0), at(150), &CONFIG);
        assert_eq!(retried, Some(Change::Retried));
        assert_eq!(port.observe(&activity(5, 2, 150), at(151), &CONFIG), None);
        let failed = port.observe(&activity(5, 3, 150), at(152), &CONFIG);
        assert_eq!(failed, Some(Change::Failed));
        let returned = port.observe(&activity(6, 0, 150), at(153), &CONFIG);
        assert_eq!(returned, Some(Change::Returned));
        assert_eq!(port.observe(&activity(6, 9, 153), at(252), &CONFIG), None);
        let failed = port.observe(&activity(6, 9, 153), at(253), &CONFIG);
        assert_eq!(failed, Some(Change::Failed));
    }

    #[test]
    fn what_was_sent_an_age_ago_and_never_answered_is_lost() {
        let age = at(100);
        let of = |sent, replies| Activity {
            sent,
            replies,
            ..Activity::default()
        };
        let mut losses = Losses::since(at(1000), &of(7, 4));
        let mut lost = |sent, replies, now| losses.observe(&of(sent, replies), at(now), age);
        // What the number's server before had out is none of this one's.
        assert_eq!(lost(7, 4, 1100), 0);
        // Three of ten are not answered; they may be under way for an age.
        assert_eq!(lost(17, 11, 1200), 0);
        assert_eq!(lost(17, 11, 1299), 0);
        // Two more are, which may have been two of the ten.
        assert_eq!(lost(19, 13, 1300), 1);
        assert_eq!(lost(19, 13, 1350), 0, "once");
        assert_eq!(lost(19, 13, 1400), 2);
        // A reply to one that was held for lost: there is one less to be answered.
        assert_eq!(lost(20, 15, 1500), 0);
        // Replies that come twice are none to requests to come.
        assert_eq!(lost(20, 99, 1600), 0);
        assert_eq!(lost(22, 99, 1700), 0);
        assert_eq!(lost(22, 99, 1800), 2);
    }
}
