//! A client that sends and reads bytes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use shinjuku_tests_support::PATIENCE;

/// `arguments` as an array of bulk strings.
pub fn array<T: AsRef<[u8]>>(arguments: &[T]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        let argument = argument.as_ref();
        request.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        request.extend_from_slice(argument);
        request.extend_from_slice(b"\r\n");
    }
    request
}

/// A connection.
pub struct Client {
    pub stream: TcpStream,
    asked: u64,
}

/// The bytes that came back, and whether the connection is closed.
#[derive(Clone, PartialEq, Eq)]
pub struct Replies {
    pub bytes: Vec<u8>,
    pub closed: bool,
}

impl std::fmt::Debug for Replies {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = if self.closed { " and the end" } else { "" };
        let shown = &self.bytes[..self.bytes.len().min(2000)];
        write!(formatter, "\"{}\"{end}", shown.escape_ascii())
    }
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, asked: 0 }
    }

    /// The whole reply to `request`: everything before the reply to a further request.
    pub fn ask(&mut self, request: &[u8]) -> Replies {
        self.asked += 1;
        let mark = format!("mark {}", self.asked);
        let last = format!("${}\r\n{mark}\r\n", mark.len());
        let both = [request, &array(&["ECHO", &mark])].concat();
        // The server may close before it has read all of it.
        let _ = self.stream.write_all(&both);
        let mut bytes = Vec::new();
        let closed = self.read_until(&mut bytes, |bytes| bytes.ends_with(last.as_bytes()));
        if !closed {
            bytes.truncate(bytes.len() - last.len());
        }
        Replies { bytes, closed }
    }

    /// The reply to the command `arguments`.
    pub fn command<T: AsRef<[u8]>>(&mut self, arguments: &[T]) -> Replies {
        self.ask(&array(arguments))
    }

    /// The reply as text, from a connection that stays open.
    pub fn text(&mut self, arguments: &[&str]) -> String {
        let replies = self.command(arguments);
        assert!(!replies.closed, "{arguments:?}: {replies:?}");
        String::from_utf8(replies.bytes).unwrap()
    }

    /// INFO's value of `key`, a number.
    pub fn info(&mut self, key: &str) -> u64 {
        let info = self.text(&["INFO"]);
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let number = line.and_then(|number| number.parse().ok());
        number.unwrap_or_else(|| panic!("{key} is in {info}"))
    }

    /// Sends `bytes` and nothing more; returns everything that comes.
    pub fn last(mut self, bytes: &[u8]) -> Replies {
        let _ = self.stream.write_all(bytes);
        let _ = self.stream.shutdown(Shutdown::Write);
        let mut bytes = Vec::new();
        let closed = self.read_until(&mut bytes, |_| false);
        Replies { bytes, closed }
    }

    /// Whether the connection closed before there was `enough`.
    pub fn read_until(&mut self, bytes: &mut Vec<u8>, enough: impl Fn(&[u8]) -> bool) -> bool {
        let mut part = [0; 16 << 10];
        while !enough(bytes) {
            match self.stream.read(&mut part) {
                Ok(0) => return true,
                Ok(length) => bytes.extend_from_slice(&part[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return true,
                Err(error) => panic!("{error} after {:?}", bytes.escape_ascii().to_string()),
            }
        }
        false
    }
}
