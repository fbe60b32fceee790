//! The kernel's UDP: one flow is one socket, so that each has a port of its own.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::datagrams::{Came, Carrier};
use crate::error::LoadError;
use crate::readiness::Readiness;

/// Longer than any valid reply.
const DATAGRAM: usize = 2048;

/// The sockets of one thread.
#[derive(Debug)]
pub(crate) struct Sockets {
    sockets: Vec<UdpSocket>,
    readiness: Readiness,
}

impl Sockets {
    /// Opens this many flows.
    ///
    /// # Errors
    /// The operating system gives no socket or no epoll.
    pub(crate) fn open(target: SocketAddr, flows: usize) -> Result<Self, LoadError> {
        let system = |action| move |cause: std::io::Error| LoadError::System { action, cause };
        let readiness = Readiness::new()?;
        let any: SocketAddr = match target {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let mut sockets = Vec::with_capacity(flows);
        for flow in 0..flows {
            let socket = UdpSocket::bind(any).map_err(system("open a UDP socket"))?;
            socket
                .connect(target)
                .map_err(system("connect a UDP socket"))?;
            socket
                .set_nonblocking(true)
                .map_err(system("set up a UDP socket"))?;
            readiness.add(&socket, flow as u32)?;
            sockets.push(socket);
        }
        Ok(Self { sockets, readiness })
    }
}

impl Carrier for Sockets {
    fn send(&mut self, flow: u32, datagram: &[u8]) -> Result<(), String> {
        let sent = self.sockets[flow as usize].send(datagram);
        sent.map(drop).map_err(|error| error.kind().to_string())
    }

    fn flush(&mut self) {}

    fn receive(&mut self, deliver: &mut dyn FnMut(Came<'_>)) -> bool {
        let Some(ready) = self.readiness.next() else {
            return false;
        };
        let mut buffer = [0; DATAGRAM];
        match self.sockets[ready.socket as usize].recv(&mut buffer) {
            Ok(length) => deliver(Ok(&buffer[..length])),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => deliver(Err(error.kind().to_string())),
        }
        true
    }

    fn first_stamp(&self) -> u64 {
        // Earlier loads had other ports, so any stamp will do.
        0
    }

    fn describe(&self) -> String {
        "UDP sockets".to_owned()
    }
}
