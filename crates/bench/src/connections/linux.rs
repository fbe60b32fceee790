//! The two servers that ZygOS has for Linux: small, and as good as epoll lets them be.
//!
//! | | connections | threads |
//! |---|---|---|
//! | [`Sharing::Partitioned`] | of one thread for good: sockets of one port (SO_REUSEPORT) | one on each core, with an epoll set of its own |
//! | [`Sharing::Floating`] | of whichever thread is free: EPOLLONESHOT, armed again after the reply | as many as cores, on one epoll set |
//!
//! A thread takes all requests that have come on a connection, serves them in order, and sends
//! their replies in one write. A floating thread asks for one connection at a time, so that none
//! waits behind another while a thread is free.

use std::io::{ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use anyhow::{Context, Result, ensure};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::work::{REPLY, REQUEST, Work};

/// Names of what is not a connection.
const BELL: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;
/// What a partitioned thread is told at once.
const EVENTS: usize = 64;
/// Bytes that are read at once.
const READ: usize = 64 * REQUEST;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// Who serves a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// The thread that accepted it.
    Partitioned,
    /// Any.
    Floating,
}

/// A server that runs. Dropped, it ends.
#[derive(Debug)]
pub struct Server {
    pub address: SocketAddr,
    bell: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

/// An epoll set, and what is in it.
#[derive(Debug)]
struct Set {
    epoll: OwnedFd,
    listener: TcpListener,
    /// The first so many are in use.
    connections: Box<[Mutex<Option<Connection>>]>,
    accepted: AtomicUsize,
    sharing: Sharing,
}

/// A connection. Of a floating one EPOLLONESHOT tells one thread at a time.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    /// The beginning of a request.
    rest: Vec<u8>,
}

impl Server {
    /// Starts a server with a thread pinned to each of `cores`, for so many connections at most.
    ///
    /// # Errors
    /// The system refuses sockets or threads.
    pub fn start(
        sharing: Sharing,
        work: &Work,
        cores: &[usize],
        connections: usize,
    ) -> Result<Self> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let sets = match sharing {
            Sharing::Partitioned => cores.len(),
            Sharing::Floating => 1,
        };
        let mut address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        let mut all = Vec::new();
        for _ in 0..sets {
            let set = Set::new(sharing, address, connections, &bell)?;
            address.set_port(set.listener.local_addr()?.port());
            all.push(Arc::new(set));
        }
        let mut server = Self {
            address: address.into(),
            bell,
            threads: Vec::new(),
        };
        for (number, &core) in cores.iter().enumerate() {
            let (set, work) = (Arc::clone(&all[number % sets]), work.clone());
            let thread = std::thread::Builder::new().name(format!("linux-{number}"));
            let run = move || {
                pin(core);
                set.serve(&work);
            };
            server.threads.push(thread.spawn(run)?);
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nobody reads it, so that it wakes every thread.
        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Best effort: a core that is not the process's is the bench's to complain about.
fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = sched_setaffinity(None, &set);
}

/// A socket that listens, beside others of its port.
fn listen(address: SocketAddrV4) -> Result<TcpListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    rustix::net::bind(&socket, &address).context("cannot listen")?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

impl Set {
    fn new(
        sharing: Sharing,
        address: SocketAddrV4,
        connections: usize,
        bell: &OwnedFd,
    ) -> Result<Self> {
        ensure!(connections > 0, "a server without connections");
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let listener = listen(address)?;
        epoll::add(&epoll, bell, EventData::new_u64(BELL), EventFlags::IN)?;
        epoll::add(
            &epoll,
            &listener,
            EventData::new_u64(LISTENER),
            EventFlags::IN,
        )?;
        Ok(Self {
            epoll,
            listener,
            connections: (0..connections).map(|_| Mutex::new(None)).collect(),
            accepted: AtomicUsize::new(0),
            sharing,
        })
    }

    /// What is asked of epoll for a connection.
    fn events(&self) -> EventFlags {
        match self.sharing {
            Sharing::Partitioned => EventFlags::IN,
            Sharing::Floating => EventFlags::IN | EventFlags::ONESHOT,
        }
    }

    /// A thread's loop, until the bell rings.
    fn serve(&self, work: &Work) {
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS];
        let most = match self.sharing {
            Sharing::Partitioned => EVENTS,
            Sharing::Floating => 1,
        };
        loop {
            // An interrupted wait is one of no events.
            let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events[..most], None) else {
                continue;
            };
            for event in ready {
                match event.data.u64() {
                    BELL => return,
                    LISTENER => self.accept(),
                    number => self.turn(number as usize, work),
                }
            }
        }
    }

    /// Takes all connections that wait, as far as there is room; more are closed.
    fn accept(&self) {
        while let Ok((stream, _)) = self.listener.accept() {
            let number = self.accepted.fetch_add(1, Relaxed);
            let Some(place) = self.connections.get(number) else {
                continue;
            };
            let mut place = place.lock().expect("no thread panics");
            let is_set = stream.set_nonblocking(true).is_ok() && stream.set_nodelay(true).is_ok();
            let data = EventData::new_u64(number as u64);
            if is_set && epoll::add(&self.epoll, stream.as_fd(), data, self.events()).is_ok() {
                let rest = Vec::new();
                *place = Some(Connection { stream, rest });
            }
        }
    }

    /// Serves what has come on a connection.
    fn turn(&self, number: usize, work: &Work) {
        let mut place = self.connections[number].lock().expect("no thread panics");
        let Some(connection) = &mut *place else {
            return;
        };
        // A client that is gone, or does not read, is closed.
        if !matches!(connection.turn(work), Ok(true)) {
            *place = None;
            return;
        }
        if self.sharing == Sharing::Floating {
            let data = EventData::new_u64(number as u64);
            let armed = epoll::modify(&self.epoll, &connection.stream, data, self.events());
            if armed.is_err() {
                *place = None;
            }
        }
    }
}

impl Connection {
    /// Reads once, serves all that is whole, and replies. `false`: the client has closed.
    fn turn(&mut self, work: &Work) -> std::io::Result<bool> {
        let mut input = [0; READ];
        let held = self.rest.len();
        input[..held].copy_from_slice(&self.rest);
        let length = match self.stream.read(&mut input[held..]) {
            Ok(0) => return Ok(false),
            Ok(length) => held + length,
            Err(error) if is_for_later(error.kind()) => return Ok(true),
            Err(error) => return Err(error),
        };
        let (requests, rest) = input[..length].as_chunks::<REQUEST>();
        let mut replies = [0; READ / REQUEST * REPLY];
        for (request, reply) in requests.iter().zip(replies.chunks_exact_mut(REPLY)) {
            reply.copy_from_slice(&work.serve(request));
        }
        self.rest.clear();
        self.rest.extend_from_slice(rest);
        self.stream.write_all(&replies[..requests.len() * REPLY])?;
        Ok(true)
    }
}

fn is_for_later(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
