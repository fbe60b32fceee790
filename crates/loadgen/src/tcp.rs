//! RESP over TCP: non-blocking connections of one thread.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use shinjuku_net::resp::reply::{ReplyKind, ReplyScanner};

use crate::client::{Client, Clock, Pool, Side};
use crate::error::LoadError;
use crate::readiness::Readiness;
use crate::record::{GivenUp, Record, Sent};
use crate::requests::Draws;

/// How much is read at once. A long reply takes several turns, and the schedule is checked between
/// them.
const READ: usize = 32 * 1024;
/// How long one connection may take to open.
const CONNECT: Duration = Duration::from_secs(5);

/// Connections, and what is under way on them.
#[derive(Debug)]
pub(crate) struct Tcp {
    connections: Vec<Connection>,
    pools: [Pool; 2],
    /// Whether connections without requests under way are preferred.
    idle_first: bool,
    readiness: Readiness,
    /// Connections with something to send.
    dirty: Vec<u32>,
    buffer: Box<[u8; READ]>,
    outstanding: usize,
    alive: usize,
    lost: usize,
}

#[derive(Debug)]
struct Connection {
    /// `None` once the connection is lost.
    stream: Option<TcpStream>,
    out: Vec<u8>,
    /// How much of `out` the kernel has taken.
    written: usize,
    /// Whether epoll reports when the kernel takes more.
    blocked: bool,
    dirty: bool,
    /// Requests under way, in the order of their replies.
    waiting: VecDeque<Sent>,
    scanner: ReplyScanner,
}

/// Connections that could not be opened.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) connections: usize,
    /// The reason for the first.
    pub(crate) why: String,
}

/// How many connections there are to be, and how they are used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Connections for the load.
    pub(crate) connections: usize,
    /// Connections for the probe.
    pub(crate) probes: usize,
    /// Requests under way on each connection while saturating; 1 in an open loop.
    pub(crate) depth: usize,
    /// Whether connections without requests under way are preferred.
    pub(crate) idle_first: bool,
}

impl Tcp {
    /// Opens all connections, or as many as possible.
    ///
    /// # Errors
    /// None could be opened, or the operating system gives no epoll.
    pub(crate) fn connect(
        target: SocketAddr,
        shape: Shape,
    ) -> Result<(Self, Option<Refused>), LoadError> {
        let readiness = Readiness::new()?;
        let wanted = shape.connections + shape.probes;
        let mut connections: Vec<Connection> = Vec::with_capacity(wanted);
        let mut refusal = None;
        // The load's connections come first: if some are refused, the probe goes without.
        for _ in 0..wanted {
            match open(target) {
                Ok(stream) => {
                    readiness.add(&stream, connections.len() as u32)?;
                    connections.push(Connection::new(stream));
                }
                Err(cause) => {
                    refusal = Some(cause);
                    // A server that is down, or takes no more connections, refuses the next one,
                    // too.
                    break;
                }
            }
        }
        let opened = connections.len();
        let refused = match refusal {
            Some(cause) if opened == 0 => return Err(LoadError::Connect { target, cause }),
            Some(cause) => Some(Refused {
                connections: wanted - opened,
                why: format!("opening connection {}: {cause}", opened + 1),
            }),
            None => None,
        };
        let load = opened.min(shape.connections) as u32;
        let tcp = Self {
            pools: [
                Pool::new(0..load, shape.depth),
                Pool::new(load..opened as u32, 1),
            ],
            connections,
            idle_first: shape.idle_first,
            readiness,
            dirty: Vec::with_capacity(opened),
            buffer: Box::new([0; READ]),
            outstanding: 0,
            alive: opened,
            lost: 0,
        };
        Ok((tcp, refused))
    }

    fn flush_one(&mut self, one: u32, record: &mut Record) {
        let connection = &mut self.connections[one as usize];
        connection.dirty = false;
        let Some(stream) = &mut connection.stream else {
            return;
        };
        while connection.written < connection.out.len() {
            match stream.write(&connection.out[connection.written..]) {
                Ok(taken) => connection.written += taken,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !connection.blocked {
                        connection.blocked = true;
                        self.readiness.also_writes(stream, one, true);
                    }
                    return;
                }
                Err(_) => return self.lose(one, record),
            }
        }
        connection.out.clear();
        connection.written = 0;
        if connection.blocked {
            connection.blocked = false;
            self.readiness.also_writes(stream, one, false);
        }
    }

    fn read_one(&mut self, one: u32, clock: &Clock, record: &mut Record) {
        let connection = &mut self.connections[one as usize];
        let Some(stream) = &mut connection.stream else {
            return;
        };
        let length = match stream.read(&mut self.buffer[..]) {
            Ok(0) => return self.lose(one, record),
            Ok(length) => length,
            Err(error) => {
                return match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::Interrupted => {}
                    _ => self.lose(one, record),
                };
            }
        };
        let now_ns = clock.now_ns();
        let pool = &mut self.pools[usize::from(one >= self.pools[0].end())];
        let mut rest = &self.buffer[..length];
        while !rest.is_empty() {
            let Ok((taken, reply)) = connection.scanner.advance(rest) else {
                record.malformed += 1;
                return self.lose(one, record);
            };
            rest = &rest[taken..];
            let error = match reply {
                None => continue,
                Some(ReplyKind::Push) => {
                    record.strays += 1;
                    continue;
                }
                Some(ReplyKind::Error) => Some(connection.scanner.error_text()),
                Some(ReplyKind::Value) => None,
            };
            match connection.waiting.pop_front() {
                Some(request) => {
                    self.outstanding -= 1;
                    record.answered(request, now_ns, error);
                    pool.give_back(one, connection.waiting.len());
                }
                None => {
                    record.strays += 1;
                    // Such as "max number of clients reached", before the server closes.
                    record.stray_error(error);
                }
            }
        }
    }

    /// Gives a connection up, with what is under way on it.
    fn lose(&mut self, one: u32, record: &mut Record) {
        let connection = &mut self.connections[one as usize];
        if connection.stream.take().is_some() {
            self.alive -= 1;
            self.lost += 1;
        }
        self.outstanding -= connection.waiting.len();
        for request in connection.waiting.drain(..) {
            record.lost(request);
        }
        connection.out = Vec::new();
        connection.written = 0;
    }
}

impl Client for Tcp {
    fn submit(&mut self, side: Side, request: Sent, class: u16, draws: &mut Draws) -> bool {
        let connections = &self.connections;
        let alive = |one: u32| connections[one as usize].stream.is_some();
        let pool = &mut self.pools[side as usize];
        let idle = self.idle_first.then(|| pool.take(alive)).flatten();
        let Some(one) = idle.or_else(|| pool.any(draws, alive)) else {
            return false;
        };
        let connection = &mut self.connections[one as usize];
        draws.write(class, 0, &mut connection.out);
        connection.waiting.push_back(request);
        self.outstanding += 1;
        if !connection.dirty {
            connection.dirty = true;
            self.dirty.push(one);
        }
        true
    }

    fn flush(&mut self, record: &mut Record) {
        while let Some(one) = self.dirty.pop() {
            // A connection that the kernel takes nothing from is flushed when epoll reports it.
            if !self.connections[one as usize].blocked {
                self.flush_one(one, record);
            } else {
                self.connections[one as usize].dirty = false;
            }
        }
    }

    fn receive(&mut self, clock: &Clock, record: &mut Record) -> bool {
        let Some(ready) = self.readiness.next() else {
            return false;
        };
        if ready.write {
            self.flush_one(ready.socket, record);
        }
        if ready.read {
            self.read_one(ready.socket, clock, record);
        }
        true
    }

    fn expire(&mut self, before_ns: u64, now_ns: u64, record: &mut Record) {
        for one in 0..self.connections.len() {
            let waiting = &mut self.connections[one].waiting;
            if waiting
                .front()
                .is_none_or(|first| first.due_ns >= before_ns)
            {
                continue;
            }
            // Replies come in order, so no more replies can come on this connection.
            self.outstanding -= waiting.len();
            for request in waiting.drain(..) {
                record.given_up(request, now_ns, GivenUp::TimeOut);
            }
            self.lose(one as u32, record);
        }
    }

    fn end(&mut self, now_ns: u64, record: &mut Record) {
        for connection in &mut self.connections {
            for request in connection.waiting.drain(..) {
                record.given_up(request, now_ns, GivenUp::End);
            }
        }
        self.outstanding = 0;
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }

    fn has_vacancy(&mut self, side: Side) -> bool {
        let connections = &self.connections;
        let alive = |one: u32| connections[one as usize].stream.is_some();
        self.pools[side as usize].peek(alive).is_some()
    }

    fn is_dead(&self) -> bool {
        self.alive == 0
    }

    fn lost(&self) -> usize {
        self.lost
    }
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream: Some(stream),
            out: Vec::new(),
            written: 0,
            blocked: false,
            dirty: false,
            waiting: VecDeque::new(),
            scanner: ReplyScanner::new(),
        }
    }
}

fn open(target: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&target, CONNECT)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}
