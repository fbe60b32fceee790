//! Which sockets have something to read, or can take more: epoll, polled without waiting.
//!
//! We use rustix, which the workspace has already; mio would wrap the same calls for platforms that
//! the runtime does not run on. Level-triggered: a socket is read once a turn, so one that sends
//! much does not delay the others, or the schedule, and a small reply costs one read, without a
//! second in vain.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::error::LoadError;

/// How many sockets one call reports.
const EVENTS: usize = 256;

/// The sockets of one thread, each known by a number.
#[derive(Debug)]
pub(crate) struct Readiness {
    epoll: OwnedFd,
    /// Sockets reported and not yet handed out.
    ready: Vec<Ready>,
}

/// A socket that is ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) socket: u32,
    /// Data, or the end of the stream, can be read.
    pub(crate) read: bool,
    /// The socket can take more.
    pub(crate) write: bool,
}

impl Readiness {
    pub(crate) fn new() -> Result<Self, LoadError> {
        let epoll =
            epoll::create(CreateFlags::CLOEXEC).map_err(|error| failed("make an epoll", error))?;
        let ready = Vec::with_capacity(EVENTS);
        Ok(Self { epoll, ready })
    }

    /// From now on `number` is reported when its socket can be read.
    pub(crate) fn add(&self, socket: impl AsFd, number: u32) -> Result<(), LoadError> {
        let data = EventData::new_u64(number.into());
        epoll::add(&self.epoll, socket, data, EventFlags::IN)
            .map_err(|error| failed("watch a socket", error))
    }

    /// Sets whether the socket is also reported when it can take more.
    pub(crate) fn also_writes(&self, socket: impl AsFd, number: u32, also: bool) {
        let events = if also {
            EventFlags::IN | EventFlags::OUT
        } else {
            EventFlags::IN
        };
        let data = EventData::new_u64(number.into());
        // Epoll has known the socket since it was opened: this fails only for want of memory, and
        // then the time-out ends the request.
        let _ = epoll::modify(&self.epoll, socket, data, events);
    }

    /// A socket that is ready now.
    pub(crate) fn next(&mut self) -> Option<Ready> {
        if self.ready.is_empty() {
            self.ask();
        }
        self.ready.pop()
    }

    fn ask(&mut self) {
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS];
        // An interrupted wait: the next turn polls again.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&at_once)) else {
            return;
        };
        let ended = EventFlags::IN | EventFlags::HUP | EventFlags::ERR;
        self.ready.extend(events.iter().map(|event| {
            // Copied because the kernel's record is packed.
            let (data, flags) = (event.data, event.flags);
            Ready {
                socket: data.u64() as u32,
                read: flags.intersects(ended),
                write: flags.contains(EventFlags::OUT),
            }
        }));
    }
}

fn failed(action: &'static str, error: rustix::io::Errno) -> LoadError {
    LoadError::System {
        action,
        cause: error.into(),
    }
}
