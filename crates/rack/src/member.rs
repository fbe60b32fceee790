//! A server as the control sees it.
//!
//! ```text
//!             told to drain
//!      open ------------------> draining
//!       | ^ added again            |
//!       | +------------------------+
//!       |                          |
//!       +-----> leaving <----------+
//!               told to be removed, or its lease is over; gone when its requests' entries have
//!               left the table
//! ```
//!
//! Only an open server gets requests, and of those types only whose ports answer
//! ([`port`](crate::port)). All keep the requests that they have, and their replies pass the
//! switch, until they are gone.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ServerConfig, TypeConfig};
use crate::port::{Losses, Port};
use crate::tables::{Activity, Station, TYPES};

/// Whether a server gets requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It gets requests.
    Open,
    /// It answers those that it has, and gets no others.
    Draining,
    /// It has been silent for too long, in all types that it serves.
    Failed,
    /// It is being removed.
    Leaving,
}

/// How a server's state ended by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Its lease is over.
    Expired,
    /// It has been removed, and no request can lead there.
    Gone,
}

/// A server with its state.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) config: ServerConfig,
    /// The way there, and when the control last looked for it.
    pub(crate) station: Station,
    pub(crate) looked: Duration,
    /// When its lease ends; `None`: it has none, and stays.
    pub(crate) lease: Option<Duration>,
    /// By the types' numbers.
    pub(crate) ports: [Port; TYPES],
    pub(crate) losses: [Losses; TYPES],
    /// Never `Failed`: its ports are.
    state: State,
    /// When it is gone.
    until: Option<Duration>,
}

impl Member {
    /// An open one, of which `activity` has been seen by `now`: that was another's.
    pub(crate) fn new(
        config: ServerConfig,
        station: Station,
        now: Duration,
        activity: &[Activity; TYPES],
    ) -> Self {
        Self {
            config,
            station,
            looked: now,
            lease: None,
            ports: Default::default(),
            losses: activity
                .each_ref()
                .map(|activity| Losses::since(now, activity)),
            state: State::Open,
            until: None,
        }
    }

    /// It gets requests again, at all ports. One that was leaving had lost its lease.
    pub(crate) fn open(&mut self) {
        if self.is_leaving() {
            self.lease = None;
        }
        self.state = State::Open;
        self.until = None;
        self.ports = Default::default();
    }

    /// It gets no further requests. One that is leaving gets none, and leaves.
    pub(crate) fn drain(&mut self) {
        if !self.is_leaving() {
            self.state = State::Draining;
        }
    }

    /// It is gone at `until`.
    pub(crate) fn remove(&mut self, until: Duration) {
        self.state = State::Leaving;
        self.until = Some(until);
    }

    /// Whether it gets no requests because of a command or its lease.
    pub(crate) fn is_closed(&self) -> bool {
        self.state != State::Open
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.state == State::Leaving
    }

    /// Whether it serves a type of this name.
    pub(crate) fn serves(&self, name: &str) -> bool {
        let types = self.config.types.as_ref();
        types.is_none_or(|types| types.iter().any(|one| one == name))
    }

    /// Whether it gets requests of the type with this number.
    pub(crate) fn is_open_for(&self, number: usize, of_type: &TypeConfig) -> bool {
        !self.is_closed() && self.serves(&of_type.name) && !self.ports[number].has_failed()
    }

    /// The types, of these, that it serves, and whose port has failed.
    pub(crate) fn failed(&self, types: &[TypeConfig]) -> Vec<String> {
        let ports = types.iter().zip(&self.ports);
        let failed = ports.filter(|(one, port)| self.serves(&one.name) && port.has_failed());
        failed.map(|(one, _)| one.name.clone()).collect()
    }

    /// Its state, where these types are all.
    pub(crate) fn state(&self, types: &[TypeConfig]) -> State {
        let served = types.iter().filter(|one| self.serves(&one.name)).count();
        let is_failed = served > 0 && self.failed(types).len() == served;
        match self.state {
            State::Open if is_failed => State::Failed,
            state => state,
        }
    }

    /// Whether its state has ended by `now`.
    pub(crate) fn end(&self, now: Duration) -> Option<End> {
        let is_over = |until: Option<Duration>| until.is_some_and(|until| now >= until);
        match self.is_leaving() {
            true => is_over(self.until).then_some(End::Gone),
            false => is_over(self.lease).then_some(End::Expired),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::config::FailureConfig;

    fn member() -> Member {
        let config = ServerConfig {
            name: "a".into(),
            address: [10, 0, 0, 1].into(),
            workers: 1,
            types: Some(vec!["short".into(), "long".into()]),
            mac: None,
            interface: None,
        };
        Member::new(config, Station::default(), at(0), &Default::default())
    }

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_lease_ends_in_any_state() {
        let mut member = member();
        member.lease = Some(at(1000));
        assert_eq!(member.end(at(999)), None);
        member.drain();
        assert_eq!(member.end(at(1000)), Some(End::Expired));
        member.remove(at(1500));
        assert_eq!(member.end(at(1499)), None);
        assert_eq!(member.end(at(1500)), Some(End::Gone));
    }

    #[test]
    fn a_drained_server_stays_and_a_removed_one_goes_in_time() {
        let mut member = member();
        member.drain();
        assert_eq!(member.end(at(1000)), None);
        member.remove(at(2000));
        assert_eq!(member.end(at(1999)), None);
        assert_eq!(member.end(at(2000)), Some(End::Gone));
        assert!(member.serves("short") && !member.serves("other"));
    }

    /// A command must not bring a lease back that is over, or it would end once more.
    #[test]
    fn a_server_that_leaves_is_drained_already() {
        let mut member = member();
        member.lease = Some(at(1000));
        assert_eq!(member.end(at(1000)), Some(End::Expired));
        member.remove(at(1500));
        member.drain();
        assert!(member.is_leaving());
        assert_eq!(member.end(at(1001)), None);
        assert_eq!(member.end(at(1500)), Some(End::Gone));
    }

    #[test]
    fn a_server_that_is_opened_again_keeps_its_lease_unless_that_was_over() {
        let mut member = member();
        member.lease = Some(at(1000));
        member.drain();
        member.open();
        assert_eq!(member.lease, Some(at(1000)));
        assert_eq!(member.end(at(1000)), Some(End::Expired));
        member.remove(at(1500));
        member.open();
        assert_eq!((member.lease, member.end(at(2000))), (None, None));
    }

    /// One dead port of two.
    #[test]
    fn a_server_fails_by_type() {
        let types = [("short", 1), ("long", 2), ("other", 3)].map(|(name, port)| {
            format!(
                "[[type]]\nname = '{name}'\nport = {port}\nformat = 'shinjuku'\n\
                 balancer = 'random'\n"
            )
        });
        let types = types.concat();
        let text = format!("address = '10.0.0.9'\ninterfaces = ['lo']\n{types}");
        let types = Config::from_toml(&text).unwrap().types;
        let mut member = member();
        let silent = Activity {
            sent: 9,
            ..Activity::default()
        };
        let fail = |member: &mut Member, number: usize| {
            let port = &mut member.ports[number];
            port.observe(&silent, at(60_000), &FailureConfig::default())
        };
        assert_eq!(member.state(&types), State::Open);
        assert!(fail(&mut member, 1).is_some());
        assert_eq!(member.failed(&types), ["long"]);
        assert_eq!(member.state(&types), State::Open);
        let open = [0, 1, 2].map(|number| member.is_open_for(number, &types[number]));
        assert_eq!(open, [true, false, false]);
        assert!(fail(&mut member, 0).is_some());
        assert_eq!(member.state(&types), State::Failed);
        member.drain();
        assert_eq!(member.state(&types), State::Draining);
        member.open();
        assert_eq!(member.state(&types), State::Open);
    }
}
