//! This project's server: the layout `symmetric` over TCP, a socket of one port (SO_REUSEPORT) for
//! each loop, as it is meant to be used, and as IX and ZygOS serve.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use shinjuku::net::Refusal;
use shinjuku::net::tcp::{Codec, Framing, Reply, Request, Tcp, TcpConfig};
use shinjuku::policy::{cfcfs, single_queue, stealing};
use shinjuku::{
    ClassConfig, Config, CoresConfig, Help, LayoutKind, MechanismKind, PolicyConfig,
    RequestContext, RequestHandler, Runtime,
};

use super::work::{self, REFUSED, REQUEST, Work};

/// How often ours preempts a request that others wait for: the paper's quantum.
pub const QUANTUM_US: f64 = 5.0;
/// A connection's buffers, bytes: 64 requests.
const BUFFER: usize = 64 * REQUEST;
/// What a server may take to end.
const END: Duration = Duration::from_secs(2);

/// Whose way to serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Each loop its own connections, to completion.
    Ix,
    /// Idle loops take what others have received, to completion. Other than in ZygOS, the loop that
    /// ran a request sends its reply, and no loop is interrupted for what it has not received.
    ZygOs,
    /// Idle loops help in all, and requests are preempted by probes.
    Ours,
}

/// A server that runs. Dropped, it ends.
#[derive(Debug)]
pub struct Server {
    pub address: SocketAddr,
    server: Option<shinjuku::Server<Tcp<Fixed>>>,
}

impl Server {
    /// Starts a server with a loop on each of `cores`, for so many connections at the most.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(
        way: Way,
        work: &Work,
        classes: &[&str],
        cores: &[usize],
        connections: usize,
    ) -> Result<Self> {
        let mut address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut transports = Vec::new();
        for _ in cores {
            // The kernel deals connections: each socket may be dealt all of them.
            let config = TcpConfig::new(address)
                .connections(connections)
                .buffer(BUFFER)
                .max_request(BUFFER)
                .backlog(4096)
                .reuse_port(true);
            let transport = Tcp::bind(config, Fixed)?;
            address = transport.local_addr();
            transports.push(transport);
        }
        let server = Runtime::builder(Handler(work.clone()))
            .config(config(way, classes, cores))
            .serve_each(transports)
            .context("the runtime does not start")?;
        Ok(Self {
            address,
            server: Some(server),
        })
    }
}

impl Server {
    /// Requests that loops have run for others by now.
    pub fn helped(&self) -> u64 {
        let server = self.server.as_ref();
        server.map_or(0, |server| server.statistics().helped)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            // What is unanswered is the client's to count.
            let _ = server.shutdown_each(END);
        }
    }
}

fn config(way: Way, classes: &[&str], cores: &[usize]) -> Config {
    let mut config = Config::default()
        .workers(cores.len())
        .layout(LayoutKind::Symmetric)
        .class(classes.iter().map(|&name| ClassConfig::new(name)));
    config.cores = CoresConfig::default().workers(cores.iter().copied());
    config.preemption.mechanism = MechanismKind::Probe;
    (config.help, config.policy) = match way {
        Way::Ix => (Help::None, PolicyConfig::new(cfcfs::REGISTERED)),
        Way::ZygOs => (Help::Polled, PolicyConfig::new(stealing::REGISTERED)),
        Way::Ours => {
            let policy = PolicyConfig::new(single_queue::REGISTERED).quantum_us(QUANTUM_US);
            (Help::All, policy)
        }
    };
    config
}

/// Requests of fixed length.
#[derive(Debug, Clone)]
struct Fixed;

impl Codec for Fixed {
    type Progress = ();
    type Session = ();

    fn frame(&self, bytes: &[u8], _: &mut (), _: &()) -> Framing {
        match bytes.first_chunk() {
            Some(request) => Framing::Complete {
                length: REQUEST,
                class: work::Request::from_bytes(request).class,
            },
            None => Framing::Incomplete,
        }
    }

    fn refusal(&self, _: Refusal) -> &'static [u8] {
        &REFUSED
    }

    fn failure(&self) -> &'static [u8] {
        &REFUSED
    }
}

struct Handler(Work);

impl RequestHandler for Handler {
    type Request = Request<Fixed>;
    type Reply = Reply<Fixed>;
    type PerCore = ();

    fn init_per_core(&self, _: usize) {}

    fn handle_request(
        &self,
        mut request: Request<Fixed>,
        _: &RequestContext<'_, ()>,
    ) -> Reply<Fixed> {
        let (bytes, output, ()) = request.parts();
        let bytes = bytes.first_chunk().expect("framed as long as that");
        let reply = self.0.serve(bytes);
        // There is always room for a few bytes; without, the client misses its reply.
        let _ = output.extend_from_slice(&reply);
        request.reply()
    }
}
