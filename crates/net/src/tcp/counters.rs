//! What a TCP transport counts.
//!
//! Each counter has one writer: the networker, or a worker. So they are added to without a locked
//! instruction.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

use super::memory::Memory;
use crate::counters::Counter;

/// A view of a running transport's counters, for any thread; see
/// [`Tcp::counters`](super::Tcp::counters).
#[derive(Clone)]
pub struct TcpCounters {
    pub(super) counters: Arc<Counters>,
    pub(super) memory: Arc<Memory>,
}

impl std::fmt::Debug for TcpCounters {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "TcpCounters({:?})", self.read())
    }
}

impl TcpCounters {
    /// The numbers now. Each is exact, but they are not read in one instant.
    #[must_use]
    pub fn read(&self) -> TcpCounts {
        let mut counts = TcpCounts {
            reply_memory: self.memory.taken(),
            ..TcpCounts::default()
        };
        self.counters.intake.add_to(&mut counts);
        for output in self.counters.outputs().iter() {
            output.add_to(&mut counts);
        }
        counts.open = counts.accepted.saturating_sub(counts.closed());
        counts
    }
}

crate::counters! {
    /// What [`TcpCounters::read`] saw.
    ///
    /// `accepted` = `open` + all `closed_…`. Once everything delivered is through and sent,
    /// `received` = `answered` + `refused` + `failed` + `misdirected` + `kept` + `cut_off`.
    pub struct TcpCounts {
        // Those that are closed are read first: so `open` is not too low.
        /// The networker.
        by Intake {
            /// Closed because the peer had closed its side, and everything was answered.
            closed_by_peer,
            /// Closed after a reply: the handler or the codec wanted it.
            closed_by_server,
            /// Closed because the kernel said so: reset by the peer, host gone.
            closed_broken,
            /// Closed: no request for `idle_timeout`.
            closed_idle,
            /// Closed: a request was begun, and not complete within `request_timeout`.
            closed_half_request,
            /// Closed: the peer did not take its replies for `write_timeout`.
            closed_slow_reader,
            /// Closed: a request longer than `max_request`.
            closed_too_long,
            /// Closed: the handler panicked, or dropped the request.
            closed_failed,
            /// Closed: a handler answered one connection's request with another's, or kept it and
            /// gave it back later.
            closed_misdirected,
            /// Closed: the codec gave an impossible answer (a length beyond the bytes), or a
            /// refusal that did not fit.
            closed_codec,
            /// Closed with the transport.
            closed_shutdown,
            /// Connections that were taken on.
            accepted,
            /// Connections that were turned away: there were as many as there may be.
            rejected,
            /// Times that the kernel could not give a connection: no descriptor left, or no memory.
            accept_failed,
            /// Requests found by the codec and delivered, or turned away at the end.
            received,
            /// Requests turned away.
            refused,
            /// Requests whose handler panicked or dropped them.
            failed,
            /// Requests whose handler gave back another one. Nothing of it is sent.
            misdirected,
            /// Requests that the handler kept when it returned. Their connections stay until it
            /// drops them.
            kept,
            /// Requests whose reply was not, or not all, sent when the connection closed.
            cut_off,
            /// System calls that received.
            receives,
            /// Bytes received.
            bytes_in,
        }
        /// The threads that send: each worker, and the networker, has one.
        by OutputCounters {
            /// Requests whose reply the kernel has taken, all of it.
            answered,
            /// System calls that sent, or tried to.
            sends,
            /// Bytes sent.
            bytes_out,
        }
        and {
            /// Connections that there are now.
            open: u64,
            /// Memory for long replies in use or kept for them, in bytes.
            reply_memory: usize,
        }
    }
}

impl TcpCounts {
    /// Connections that were closed, for whatever cause.
    fn closed(&self) -> u64 {
        self.closed_by_peer
            + self.closed_by_server
            + self.closed_broken
            + self.closed_idle
            + self.closed_half_request
            + self.closed_slow_reader
            + self.closed_too_long
            + self.closed_failed
            + self.closed_misdirected
            + self.closed_codec
            + self.closed_shutdown
    }
}

/// Why a connection closes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CloseReason {
    Peer,
    Server,
    Broken,
    Idle,
    HalfRequest,
    SlowReader,
    TooLong,
    Failed,
    Misdirected,
    Codec,
    Shutdown,
}

impl Intake {
    /// Connections closed for `reason`.
    pub(super) fn closed(&self, reason: CloseReason) -> &Counter {
        match reason {
            CloseReason::Peer => &self.closed_by_peer,
            CloseReason::Server => &self.closed_by_server,
            CloseReason::Broken => &self.closed_broken,
            CloseReason::Idle => &self.closed_idle,
            CloseReason::HalfRequest => &self.closed_half_request,
            CloseReason::SlowReader => &self.closed_slow_reader,
            CloseReason::TooLong => &self.closed_too_long,
            CloseReason::Failed => &self.closed_failed,
            CloseReason::Misdirected => &self.closed_misdirected,
            CloseReason::Codec => &self.closed_codec,
            CloseReason::Shutdown => &self.closed_shutdown,
        }
    }
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) intake: Intake,
    /// One for the networker and each worker. Locked at start, and by readers.
    outputs: Mutex<Vec<Arc<OutputCounters>>>,
    /// Workers that have sent something: all others' rings are empty.
    pub(super) repliers_in_use: AtomicUsize,
}

impl Counters {
    /// Counters for one more writer. At start.
    pub(super) fn output(&self) -> Arc<OutputCounters> {
        let output = Arc::default();
        let mut outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        outputs.push(Arc::clone(&output));
        output
    }

    fn outputs(&self) -> Vec<Arc<OutputCounters>> {
        self.outputs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
