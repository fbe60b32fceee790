//! Sends hundreds of commands, bad ones included, to this server and to a Redis: the replies are
//! the same, byte for byte.
//!
//! The commands are in `commands.txt`, which explains their notation and names the
//! exceptions.

use std::net::SocketAddr;

use shinjuku::net::resp::arguments;
use shinjuku_kv::server::REDIS_VERSION;
use shinjuku_tests_support::process::is_there;
use shinjuku_tests_support::{need, test_name};

use crate::client::{Client, Replies, array};
use crate::servers::{Redis, Server};

const COMMANDS: &str = include_str!("commands.txt");

/// How a reply is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Compare {
    Bytes,
    /// After the lines are sorted.
    Sorted,
    /// Both must be numbers above zero.
    Positive,
    /// The replies are not compared.
    Never,
}

struct Both {
    servers: [SocketAddr; 2],
    clients: [Client; 2],
    compared: usize,
    wrong: Vec<String>,
}

impl Both {
    fn new(servers: [SocketAddr; 2]) -> Self {
        Self {
            servers,
            clients: servers.map(Client::connect),
            compared: 0,
            wrong: Vec::new(),
        }
    }

    fn line(&mut self, line: &str) {
        let (directive, rest) = line.split_once(' ').unwrap_or((line, ""));
        match directive {
            "@new" => self.clients = self.servers.map(Client::connect),
            "@inline" => self.send(line, format!("{rest}\r\n").as_bytes(), Compare::Bytes),
            "@raw" => {
                let bytes = &words(rest)[0];
                let replies = (self.servers).map(|server| Client::connect(server).last(bytes));
                self.compare(line, replies, Compare::Bytes);
            }
            "@sorted" => self.send(line, &array(&words(rest)), Compare::Sorted),
            "@positive" => self.send(line, &array(&words(rest)), Compare::Positive),
            "@differs" => self.send(line, &array(&words(rest)), Compare::Never),
            _ => self.send(line, &array(&words(line)), Compare::Bytes),
        }
    }

    fn send(&mut self, line: &str, request: &[u8], how: Compare) {
        let replies = self.clients.each_mut().map(|client| client.ask(request));
        if replies.iter().any(|replies| replies.closed) {
            self.clients = self.servers.map(Client::connect);
        }
        self.compare(line, replies, how);
    }

    fn compare(&mut self, line: &str, replies: [Replies; 2], how: Compare) {
        let [ours, redis] = &replies;
        let sorted = |replies: &Replies| {
            let mut lines: Vec<Vec<u8>> = replies
                .bytes
                .split(|&byte| byte == b'\n')
                .map(Vec::from)
                .collect();
            lines.sort();
            lines
        };
        let number = |replies: &Replies| {
            let text = str::from_utf8(&replies.bytes).ok()?;
            text.strip_prefix(':')?.trim_end().parse::<i64>().ok()
        };
        let same = match how {
            Compare::Bytes => ours == redis,
            Compare::Sorted => sorted(ours) == sorted(redis),
            Compare::Positive => replies.iter().all(|replies| number(replies) > Some(0)),
            Compare::Never => !ours.closed,
        };
        self.compared += usize::from(how != Compare::Never);
        if !same {
            self.wrong
                .push(format!("{line}\n    ours  {ours:?}\n    Redis {redis:?}"));
        }
    }
}

/// A line's words, as Redis splits them.
fn words(line: &str) -> Vec<Vec<u8>> {
    let line = format!("{line}\r\n");
    let words = arguments(line.as_bytes()).unwrap_or_else(|error| panic!("{line}: {error}"));
    words.map(|word| word.into_owned()).collect()
}

#[test]
fn replies_are_those_of_redis() {
    let redis = need!(Redis::start(test_name!()));
    let info = Client::connect(redis.address).text(&["INFO", "server"]);
    if !info.contains(&format!("redis_version:{REDIS_VERSION}")) {
        println!("SKIPPED replies_are_those_of_redis: this machine's Redis is not {REDIS_VERSION}");
        return;
    }
    let ours = Server::kv("max_request = 33554432", &[]);
    let mut both = Both::new([ours.address, redis.address]);
    for line in COMMANDS.lines() {
        if !line.is_empty() && !line.starts_with('#') {
            both.line(line);
        }
    }
    assert!(
        both.wrong.is_empty(),
        "{} differ:\n{}",
        both.wrong.len(),
        both.wrong.join("\n")
    );
    assert!(both.compared >= 300, "{} compared", both.compared);
    println!("{} replies compared", both.compared);
}

#[test]
fn pipelined_commands_are_answered_in_order() {
    let redis = need!(Redis::start(test_name!()));
    let ours = Server::kv("", &[]);
    let mut request = Vec::new();
    for number in 0..2000 {
        let number = number.to_string();
        request.extend(array(&["SET", &format!("k{}", number.len()), &number]));
        request.extend(array(&["APPEND", "all", &number]));
        request.extend(
            format!(
                "GET k{}\r\n\r\nincr n\r\nNO SUCH {number}\r\n",
                number.len()
            )
            .into_bytes(),
        );
    }
    let [ours, redis] =
        [ours.address, redis.address].map(|server| Client::connect(server).ask(&request));
    assert!(ours == redis && !ours.closed);
    assert!(ours.bytes.len() > 100_000);
}

/// A server that answers at a recently free port can be another test's.
#[test]
fn another_process_at_the_port_is_not_taken_for_the_redis_that_was_started() {
    const NAME: &str = "another_process_at_the_port_is_not_taken_for_the_redis_that_was_started";
    if !is_there("redis-server") {
        println!("SKIPPED {NAME}: there is no redis-server (Debian: redis-server)");
        return;
    }
    let other = Server::kv("", &[]);
    assert!(Redis::at(other.address).is_none());
    assert_eq!(other.connect().text(&["PING"]), "+PONG\r\n");
}
