//! The page of [`metrics`] over HTTP, for Prometheus: the key `metrics` of the configuration.
//!
//! A thread of its own answers, from the last status that the control has handed over: a reader
//! that is slow keeps neither servers nor commands waiting.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::{RackError, Status, metrics};

/// How often readers are looked for.
const TICK: Duration = Duration::from_millis(20);
/// How long a reader may take to ask, and to read.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest request, in bytes.
const LONGEST: usize = 8192;

/// Serves the page until it is dropped.
#[derive(Debug)]
pub struct Exporter {
    address: SocketAddr,
    page: Arc<Mutex<String>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Listens at `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// If the address cannot be had.
    pub fn listen(address: SocketAddr) -> Result<Self, RackError> {
        let wrong = |cause: io::Error| RackError::Config(format!("metrics: {address}: {cause}"));
        let listener = TcpListener::bind(address).map_err(wrong)?;
        listener.set_nonblocking(true).map_err(wrong)?;
        let mut exporter = Self {
            address: listener.local_addr().map_err(wrong)?,
            page: Arc::default(),
            stop: Arc::default(),
            thread: None,
        };
        let (page, stop) = (Arc::clone(&exporter.page), Arc::clone(&exporter.stop));
        let thread = thread::Builder::new().name("metrics".to_owned());
        let thread = thread.spawn(move || serve(&listener, &page, &stop));
        exporter.thread = Some(thread.map_err(wrong)?);
        Ok(exporter)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on readers get this status.
    pub fn publish(&self, status: &Status) {
        let page = metrics::page(status);
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) = page;
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &TcpListener, page: &Mutex<String>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((reader, _)) => {
                let page = page.lock().unwrap_or_else(PoisonError::into_inner).clone();
                // A reader that does not take the answer goes without.
                let _ = answer(reader, &page);
            }
            Err(_) => thread::sleep(TICK),
        }
    }
}

/// Answers a request, whatever its path, once all of its header is there.
fn answer(mut reader: TcpStream, page: &str) -> io::Result<()> {
    reader.set_nonblocking(false)?;
    reader.set_write_timeout(Some(PATIENCE))?;
    let (start, mut header) = (Instant::now(), Vec::<u8>::new());
    while !header.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = PATIENCE.saturating_sub(start.elapsed());
        if header.len() >= LONGEST || left.is_zero() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        reader.set_read_timeout(Some(left))?;
        let mut piece = [0; 1024];
        match reader.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => header.extend(&piece[..length]),
        }
    }
    let length = page.len();
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{page}"
    );
    reader.write_all(answer.as_bytes())
}
