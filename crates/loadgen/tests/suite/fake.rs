//! A server whose answers the test decides, and how to put it under load.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use shinjuku_loadgen::{Control, Measurement, Plan, Settings};

/// What the server does about a request.
pub enum Action {
    /// Sends these bytes.
    Reply(Vec<u8>),
    /// Waits, then sends these bytes.
    Late(Duration, Vec<u8>),
    /// Sends these bytes in pieces of this size.
    Pieces(usize, Vec<u8>),
    /// Sends nothing.
    Silence,
    /// Closes the connection.
    Close,
}

/// Starts a server with a thread a connection. `answer` gets the number of the request, from 0 over
/// all connections, and its arguments. The server lives as long as the test's process, idle once
/// its clients are gone.
pub fn serve<F>(answer: F) -> SocketAddr
where
    F: Fn(u64, &[String]) -> Action + Send + Sync + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (answer, count) = (Arc::new(answer), Arc::new(AtomicU64::new(0)));
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (answer, count) = (Arc::clone(&answer), Arc::clone(&count));
            thread::spawn(move || connection(&stream, &*answer, &count));
        }
    });
    address
}

fn connection(stream: &TcpStream, answer: &dyn Fn(u64, &[String]) -> Action, count: &AtomicU64) {
    let _ = stream.set_nodelay(true);
    let (mut input, mut output) = (BufReader::new(stream), stream);
    while let Some(arguments) = request(&mut input) {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let sent = match answer(number, &arguments) {
            Action::Reply(bytes) => output.write_all(&bytes),
            Action::Late(wait, bytes) => {
                thread::sleep(wait);
                output.write_all(&bytes)
            }
            Action::Pieces(size, bytes) => {
                let mut pieces = bytes.chunks(size);
                pieces.try_for_each(|piece| output.write_all(piece))
            }
            Action::Silence => Ok(()),
            Action::Close => return,
        };
        if sent.is_err() {
            return;
        }
    }
}

/// The arguments of the next request; `None` at the end of the connection.
fn request(input: &mut impl BufRead) -> Option<Vec<String>> {
    let count = number(input, '*')?;
    let mut arguments = Vec::new();
    for _ in 0..count {
        let length = number(input, '$')?;
        let mut bytes = vec![0; length + 2];
        input.read_exact(&mut bytes).ok()?;
        bytes.truncate(length);
        arguments.push(String::from_utf8(bytes).ok()?);
    }
    Some(arguments)
}

/// The number after a line's kind.
fn number(input: &mut impl BufRead, kind: char) -> Option<usize> {
    let mut line = String::new();
    input.read_line(&mut line).ok()?;
    line.strip_prefix(kind)?.trim_end().parse().ok()
}

/// `+OK`.
pub fn ok() -> Action {
    Action::Reply(b"+OK\r\n".to_vec())
}

/// A run that goes to its end and that nobody watches.
pub const ALONE: Control<'static> = Control {
    stop: &NEVER,
    watch: None,
};
static NEVER: AtomicBool = AtomicBool::new(false);

/// The plan of this TOML text and the server's address.
pub fn plan(target: SocketAddr, text: &str) -> Plan {
    let settings: Settings = toml::from_str(text).unwrap();
    let settings = Settings {
        target: Some(target.to_string()),
        ..settings
    };
    settings.check().unwrap()
}

/// Measures the first load of a plan.
pub fn measure(target: SocketAddr, text: &str) -> Measurement {
    let plan = plan(target, text);
    let seed = plan.seeds().next().unwrap();
    plan.measure(plan.loads()[0], seed, &[], &ALONE).unwrap()
}
