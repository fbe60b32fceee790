//! Mixed traffic from clients that come and leave in every way: nothing grows, every reply is
//! correct, and the counters add up.
//!
//! Runs some seconds, or `KV_SOAK_SECONDS`:
//! `KV_SOAK_SECONDS=120 cargo test --release -p shinjuku-kv --test kv soak`.

use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use shinjuku_tests_support::{Usage, comes_true};

use crate::client::{Client, array};
use crate::servers::Server;

const CLIENTS: u64 = 4;
const KEYS_EACH: u64 = 500;
/// After a quarter of the time everything that is used has been used once. From then on memory may
/// grow by this much, in KiB.
const TOLERATED_KIB: u64 = 32 << 10;

/// One client's actions and knowledge.
struct Visitor<'a> {
    server: &'a Server,
    name: u64,
    known: HashMap<String, String>,
    state: u64,
    increments: &'a AtomicU64,
}

impl Visitor<'_> {
    fn random(&mut self, bound: u64) -> u64 {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.state >> 33) % bound
    }

    /// A key that only this visitor uses.
    fn key(&mut self) -> String {
        let number = self.random(KEYS_EACH);
        format!("client:{}:{number:05}", self.name)
    }

    fn bulk(&self, key: &str) -> String {
        match self.known.get(key) {
            Some(value) => format!("${}\r\n{value}\r\n", value.len()),
            None => "$-1\r\n".to_owned(),
        }
    }

    /// One life, from connecting to leaving.
    fn visit(&mut self) {
        let mut client = self.server.connect();
        for _ in 0..self.random(60) {
            self.request(&mut client);
        }
        let mut asking = array(&["GET", "nosuch"]).repeat(20);
        asking.extend(array(&["SCAN", "0", "COUNT", "2000"]));
        match self.random(5) {
            0 => {
                let replies = client.last(b"QUIT\r\n");
                assert!(replies.bytes == b"+OK\r\n" && replies.closed);
            }
            // In the middle of a request, of replies, of both, or without any.
            1 => client
                .stream
                .write_all(b"*2\r\n$3\r\nGET\r\n$10\r\nhal")
                .unwrap(),
            2 => client.stream.write_all(&asking).unwrap(),
            3 => client
                .stream
                .write_all(&[&asking[..], b"*1\r\n$x\r\n"].concat())
                .unwrap(),
            _ => {}
        }
    }

    fn request(&mut self, client: &mut Client) {
        let key = self.key();
        match self.random(20) {
            0..6 => {
                let value = "v".repeat(self.random(300) as usize) + &self.random(1000).to_string();
                assert_eq!(client.text(&["SET", &key, &value]), "+OK\r\n");
                self.known.insert(key, value);
            }
            6..12 => assert_eq!(client.text(&["GET", &key]), self.bulk(&key)),
            12 => {
                let there = self.known.remove(&key).is_some();
                assert_eq!(
                    client.text(&["DEL", &key]),
                    format!(":{}\r\n", u8::from(there))
                );
            }
            13 => {
                assert!(client.text(&["INCR", "visits"]).starts_with(':'));
                self.increments.fetch_add(1, Ordering::Relaxed);
            }
            14 => {
                let keys: Vec<String> = (0..10).map(|_| self.key()).collect();
                let request: Vec<&str> = std::iter::once("MGET")
                    .chain(keys.iter().map(|key| &key[..]))
                    .collect();
                let expected: String = keys.iter().map(|key| self.bulk(key)).collect();
                assert_eq!(client.text(&request), format!("*10\r\n{expected}"));
            }
            15 => {
                // No request reads the key, whether or not it has expired.
                let key = format!("passing:{}", self.random(1000));
                assert_eq!(client.text(&["SET", &key, "v", "PX", "20"]), "+OK\r\n");
            }
            16 => {
                let replies = client.ask(&array(&["GET", &key]).repeat(16));
                assert_eq!(replies.bytes, self.bulk(&key).repeat(16).as_bytes());
            }
            17 => {
                let (first, last) = (
                    format!("client:{}:", self.name),
                    format!("client:{}:~", self.name),
                );
                let there = self.known.len();
                assert_eq!(
                    client.text(&["COUNT-RANGE", &first, &last]),
                    format!(":{there}\r\n")
                );
            }
            18 => assert!(
                client
                    .text(&["SCAN", "0", "COUNT", "1000"])
                    .starts_with("*2\r\n")
            ),
            _ => assert!(client.text(&["NOSUCH"]).starts_with("-ERR unknown command")),
        }
    }
}

#[test]
fn mixed_traffic_leaves_no_trace() {
    mixed_traffic_leaves_no_trace_at(Server::kv("", &["--load", "2000"]));
}

#[test]
fn mixed_traffic_leaves_no_trace_in_guest_mode() {
    let name = "mixed_traffic_leaves_no_trace_in_guest_mode";
    if let Some(server) = Server::kv_in_guest_mode(name, &["--load", "2000"]) {
        mixed_traffic_leaves_no_trace_at(server);
    }
}

/// Requests that were received and have come to no end, by this text of INFO.
fn under_way(info: &str) -> i64 {
    let number = |what: &str| -> i64 {
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(&format!("requests_{what}:")));
        line.and_then(|number| number.parse().ok())
            .expect("INFO has it")
    };
    let ended = [
        "answered",
        "refused",
        "failed",
        "misdirected",
        "kept",
        "cut_off",
    ];
    number("received") - ended.map(number).iter().sum::<i64>()
}

fn mixed_traffic_leaves_no_trace_at(server: Server) {
    let seconds = std::env::var("KV_SOAK_SECONDS")
        .map_or(4, |seconds| seconds.parse().expect("a number of seconds"));
    let length = Duration::from_secs(seconds);
    let mut witness = server.connect();
    assert_eq!(witness.text(&["PING"]), "+PONG\r\n");
    let Usage {
        threads,
        descriptors,
        ..
    } = server.usage();
    let increments = AtomicU64::new(0);
    let visits = AtomicU64::new(0);
    let start = Instant::now();
    let mut settled = None;
    std::thread::scope(|scope| {
        for name in 0..CLIENTS {
            let (server, increments, visits) = (&server, &increments, &visits);
            scope.spawn(move || {
                let mut visitor = Visitor {
                    server,
                    name,
                    known: HashMap::new(),
                    state: name,
                    increments,
                };
                while start.elapsed() < length {
                    visitor.visit();
                    visits.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(length / 4);
        settled = Some(server.usage().resident_kib);
    });
    // The other clients are gone, and the server has done what they asked for.
    assert!(comes_true(|| witness.info("connections_open") == 1));
    assert!(
        comes_true(|| witness.info("requests_started") <= 1),
        "contexts are given back, but for that of INFO itself"
    );
    let mut unaccounted = 0;
    let adds_up = comes_true(|| {
        unaccounted = under_way(&witness.text(&["INFO", "stats"]));
        // INFO itself has been received, and is not yet answered.
        unaccounted == 1
    });
    assert!(
        adds_up,
        "{unaccounted} requests neither answered nor refused"
    );
    assert_eq!(witness.text(&["GET", "visits"]), {
        let count = increments.load(Ordering::Relaxed).to_string();
        format!("${}\r\n{count}\r\n", count.len())
    });
    assert_eq!(server.usage().descriptors, descriptors);
    assert_eq!(server.usage().threads, threads);
    let grown = server.usage().resident_kib.saturating_sub(settled.unwrap());
    assert!(
        grown < TOLERATED_KIB,
        "{grown} KiB more since it had settled"
    );
    // Entries with an expiry are gone.
    assert!(comes_true(
        || witness.text(&["KEYS", "passing:*"]) == "*0\r\n"
    ));
    drop(witness);
    let said = server.end(Signal::TERM);
    assert!(said.contains("everything finished"), "{said}");
    println!(
        "{} visits in {seconds} s\n{said}",
        visits.load(Ordering::Relaxed)
    );
}
