//! Servers that register by themselves, for as long as they renew a lease: a datagram of JSON each
//! way.
//!
//! The switch knows a server by its datagrams' source, which must be in a network that the
//! configuration allows. UDP's sources can be forged, so these must be networks that are trusted.
//! A server whose Ethernet address is not known yet is refused, and the kernel asks for the address
//! meanwhile: the next try finds it. So no registration keeps the switch waiting.

use std::fmt;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::control::Answer;
use crate::{Rack, RackError, ServerConfig};

/// Datagrams that are taken at a time, so that nothing else waits for long.
const BATCH: usize = 64;
/// The longest message, in bytes.
const LONGEST: usize = 4096;
/// How long the switch may take to answer, at the most and at the least, and how often it is asked:
/// a datagram may be lost.
const PATIENCE: Duration = Duration::from_secs(1);
const LEAST_PATIENCE: Duration = Duration::from_millis(50);
const TRIES: u32 = 3;
/// The longest lease: a day.
pub const LONGEST_LEASE_MS: u64 = 86_400_000;

/// Where servers register.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegistrationConfig {
    /// The address and UDP port.
    pub listen: SocketAddrV4,
    /// The networks whose hosts may.
    pub from: Vec<Network>,
}

/// A network, as in `10.79.0.0/16`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    address: Ipv4Addr,
    bits: u32,
}

impl Network {
    /// Whether the host is in it.
    #[must_use]
    pub fn contains(&self, host: Ipv4Addr) -> bool {
        let mask = u32::MAX.checked_shl(32 - self.bits).unwrap_or(0);
        self.address.to_bits() & mask == host.to_bits() & mask
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(address, bits)| {
            let (address, bits) = (address.parse().ok()?, bits.parse().ok()?);
            (bits <= 32).then_some(Self { address, bits })
        });
        parsed.ok_or_else(|| format!("{text:?} is no network as in 10.79.0.0/16"))
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// What a server says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// Its name.
    pub name: String,
    /// Its weight.
    pub workers: u16,
    /// The types that it serves; all where this is left out.
    pub types: Option<Vec<String>>,
    /// For how long, in milliseconds, up to [`LONGEST_LEASE_MS`]; 0: it leaves.
    pub lease_ms: u64,
}

impl Registration {
    /// Registers this host's server at the switch that listens at `switch`, or renews the lease.
    ///
    /// # Errors
    /// If the switch refuses, or does not answer three times: within a second each, or a quarter of
    /// the lease if that is less, but 50 ms at least.
    pub fn send(&self, switch: SocketAddrV4) -> Result<(), RackError> {
        let exchange = || {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect(switch)?;
            socket.set_read_timeout(Some(self.patience()))?;
            let (said, mut answer) = (serde_json::to_vec(self)?, [0; LONGEST]);
            let mut late = ErrorKind::TimedOut.into();
            for _ in 0..TRIES {
                socket.send(&said)?;
                match socket.recv(&mut answer) {
                    Ok(length) => return Ok(serde_json::from_slice(&answer[..length])?),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => late = error,
                    Err(error) => return Err(error),
                }
            }
            Err(late)
        };
        let answer = exchange().map_err(|cause: std::io::Error| {
            RackError::Server(format!("the switch at {switch} does not answer: {cause}"))
        })?;
        match answer {
            Answer::Refused(why) => Err(RackError::Server(why)),
            Answer::Done | Answer::Status(_) => Ok(()),
        }
    }

    /// How long it waits for an answer: all tries of a renewal must fit into what a third of the
    /// lease leaves. A server that leaves has no lease to lose.
    fn patience(&self) -> Duration {
        if self.lease_ms == 0 {
            return PATIENCE;
        }
        let quarter = Duration::from_millis(self.lease_ms) / 4;
        quarter.clamp(LEAST_PATIENCE, PATIENCE)
    }
}

/// The switch's side.
#[derive(Debug)]
pub struct Registrar {
    socket: UdpSocket,
    from: Vec<Network>,
}

impl Registrar {
    /// Listens.
    ///
    /// # Errors
    /// If the address cannot be had.
    pub fn listen(config: &RegistrationConfig) -> Result<Self, RackError> {
        let listen = || {
            let socket = UdpSocket::bind(config.listen)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let wrong = |cause: std::io::Error| {
            RackError::Config(format!("registration.listen: {}: {cause}", config.listen))
        };
        Ok(Self {
            socket: listen().map_err(wrong)?,
            from: config.from.clone(),
        })
    }

    /// Serves the registrations that wait. Returns what happened, in words.
    pub fn serve(&self, rack: &mut Rack) -> Vec<String> {
        let mut events = Vec::new();
        let mut message = [0; LONGEST];
        for _ in 0..BATCH {
            let (length, peer) = match self.socket.recv_from(&mut message) {
                Ok(received) => received,
                // An answer that did not arrive.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
                Err(_) => break,
            };
            let answer = match self.register(rack, peer, &message[..length]) {
                Ok(happened) => {
                    events.extend(happened);
                    Answer::Done
                }
                Err(error) => Answer::Refused(error.to_string()),
            };
            if let Ok(answer) = serde_json::to_vec(&answer) {
                // A server that does not get the answer asks again.
                let _ = self.socket.send_to(&answer, peer);
            }
        }
        events
    }

    fn register(
        &self,
        rack: &mut Rack,
        peer: SocketAddr,
        message: &[u8],
    ) -> Result<Vec<String>, RackError> {
        let IpAddr::V4(address) = peer.ip() else {
            return Err(RackError::Server("registration takes IPv4".to_owned()));
        };
        if !self.from.iter().any(|network| network.contains(address)) {
            let refused = format!("{address} is in no network of registration.from");
            return Err(RackError::Server(refused));
        }
        let Registration {
            name,
            workers,
            types,
            lease_ms,
        } = serde_json::from_slice(message)
            .map_err(|error| RackError::Server(format!("no registration: {error}")))?;
        if lease_ms > LONGEST_LEASE_MS {
            let refused = format!("lease_ms is {lease_ms}, but at most {LONGEST_LEASE_MS}");
            return Err(RackError::Server(refused));
        }
        let server = ServerConfig {
            name,
            address,
            workers,
            types,
            mac: None,
            interface: None,
        };
        rack.register(server, Duration::from_millis(lease_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_that_is_lost_is_said_again() {
        let switch = UdpSocket::bind("127.0.0.1:0").unwrap();
        switch
            .set_read_timeout(Some(shinjuku_tests_support::PATIENCE))
            .unwrap();
        let SocketAddr::V4(at) = switch.local_addr().unwrap() else {
            panic!("it is IPv4");
        };
        let registration = Registration {
            name: "z".to_owned(),
            workers: 1,
            types: None,
            lease_ms: 0,
        };
        let mut said = [[0; LONGEST]; 2];
        std::thread::scope(|scope| {
            let server = scope.spawn(|| registration.send(at));
            // The first one does not count as heard.
            let heard = said.each_mut().map(|said| switch.recv_from(said).unwrap());
            let answer = serde_json::to_vec(&Answer::Done).unwrap();
            switch.send_to(&answer, heard[1].1).unwrap();
            server.join().unwrap().unwrap();
        });
        assert_eq!(said[0], said[1]);
    }

    #[test]
    fn a_renewal_may_be_lost_twice_within_its_lease() {
        let patience = |lease_ms| {
            let registration = Registration {
                name: "z".to_owned(),
                workers: 1,
                types: None,
                lease_ms,
            };
            registration.patience()
        };
        for lease_ms in [200, 300, 1000, 3000, 60_000, LONGEST_LEASE_MS] {
            let lease = Duration::from_millis(lease_ms);
            let third_try = lease / 3 + patience(lease_ms) * 2;
            assert!(third_try < lease, "{third_try:?} of {lease:?}");
        }
        assert_eq!(patience(100), LEAST_PATIENCE);
        assert_eq!([0, 4000, 60_000].map(patience), [PATIENCE; 3]);
    }

    #[test]
    fn networks_contain_their_hosts() {
        let network = |text: &str| text.parse::<Network>().unwrap();
        let host = |text: &str| text.parse::<Ipv4Addr>().unwrap();
        assert!(network("10.79.0.0/16").contains(host("10.79.3.2")));
        assert!(!network("10.79.0.0/16").contains(host("10.78.0.2")));
        assert!(network("10.79.3.2/32").contains(host("10.79.3.2")));
        assert!(!network("10.79.3.2/32").contains(host("10.79.3.3")));
        assert!(network("0.0.0.0/0").contains(host("192.0.2.1")));
        for text in ["10.79.0.0", "10.79.0.0/33", "10.79/16", "/", "10.79.0.0/-1"] {
            let error = text.parse::<Network>().unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }
}
