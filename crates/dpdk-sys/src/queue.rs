//! A receive queue and the send queue of the same number.

use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::ffi::{self, rte_mbuf};
use crate::mbuf::Mbuf;
use crate::pool::Mempool;
use crate::shared::Shared;

/// The most packets that are received or sent at once.
pub const BURST: usize = 64;

/// A networker's part of a port. There is one handle, and using it takes an exclusive borrow, so
/// one thread at a time uses the queue. Keep it off threads that run handlers: see the [crate].
///
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<shinjuku_dpdk_sys::Queue>();
/// ```
pub struct Queue {
    port: Arc<Shared>,
    number: usize,
    pool: Mempool,
    unusable: u64,
}

impl Queue {
    pub(crate) fn new(port: Arc<Shared>, number: usize, pool: Mempool) -> Self {
        Self {
            port,
            number,
            pool,
            unusable: 0,
        }
    }

    /// Appends received packets to `packets`: at most `most`, at most [`BURST`], and no more than
    /// fit without allocating. Returns how many. Also frees dropped packets of its pool.
    pub fn receive(&mut self, packets: &mut Vec<Mbuf>, most: usize) -> usize {
        self.pool.collect(BURST);
        let spare = packets.capacity() - packets.len();
        let room = spare.min(most).min(BURST);
        if room == 0 || !self.port.runs(self.number) {
            return 0;
        }
        let mut raw = [const { MaybeUninit::<*mut rte_mbuf>::uninit() }; BURST];
        // SAFETY: the port runs until this queue reports that it rests; this handle is the queue's
        // only user; there is room for `room` pointers.
        let count = unsafe {
            ffi::dpdk_receive(
                self.port.id(),
                self.number as u16,
                raw.as_mut_ptr().cast(),
                room as u16,
            )
        };
        let before = packets.len();
        for slot in &raw[..usize::from(count)] {
            // SAFETY: DPDK wrote the first `count`, none of them null.
            let mbuf = unsafe { NonNull::new_unchecked(slot.assume_init()) };
            // SAFETY: it came out of a receive queue, once.
            match unsafe { Mbuf::received(mbuf) } {
                Ok(mbuf) => packets.push(mbuf),
                Err(mbuf) => {
                    self.unusable += 1;
                    // SAFETY: it came out of a receive queue, and no other owner was given it.
                    unsafe { ffi::dpdk_mbuf_free_bulk(&mut mbuf.as_ptr(), 1) }
                }
            }
        }
        packets.len() - before
    }

    /// Sends packets, at most [`BURST`], from the first. The packets that the device took over
    /// leave `packets`; the rest stays, for another call. Returns how many were sent. Packets need
    /// at least an Ethernet header.
    pub fn send(&mut self, packets: &mut Vec<Mbuf>) -> usize {
        let count = packets.len().min(BURST);
        if count == 0 || !self.port.runs(self.number) {
            return 0;
        }
        let first = packets.as_mut_ptr();
        let length = packets.len();
        // SAFETY: the port runs until this queue reports that it rests; this handle is the queue's
        // only user; an `Mbuf` is a pointer to an mbuf that it owns, and there are `count` of them.
        let sent = unsafe {
            ffi::dpdk_send(
                self.port.id(),
                self.number as u16,
                first.cast(),
                count as u16,
            )
        };
        let sent = usize::from(sent);
        // SAFETY: the first `sent` have a new owner and must not be dropped; the others close up.
        // Nothing between unwinds.
        unsafe {
            std::ptr::copy(first.add(sent), first, length - sent);
            packets.set_len(length - sent);
        }
        sent
    }

    /// The pool of received packets, from which the caller can allocate its own.
    pub fn pool(&mut self) -> &mut Mempool {
        &mut self.pool
    }

    /// Its number; packets are spread by hash over numbers.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// Whether the device fills in checksums if [`Mbuf::offload_checksums`] asks for it.
    #[must_use]
    pub fn sends_checksums(&self) -> bool {
        self.port.sends_checksums()
    }

    /// Packets that came in several buffers or were shared, and so were freed at once.
    #[must_use]
    pub fn unusable(&self) -> u64 {
        self.unusable
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.port.gone(self.number);
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Queue")
            .field("number", &self.number)
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}
