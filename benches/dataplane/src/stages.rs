//! The server, from the bare device to the whole runtime: each stage has all that the ones before
//! it have.

use std::ops::Range;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use core_affinity::CoreId;
use shinjuku::net::{Arrival, Replier, Transport};
use shinjuku::{Config, CoresConfig, LayoutKind, RequestHandler, Runtime, Server};
use shinjuku_bench_dataplane::Rate;
use shinjuku_dataplane::{
    Buffer, Datagram, DatagramReply, Dataplane, DataplaneConfig, DataplaneReplier, Device, Headers,
    Interface, Offload, Outbound, Received, RequestId, Verdict,
};

use crate::bursts::NOTHING;
use crate::frames::{answer_raw, reply_to, server_interface};
use crate::reflector::{BATCH, Reflector, WINDOW};

/// What requests under way may take once no more come.
const DRAIN: Duration = Duration::from_secs(5);
/// Of a [`Dataplane`] that nothing else is said of.
const DEFAULT_BATCH: usize = 32;

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
    /// The same, with as many contexts, as long batches and as soon asleep as by default.
    Defaults,
}

/// A handler that does nothing but make the reply.
pub fn handler<B: Buffer>()
-> impl RequestHandler<Request = Datagram<B>, Reply = Option<DatagramReply<B>>> {
    shinjuku::handler_fn(answer)
}

fn answer<B: Buffer>(request: Datagram<B>) -> Option<DatagramReply<B>> {
    match reply_to(&request) {
        None => Some(request.echo()),
        Some(reply) => request.reply(reply).ok(),
    }
}

/// The inline layout, on `core` if one is given. It looks again at once where nothing has come:
/// sleep is not what is measured.
pub fn inline(core: Option<usize>) -> Config {
    Config::default()
        .layout(LayoutKind::Inline)
        .workers(1)
        .contexts(64)
        .idle_backoff_us(1e3)
        .cores(
            CoresConfig::default()
                .dispatcher(core)
                .share(core.is_none()),
        )
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

/// A server that runs until its measurement is done.
pub enum Running<D: Device> {
    Thread(JoinHandle<Result<Rate>>),
    Runtime {
        server: Box<Serving<D>>,
        settings: String,
    },
}

type Serving<D> = Server<Dataplane<Reflector<D>>>;

impl<D: Device> Running<D> {
    /// Starts it on `core`, if one is given.
    pub fn start(stage: Stage, device: Reflector<D>, core: Option<usize>) -> Result<Self> {
        let serve = match stage {
            Stage::Raw => raw,
            Stage::Stack => stack,
            Stage::Transport => transport,
            Stage::Runtime => {
                return Self::runtime(device, BATCH, inline(core));
            }
            Stage::Defaults => {
                let defaults = Config::default();
                let config = inline(core)
                    .contexts(defaults.contexts)
                    .idle_backoff_us(defaults.idle_backoff_us);
                return Self::runtime(device, DEFAULT_BATCH, config);
            }
        };
        let thread = std::thread::spawn(move || {
            pin(core)?;
            serve(device)
        });
        Ok(Self::Thread(thread))
    }

    fn runtime(device: Reflector<D>, batch: usize, config: Config) -> Result<Self> {
        let settings = format!(
            "{} contexts, batches of {batch}, sleep after {} µs without work",
            config.contexts, config.idle_backoff_us
        );
        let builder = Runtime::builder(handler()).config(config);
        let server = Box::new(builder.serve(dataplane(device, batch)?)?);
        Ok(Self::Runtime { server, settings })
    }

    /// How a runtime is configured, and what it says of itself.
    pub fn description(&self) -> Option<String> {
        match self {
            Self::Thread(_) => None,
            Self::Runtime { server, settings } => {
                Some(format!("{settings}; {}", server.description()))
            }
        }
    }

    /// Whether it ended before its measurement did.
    pub fn has_failed(&self) -> bool {
        match self {
            Self::Thread(thread) => thread.is_finished(),
            Self::Runtime { .. } => false,
        }
    }

    /// Once its measurement is done: what its client got.
    pub fn finish(self) -> Result<Rate> {
        match self {
            Self::Thread(thread) => match thread.join() {
                Ok(rate) => rate,
                Err(_) => bail!("the server panicked"),
            },
            Self::Runtime { server, .. } => {
                let (report, transport) = server.shutdown(DRAIN);
                ensure!(report.is_clean(), "the runtime did not end well: {report}");
                let transport = transport.context("the runtime lost its transport")?;
                transport.device().rate().context(NOTHING)
            }
        }
    }
}

fn raw<D: Device>(mut device: Reflector<D>) -> Result<Rate> {
    let mut received = Vec::with_capacity(BATCH);
    let mut outbound = Vec::with_capacity(WINDOW);
    while !device.is_done() {
        device.receive(BATCH, &mut received);
        let answers = received.drain(..).map(|one| answer_raw(one.buffer));
        outbound.extend(answers);
        device.transmit(&mut outbound);
    }
    device.rate().context(NOTHING)
}

fn stack<D: Device>(mut device: Reflector<D>) -> Result<Rate> {
    let mut interface = Interface::new(server_interface())?;
    let mut received = Vec::with_capacity(BATCH);
    let mut outbound = Vec::with_capacity(WINDOW);
    while !device.is_done() {
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
            outbound.extend(reply);
        }
        device.transmit(&mut outbound);
    }
    device.rate().context(NOTHING)
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
    while !bare.transport.device().is_done() {
        bare.turn();
    }
    bare.transport.device().rate().context(NOTHING)
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
        let mut transport = dataplane(device, BATCH)?;
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
pub fn dataplane<D: Device>(device: D, batch: usize) -> Result<Dataplane<D>> {
    let config = DataplaneConfig::new(server_interface()).batch(batch);
    Ok(Dataplane::new(device, config)?)
}
