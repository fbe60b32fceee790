//! New connections.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags};

use super::codec::Codec;
use super::exchange::ConnectionId;
use super::networker::Networker;
use super::slot::{State, present};

/// Connections accepted in one poll. Each costs some microseconds.
const ACCEPTS: usize = 4;
/// How long the networker accepts nothing after the descriptors ran out, in nanoseconds.
const PAUSE: u64 = 10_000_000;

pub(super) struct Acceptor {
    /// `None`: closed.
    pub(super) listener: Option<TcpListener>,
    /// Connections accepted so far.
    pub(super) last_id: u64,
    pub(super) paused_until: u64,
}

impl Acceptor {
    /// How long the networker may sleep. `None`: not at all.
    pub(super) fn patience<C: Codec>(
        &self,
        networker: &Networker<C>,
        patience: Duration,
    ) -> Option<Duration> {
        if self.listener.is_none() || !networker.acceptable {
            Some(patience)
        } else if networker.now < self.paused_until {
            Some(patience.min(Duration::from_nanos(PAUSE)))
        } else {
            None
        }
    }

    /// Takes on some of the connections that wait.
    pub(super) fn accept<C: Codec>(&mut self, networker: &mut Networker<C>) {
        let Some(listener) = &self.listener else {
            return;
        };
        if !networker.acceptable || networker.now < self.paused_until {
            return;
        }
        for _ in 0..ACCEPTS {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let (stream, peer) = match rustix::net::acceptfrom_with(listener, flags) {
                Ok(accepted) => accepted,
                Err(Errno::AGAIN) => {
                    networker.acceptable = false;
                    return;
                }
                // The peer was gone before the connection was accepted.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO) => continue,
                Err(_) => {
                    networker.shared.counters.intake.accept_failed.count();
                    self.paused_until = networker.now + PAUSE;
                    return;
                }
            };
            let shared = &networker.shared;
            let Some(at) = networker.free.pop() else {
                shared.counters.intake.rejected.count();
                let sorry = shared.codec.too_many_connections();
                if !sorry.is_empty() {
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    let _ = rustix::net::send(&stream, sorry, flags);
                }
                continue;
            };
            self.last_id += 1;
            let slot = &mut networker.slots[at as usize];
            slot.generation = self.last_id as u32;
            let name = u64::from(slot.generation) << 32 | u64::from(at);
            let events = epoll::EventFlags::IN
                | epoll::EventFlags::OUT
                | epoll::EventFlags::RDHUP
                | epoll::EventFlags::ET;
            let data = epoll::EventData::new_u64(name);
            if epoll::add(&networker.epoll, &stream, data, events).is_err() {
                networker.free.push(at);
                shared.counters.intake.accept_failed.count();
                continue;
            }
            shared.counters.intake.accepted.count();
            slot.state = State::Reading;
            slot.since = networker.now;
            let exchange = present(&mut slot.exchange);
            exchange.stream = Some(stream);
            exchange.id = ConnectionId(self.last_id);
            exchange.peer = peer
                .and_then(|peer| SocketAddr::try_from(peer).ok())
                .unwrap_or(UNKNOWN_PEER);
        }
    }
}

/// The peer of a connection of which the kernel does not tell it.
pub(super) const UNKNOWN_PEER: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
