//! Who competes, and a server that runs.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shinjuku_workload::Mix;

use super::linux::{self, Sharing};
use super::runtime::{self, QUANTUM_US, Way};
use super::work::Work;

/// Names in results.
pub const PARTITIONED: &str = "Linux, partitioned";
pub const FLOATING: &str = "Linux, floating";
pub const IX: &str = "IX";
pub const ZYGOS: &str = "ZygOS without interrupts";
pub const OURS: &str = "ours";

/// Descriptors of the process that are not connections.
const OTHERS: u64 = 512;

/// A way to serve connections.
#[derive(Debug, Clone, Copy)]
pub struct Contender {
    pub name: &'static str,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Linux(Sharing),
    Runtime(Way),
}

/// All of them.
pub const CONTENDERS: [Contender; 5] = [
    of(PARTITIONED, Kind::Linux(Sharing::Partitioned)),
    of(FLOATING, Kind::Linux(Sharing::Floating)),
    of(IX, Kind::Runtime(Way::Ix)),
    of(ZYGOS, Kind::Runtime(Way::ZygOs)),
    of(OURS, Kind::Runtime(Way::Ours)),
];

const fn of(name: &'static str, kind: Kind) -> Contender {
    Contender { name, kind }
}

/// A server that runs. Dropped, it ends.
#[derive(Debug)]
pub enum Server {
    /// On threads of its own.
    Linux(linux::Server),
    /// On the runtime's loops.
    Runtime(Box<runtime::Server>),
}

impl Contender {
    /// What it is, in words.
    pub fn description(&self) -> String {
        match self.kind {
            Kind::Linux(Sharing::Partitioned) => {
                "an epoll set, a thread and a socket of the port (SO_REUSEPORT) on each core".into()
            }
            Kind::Linux(Sharing::Floating) => {
                "a thread on each core, all on one epoll set (EPOLLONESHOT)".into()
            }
            Kind::Runtime(Way::Ix) => "loops that do not help each other, to completion".into(),
            Kind::Runtime(Way::ZygOs) => {
                "loops that take flows whose requests others have received, to completion; the loop that ran a request replies; no \
                 interrupts"
                    .into()
            }
            Kind::Runtime(Way::Ours) => {
                format!("loops that help each other, one queue each, {QUANTUM_US} us by probes")
            }
        }
    }

    /// Starts its server on `cores`, for so many connections at the most.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(
        &self,
        work: &Work,
        mix: &Mix,
        cores: &[usize],
        connections: usize,
    ) -> Result<Server> {
        let classes: Vec<_> = mix.classes().iter().map(|class| &*class.name).collect();
        let started = match self.kind {
            Kind::Linux(sharing) => {
                linux::Server::start(sharing, work, cores, connections).map(Server::Linux)
            }
            Kind::Runtime(way) => runtime::Server::start(way, work, &classes, cores, connections)
                .map(|server| Server::Runtime(Box::new(server))),
        };
        started.with_context(|| format!("{} does not start", self.name))
    }
}

impl Server {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        match self {
            Self::Linux(server) => server.address,
            Self::Runtime(server) => server.address,
        }
    }

    /// Requests that idle loops have run for others; `None`: it has no loops.
    pub fn helped(&self) -> Option<u64> {
        match self {
            Self::Linux(_) => None,
            Self::Runtime(server) => Some(server.helped()),
        }
    }
}

/// How many of `wanted` connections this process may have, which holds both ends of each; the soft
/// limit of descriptors is raised as far as it goes.
///
/// # Errors
/// The limit cannot be raised.
pub fn connections(wanted: usize) -> Result<usize> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        let raised = Rlimit {
            current: maximum,
            maximum,
        };
        setrlimit(Resource::Nofile, raised).context("cannot raise the limit of descriptors")?;
    }
    let most = maximum.map_or(usize::MAX, |most| {
        (most.saturating_sub(OTHERS) / 2) as usize
    });
    Ok(wanted.min(most))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use rustix::thread::sched_getaffinity;
    use shinjuku_bench_tpcc::{Scale, Store};
    use shinjuku_workload::{Length, Offered, Schedule, ScheduleConfig};

    use super::super::client::{self, Planned};
    use super::super::scenario::SCENARIOS;
    use super::*;

    /// So many requests over so many connections, as quickly as they can be sent, from `contender`.
    fn serve(contender: &Contender, work: &Work, mix: &Mix, requests: usize) -> client::Outcome {
        const CONNECTIONS: u32 = 40;
        let cores = core_affinity::get_core_ids().unwrap();
        let cores: Vec<_> = cores.iter().take(2).map(|core| core.id).collect();
        let server = contender.start(work, mix, &cores, 64).unwrap();
        let offered = Offered::Rate { per_second: 5e4 };
        let config = ScheduleConfig::new(offered, Length::Requests(requests));
        let schedule = Schedule::generate(mix, &config.with_flows(CONNECTIONS)).unwrap();
        let plan = |(number, &arrival)| Planned {
            arrival,
            bytes: work.request(&arrival, number as u32, 1).to_bytes(),
        };
        let plan: Vec<_> = schedule.arrivals().iter().enumerate().map(plan).collect();
        let all = sched_getaffinity(None).unwrap();
        let (address, stop) = (server.address(), AtomicBool::new(false));
        client::run(address, CONNECTIONS as usize, &plan, &all, &stop).unwrap()
    }

    /// The client checks each answer's number.
    #[test]
    fn every_contender_answers_every_request_in_order() {
        let mix = SCENARIOS[0].mix().unwrap();
        let work = Work::Spin {
            steps_per_nano: 0.01,
        };
        for contender in &CONTENDERS {
            let outcome = serve(contender, &work, &mix, 2_000);
            assert_eq!(outcome.answered, 2_000, "{}", contender.name);
            assert!(
                outcome
                    .records
                    .iter()
                    .all(|one| one.finish_ns < client::NEVER)
            );
        }
    }

    #[test]
    fn transactions_of_every_contender_leave_the_store_consistent() {
        let mix = SCENARIOS[2].mix().unwrap();
        let store = Arc::new(Store::new(Scale::small(), 1));
        for contender in &CONTENDERS {
            let work = Work::Tpcc(Arc::clone(&store));
            let outcome = serve(contender, &work, &mix, 1_000);
            assert_eq!(outcome.answered, 1_000, "{}", contender.name);
            assert_eq!(store.check(), Ok(()), "{}", contender.name);
        }
    }

    #[test]
    fn no_more_connections_than_descriptors() {
        assert_eq!(connections(10).unwrap(), 10);
        let most = connections(usize::MAX).unwrap() as u64;
        let limit = getrlimit(Resource::Nofile).current;
        assert!(
            limit.is_none_or(|limit| 2 * most < limit),
            "{most} of {limit:?}"
        );
    }
}
