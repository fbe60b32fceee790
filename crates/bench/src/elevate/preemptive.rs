//! The preemptive server of the slides: 99.5 % of the requests take 0.5 us, 0.5 % take 500 us.
//! Without preemption the latency goes above 500 us, with it the latency stays below.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rustix::net::RecvFlags;
use serde::{Deserialize, Serialize};
use shinjuku::net::wire::ShinjukuRequest;
use shinjuku_elevate::server::{Server, ServerConfig, Source};
use shinjuku_examples::work::{spin, steps_per_nano};
use shinjuku_workload::Mix;

use super::networked::{Call, Served};
use super::{AROUND, Bench};
use crate::harness::Runs;

/// How long a request runs before others pass it: a timer that rings so often costs even a virtual
/// machine a third of the core at most.
const THRESHOLD: Duration = Duration::from_micros(100);
/// Offered load, of what the server without preemption can do.
const LOADS: [f64; 5] = [0.1, 0.2, 0.4, 0.6, 0.8];
const FEW: [f64; 2] = [0.2, 0.6];

/// The contenders.
pub(super) const WITHOUT: &str = "run to completion";
pub(super) const PREEMPTIVE: &str = "preemptive";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Requests a second.
    pub rate: f64,
    /// The short requests of each contender.
    pub short: Vec<Runs<Served>>,
    pub long: Vec<Runs<Served>>,
}

pub(super) fn measure(bench: &mut Bench<'_>) -> Result<Vec<Load>> {
    let mix = Mix::named("hi")?;
    let speed = steps_per_nano();
    let loads = if bench.few { &FEW[..] } else { &LOADS };
    let (core, client) = (bench.cores.scheduled, bench.cores.other);
    let (length, stop) = (bench.length, bench.session.stop.clone());
    let seconds = length.as_secs_f64();
    let mut contenders = [(WITHOUT, None), (PREEMPTIVE, Some(THRESHOLD))];
    let serve = |threshold, rate, seed| -> Result<Vec<Served>> {
        let (source, address) = Udp::bind()?;
        let socket = Arc::clone(&source.socket);
        let config = ServerConfig::new(core).threshold(threshold);
        let server = Server::start(config, source, move |request: Request| {
            spin((request.nanos as f64 * speed) as u64);
            // A client that has gone gets none.
            let _ = socket.send_to(&request.bytes, request.peer);
        })?;
        let call = Call {
            client,
            seconds,
            rate,
            seed,
        };
        let served = call.make(&address.to_string(), &mix, &stop);
        let _ = server.stop();
        Ok(served?.1)
    };
    let each = length + AROUND;
    let name = |(name, _): &(&str, _)| (*name).to_owned();
    let capacity = bench.session.interleave(
        "the preemptive server's capacity",
        &mut contenders[..1],
        name,
        each,
        |(_, threshold), seed| {
            let classes = serve(*threshold, None, seed)?;
            let rates = classes.iter().map(|class| class.throughput_rps);
            Ok(Some(rates.sum::<f64>()))
        },
    )?;
    let Some(capacity) = capacity[0].spread(|rate| Some(*rate)) else {
        return Ok(Vec::new());
    };
    let mut measured = Vec::new();
    for share in loads {
        let rate = (share * capacity.median).round();
        let runs = bench.session.interleave(
            &format!("the preemptive server, {rate:.0} requests/s"),
            &mut contenders,
            name,
            each,
            |(_, threshold), seed| serve(*threshold, Some(rate), seed).map(Some),
        )?;
        let class = |class: usize| {
            let of = |runs: &Runs<Vec<Served>>| runs.map(|served| served.get(class).cloned());
            runs.iter().map(of).collect()
        };
        measured.push(Load {
            rate,
            short: class(0),
            long: class(1),
        });
    }
    Ok(measured)
}

/// A datagram.
struct Request {
    bytes: [u8; ShinjukuRequest::LENGTH],
    nanos: u64,
    peer: SocketAddr,
}

/// The dispatcher's socket, on which workers reply.
struct Udp {
    socket: Arc<UdpSocket>,
}

impl Udp {
    fn bind() -> io::Result<(Self, SocketAddr)> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        // So often the dispatcher looks whether it is to end.
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        let address = socket.local_addr()?;
        let socket = Arc::new(socket);
        Ok((Self { socket }, address))
    }

    fn receive(&self, flags: RecvFlags) -> Option<Request> {
        let mut bytes = [0; ShinjukuRequest::LENGTH];
        let (_, length, peer) = rustix::net::recvfrom(&*self.socket, &mut bytes, flags).ok()?;
        let request = ShinjukuRequest::parse(&bytes[..length.min(bytes.len())]).ok()?;
        Some(Request {
            bytes,
            nanos: request.run_nanos,
            peer: peer?.try_into().ok()?,
        })
    }
}

impl Source for Udp {
    type Request = Request;

    fn poll(&mut self) -> Option<Request> {
        self.receive(RecvFlags::DONTWAIT)
    }

    fn wait(&mut self) -> Option<Request> {
        self.receive(RecvFlags::empty())
    }
}
