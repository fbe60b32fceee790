//! A server of any kind: under a policy, with one queue or one a core, or with shared cores.

use crate::calendar::{Calendar, NEVER};
use crate::loops::Loops;
use crate::scheduler::{Built, Scheduler};
use crate::server::{Server, Shape};
use crate::sharing::Sharing;
use crate::source::split_mix;
use crate::{Layout, Outcome, Request, SimError};

/// Separates a machine's seed from that of its requests.
const SALT: u64 = 0x6D61_6368_696E_6500;

/// A server, built from how it schedules and its shape.
pub enum Machine {
    /// Workers under a policy.
    Server(Box<Server>),
    /// Cores that each have a queue under a policy.
    Loops(Box<Loops>),
    /// Cores shared by all requests.
    Sharing(Sharing),
    /// Cores each shared by the requests of the flows that hash to it.
    Partitioned(Partitioned),
}

/// Separate cores, each shared by its own requests.
pub struct Partitioned {
    cores: Vec<Sharing>,
    calendar: Calendar,
}

impl Machine {
    /// A server of this shape. Its random draws are independent of a source of requests with the
    /// same `seed`.
    ///
    /// # Errors
    /// As [`Server::new`] and [`Loops::new`]; [`SimError::Parameter`] for best effort at a depth
    /// above one, or for a dispatcher that works under a policy that does not preempt.
    pub fn new(scheduler: &Scheduler, shape: Shape, seed: u64) -> Result<Self, SimError> {
        let seed = split_mix(seed, SALT);
        if shape.layout != Layout::Central {
            return Ok(Self::Loops(Box::new(Loops::new(scheduler, shape, seed)?)));
        }
        let Shape {
            capacity, workers, ..
        } = shape;
        if scheduler.has_best_effort() && shape.depth > 1 {
            let expected =
                "best effort that is staged would be ahead of what comes later: choose 1";
            return Err(SimError::parameter("depth", shape.depth, expected));
        }
        if shape.works_ns > 0 && (!scheduler.preempts() || scheduler.has_best_effort()) {
            let expected =
                "a dispatcher works under policies that preempt, and without best effort: choose 0";
            return Err(SimError::parameter("works_ns", shape.works_ns, expected));
        }
        let built = scheduler.build(capacity, workers, seed)?;
        if workers == 0 {
            let expected = "at least one is needed";
            return Err(SimError::parameter("workers", 0, expected));
        }
        Ok(match built {
            Built::Policy(policy) => Self::Server(Box::new(Server::watched(*policy, shape, seed)?)),
            Built::Sharing => Self::Sharing(Sharing::new(workers, capacity)),
            Built::PartitionedSharing => {
                let core = |_| Sharing::new(1, capacity);
                Self::Partitioned(Partitioned {
                    cores: (0..workers).map(core).collect(),
                    calendar: Calendar::new(workers),
                })
            }
        })
    }

    /// The time of the next event, in ns; `u64::MAX` if there is none.
    #[inline]
    #[must_use]
    pub fn next_ns(&self) -> u64 {
        match self {
            Self::Server(server) => server.next_ns(),
            Self::Loops(loops) => loops.next_ns(),
            Self::Sharing(sharing) => sharing.next_ns(),
            Self::Partitioned(partitioned) => partitioned.calendar.first_ns(),
        }
    }

    /// A request reaches the server at `now_ns`. It comes back if it is refused at once.
    #[inline]
    pub fn arrive(&mut self, now_ns: u64, request: Request) -> Option<Outcome> {
        match self {
            Self::Server(server) => server.arrive(now_ns, request),
            Self::Loops(loops) => loops.arrive(now_ns, request),
            Self::Sharing(sharing) => sharing.arrive(now_ns, request),
            Self::Partitioned(Partitioned { cores, calendar }) => {
                let at = spread(request.flow, cores.len());
                let outcome = cores[at].arrive(now_ns, request);
                calendar.set(at, cores[at].next_ns());
                outcome
            }
        }
    }

    /// Handles the next event.
    #[inline]
    pub fn step(&mut self) -> Option<Outcome> {
        match self {
            Self::Server(server) => server.step(),
            Self::Loops(loops) => loops.step(),
            Self::Sharing(sharing) => sharing.step(),
            Self::Partitioned(Partitioned { cores, calendar }) => {
                if calendar.first_ns() == NEVER {
                    return None;
                }
                let at = calendar.first_slot();
                let outcome = cores[at].step();
                calendar.set(at, cores[at].next_ns());
                outcome
            }
        }
    }

    /// Requests in the server.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Server(server) => server.len(),
            Self::Loops(loops) => loops.len(),
            Self::Sharing(sharing) => sharing.len(),
            Self::Partitioned(partitioned) => partitioned.cores.iter().map(Sharing::len).sum(),
        }
    }

    /// Whether the server has no request.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many events it has handled.
    #[must_use]
    pub fn events(&self) -> u64 {
        match self {
            Self::Server(server) => server.events(),
            Self::Loops(loops) => loops.events(),
            Self::Sharing(sharing) => sharing.events(),
            Self::Partitioned(partitioned) => partitioned.cores.iter().map(Sharing::events).sum(),
        }
    }

    /// How many preemptions took effect; sharing has none.
    #[must_use]
    pub fn preemptions(&self) -> u64 {
        match self {
            Self::Server(server) => server.preemptions(),
            Self::Loops(loops) => loops.preemptions(),
            Self::Sharing(_) | Self::Partitioned(_) => 0,
        }
    }

    /// How many turns loops took of parts that are not their home.
    #[must_use]
    pub fn helps(&self) -> u64 {
        match self {
            Self::Loops(loops) => loops.helps(),
            Self::Server(_) | Self::Sharing(_) | Self::Partitioned(_) => 0,
        }
    }

    /// Whether the policy has kept its contract.
    ///
    /// # Errors
    /// [`SimError::Contract`] if not.
    pub fn check(&self) -> Result<(), SimError> {
        match self {
            Self::Server(server) => server.check(),
            Self::Loops(loops) => loops.check(),
            Self::Sharing(_) | Self::Partitioned(_) => Ok(()),
        }
    }
}

/// Maps a flow evenly onto `0..n`. Flow numbers may be sequential: their bits are spread first
/// (Fibonacci hashing, Knuth, volume 3, section 6.4).
pub(crate) fn spread(flow: u64, n: usize) -> usize {
    let mixed = (flow ^ (flow >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((u128::from(mixed) * n as u128) >> 64) as usize
}
