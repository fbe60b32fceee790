//! The thread that looks at the link, and opens a socket anew when its interface has gone: that
//! allocates and waits, which the polling thread must not.
//!
//! ```text
//!     device: socket ── gone: hand_over ──▶ supervisor: closed ──▶ opened, at another interface of the name
//!        ▲                                        │  ▲               │
//!        │                                        └──┘ in vain:      │
//!        │                                             RETRY later   │
//!        └──────────────────── take_back ◀───────────────────────────┘
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rtrb::{Consumer, Producer, RingBuffer};
use shinjuku_xdp_sys::{Socket, XdpError, link_is_up};

use super::counters::Shared;

/// How often the link is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long after a try in vain the next one is.
const RETRY: Duration = Duration::from_secs(1);

/// The device's side of the thread, which ends with it.
#[derive(Debug)]
pub(super) struct PortSupervisor {
    // `None` only while it is dropped: that ends the thread.
    lost: Option<Producer<Socket>>,
    found: Consumer<Socket>,
    thread: Option<JoinHandle<()>>,
}

impl PortSupervisor {
    /// For a device at `interface`.
    pub(super) fn start(interface: &str, shared: Arc<Shared>) -> Result<Self, XdpError> {
        let (lost, mut to_reopen) = RingBuffer::new(1);
        let (mut reopened, found) = RingBuffer::new(1);
        let interface = interface.to_owned();
        let up = link_is_up(&interface).unwrap_or(false);
        shared.link_up.store(up, Relaxed);
        let thread = thread::Builder::new()
            .name("xdp-supervisor".to_owned())
            .spawn(move || {
                while !to_reopen.is_abandoned() {
                    match to_reopen.pop() {
                        Ok(socket) => {
                            if let Some(socket) = reopen(socket, &to_reopen, &interface, &shared) {
                                // There is room: the device has given its only one.
                                let _ = reopened.push(socket);
                            }
                        }
                        Err(_) => {
                            look(&interface, &shared);
                            thread::park_timeout(LOOK_EVERY);
                        }
                    }
                }
            })
            .map_err(|cause| XdpError::System {
                action: "start the thread that looks after a device",
                cause,
            })?;
        Ok(Self {
            lost: Some(lost),
            found,
            thread: Some(thread),
        })
    }

    /// The socket's interface has gone.
    pub(super) fn hand_over(&mut self, socket: Socket) {
        if let (Some(lost), Some(thread)) = (&mut self.lost, &self.thread) {
            // There is room: the supervisor has taken the one before.
            let _ = lost.push(socket);
            thread.thread().unpark();
        }
    }

    /// A socket at another interface, if there is one.
    pub(super) fn take_back(&mut self) -> Option<Socket> {
        self.found.pop().ok()
    }
}

/// Looks at the link.
fn look(interface: &str, shared: &Shared) {
    let up = link_is_up(interface).unwrap_or(false);
    if shared.link_up.load(Relaxed) != up {
        shared.counters.link_changes.count();
        // Release: a thread that sees the new state sees the change counted.
        shared.link_up.store(up, Release);
    }
}

/// Opens the socket anew. `None`: the device has ended.
fn reopen(
    socket: Socket,
    device: &Consumer<Socket>,
    interface: &str,
    shared: &Shared,
) -> Option<Socket> {
    tracing::warn!(target: "shinjuku", "AF_XDP: interface {interface} has gone; it is looked for every second");
    let mut closed = socket.close();
    let mut said = false;
    while !device.is_abandoned() {
        match closed.open() {
            Ok(socket) => {
                tracing::info!(target: "shinjuku", "AF_XDP: interface {interface} is there again");
                return Some(socket);
            }
            Err((still, error)) => {
                closed = still;
                look(interface, shared);
                shared.counters.failed_returns.count();
                // Once is enough, unless the cause is another than that there is none.
                if !said && !matches!(error, XdpError::NoInterface { .. }) {
                    said = true;
                    tracing::warn!(target: "shinjuku", "{error}; tried again every second");
                }
                thread::park_timeout(RETRY);
            }
        }
    }
    None
}

impl Drop for PortSupervisor {
    fn drop(&mut self) {
        drop(self.lost.take());
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It tries once more at most.
            let _ = thread.join();
        }
    }
}
