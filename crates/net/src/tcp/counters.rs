//! What a TCP transport counts.
//!
//! Each counter has one writer: the networker, or a worker. So they are added to without a locked
//! instruction.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::memory::Memory;

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
        let Intake {
            accepted,
            rejected,
            accept_failed,
            closed,
            received,
            refused,
            failed,
            misdirected,
            kept,
            cut_off,
            receives,
            bytes_in,
        } = &self.counters.intake;
        let closed = closed.each_ref().map(|counter| counter.load(Relaxed));
        let by = |cause: CloseReason| closed[cause as usize];
        let accepted = accepted.load(Relaxed);
        let outputs = self.counters.outputs();
        let sum = |of: fn(&OutputCounters) -> &AtomicU64| {
            outputs.iter().map(|output| of(output).load(Relaxed)).sum()
        };
        TcpCounts {
            accepted,
            rejected: rejected.load(Relaxed),
            accept_failed: accept_failed.load(Relaxed),
            open: accepted.saturating_sub(closed.iter().sum()),
            closed_by_peer: by(CloseReason::Peer),
            closed_by_server: by(CloseReason::Server),
            closed_broken: by(CloseReason::Broken),
            closed_idle: by(CloseReason::Idle),
            closed_half_request: by(CloseReason::HalfRequest),
            closed_slow_reader: by(CloseReason::SlowReader),
            closed_too_long: by(CloseReason::TooLong),
            closed_failed: by(CloseReason::Failed),
            closed_misdirected: by(CloseReason::Misdirected),
            closed_codec: by(CloseReason::Codec),
            closed_shutdown: by(CloseReason::Shutdown),
            received: received.load(Relaxed),
            answered: sum(|output| &output.answered),
            refused: refused.load(Relaxed),
            failed: failed.load(Relaxed),
            misdirected: misdirected.load(Relaxed),
            kept: kept.load(Relaxed),
            cut_off: cut_off.load(Relaxed),
            receives: receives.load(Relaxed),
            sends: sum(|output| &output.sends),
            bytes_in: bytes_in.load(Relaxed),
            bytes_out: sum(|output| &output.bytes_out),
            reply_memory: self.memory.taken(),
        }
    }
}

/// What [`TcpCounters::read`] saw.
///
/// `accepted` = `open` + all `closed_…`. Once everything delivered is through and sent, `received`
/// = `answered` + `refused` + `failed` + `misdirected` + `kept` + `cut_off`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct TcpCounts {
    /// Connections that were taken on.
    pub accepted: u64,
    /// Connections that were turned away: there were as many as there may be.
    pub rejected: u64,
    /// Times that the kernel could not give a connection: no descriptor left, or no memory.
    pub accept_failed: u64,
    /// Connections that there are now.
    pub open: u64,
    /// Closed because the peer had closed its side, and everything was answered.
    pub closed_by_peer: u64,
    /// Closed after a reply: the handler or the codec wanted it.
    pub closed_by_server: u64,
    /// Closed because the kernel said so: reset by the peer, host gone.
    pub closed_broken: u64,
    /// Closed: no request for `idle_timeout`.
    pub closed_idle: u64,
    /// Closed: a request was begun, and not complete within `request_timeout`.
    pub closed_half_request: u64,
    /// Closed: the peer did not take its replies for `write_timeout`.
    pub closed_slow_reader: u64,
    /// Closed: a request longer than `max_request`.
    pub closed_too_long: u64,
    /// Closed: the handler panicked, or dropped the request.
    pub closed_failed: u64,
    /// Closed: a handler answered one connection's request with another's, or kept it and gave it
    /// back later.
    pub closed_misdirected: u64,
    /// Closed: the codec answered what cannot be (a length that is not there), or a refusal that
    /// did not fit.
    pub closed_codec: u64,
    /// Closed with the transport.
    pub closed_shutdown: u64,
    /// Requests found by the codec and delivered, or turned away at the end.
    pub received: u64,
    /// Requests whose reply the kernel has taken, all of it.
    pub answered: u64,
    /// Requests turned away.
    pub refused: u64,
    /// Requests whose handler panicked or dropped them.
    pub failed: u64,
    /// Requests whose handler gave back another one. Nothing of it is sent.
    pub misdirected: u64,
    /// Requests that the handler has kept although it was done. Until they are dropped, their
    /// connections stay.
    pub kept: u64,
    /// Requests whose reply was not, or not all, sent when the connection closed.
    pub cut_off: u64,
    /// System calls that received.
    pub receives: u64,
    /// System calls that sent, or tried to.
    pub sends: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Memory for long replies in use or kept for them, in bytes.
    pub reply_memory: usize,
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

pub(super) const CLOSE_REASONS: usize = CloseReason::Shutdown as usize + 1;

#[derive(Default)]
pub(super) struct Counters {
    pub(super) intake: Intake,
    /// One for the networker and each worker. Locked at start, and by who reads.
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

/// Written by the networker.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Intake {
    pub(super) accepted: AtomicU64,
    pub(super) rejected: AtomicU64,
    pub(super) accept_failed: AtomicU64,
    pub(super) closed: [AtomicU64; CLOSE_REASONS],
    pub(super) received: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) misdirected: AtomicU64,
    pub(super) kept: AtomicU64,
    pub(super) cut_off: AtomicU64,
    pub(super) receives: AtomicU64,
    pub(super) bytes_in: AtomicU64,
}

/// Written by whoever sends: each worker, and the networker.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct OutputCounters {
    pub(super) answered: AtomicU64,
    pub(super) sends: AtomicU64,
    pub(super) bytes_out: AtomicU64,
}

/// Adds to a counter that nobody else writes.
pub(super) fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(amount), Relaxed);
}

pub(super) fn count(counter: &AtomicU64) {
    add(counter, 1);
}
