//! Neither memory nor threads nor descriptors grow with the number of requests, whatever happens to
//! them.
//!
//! This is the only test of its program, since others would count, too.
#![allow(missing_docs)]

use std::collections::VecDeque;
use std::net::UdpSocket;

use shinjuku::net::udp::{Datagram, Udp, UdpConfig};
use shinjuku::net::{Failure, Refusal};
use shinjuku::policy::ClassId;
use shinjuku::{
    ClassConfig, Config, Handle, MechanismKind, Runtime, SubmitOptions, Ticket, TicketError,
    handler_fn, preempt_point,
};
use shinjuku_tests_support::runtime::{config, token};
use shinjuku_tests_support::{PATIENCE, Usage, wait_for};

/// Requests before the first reading: by then every context, cache and histogram has been used.
const FIRST: u64 = 10_000;
const IN_ALL: u64 = if cfg!(debug_assertions) {
    100_000
} else {
    1_000_000
};
/// The payload of requests whose handler panics.
const BAD: u64 = u64::MAX;
/// The payload of UDP requests that get no reply, whether or not they are served.
const SILENT: u64 = u64::MAX - 1;

fn configuration() -> Config {
    let mut config = config(2, MechanismKind::Escalation);
    config.policy.quantum_us = 50.0;
    config.class = vec![
        ClassConfig::new("patient"),
        ClassConfig::new("hasty").deadline_us(0.001),
    ];
    config
}

/// Allocates, and now and then runs for longer than its quantum.
fn serve(number: u64) -> u64 {
    assert!(number != BAD, "on purpose");
    let text: Vec<String> = (0..number % 8).map(|n| (number ^ n).to_string()).collect();
    if number.is_multiple_of(256) {
        let start = std::time::Instant::now();
        while start.elapsed().as_micros() < 200 {
            preempt_point();
        }
    }
    number + text.len() as u64
}

fn expected(number: u64) -> u64 {
    number + number % 8
}

/// One thread's way to get requests answered.
trait Client {
    /// Sends request `number`, and sometimes others that fail or are refused.
    fn submit(&mut self, number: u64);
    /// Waits for the oldest reply.
    fn wait(&mut self);

    /// Gets the requests `from` to `to` answered, `burst` of them at a time: one by one, a machine
    /// with too few cores would only switch threads.
    fn run(&mut self, from: u64, to: u64, burst: u64) {
        for first in (from..to).step_by(burst as usize) {
            let burst = first..to.min(first + burst);
            burst.clone().for_each(|number| self.submit(number));
            burst.for_each(|_| self.wait());
        }
    }
}

struct InProcess {
    handle: Handle<u64, u64>,
    /// With the correct answers.
    tickets: VecDeque<(Ticket<u64>, Vec<Answer>)>,
}

type Answer = Result<u64, TicketError>;

impl InProcess {
    fn expect<const N: usize>(&mut self, class: u16, number: u64, answers: [Answer; N]) {
        let options = SubmitOptions::new(ClassId(class));
        let ticket = self.handle.submit_with(options, number).unwrap();
        self.tickets.push_back((ticket, answers.to_vec()));
    }
}

impl Client for InProcess {
    fn submit(&mut self, number: u64) {
        let refused = |cause| Err(TicketError::Refused(cause));
        let served = Ok(expected(number));
        match number % 100 {
            1 => self.expect(0, BAD, [Err(TicketError::Failed(Failure::Panicked))]),
            // Served if a worker is free at once.
            2 => self.expect(1, number, [refused(Refusal::DeadlinePassed), served]),
            3 => self.expect(7, number, [refused(Refusal::UnknownClass)]),
            _ => self.expect(0, number, [served]),
        }
    }

    fn wait(&mut self) {
        let (mut ticket, answers) = self.tickets.pop_front().unwrap();
        let answer = ticket.wait_timeout(PATIENCE).expect("an answer in time");
        assert!(answers.contains(&answer), "{answer:?}, not {answers:?}");
    }
}

struct OverUdp(UdpSocket);

impl OverUdp {
    fn send(&self, class: u8, number: u64) {
        let mut request = number.to_le_bytes().to_vec();
        request.push(class);
        self.0.send(&request).unwrap();
    }
}

impl Client for OverUdp {
    fn submit(&mut self, number: u64) {
        match number % 100 {
            // Over UDP the client gets no reply to these.
            1 => self.send(0, BAD),
            2 => self.send(1, SILENT),
            3 => self.send(7, SILENT),
            4 => drop(self.0.send(b"what?")),
            _ => {}
        }
        self.send(0, number);
    }

    fn wait(&mut self) {
        let mut reply = [0; 16];
        let length = self.0.recv(&mut reply).expect("a reply in time");
        assert_eq!(length, 8);
    }
}

fn assert_no_growth(first: Usage, last: Usage, what: &str) {
    println!("{what}: {first:?}, then {last:?}");
    assert!(
        last.resident_kib <= first.resident_kib + first.resident_kib / 50,
        "{what}: more than 2 % more memory: {first:?}, then {last:?}"
    );
    assert_eq!(
        (last.threads, last.descriptors),
        (first.threads, first.descriptors),
        "{what}: threads and descriptors"
    );
}

#[test]
fn memory_after_a_million_requests_is_that_after_ten_thousand() {
    // One request in a hundred panics; their reports would hide all other output.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some("on purpose") {
            report(panic);
        }
    }));

    let runtime = Runtime::builder(handler_fn(serve))
        .config(configuration())
        .allow_hard_preemption(token())
        .start()
        .unwrap();
    let mut client = InProcess {
        handle: runtime.handle(),
        tickets: VecDeque::new(),
    };
    client.run(0, FIRST, 1000);
    let first = Usage::now();
    client.run(FIRST, IN_ALL, 1000);
    assert_no_growth(first, Usage::now(), "in process");
    // Replies are there before they are counted: the final statistics have all.
    let report = runtime.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
    let statistics = report.statistics.unwrap();
    assert_eq!(statistics.received, IN_ALL);
    assert_eq!(statistics.refused.of(Refusal::UnknownClass), IN_ALL / 100);
    assert!(statistics.refused.of(Refusal::DeadlinePassed) > 0);

    let udp = Udp::bind_classified(
        UdpConfig::new("127.0.0.1:0".parse().unwrap()).max_datagram(16),
        |datagram: &[u8], _| (datagram.len() == 9).then(|| u16::from(datagram[8])),
    );
    let udp = udp.unwrap();
    let (address, counters) = (udp.local_addr(), udp.counters());
    let handler = handler_fn(|request: Datagram| {
        let number = u64::from_le_bytes(request[..8].try_into().unwrap());
        if number == SILENT {
            return None;
        }
        request.reply(&serve(number).to_le_bytes()).ok()
    });
    let server = Runtime::builder(handler)
        .config(configuration())
        .allow_hard_preemption(token())
        .serve(udp)
        .unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut client = OverUdp(socket);
    // Over sockets a fifth is enough, in bursts that fit into the kernel's queues.
    let (first, in_all) = (FIRST, IN_ALL / 5);
    client.run(0, first, 64);
    let before = Usage::now();
    client.run(first, in_all, 64);
    assert_no_growth(before, Usage::now(), "over UDP");
    // One in a hundred of each kind.
    let (received, in_vain) = (in_all + 4 * (in_all / 100), 3 * (in_all / 100));
    let (mut counts, mut ends) = (counters.read(), 0);
    wait_for("every end", || {
        counts = counters.read();
        ends = counts.sent + counts.unanswered + counts.refused + counts.malformed;
        ends == received && counts.free_buffers == 1023
    });
    assert_eq!(
        (counts.sent, counts.unanswered + counts.refused),
        (in_all, in_vain),
        "{counts:?}"
    );
    assert!(server.shutdown(PATIENCE).0.is_clean());
}
