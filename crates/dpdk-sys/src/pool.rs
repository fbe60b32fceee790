//! The pools that mbufs come from and go to.

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::eal::{c_string, control};
use crate::error::{DpdkError, Errno};
use crate::ffi::{self, rte_mbuf, rte_mempool};
use crate::mbuf::{Chain, Dropped, Mbuf, Private};

/// How many mbufs are freed in one call.
const BULK: usize = 32;
/// The most mbufs in a pool. From 2^31 on DPDK's sizes overflow, and it writes beyond its memory.
const MOST: u32 = 1 << 26;

/// The handle of a pool, for the networker, which allocates from it and collects dropped mbufs.
/// Keep it off threads that run handlers: see the [crate].
///
/// The pool itself lives as long as the process. When its handle is gone and all its mbufs are
/// back, it may be [reused](crate::Eal::pool_again).
pub struct Mempool {
    gauge: PoolGauge,
    data_room: u16,
    dropped: &'static Dropped,
    /// Mbufs taken off the list, not yet freed.
    taken: Chain,
}

// SAFETY: any thread may use DPDK's pools, and the handle's own fields move with it. It owns the
// chain's mbufs.
unsafe impl Send for Mempool {}

impl Mempool {
    pub(crate) fn new(name: &str, mbufs: u32, data_room: u16) -> Result<Self, DpdkError> {
        let failed = |cause| DpdkError::Pool {
            name: name.to_owned(),
            mbufs,
            data_room,
            cause,
        };
        // DPDK would truncate the sum of the two to 16 bits.
        let fits = mbufs <= MOST && data_room <= u16::MAX - ffi::HEADROOM;
        Errno::check(if fits { 0 } else { -libc::EINVAL }).map_err(failed)?;
        let _control = control();
        let c_name = c_string(name)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a string that ends with a zero, and room for the answer.
        let status = unsafe {
            ffi::dpdk_pool_create(c_name.as_ptr(), mbufs, Private::SIZE, data_room, &mut raw)
        };
        Errno::check(status).map_err(failed)?;
        let dropped: &'static Dropped = Box::leak(Box::default());
        let home: *const Dropped = dropped;
        // SAFETY: the pool is new: its mbufs have no owner, and each has a private area of the size
        // asked for. `settle` does not unwind, and takes the argument as a `Dropped`.
        unsafe { ffi::dpdk_pool_each(raw, settle, home.cast_mut().cast()) };
        Ok(Self {
            gauge: PoolGauge {
                raw: NonNull::new(raw).expect("it was made"),
                mbufs,
            },
            data_room,
            dropped,
            taken: Chain::default(),
        })
    }

    /// A pool of this size whose handle is gone, if all its mbufs are back.
    pub(crate) fn again(mbufs: u32, data_room: u16) -> Option<Self> {
        let mut left = left();
        let at = left.iter_mut().position(|pool| {
            pool.collect(mbufs as usize);
            let home = pool.gauge.available() == mbufs;
            home && (pool.gauge.mbufs, pool.data_room) == (mbufs, data_room)
        })?;
        Some(left.swap_remove(at))
    }

    /// An empty packet. `None`: all mbufs are in use.
    #[must_use]
    pub fn alloc(&mut self) -> Option<Mbuf> {
        self.collect(BULK);
        // SAFETY: the pool lives as long as the process.
        let raw = unsafe { ffi::dpdk_mbuf_alloc(self.raw()) };
        // SAFETY: just allocated, of this pool.
        NonNull::new(raw).map(|raw| unsafe { Mbuf::allocated(raw) })
    }

    /// Frees dropped mbufs of this pool, about `most` of them, and returns how many.
    /// [`alloc`](Self::alloc) and [`Queue::receive`](crate::Queue::receive) call it.
    pub fn collect(&mut self, most: usize) -> usize {
        let mut freed = 0;
        while freed < most {
            let mut bulk = [std::ptr::null_mut(); BULK];
            let mut count = 0;
            while count < BULK {
                let Some(mbuf) = self.next_dropped() else {
                    break;
                };
                bulk[count] = mbuf.as_ptr();
                count += 1;
            }
            if count == 0 {
                break;
            }
            // SAFETY: `count` mbufs that were dropped, so they have no owner.
            unsafe { ffi::dpdk_mbuf_free_bulk(bulk.as_mut_ptr(), count as u32) };
            freed += count;
        }
        freed
    }

    fn next_dropped(&mut self) -> Option<NonNull<rte_mbuf>> {
        if let Some(mbuf) = self.taken.next() {
            return Some(mbuf);
        }
        self.taken = self.dropped.take();
        self.taken.next()
    }

    /// Tells any thread how many mbufs are free.
    #[must_use]
    pub fn gauge(&self) -> PoolGauge {
        self.gauge
    }

    pub(crate) fn raw(&self) -> *mut rte_mempool {
        self.gauge.raw.as_ptr()
    }
}

/// Pools without a handle; their mbufs may still be anywhere.
static LEFT: Mutex<Vec<Mempool>> = Mutex::new(Vec::new());

fn left() -> MutexGuard<'static, Vec<Mempool>> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Mempool {
    fn drop(&mut self) {
        self.collect(self.gauge.mbufs as usize);
        left().push(Self {
            taken: std::mem::take(&mut self.taken),
            ..*self
        });
    }
}

/// Called by DPDK once for each mbuf of a new pool.
unsafe extern "C" fn settle(home: *mut c_void, mbuf: *mut rte_mbuf) {
    // SAFETY: `Mempool::new` passes a `Dropped` that is never freed.
    let home: &'static Dropped = unsafe { &*home.cast::<Dropped>() };
    if let Some(mbuf) = NonNull::new(mbuf) {
        // SAFETY: the pool is new, its mbufs have the area, and they have no owner.
        unsafe { Private::write(mbuf, home) }
    }
}

impl fmt::Debug for Mempool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.gauge.fmt(formatter)
    }
}

/// How full a pool is.
#[derive(Clone, Copy)]
pub struct PoolGauge {
    raw: NonNull<rte_mempool>,
    mbufs: u32,
}

// SAFETY: it only counts, which DPDK allows to any thread at any time.
unsafe impl Send for PoolGauge {}
// SAFETY: as above.
unsafe impl Sync for PoolGauge {}

impl PoolGauge {
    /// Mbufs in the pool, without those dropped and not yet collected. Exact while no thread uses
    /// the pool. After [reuse](crate::Eal::pool_again) it counts what the new owner has left.
    #[must_use]
    pub fn available(self) -> u32 {
        // SAFETY: the pool lives as long as the process.
        unsafe { ffi::dpdk_pool_available(self.raw.as_ptr()) }
    }

    /// The number of mbufs that the pool was made with.
    #[must_use]
    pub fn size(self) -> u32 {
        self.mbufs
    }
}

impl fmt::Debug for PoolGauge {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} of {} mbufs free",
            self.available(),
            self.mbufs
        )
    }
}
