//! A server turned by hand: networker and worker are steps of the test's own thread, which so decides what happens when.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use shinjuku_net::tcp::{
    Codec, Framing, Reply, Request, Route, Tcp, TcpConfig, TcpCounts, TcpReplier,
};
use shinjuku_net::{Arrival, Refusal, Replier, Transport};

/// No wait lasts longer, however slow the machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A request is a line; what begins with `!` is the last one, empty lines are skipped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lines;

impl Codec for Lines {
    /// Bytes that were looked at.
    type Progress = usize;
    /// Whatever the handler wants to remember.
    type Session = u64;

    fn frame(&self, bytes: &[u8], seen: &mut usize, _: &u64) -> Framing {
        let Some(at) = bytes[*seen..].iter().position(|&byte| byte == b'\n') else {
            *seen = bytes.len();
            return Framing::Incomplete;
        };
        let length = *seen + at + 1;
        match bytes[0] {
            b'\n' => Framing::Skip { length },
            b'!' => Framing::Last { length, class: 1 },
            _ => Framing::Complete { length, class: 0 },
        }
    }
    fn refusal(&self, cause: Refusal) -> &'static [u8] {
        match cause {
            Refusal::ShuttingDown => b"closing\n",
            _ => b"refused\n",
        }
    }
    fn failure(&self) -> &'static [u8] {
        b"failed\n"
    }
    fn too_many_connections(&self) -> &'static [u8] {
        b"full\n"
    }
    fn too_long(&self) -> &'static [u8] {
        b"too long\n"
    }
}

pub type Delivered = Arrival<Request<Lines>, Route<Lines>>;

/// The server.
pub struct House {
    pub tcp: Tcp<Lines>,
    pub replier: TcpReplier<Lines>,
    /// Delivered, and not handled yet.
    pub arrived: VecDeque<Delivered>,
    start: Instant,
}

pub fn config() -> TcpConfig {
    TcpConfig::new("127.0.0.1:0".parse().unwrap()).connections(16)
}

/// The reply is the request.
pub fn echo(mut request: Request<Lines>) -> Reply<Lines> {
    let (line, output, _) = request.parts();
    output.extend_from_slice(line).unwrap();
    request.reply()
}

impl House {
    pub fn new(config: TcpConfig) -> Self {
        let mut tcp = Tcp::bind(config, Lines).unwrap();
        let replier = tcp.replier().unwrap();
        Self {
            tcp,
            replier,
            arrived: VecDeque::new(),
            start: Instant::now(),
        }
    }

    pub fn client(&self) -> Client {
        let stream = TcpStream::connect(self.tcp.local_addr()).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(true).unwrap();
        Client {
            stream,
            received: Vec::new(),
            ended: false,
        }
    }

    pub fn counts(&self) -> TcpCounts {
        self.tcp.counters().read()
    }

    /// The networker's step.
    pub fn poll(&mut self) {
        let now = self.start.elapsed().as_nanos() as u64;
        let arrived = &mut self.arrived;
        self.tcp
            .poll(now, 1024, |arrival| arrived.push_back(arrival));
    }

    /// Ends a request as a worker does.
    pub fn answer(&mut self, route: Route<Lines>, reply: Reply<Lines>) {
        self.replier.send(Tcp::conclude(route, Ok(reply)));
    }

    /// Polls, and handles what there is.
    pub fn turn(&mut self, mut handler: impl FnMut(Request<Lines>) -> Reply<Lines>) {
        self.poll();
        while let Some(arrival) = self.arrived.pop_front() {
            let reply = handler(arrival.request);
            self.answer(arrival.route, reply);
        }
    }

    /// Echoes until `done`.
    pub fn echo_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        self.until(what, |house| {
            house.turn(echo);
            done(house)
        });
    }

    /// Polls only, until `done`.
    pub fn poll_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        self.until(what, |house| {
            house.poll();
            done(house)
        });
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(
                start.elapsed() < PATIENCE,
                "{what} never came: {:?}",
                self.counts()
            );
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    /// Polls until there is a request, and takes it.
    pub fn next(&mut self) -> Delivered {
        self.poll_until("a request", |house| !house.arrived.is_empty());
        self.arrived.pop_front().unwrap()
    }
}

/// A client that never blocks.
pub struct Client {
    pub stream: TcpStream,
    pub received: Vec<u8>,
    /// The server has closed, in order or not.
    pub ended: bool,
}

impl Client {
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Takes what is there; tells whether `expected` is all that came so far.
    pub fn has(&mut self, expected: impl AsRef<[u8]>) -> bool {
        self.receive();
        let expected = expected.as_ref();
        let length = self.received.len();
        assert!(
            expected.starts_with(&self.received[..length.min(expected.len())])
                && length <= expected.len(),
            "{:?} came, not {:?}",
            String::from_utf8_lossy(&self.received),
            String::from_utf8_lossy(expected)
        );
        length == expected.len()
    }

    /// Whether the server has closed; takes what came before that.
    pub fn is_closed(&mut self) -> bool {
        self.receive();
        self.ended
    }

    pub fn receive(&mut self) {
        let mut buffer = [0; 65536];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.ended = true,
                Ok(length) => {
                    self.received.extend_from_slice(&buffer[..length]);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.ended = true,
            }
            return;
        }
    }
}
