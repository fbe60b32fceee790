//! `bench-dataplane call`: a client as a process of its own, that keeps so many requests under way.
//! With one it tells what round trips take. The same loop for every kind of line.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use shinjuku_bench_dataplane::{Calls, LONGEST_PAYLOAD, SHORTEST_PAYLOAD};

use crate::bursts::{Bursts, NOTHING, Phase};
use crate::frames::{REQUEST, ROOM, reply_to, request};
use crate::serve::{Idle, Over};
use crate::stages::pin;

/// Before anything is measured.
const WARM_UP: Duration = Duration::from_millis(50);
/// Requests in a burst: some tenths of a millisecond, or a millisecond over the kernel's sockets.
const BURST: u64 = 200;
/// After so long without a reply, what is under way is lost.
const LOST: Duration = Duration::from_secs(5);
/// Round trips of which each has its own figure.
const MOST: usize = 1 << 22;
/// Replies that are checked to the last byte; all others by their length.
pub const WHOLLY: u32 = 256;

#[derive(Debug, Args)]
pub struct Options {
    /// What packets go over.
    #[arg(long)]
    pub over: Over,
    /// The memif's socket, or the server's address.
    #[arg(long)]
    pub at: String,
    /// Whether the server sends frames back without turning their headers round.
    #[arg(long)]
    pub raw: bool,
    /// Requests under way at once.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    window: u16,
    /// Bytes of a reply's UDP payload; one after the other if there are several.
    #[arg(long, value_delimiter = ',', default_values_t = [SHORTEST_PAYLOAD], value_parser = clap::value_parser!(u16)
        .range(i64::from(SHORTEST_PAYLOAD)..=i64::from(LONGEST_PAYLOAD)))]
    reply: Vec<u16>,
    /// For how long, each.
    #[arg(long, value_parser = crate::seconds)]
    seconds: f64,
    /// The client's core; any by default.
    #[arg(long, value_parser = crate::core)]
    core: Option<usize>,
}

/// A way to the server.
pub trait Line {
    /// From now on asks for replies of so many bytes.
    fn begin(&mut self, reply: u16) -> Result<()>;
    /// Sends a request, if there is room for one.
    fn send(&mut self) -> Result<bool>;
    /// Takes replies that have come; how many.
    fn receive(&mut self) -> Result<u64>;
    /// How many were not what was asked for since [`begin`](Self::begin).
    fn wrong(&self) -> u64;
}

/// Measures over `line`, for each length of replies.
pub fn measure(line: &mut impl Line, options: &Options) -> Result<Vec<Calls>> {
    pin(options.core)?;
    let mut round_trips = Vec::with_capacity(if options.window == 1 { MOST } else { 0 });
    let mut measured = Vec::new();
    for &reply in &options.reply {
        round_trips.clear();
        measured.push(measure_one(line, reply, options, &mut round_trips)?);
    }
    Ok(measured)
}

fn measure_one(
    line: &mut impl Line,
    reply: u16,
    options: &Options,
    round_trips: &mut Vec<u32>,
) -> Result<Calls> {
    line.begin(reply)?;
    let window = u64::from(options.window);
    let phase = Phase::default();
    let mut bursts = Bursts::new(phase.clone(), BURST);
    let from = Instant::now() + WARM_UP;
    let until = from + Duration::from_secs_f64(options.seconds);
    let mut idle = Idle::default();
    let (mut under_way, mut lost) = (0, 0);
    let (mut sent, mut heard) = (from, Instant::now());
    loop {
        let now = Instant::now();
        if now < until {
            while under_way < window && line.send()? {
                under_way += 1;
                sent = now;
            }
        } else if under_way == 0 {
            break;
        }
        let arrived = line.receive()?;
        idle.after(arrived > 0);
        if arrived == 0 {
            if now - heard > LOST {
                (lost, under_way, heard) = (lost + under_way, 0, now);
            }
            continue;
        }
        heard = Instant::now();
        under_way = u64::saturating_sub(under_way, arrived);
        if heard >= until {
            phase.end();
        } else if heard >= from {
            phase.measure();
            if sent >= from && round_trips.len() < round_trips.capacity() {
                let nanos = (heard - sent).as_nanos();
                round_trips.push(nanos.try_into().unwrap_or(u32::MAX));
            }
        }
        bursts.count(arrived);
    }
    round_trips.sort_unstable();
    let at = |share: f64| {
        let last = round_trips.len().checked_sub(1)?;
        Some(f64::from(round_trips[(last as f64 * share) as usize]) / 1e3)
    };
    Ok(Calls {
        reply,
        rate: bursts.rate(line.wrong()).context(NOTHING)?,
        unanswered: lost,
        p50_us: at(0.5),
        p99_us: at(0.99),
        p999_us: at(0.999),
    })
}

/// A socket of the kernel's.
pub struct Socket {
    socket: UdpSocket,
    request: [u8; REQUEST],
    length: usize,
    wholly: u32,
    wrong: u64,
}

impl Socket {
    pub fn connect(server: &str) -> Result<Self> {
        let server: SocketAddr = server.parse().context("--at is no address")?;
        let socket = UdpSocket::bind((server.ip(), 0))?;
        socket.connect(server)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            request: request(SHORTEST_PAYLOAD),
            length: 0,
            wholly: 0,
            wrong: 0,
        })
    }
}

impl Line for Socket {
    fn begin(&mut self, reply: u16) -> Result<()> {
        self.request = request(reply);
        (self.length, self.wholly, self.wrong) = (reply.into(), WHOLLY, 0);
        Ok(())
    }

    fn send(&mut self) -> Result<bool> {
        match self.socket.send(&self.request) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn receive(&mut self) -> Result<u64> {
        let mut reply = [0; ROOM];
        let length = match self.socket.recv(&mut reply) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        let mut right = length == self.length;
        if self.wholly > 0 {
            self.wholly -= 1;
            right &= reply[..length] == *reply_to(&self.request).unwrap_or(&self.request);
        }
        self.wrong += u64::from(!right);
        Ok(1)
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}
