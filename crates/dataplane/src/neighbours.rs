//! Who has which address on the wire: the ARP cache (RFC 826, RFC 1122 2.3.2).
//!
//! ```text
//!               look_up: ask                  any message of theirs
//!     absent ─────────────────▶ asked ─────────────────────────────────▶ known ──┐ any message of theirs:
//!                              │  ▲  ▲          ◀── TRIES in vain ──    │   ▲ ▲──┘ renewed, or moved
//!                              │  │  └─────────── renewing ◀── AGE: ask ┘   │
//!         TRIES in vain,       │  │                                         │
//!         look_up after the    │  │ look_up after SILENT_FOR: ask           │
//!         last one's ASK_EVERY ▼  │                                         │
//!                              silent ──────────────────────────────────────┘
//!                                              any message of theirs
//!
//!     absent: straight to known when they ask for us
//!     asked:  look_up after ASK_EVERY asks again, TRIES times in all
//!     renewing: it is asked as if it were not known, and used all the same; any message of theirs leads back to known. What was
//!             known for twice AGE and not used meanwhile is asked for instead, and so is what is
//!             not looked up for RENEWED_WITHIN
//!     given:  known from start to end, whatever messages say
//! ```
//!
//! Nothing here has a timer: entries age when an address is looked up. With no place left, the
//! entry untouched for the longest makes room, those given at start excepted; so a flood of claimed
//! addresses can cost questions, not memory.

use std::net::Ipv4Addr;

use crate::packet::MacAddr;

const SECOND: u64 = 1_000_000_000;
/// RFC 1122 2.3.2.1: at most one question a second for a destination.
const ASK_EVERY: u64 = SECOND;
/// How often it is asked before the address counts as silent.
const TRIES: u8 = 3;
/// An address that is asked for anew is used meanwhile if it is looked up at least so often.
const RENEWED_WITHIN: u64 = 4 * ASK_EVERY;
/// How long an answer holds; RFC 1122 2.3.2.1 has "on the order of a minute".
const AGE: u64 = 60 * SECOND;
/// How long a silent address is not asked for again.
const SILENT_FOR: u64 = SECOND;

/// The cache.
#[derive(Debug)]
pub(crate) struct Neighbours {
    entries: Vec<Entry>,
    capacity: usize,
}

#[derive(Debug)]
struct Entry {
    ip: Ipv4Addr,
    state: State,
    /// When it came to this state, or was renewed in it, in nanoseconds.
    at: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Asked { tries: u8 },
    Known { mac: MacAddr },
    Renewing { mac: MacAddr, tries: u8 },
    Silent,
    Given { mac: MacAddr },
}

/// Where a packet for an address is to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// To this station.
    Known(MacAddr),
    /// To this station. It has been known for long: send an ARP request for this address as well.
    Renew(MacAddr, Ipv4Addr),
    /// The station is not known yet: send an ARP request for this address, keep the packet, look up
    /// again.
    Ask(Ipv4Addr),
    /// It has been asked for; keep the packet, look up again.
    Wait,
    /// No station answers, or there is no gateway that leads there: drop the packet.
    Unreachable,
}

impl Neighbours {
    /// Room for `capacity` that are learnt, beside the `given`.
    pub(crate) fn new(capacity: usize, given: &[(Ipv4Addr, MacAddr)]) -> Self {
        let capacity = capacity + given.len();
        let mut entries = Vec::with_capacity(capacity);
        entries.extend(given.iter().map(|&(ip, mac)| Entry {
            ip,
            state: State::Given { mac },
            at: 0,
        }));
        Self { entries, capacity }
    }

    /// Where packets for `ip`, which is on this wire, go.
    pub(crate) fn look_up(&mut self, ip: Ipv4Addr, now: u64) -> Resolution {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.ip == ip) else {
            return match self.insert(ip, State::Asked { tries: 1 }, now) {
                true => Resolution::Ask(ip),
                false => Resolution::Unreachable,
            };
        };
        let since = now.saturating_sub(entry.at);
        let (state, resolution) = match entry.state {
            State::Given { mac } => return Resolution::Known(mac),
            State::Known { mac } if since < AGE => return Resolution::Known(mac),
            State::Known { mac } if since < 2 * AGE => (
                State::Renewing { mac, tries: 1 },
                Resolution::Renew(mac, ip),
            ),
            State::Renewing { mac, .. } if since < ASK_EVERY => return Resolution::Known(mac),
            State::Renewing { mac, tries } if tries < TRIES && since < RENEWED_WITHIN => {
                let tries = tries + 1;
                (State::Renewing { mac, tries }, Resolution::Renew(mac, ip))
            }
            State::Asked { .. } if since < ASK_EVERY => return Resolution::Wait,
            State::Silent if since < SILENT_FOR => return Resolution::Unreachable,
            State::Asked { tries } if tries == TRIES => (State::Silent, Resolution::Unreachable),
            State::Asked { tries } => (State::Asked { tries: tries + 1 }, Resolution::Ask(ip)),
            State::Known { .. } | State::Renewing { .. } | State::Silent => {
                (State::Asked { tries: 1 }, Resolution::Ask(ip))
            }
        };
        (entry.state, entry.at) = (state, now);
        resolution
    }

    /// `ip` says that it has `mac`. Tells whether there is an entry, which this updates.
    pub(crate) fn merge(&mut self, ip: Ipv4Addr, mac: MacAddr, now: u64) -> bool {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.ip == ip) else {
            return false;
        };
        if !matches!(entry.state, State::Given { .. }) {
            (entry.state, entry.at) = (State::Known { mac }, now);
        }
        true
    }

    /// `ip`, for which there is no entry, has `mac` and asks for us: it will want to be answered.
    pub(crate) fn add(&mut self, ip: Ipv4Addr, mac: MacAddr, now: u64) {
        self.insert(ip, State::Known { mac }, now);
    }

    /// Puts an entry into a free place, or that of the one untouched for the longest.
    fn insert(&mut self, ip: Ipv4Addr, state: State, at: u64) -> bool {
        let entry = Entry { ip, state, at };
        if self.entries.len() < self.capacity {
            self.entries.push(entry);
            return true;
        }
        let learnt = self
            .entries
            .iter_mut()
            .filter(|entry| !matches!(entry.state, State::Given { .. }));
        match learnt.min_by_key(|entry| entry.at) {
            Some(oldest) => *oldest = entry,
            None => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const HOSTS: u8 = 6;
    const GIVEN: (Ipv4Addr, MacAddr) = (Ipv4Addr::new(10, 0, 0, 200), MacAddr([2; 6]));

    fn host(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, last)
    }

    fn mac(number: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, number])
    }

    #[test]
    fn what_is_asked_for_anew_and_then_forgotten_is_not_used() {
        let mut cache = Neighbours::new(1, &[]);
        cache.add(host(1), mac(1), 0);
        let renewed = Resolution::Renew(mac(1), host(1));
        assert_eq!(cache.look_up(host(1), AGE), renewed);
        assert_eq!(cache.look_up(host(1), AGE + 3 * SECOND), renewed);
        let long_after = AGE + 3 * SECOND + RENEWED_WITHIN;
        assert_eq!(cache.look_up(host(1), long_after), Resolution::Ask(host(1)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever happens, the cache says what was heard last, for as long as that holds, asks
        /// for no address more often than once a second, and has no more entries than places.
        #[test]
        fn it_says_what_was_heard_last(
            places in 1..8_usize,
            steps in prop::collection::vec((0..3_u8, 0..HOSTS, any::<u8>(), 0..4 * SECOND), 0..100),
        ) {
            let mut cache = Neighbours::new(places, &[GIVEN]);
            let mut heard: HashMap<Ipv4Addr, (MacAddr, u64)> = HashMap::new();
            let mut asked: HashMap<Ipv4Addr, u64> = HashMap::new();
            let roomy = places >= usize::from(HOSTS);
            let mut now = 0;
            for (step, last, number, later) in steps {
                now += later;
                let ip = host(last);
                match step {
                    0 => {
                        if cache.merge(ip, mac(number), now) {
                            heard.insert(ip, (mac(number), now));
                        }
                    }
                    1 => {
                        if !cache.merge(ip, mac(number), now) {
                            cache.add(ip, mac(number), now);
                        }
                        heard.insert(ip, (mac(number), now));
                    }
                    _ => {
                        let heard_within = |age| heard.get(&ip).filter(|(_, at)| now - at < age).map(|heard| heard.0);
                        let fresh = heard_within(AGE);
                        let usable = heard_within(2 * AGE + u64::from(TRIES) * RENEWED_WITHIN);
                        let resolution = cache.look_up(ip, now);
                        match resolution {
                            Resolution::Known(mac) => prop_assert_eq!(usable, Some(mac)),
                            Resolution::Ask(who) | Resolution::Renew(_, who) => {
                                prop_assert_eq!(who, ip);
                                prop_assert!(!roomy || fresh.is_none());
                                let before = asked.insert(ip, now);
                                let heard = heard.get(&ip).map(|heard| heard.1);
                                prop_assert!(!roomy || before.max(heard).is_none_or(|at| now - at >= ASK_EVERY));
                            }
                            Resolution::Wait | Resolution::Unreachable => prop_assert!(!roomy || fresh.is_none()),
                        }
                        if let Resolution::Renew(mac, _) = resolution {
                            prop_assert_eq!(usable, Some(mac));
                        }
                    }
                }
                prop_assert!(cache.entries.len() <= places + 1);
                prop_assert_eq!(cache.look_up(GIVEN.0, now), Resolution::Known(GIVEN.1));
            }
        }
    }
}
