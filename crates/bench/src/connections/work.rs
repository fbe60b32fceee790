//! What is asked of the servers, and the protocol: requests of 16 bytes, replies of 8, in the order
//! of the requests on each connection.
//!
//! | bytes | request | reply |
//! |---|---|---|
//! | 0-3 | its number | the same; of a refusal all ones |
//! | 4-5 | the class | the low half of what came out |
//! | 6-7 | 0 | the same |
//! | 8-15 | nanoseconds to spin, or a transaction's seed | |
//!
//! Numbers are little-endian. All servers do the work by the same function; its probes find nothing
//! to do on threads that are not the runtime's.

use std::sync::Arc;

use shinjuku_bench_tpcc::{Input, Kind, Store};
use shinjuku_examples::work::{spin_with_probes, steps_per_nano};
use shinjuku_workload::Arrival;

/// A request's length, bytes.
pub const REQUEST: usize = 16;
/// A reply's length, bytes.
pub const REPLY: usize = 8;
/// The reply to a request that is not served.
pub const REFUSED: [u8; REPLY] = [0xff; REPLY];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Which of the run.
    pub number: u32,
    /// An index into the mix's classes.
    pub class: u16,
    /// Nanoseconds, or a seed.
    pub argument: u64,
}

impl Request {
    /// As it is sent.
    pub fn to_bytes(self) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        bytes[..4].copy_from_slice(&self.number.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.class.to_le_bytes());
        bytes[8..].copy_from_slice(&self.argument.to_le_bytes());
        bytes
    }

    /// What these bytes are.
    pub fn from_bytes(bytes: &[u8; REQUEST]) -> Self {
        let [n0, n1, n2, n3, c0, c1, _, _, argument @ ..] = *bytes;
        Self {
            number: u32::from_le_bytes([n0, n1, n2, n3]),
            class: u16::from_le_bytes([c0, c1]),
            argument: u64::from_le_bytes(argument),
        }
    }
}

/// The number of the request that a reply is to.
pub fn number(reply: &[u8; REPLY]) -> u32 {
    u32::from_le_bytes([reply[0], reply[1], reply[2], reply[3]])
}

/// How requests are served.
#[derive(Debug, Clone)]
pub enum Work {
    /// Each spins for as long as it says.
    Spin {
        /// Steps that take a nanosecond on this machine.
        steps_per_nano: f64,
    },
    /// Each is a transaction, of the kind that its class says.
    Tpcc(Arc<Store>),
}

impl Work {
    /// Spinning, calibrated now.
    pub fn spin() -> Self {
        Self::Spin {
            steps_per_nano: steps_per_nano(),
        }
    }

    /// The request of an arrival: the same for the same seed and number.
    pub fn request(&self, arrival: &Arrival, number: u32, seed: u64) -> Request {
        Request {
            number,
            class: arrival.class,
            argument: match self {
                Self::Spin { .. } => arrival.service_ns,
                Self::Tpcc(_) => (seed << 32) | u64::from(number),
            },
        }
    }

    /// Does what a request asks for.
    pub fn serve(&self, bytes: &[u8; REQUEST]) -> [u8; REPLY] {
        let request = Request::from_bytes(bytes);
        let outcome = match self {
            Self::Spin { steps_per_nano } => {
                spin_with_probes((request.argument as f64 * steps_per_nano) as u64);
                0
            }
            Self::Tpcc(store) => {
                let kind = Kind::ALL[usize::from(request.class) % Kind::ALL.len()];
                let input = Input::draw(kind, request.argument, store.scale());
                store.run(input).shown
            }
        };
        let mut reply = [0; REPLY];
        reply[..4].copy_from_slice(&bytes[..4]);
        reply[4..].copy_from_slice(&(outcome as u32).to_le_bytes());
        reply
    }
}

#[cfg(test)]
mod tests {
    use shinjuku_bench_tpcc::Scale;

    use super::*;

    #[test]
    fn requests_survive_their_bytes() {
        let request = Request {
            number: 0x0102_0304,
            class: 0x0506,
            argument: 0x0708_090a_0b0c_0d0e,
        };
        assert_eq!(Request::from_bytes(&request.to_bytes()), request);
    }

    #[test]
    fn a_reply_has_its_requests_number_and_what_came_out() {
        let store = Arc::new(Store::new(Scale::small(), 1));
        let work = Work::Tpcc(store);
        let arrival = Arrival {
            at_ns: 0,
            service_ns: 1,
            flow: 0,
            class: 2,
        };
        let [one, two] = [7, 8].map(|number| {
            let request = work.request(&arrival, number, 1);
            work.serve(&request.to_bytes())
        });
        assert_eq!((number(&one), number(&two)), (7, 8));
        assert_ne!(one[4..], two[4..], "two customers' orders");
        assert_ne!(one, REFUSED);
    }
}
