//! A key-value server over UDP: lookups of a microsecond beside ranges of hundreds, on code without
//! probes.
//!
//! Run: `cargo run --release --example store -- --listen 127.0.0.1:9001 --data /tmp/store`, then
//! for instance `echo -n 'GET 42' | nc -u -w1 127.0.0.1 9001`
//!
//! | request | reply |
//! |---|---|
//! | `GET <key>` | the request, ` = `, the value in 160 hexadecimal digits; or ` = none` |
//! | `RANGE <from> <count>` | the request, ` = `, how many keys were read in order (on from 0 after the last), a checksum of them |
//!
//! Requests are text, one a datagram. Further words are ignored and come back with the rest of the
//! request: a client can put a number there to tell replies apart. An error stands behind ` ! ` in
//! the reply; datagrams that begin with neither G nor R are dropped and counted.
//!
//! Expect: on the first start the server builds the store in `--data` (100,000 keys, 17 MB). After
//! control-C, a table in which GETs have a p99 far below a RANGE's time, whatever the share of
//! RANGEs.
//!
//! redb's loops have no probes, so only a signal preempts a RANGE: that needs the token, below.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use shinjuku::net::udp::{Datagram, DatagramReply, Udp, UdpConfig};
use shinjuku::{HardPreemption, Runtime, handler_fn};
use shinjuku_examples::store::{KEYS, Store, Value};
use shinjuku_examples::{options::RuntimeOptions, stop::Stop};

/// The longest request; the reply repeats it before its 163 bytes or fewer.
const MAX_REQUEST: usize = 128;
const MAX_DATAGRAM: usize = 512;

/// Serves GET and RANGE on a redb file.
#[derive(Parser)]
struct Options {
    /// Where to listen; port 0: one that the kernel picks.
    #[arg(long, default_value = "127.0.0.1:9001")]
    listen: SocketAddr,
    /// Directory of the store's file.
    #[arg(long, default_value = "target/store", value_name = "DIR")]
    data: PathBuf,
    /// Keys in the store; a file with another number is built anew.
    #[arg(long, default_value_t = KEYS)]
    keys: u64,
    #[command(flatten)]
    runtime: RuntimeOptions,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let stop = Stop::listen()?;
    let config = options.runtime.config(&["get", "range"])?;
    let store = Store::open_or_build(&options.data.join("store.redb"), options.keys)?;

    let classes = config.class.len();
    let class_of = move |datagram: &[u8], _: SocketAddr| match datagram.first()? {
        b'G' => Some(0),
        b'R' => Some(u16::from(classes > 1)),
        _ => None,
    };
    let udp = UdpConfig::new(options.listen)
        .buffers((config.queue + config.contexts + 64).min(1 << 20))
        .max_datagram(MAX_DATAGRAM);
    let udp = Udp::bind_classified(udp, class_of)?;
    let (address, counters) = (udp.local_addr(), udp.counters());

    let handler = handler_fn(move |datagram: Datagram| serve(&store, datagram));
    // SAFETY: the handler's code (redb's read path, Rust's allocator and formatting) is ordinary
    // Rust. It uses std's locks, which are no priority-inheriting futexes. It reads the file by
    // `pread` when a page is not in the cache; std retries those reads on EINTR, or they fail as an
    // error, not as a wrong result. It neither reads nor stores the identity of its kernel thread,
    // sets up no io_uring, and does not switch stacks.
    let token = unsafe { HardPreemption::allow() };
    let server = Runtime::builder(handler)
        .config(config)
        .allow_hard_preemption(token)
        .serve(udp)?;
    println!("listening on {address}");
    println!("{}", server.description());

    stop.wait();
    let (report, _) = server.shutdown(Duration::from_secs(2));
    if let Some(statistics) = &report.statistics {
        println!("{statistics}");
    }
    println!("{:?}\n{report}", counters.read());
    Ok(())
}

enum Answer {
    Value(Option<Value>),
    Sum(usize, u64),
}

fn serve(store: &Store, datagram: Datagram) -> Option<DatagramReply> {
    let answer = ask(store, &datagram);
    let mut reply = datagram.echo();
    reply.truncate(MAX_REQUEST);
    let written = match answer {
        Ok(Answer::Value(Some(value))) => reply
            .write_all(b" = ")
            .and_then(|()| reply.write_all(&hexadecimal(&value))),
        Ok(Answer::Value(None)) => reply.write_all(b" = none"),
        Ok(Answer::Sum(count, sum)) => write!(reply, " = {count} {sum:016x}"),
        Err(wrong) => write!(reply, " ! {wrong}"),
    };
    written.ok().map(|()| reply)
}

fn ask(store: &Store, request: &[u8]) -> Result<Answer, String> {
    if request.len() > MAX_REQUEST {
        return Err(format!("longer than {MAX_REQUEST} bytes"));
    }
    let text = std::str::from_utf8(request).map_err(|_| "not text")?;
    let mut words = text.split_ascii_whitespace();
    let command = words.next();
    let mut number = |what| {
        let word = words.next().ok_or(format!("{what} is missing"))?;
        word.parse::<u64>()
            .map_err(|_| format!("{what} is not a number"))
    };
    let failed = |error| format!("{error}");
    match command {
        Some("GET") => {
            let value = store.get(number("the key")?).map_err(failed)?;
            Ok(Answer::Value(value))
        }
        Some("RANGE") => {
            let (from, count) = (number("the first key")?, number("the count")?);
            if count > store.len() {
                return Err(format!("there are {} keys", store.len()));
            }
            let (count, sum) = store.range(from, count as usize).map_err(failed)?;
            Ok(Answer::Sum(count, sum))
        }
        _ => Err("the commands are GET and RANGE".to_owned()),
    }
}

fn hexadecimal(value: &Value) -> [u8; 2 * size_of::<Value>()] {
    let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble)];
    let mut digits = [0; 2 * size_of::<Value>()];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(value) {
        pair.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
    }
    digits
}
