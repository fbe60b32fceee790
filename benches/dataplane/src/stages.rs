//! The server, from the bare device to the whole runtime: each stage has all that the ones before it have.

use std::ops::Range;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use core_affinity::CoreId;
use shinjuku::net::dataplane::{
    Buffer, Datagram, DatagramReply, Dataplane, DataplaneConfig, DataplaneCounters,
    DataplaneReplier, Device, Headers, Interface, Offload, Outbound, Received, RequestId, Verdict,
};
use shinjuku::net::{Arrival, Replier, Transport};
use shinjuku::{Config, CoresConfig, FromFn, LayoutKind, Runtime, Server};
use shinjuku_bench_dataplane::Rate;

use crate::bursts::NOTHING;
use crate::frames::{answer_raw, reply_to, server_interface};
use crate::reflector::{BATCH, Reflector, WINDOW};

/// What requests under way may take once no more come.
const DRAIN: Duration = Duration::from_secs(5);

/// How much of a server there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Stage {
    /// Frames go back as they are.
    Raw,
    /// `Interface`: parses them, and turns the headers round.
    Stack,
    /// `Dataplane`, and a worker's part of it: lends buffers, and takes replies back.
    Transport,
    /// The whole, inline: dispatches each request to a context of its own.
    Runtime,
}

/// A handler that does nothing but make the reply.
pub type Handler<B> = FromFn<Answer<B>, Datagram<B>, Option<DatagramReply<B>>>;
type Answer<B> = fn(Datagram<B>) -> Option<DatagramReply<B>>;

pub fn handler<B: Buffer>() -> Handler<B> {
    shinjuku::handler_fn(answer as Answer<B>)
}

fn answer<B: Buffer>(request: Datagram<B>) -> Option<DatagramReply<B>> {
    match reply_to(&request) {
        None => Some(request.echo()),
        Some(reply) => request.reply(reply).ok(),
    }
}

/// The inline layout, on `core` if one is given. It looks again at once where nothing has come: sleep is not what is
/// measured.
pub fn inline(core: Option<usize>) -> Config {
    Config {
        layout: LayoutKind::Inline,
        workers: Some(1),
        contexts: 64,
        idle_backoff_us: 1e3,
        cores: CoresConfig {
            dispatcher: core,
            share: core.is_none(),
            ..CoresConfig::default()
        },
        ..Config::default()
    }
}

/// Has the calling thread keep to `core`, if one is given.
pub fn pin(core: Option<usize>) -> Result<()> {
    let pinned = core.is_none_or(|id| core_affinity::set_for_current(CoreId { id }));
    ensure!(
        pinned,
        "cannot keep to core {core:?}: it is not there, or not ours"
    );
    Ok(())
}

/// A server that runs until its measurement is over.
pub enum Running<D: Device> {
    Thread(JoinHandle<Result<Rate>>),
    Runtime {
        server: Box<Serving<D>>,
        counters: DataplaneCounters,
    },
}

type Serving<D> = Server<Handler<<D as Device>::Buffer>, Dataplane<Reflector<D>>>;

impl<D: Device> Running<D> {
    /// Starts it on `core`, if one is given.
    pub fn start(stage: Stage, device: Reflector<D>, core: Option<usize>) -> Result<Self> {
        let serve = match stage {
            Stage::Raw => raw,
            Stage::Stack => stack,
            Stage::Transport => transport,
            Stage::Runtime => {
                let transport = dataplane(device)?;
                let counters = transport.counters();
                let builder = Runtime::builder(handler()).config(inline(core));
                let server = Box::new(builder.serve(transport)?);
                return Ok(Self::Runtime { server, counters });
            }
        };
        let thread = std::thread::spawn(move || {
            pin(core)?;
            serve(device)
        });
        Ok(Self::Thread(thread))
    }

    /// What a runtime says of itself.
    pub fn description(&self) -> Option<String> {
        match self {
            Self::Thread(_) => None,
            Self::Runtime { server, .. } => Some(server.description().to_owned()),
        }
    }

    /// Once its measurement is over: what it did.
    pub fn finish(self) -> Result<Rate> {
        match self {
            Self::Thread(thread) => match thread.join() {
                Ok(rate) => rate,
                Err(_) => bail!("the server panicked"),
            },
            Self::Runtime { server, counters } => {
                let refused = counters.read().refused;
                let (report, transport) = server.shutdown(DRAIN);
                ensure!(report.is_clean(), "the runtime did not end well: {report}");
                let transport = transport.context("the runtime lost its transport")?;
                // What comes after the end is refused.
                rate(transport, counters.read().refused - refused)
            }
        }
    }
}

fn raw<D: Device>(mut device: Reflector<D>) -> Result<Rate> {
    let mut received = Vec::with_capacity(BATCH);
    let mut outbound = Vec::with_capacity(WINDOW);
    while !device.is_over() {
        device.receive(BATCH, &mut received);
        let answers = received.drain(..).map(|one| answer_raw(one.buffer));
        outbound.extend(answers);
        device.transmit(&mut outbound);
    }
    device.rate(0).context(NOTHING)
}

fn stack<D: Device>(mut device: Reflector<D>) -> Result<Rate> {
    let mut interface = Interface::new(server_interface())?;
    let mut received = Vec::with_capacity(BATCH);
    let mut outbound = Vec::with_capacity(WINDOW);
    let mut unanswered = 0;
    while !device.is_over() {
        device.receive(BATCH, &mut received);
        for Received {
            mut buffer,
            verified,
        } in received.drain(..)
        {
            let verdict = interface.receive(buffer.frame_mut(), verified, 0);
            let reply = match verdict {
                Verdict::Deliver(request) => turn_round(buffer, request.payload, request.headers),
                _ => None,
            };
            match reply {
                Some(reply) => outbound.push(reply),
                None => unanswered += 1,
            }
        }
        device.transmit(&mut outbound);
    }
    device.rate(unanswered).context(NOTHING)
}

/// The reply to a request, in its buffer.
fn turn_round<B: Buffer>(
    mut buffer: B,
    payload: Range<usize>,
    headers: Headers,
) -> Option<Outbound<B>> {
    let mut length = payload.end;
    if let Some(reply) = reply_to(buffer.frame().get(payload.clone())?) {
        length = payload.start + reply.len();
        buffer.set_length(length);
        buffer
            .frame_mut()
            .get_mut(payload.start..)?
            .copy_from_slice(reply);
    }
    buffer.set_length(length);
    let checksums = headers.reply(buffer.frame_mut(), Offload::default())?;
    buffer.finish(length);
    Some(Outbound { buffer, checksums })
}

fn transport<D: Device>(device: Reflector<D>) -> Result<Rate> {
    let mut bare = Bare::new(device)?;
    while !bare.transport.device().is_over() {
        bare.turn();
    }
    rate(bare.transport, 0)
}

/// The transport without the runtime: what it delivers is answered on the spot.
pub struct Bare<D: Device> {
    transport: Dataplane<D>,
    replier: DataplaneReplier<D::Buffer>,
    /// Empty between turns.
    arrivals: Vec<Arrival<Datagram<D::Buffer>, RequestId>>,
}

impl<D: Device> Bare<D> {
    pub fn new(device: D) -> Result<Self> {
        let mut transport = dataplane(device)?;
        Ok(Self {
            replier: transport.replier()?,
            transport,
            arrivals: Vec::with_capacity(BATCH),
        })
    }

    /// Whether anything had come.
    pub fn turn(&mut self) -> bool {
        let arrivals = &mut self.arrivals;
        self.transport
            .poll(0, BATCH, |arrival| arrivals.push(arrival));
        let anything = !arrivals.is_empty();
        for arrival in arrivals.drain(..) {
            let reply = Ok(answer(arrival.request));
            self.replier
                .send(Dataplane::<D>::conclude(arrival.route, reply));
        }
        anything
    }
}

/// A server's transport.
pub fn dataplane<D: Device>(device: D) -> Result<Dataplane<D>> {
    let config = DataplaneConfig::new(server_interface()).batch(BATCH);
    Ok(Dataplane::new(device, config)?)
}

/// After the last request, of which so many were refused for coming late: sends what is left, and counts.
fn rate<D: Device>(mut transport: Dataplane<Reflector<D>>, late: u64) -> Result<Rate> {
    let counters = transport.counters();
    let unanswered = || {
        let counts = counters.read();
        counts
            .interface
            .delivered
            .saturating_sub(counts.replies + late)
    };
    // A batch each time.
    for _ in 0..WINDOW {
        transport.poll(0, 0, |_| unreachable!("there is no room"));
        if unanswered() == 0 {
            break;
        }
    }
    transport.device().rate(unanswered()).context(NOTHING)
}
