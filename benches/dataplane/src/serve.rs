//! `bench-dataplane serve`: a server as a process of its own, until its standard input ends.

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use shinjuku::Runtime;
use shinjuku::net::udp::{self, Udp, UdpConfig};

use crate::frames::{ROOM, reply_to};
use crate::stages::{inline, pin};

#[derive(Debug, Args)]
pub struct Options {
    /// What packets go over.
    #[arg(long)]
    pub over: Over,
    /// The memif's socket, or the address (port 0: one that the kernel picks).
    #[arg(long)]
    pub at: String,
    /// What serves.
    #[arg(long)]
    pub server: Server,
    /// Its core; any by default.
    #[arg(long, value_parser = crate::core)]
    pub core: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Over {
    /// DPDK's net_memif: memory that two processes share.
    Memif,
    /// The kernel's UDP.
    Udp,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Server {
    /// A loop that sends what it receives.
    Raw,
    /// The transport alone: a loop that answers what it delivers.
    Transport,
    /// The runtime, inline.
    Runtime,
}

/// Serves over the kernel's sockets.
pub fn over_udp(options: &Options) -> Result<()> {
    let at: SocketAddr = options.at.parse().context("--at is no address")?;
    match options.server {
        Server::Raw => {
            let socket = UdpSocket::bind(at)?;
            socket.set_nonblocking(true)?;
            let at = socket.local_addr()?;
            serve_bare(options.core, at, move || answer_raw(&socket))
        }
        Server::Transport => bail!("over UDP there is the bare loop, and the runtime"),
        Server::Runtime => {
            let udp = Udp::bind(UdpConfig::new(at))?;
            let at = udp.local_addr();
            let server = Runtime::builder(shinjuku::handler_fn(answer))
                .config(inline(options.core))
                .serve(udp)?;
            wait_for_the_end(at, &server.description())
        }
    }
}

fn answer(request: udp::Datagram) -> Option<udp::DatagramReply> {
    match reply_to(&request) {
        None => Some(request.echo()),
        Some(reply) => request.reply(reply).ok(),
    }
}

fn answer_raw(socket: &UdpSocket) -> Result<bool> {
    let mut request = [0; ROOM];
    match socket.recv_from(&mut request) {
        Ok((length, client)) => {
            let request = &request[..length];
            // A datagram is taken wholly or not at all, and then it is lost to its client.
            let _ = socket.send_to(reply_to(request).unwrap_or(request), client);
            Ok(true)
        }
        // Of a client that has gone.
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Without the runtime: takes turn after turn on a thread of its own, until the end. A turn tells
/// whether anything had come.
pub fn serve_bare(
    core: Option<usize>,
    at: impl Display,
    mut turn: impl FnMut() -> Result<bool> + Send + 'static,
) -> Result<()> {
    let over = Arc::new(AtomicBool::new(false));
    let their_over = Arc::clone(&over);
    let thread = std::thread::spawn(move || {
        pin(core)?;
        let mut idle = Idle::default();
        while !their_over.load(Ordering::Relaxed) {
            idle.after(turn()?);
        }
        Ok(())
    });
    wait_for_the_end(at, "a loop of its own")?;
    over.store(true, Ordering::Relaxed);
    match thread.join() {
        Ok(served) => served,
        Err(_) => bail!("the server panicked"),
    }
}

/// A loop that polls, and lets others have the core once far more turns were empty than any round
/// trip takes: the thread that the loop waits for may be one of them.
#[derive(Default)]
pub struct Idle(u32);

impl Idle {
    const PATIENCE: u32 = 1000;

    pub fn after(&mut self, anything: bool) {
        self.0 = if anything {
            0
        } else {
            self.0.saturating_add(1)
        };
        if self.0 > Self::PATIENCE {
            std::thread::yield_now();
        }
    }
}

/// Says that it serves, where and how. The input ends when the program that started this is done
/// with it, or has ended.
pub fn wait_for_the_end(at: impl Display, description: &str) -> Result<()> {
    println!("ready at {at}: {description}");
    std::io::stdout().flush()?;
    std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())?;
    Ok(())
}
