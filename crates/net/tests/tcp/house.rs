//! A server turned by hand: networker and worker are steps of the test's own thread, which so
//! decides what happens when.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use shinjuku_net::tcp::{
    Codec, Framing, Reply, Request, Route, Tcp, TcpConfig, TcpCounts, TcpReplier,
};
use shinjuku_net::{Arrival, Failure, Refusal, Replier, Transport};

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

pub type Delivered<C = Lines> = Arrival<Request<C>, Route<C>>;

/// The server.
pub struct House<C: Codec = Lines> {
    pub tcp: Tcp<C>,
    replier: TcpReplier<C>,
    /// Delivered, and not handled yet.
    pub arrived: VecDeque<Delivered<C>>,
    /// What the house's clock stands on; `None`: it is stopped, but for a little with each poll.
    start: Option<Instant>,
    /// By how much the house's clock is ahead of that.
    ahead: Duration,
}

pub fn config() -> TcpConfig {
    TcpConfig::new("127.0.0.1:0".parse().unwrap()).connections(16)
}

/// The reply is the request.
pub fn echo<C: Codec>(mut request: Request<C>) -> Reply<C> {
    let (line, output, _) = request.parts();
    output.extend_from_slice(line).unwrap();
    request.reply()
}

impl House {
    pub fn new(config: TcpConfig) -> Self {
        Self::of(config, Lines)
    }

    /// Its time passes by [`advance`](Self::advance), however slow the machine is.
    pub fn with_stopped_clock(config: TcpConfig) -> Self {
        Self {
            start: None,
            ..Self::new(config)
        }
    }
}

impl<C: Codec> House<C> {
    pub fn of(config: TcpConfig, codec: C) -> Self {
        let mut tcp = Tcp::bind(config, codec).unwrap();
        let replier = tcp.replier().unwrap();
        Self {
            tcp,
            replier,
            arrived: VecDeque::new(),
            start: Some(Instant::now()),
            ahead: Duration::ZERO,
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

    /// Time passes. The server has seen everything that came before.
    pub fn advance(&mut self, time: Duration) {
        for _ in 0..3 {
            self.poll();
        }
        self.ahead += time;
    }

    /// The networker's step.
    pub fn poll(&mut self) {
        let passed = match self.start {
            Some(start) => start.elapsed(),
            None => {
                self.ahead += Duration::from_micros(1);
                Duration::ZERO
            }
        };
        let now = (passed + self.ahead).as_nanos() as u64;
        let arrived = &mut self.arrived;
        self.tcp
            .poll(now, 1024, |arrival| arrived.push_back(arrival));
    }

    pub fn wait(&mut self, patience: Duration) {
        self.tcp.wait(patience);
    }

    /// Ends a request without its reply, as a panic does.
    pub fn fail(&mut self, route: Route<C>) {
        self.replier
            .send(Tcp::conclude(route, Err(Failure::Panicked)));
    }

    /// Ends a request as a worker does.
    pub fn answer(&mut self, route: Route<C>, reply: Reply<C>) {
        self.replier.send(Tcp::conclude(route, Ok(reply)));
    }

    /// Polls, and handles what there is.
    pub fn turn(&mut self, mut handler: impl FnMut(Request<C>) -> Reply<C>) {
        self.poll();
        while let Some(arrival) = self.arrived.pop_front() {
            let reply = handler(arrival.request);
            self.answer(arrival.route, reply);
        }
    }

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

    /// Handles until so many were answered.
    pub fn until_answered(&mut self, count: u64, handler: impl Fn(Request<C>) -> Reply<C>) {
        self.until("the answers", |house| {
            house.turn(&handler);
            house.counts().answered == count
        });
    }

    /// Handles until the client has `length` bytes.
    pub fn until_answered_by(
        &mut self,
        client: &mut Client,
        handler: impl Fn(Request<C>) -> Reply<C>,
        length: usize,
    ) {
        self.until("the bytes", |house| {
            house.turn(&handler);
            client.receive();
            client.received.len() == length
        });
    }

    /// Turns a request away as the dispatcher does.
    pub fn refuse(&mut self, arrival: Delivered<C>, cause: Refusal) {
        self.tcp.refuse(arrival.request, arrival.route, cause);
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
    pub fn next(&mut self) -> Delivered<C> {
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

    /// For a stream that was made blocking.
    pub fn receive_blocking(&mut self) {
        let mut buffer = [0; 65536];
        match self.stream.read(&mut buffer) {
            Ok(0) | Err(_) => self.ended = true,
            Ok(length) => self.received.extend_from_slice(&buffer[..length]),
        }
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
