//! The rings shared with the kernel: single producer, single consumer, a power of two of entries.
//!
//! Producer and consumer each have a counter that only they write, and that runs on past the ring's
//! size. The producer writes entries, then its counter (release); the consumer sees the counter
//! (acquire), then the entries. Source: the kernel's Documentation/networking/af_xdp.rst and
//! net/xdp/xsk_queue.h.

use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::XdpRingOffset;

use crate::XdpError;

const NEED_WAKEUP: u32 = 1;
const MAP: &str = "map a ring";

/// A ring's memory.
struct Shared<T> {
    start: NonNull<u8>,
    length: usize,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
    /// This process holds only one end of the ring.
    _entries: PhantomData<T>,
}

// SAFETY: the pointers are to a mapping of our own, valid on every thread; it moves with its one
// owner.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    /// Maps the ring that `socket` has at the page offset `which`, with `size` entries of `T`, laid
    /// out as in `offsets`.
    fn map(
        socket: BorrowedFd<'_>,
        which: u64,
        offsets: XdpRingOffset,
        size: u32,
    ) -> Result<Self, XdpError> {
        let unfit = || XdpError::System {
            action: MAP,
            cause: std::io::ErrorKind::InvalidData.into(),
        };
        let at = |offset: u64| usize::try_from(offset).map_err(|_| unfit());
        // Kernels before 5.4 have no flags, and ask for no wake-ups.
        let flags = at(offsets.flags.ok_or_else(unfit)?)?;
        let (producer, consumer, entries) = (
            at(offsets.producer)?,
            at(offsets.consumer)?,
            at(offsets.desc)?,
        );
        let counters = [producer, consumer, flags];
        let length = entries + size as usize * size_of::<T>();
        if counters
            .iter()
            .any(|&counter| counter + 4 > length || counter % 4 != 0)
            || entries % align_of::<T>() != 0
            || !size.is_power_of_two()
        {
            return Err(unfit());
        }
        // SAFETY: a new mapping at a place that the kernel chooses; no other code in this process
        // knows of it.
        let start = unsafe {
            mmap(
                ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                socket,
                which,
            )
        };
        let start: NonNull<u8> = NonNull::new(start.map_err(XdpError::system(MAP))?.cast())
            .expect("mmap does not give null");
        // SAFETY: all four are within the mapping and aligned, as the check above found; a mapping
        // begins at a page.
        unsafe {
            Ok(Self {
                start,
                length,
                producer: start.add(producer).cast(),
                consumer: start.add(consumer).cast(),
                flags: start.add(flags).cast(),
                entries: start.add(entries).cast(),
                size,
                _entries: PhantomData,
            })
        }
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: within the mapping and aligned (see `map`), and the kernel also accesses it
        // atomically.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as in `producer`.
        unsafe { self.consumer.as_ref() }
    }

    fn needs_wakeup(&self) -> bool {
        // SAFETY: as in `producer`.
        let flags = unsafe { self.flags.as_ref() };
        flags.load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }

    /// The place of the entry that counters call `count`.
    fn entry(&self, count: u32) -> NonNull<T> {
        let at = count & (self.size - 1);
        // SAFETY: `at` is below `size`, and so many entries are in the mapping (see `map`).
        unsafe { self.entries.add(at as usize) }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference into it outlives `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The end that gives entries to the kernel.
pub(crate) struct Giving<T> {
    ring: Shared<T>,
    /// Entries written; published as the ring's counter.
    written: u32,
}

impl<T: Copy> Giving<T> {
    pub(crate) fn map(
        socket: BorrowedFd<'_>,
        which: u64,
        offsets: XdpRingOffset,
        size: u32,
    ) -> Result<Self, XdpError> {
        let ring = Shared::map(socket, which, offsets, size)?;
        let written = ring.producer().load(Ordering::Relaxed);
        Ok(Self { ring, written })
    }

    /// How many entries there is room for.
    pub(crate) fn room(&self) -> usize {
        // Acquire: the kernel has read these entries before we overwrite them.
        let taken = self.ring.consumer().load(Ordering::Acquire);
        let waiting = self.written.wrapping_sub(taken);
        self.ring.size.saturating_sub(waiting) as usize
    }

    /// Writes an entry, to be [`publish`](Self::publish)ed. Returns false, and does nothing, if
    /// there is no room.
    pub(crate) fn write(&mut self, entry: T) -> bool {
        if self.room() == 0 {
            return false;
        }
        // SAFETY: the kernel does not read this entry: it has taken the old one, and the counter
        // does not yet cover the new one.
        unsafe { self.ring.entry(self.written).write(entry) };
        self.written = self.written.wrapping_add(1);
        true
    }

    /// Publishes the written entries to the kernel.
    pub(crate) fn publish(&mut self) {
        self.ring.producer().store(self.written, Ordering::Release);
    }

    /// Whether the kernel has not yet taken all entries.
    pub(crate) fn is_pending(&self) -> bool {
        self.ring.consumer().load(Ordering::Relaxed) != self.written
    }

    /// Whether the kernel looks at the ring only after a system call.
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// The end that takes entries from the kernel.
pub(crate) struct Taking<T> {
    ring: Shared<T>,
    /// Entries read; published as the ring's counter.
    read: u32,
}

impl<T: Copy> Taking<T> {
    pub(crate) fn map(
        socket: BorrowedFd<'_>,
        which: u64,
        offsets: XdpRingOffset,
        size: u32,
    ) -> Result<Self, XdpError> {
        let ring = Shared::map(socket, which, offsets, size)?;
        let read = ring.consumer().load(Ordering::Relaxed);
        Ok(Self { ring, read })
    }

    /// Whether the ring has no entry to read.
    pub(crate) fn is_empty(&self) -> bool {
        self.ring.producer().load(Ordering::Relaxed) == self.read
    }

    /// The next entry, if there is one.
    pub(crate) fn read(&mut self) -> Option<T> {
        // Acquire: the entry was written before the counter.
        if self.ring.producer().load(Ordering::Acquire) == self.read {
            return None;
        }
        // SAFETY: the counter covers this entry, so the kernel has written it, and does not write
        // it again before we publish that it was read. `T` is plain numbers: any bytes are valid.
        let entry = unsafe { self.ring.entry(self.read).read() };
        self.read = self.read.wrapping_add(1);
        Some(entry)
    }

    /// Returns the places of the entries read to the kernel.
    pub(crate) fn publish(&mut self) {
        self.ring.consumer().store(self.read, Ordering::Release);
    }
}
