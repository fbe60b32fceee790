//! A packet in its buffer.
//!
//! Behind its header each mbuf has a private area of this crate's: its home, and a link for the
//! list of dropped mbufs.

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU16, Ordering};

use crate::ffi::{self, rte_mbuf};

/// A packet that its owner may read and write, on any thread. Dereferences to the packet's bytes.
///
/// Dropping it enters no code of DPDK's: it goes onto its pool's list, and the pool's owner frees
/// it. So a handler may drop it, and may be suspended while doing so.
///
/// ```compile_fail,E0277
/// fn copied<T: Clone>() {}
/// copied::<shinjuku_dpdk_sys::Mbuf>();
/// ```
#[repr(transparent)]
pub struct Mbuf(NonNull<rte_mbuf>);

// SAFETY: the handle is the mbuf's only owner (see `received` and `Mempool::alloc`); header,
// private area and buffer are plain memory, in no way a thread's, and dropping is a
// compare-and-swap on the home's list.
unsafe impl Send for Mbuf {}
// SAFETY: through a shared reference there are only reads.
unsafe impl Sync for Mbuf {}

/// A device's verdict on a checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checksum {
    /// The device did not check, or does not tell.
    Unknown,
    /// The checksum is right.
    Good,
    /// The checksum is wrong.
    Bad,
}

/// The buffer has no room for the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the packet would need {needed} bytes, but its buffer has room for {room}")]
pub struct NoRoom {
    /// Bytes that the packet would need.
    pub needed: usize,
    /// Bytes that fit.
    pub room: usize,
}

const TX_FLAGS: u64 = ffi::FLAG_TX_IPV4 | ffi::FLAG_TX_IP | ffi::FLAG_TX_UDP;

impl Mbuf {
    /// Takes over an mbuf fresh from its pool.
    ///
    /// # Safety
    /// It was allocated from a pool that [`Mempool::new`](crate::Mempool) made, and has no other
    /// owner.
    #[inline]
    pub(crate) unsafe fn allocated(raw: NonNull<rte_mbuf>) -> Self {
        Self(raw)
    }

    /// Takes over an mbuf from a device; returns it as an error if others may share it, or if the
    /// packet has more than one buffer.
    ///
    /// # Safety
    /// It came out of a receive queue, and no other owner was given it. So its pool was made by
    /// [`Mempool::new`](crate::Mempool): queues are set up with such pools only, and a ring passes
    /// on what a [`Queue`](crate::Queue) sent.
    #[inline]
    pub(crate) unsafe fn received(raw: NonNull<rte_mbuf>) -> Result<Self, NonNull<rte_mbuf>> {
        // SAFETY: an mbuf's header is initialised memory. Other owners may exist until this check,
        // so the count is read as DPDK writes it, atomically.
        let owners =
            unsafe { AtomicU16::from_ptr(&raw mut (*raw.as_ptr()).refcnt).load(Ordering::Acquire) };
        if owners != 1 {
            return Err(raw);
        }
        // SAFETY: the caller is the only owner.
        let header = unsafe { &mut *raw.as_ptr() };
        let whole = header.nb_segs == 1
            && header.ol_flags & ffi::FLAG_NOT_OWN == 0
            && usize::from(header.data_off) + usize::from(header.data_len)
                <= usize::from(header.buf_len);
        if !whole {
            return Err(raw);
        }
        // A ring passes on the sender's flags.
        header.ol_flags &= !TX_FLAGS;
        Ok(Self(raw))
    }

    #[inline]
    fn header(&self) -> &rte_mbuf {
        // SAFETY: an mbuf's header is initialised memory, owned here, and lives as long as the
        // pool, that is, the process.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn header_mut(&mut self) -> &mut rte_mbuf {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { self.0.as_mut() }
    }

    /// Bytes before the packet that the buffer has room for.
    #[must_use]
    pub fn headroom(&self) -> usize {
        self.header().data_off.into()
    }

    /// The greatest length of the packet, from its present start.
    #[must_use]
    #[inline]
    pub fn room(&self) -> usize {
        usize::from(self.header().buf_len - self.header().data_off)
    }

    /// Makes the packet `length` bytes long, by moving its end. New bytes hold an earlier packet's
    /// data: write them before sending.
    ///
    /// # Errors
    /// If there is no room; then nothing changes.
    #[inline]
    pub fn set_len(&mut self, length: usize) -> Result<(), NoRoom> {
        let room = self.room();
        let length_16 = u16::try_from(length).ok().filter(|_| length <= room);
        let length_16 = length_16.ok_or(NoRoom {
            needed: length,
            room,
        })?;
        let header = self.header_mut();
        header.data_len = length_16;
        header.pkt_len = length_16.into();
        // The flags were set for another packet.
        header.ol_flags &= !TX_FLAGS;
        Ok(())
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// If they do not fit; then nothing changes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        let start = self.len();
        self.set_len(start + bytes.len())?;
        self[start..].copy_from_slice(bytes);
        Ok(())
    }

    /// The hash by which the device spread the packet, if there is one.
    #[must_use]
    pub fn rss_hash(&self) -> Option<u32> {
        let header = self.header();
        (header.ol_flags & ffi::FLAG_RSS_HASH != 0).then_some(header.rss)
    }

    /// The device's verdict on the IP header's checksum.
    #[must_use]
    #[inline]
    pub fn ip_checksum(&self) -> Checksum {
        match self.header().ol_flags & ffi::FLAG_IP_MASK {
            ffi::FLAG_IP_GOOD => Checksum::Good,
            ffi::FLAG_IP_BAD => Checksum::Bad,
            _ => Checksum::Unknown,
        }
    }

    /// The device's verdict on UDP's checksum.
    #[must_use]
    #[inline]
    pub fn udp_checksum(&self) -> Checksum {
        match self.header().ol_flags & ffi::FLAG_L4_MASK {
            ffi::FLAG_L4_GOOD => Checksum::Good,
            ffi::FLAG_L4_BAD => Checksum::Bad,
            _ => Checksum::Unknown,
        }
    }

    /// Has the device fill in the checksums of an IPv4 header that starts after `link` bytes and is
    /// `ip` bytes long, and of the UDP header behind it, which holds the pseudo-header's sum. For
    /// devices started with [`PortConfig::checksums`](crate::PortConfig::checksums) that offer it
    /// ([`PortInfo::sends_checksums`](crate::PortInfo)). Changing the length cancels it.
    ///
    /// # Errors
    /// If the packet lacks those headers: it is too short, or the lengths are impossible in IPv4.
    pub fn offload_checksums(&mut self, link: usize, ip: usize) -> Result<(), NoRoom> {
        const UDP: usize = 8;
        let needed = link.saturating_add(ip).saturating_add(UDP);
        let room = self.len();
        if needed > room || link >= 1 << ffi::TX_LINK_LENGTH_BITS || !(20..=60).contains(&ip) {
            return Err(NoRoom { needed, room });
        }
        let header = self.header_mut();
        header.tx_offload = link as u64 | (ip as u64) << ffi::TX_LINK_LENGTH_BITS;
        header.ol_flags = TX_FLAGS;
        Ok(())
    }

    #[inline]
    fn start(&self) -> NonNull<u8> {
        let header = self.header();
        // SAFETY: data_off is at most buf_len (DPDK sets it so, and `received` checks it): within
        // the buffer.
        unsafe { NonNull::new_unchecked(header.buf_addr.add(header.data_off.into())) }
    }
}

impl Deref for Mbuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: data_off + data_len is at most buf_len (DPDK, `received`, `set_len`); the buffer
        // is this mbuf's own, memory that the operating system or an earlier packet initialised,
        // and borrowed with the handle.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.header().data_len.into()) }
    }
}

impl DerefMut for Mbuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let length = self.header().data_len.into();
        // SAFETY: as in `deref`, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), length) }
    }
}

impl Drop for Mbuf {
    fn drop(&mut self) {
        // SAFETY: the pool's `Mempool::new` wrote the private area, and `home` never changes.
        let home = unsafe { (*Private::of(self.0)).home };
        // SAFETY: this handle is the owner, and it ends here.
        unsafe { home.push(self.0) }
    }
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Mbuf")
            .field("length", &self.len())
            .field("headroom", &self.headroom())
            .finish_non_exhaustive()
    }
}

/// The private area.
#[repr(C)]
pub(crate) struct Private {
    /// While on a list: the mbuf below. The thread that pushes writes it; the one that took the
    /// list reads it.
    below: UnsafeCell<*mut rte_mbuf>,
    home: &'static Dropped,
}

const _: () = assert!(size_of::<Private>().is_multiple_of(ffi::PRIVATE_ALIGN));

impl Private {
    pub(crate) const SIZE: u16 = size_of::<Self>() as u16;

    fn of(mbuf: NonNull<rte_mbuf>) -> *mut Self {
        // As rte_mbuf_to_priv does.
        mbuf.as_ptr().wrapping_add(1).cast()
    }

    /// Writes an mbuf's private area.
    ///
    /// # Safety
    /// The mbuf has a private area of [`SIZE`](Self::SIZE), and no thread uses it.
    pub(crate) unsafe fn write(mbuf: NonNull<rte_mbuf>, home: &'static Dropped) {
        let private = Self {
            below: UnsafeCell::new(std::ptr::null_mut()),
            home,
        };
        // SAFETY: the caller promises the area. An mbuf is aligned to 64 bytes, and so is what
        // follows.
        unsafe { Self::of(mbuf).write(private) }
    }
}

/// A pool's dropped mbufs: a stack that all threads push to, and one takes as a whole (so there is
/// no ABA).
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    top: AtomicPtr<rte_mbuf>,
}

impl Dropped {
    /// # Safety
    /// The caller owns the mbuf, whose home this is, and gives it up.
    unsafe fn push(&self, mbuf: NonNull<rte_mbuf>) {
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            // SAFETY: owned until the compare-and-swap succeeds.
            unsafe { *(*Private::of(mbuf)).below.get() = top };
            // Release: the thread that takes the list sees the link, and all changes to the packet.
            match self.top.compare_exchange_weak(
                top,
                mbuf.as_ptr(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// Takes all mbufs on the list, as a chain that the caller then owns.
    pub(crate) fn take(&self) -> Chain {
        // Polling an empty list should not take its cache line from the threads that drop.
        if self.top.load(Ordering::Relaxed).is_null() {
            return Chain::default();
        }
        Chain {
            top: self.top.swap(std::ptr::null_mut(), Ordering::Acquire),
        }
    }
}

/// Dropped mbufs of one pool, taken off the list.
#[derive(Debug)]
pub(crate) struct Chain {
    top: *mut rte_mbuf,
}

impl Default for Chain {
    fn default() -> Self {
        Self {
            top: std::ptr::null_mut(),
        }
    }
}

impl Iterator for Chain {
    type Item = NonNull<rte_mbuf>;

    fn next(&mut self) -> Option<NonNull<rte_mbuf>> {
        let mbuf = NonNull::new(self.top)?;
        // SAFETY: the chain owns it, and its link was written before it was pushed.
        self.top = unsafe { *(*Private::of(mbuf)).below.get() };
        Some(mbuf)
    }
}
