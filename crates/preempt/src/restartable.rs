//! Restartable sequences: an area of a thread in which the kernel writes the CPU that the thread
//! runs on (rseq(2)).
//!
//! Allocators keep a cache for each CPU by it, and rely on a restart after a move. But a context's
//! code runs on workers, with the backing thread's thread control block. An area in that block,
//! registered for the backing thread, holds the backing thread's CPU, and the kernel does not
//! restart the worker's sequences. So a backing thread has no area, and a worker has one that no
//! context's code knows: code that cannot register does without.
//!
//! glibc registers an area for each thread, in the thread control block. Under
//! `GLIBC_TUNABLES=glibc.pthread.rseq=0` it does not, and another library may (tcmalloc does). That
//! library's area cannot be unregistered without its address.

use crate::platform::Unsupported;
use crate::switch::fs_base;

const UNREGISTER: i32 = 1;
/// The signature before abort handlers on x86, the same for glibc and all others.
const SIGNATURE: u32 = 0x5305_3053;
/// The original size of the kernel's `struct rseq`; any kernel accepts it.
const ORIGINAL_LENGTH: usize = 32;

/// An area as the kernel requires it.
#[repr(C, align(32))]
struct Area([u8; ORIGINAL_LENGTH]);

/// Leaves the calling thread, a future backing thread, without an area.
///
/// # Errors
/// [`Unsupported::RestartableSequences`] if the thread has one that is not glibc's.
pub(crate) fn leave_none() -> Result<(), Unsupported> {
    unregister_that_of_glibc();
    let mut area = Area([0; ORIGINAL_LENGTH]);
    match register(&raw mut area) {
        Ok(()) => {
            unregister(&raw mut area);
            Ok(())
        }
        // The kernel answers this if another address is registered, or else for an unaligned
        // address.
        Err(libc::EINVAL) => Err(Unsupported::RestartableSequences),
        // The kernel has none, or a filter forbids the system call.
        Err(_) => Ok(()),
    }
}

/// An area of our own on a worker's thread that had none. Unregistered when dropped, on the same
/// thread.
#[derive(Debug)]
pub(crate) struct Occupied {
    area: *mut Area,
}

impl Occupied {
    /// `None` if the thread has an area, or there cannot be one.
    pub(crate) fn on_this_thread() -> Option<Self> {
        let area = Box::into_raw(Box::new(Area([0; ORIGINAL_LENGTH])));
        let occupied = Self { area };
        match register(area) {
            Ok(()) => Some(occupied),
            Err(_) => {
                occupied.free();
                None
            }
        }
    }

    fn free(self) {
        // SAFETY: made by `Box::into_raw`, and not registered.
        drop(unsafe { Box::from_raw(self.area) });
        std::mem::forget(self);
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        unregister(self.area);
        // SAFETY: made by `Box::into_raw`; the kernel no longer writes to it.
        drop(unsafe { Box::from_raw(self.area) });
    }
}

fn register(area: *mut Area) -> Result<(), i32> {
    call(area.cast(), ORIGINAL_LENGTH, 0)
}

fn unregister(area: *mut Area) {
    // It is registered, so this cannot fail.
    let _ = call(area.cast(), ORIGINAL_LENGTH, UNREGISTER);
}

/// Relies on glibc for its area's place, since the kernel does not tell.
fn unregister_that_of_glibc() {
    const AT_RSEQ_FEATURE_SIZE: libc::c_ulong = 27;
    // SAFETY: looks up two public symbols of glibc 2.35 and later; absent ones give null.
    let (offset, size) = unsafe {
        (
            libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>(),
            libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>(),
        )
    };
    // SAFETY: non-null, they point to constants of glibc.
    if offset.is_null() || size.is_null() || unsafe { *size } == 0 {
        return;
    }
    // SAFETY: as above. The offset is from the thread pointer, which is the FS base.
    let area = fs_base().wrapping_add_signed(unsafe { *offset });
    // The length must be the one glibc registered: 32, or the kernel's feature size rounded up to
    // 32.
    // SAFETY: getauxval only reads.
    let features = unsafe { libc::getauxval(AT_RSEQ_FEATURE_SIZE) } as usize;
    for length in [ORIGINAL_LENGTH, features.next_multiple_of(32).max(32)] {
        if call(area as *mut libc::c_void, length, UNREGISTER).is_ok() {
            return;
        }
    }
}

fn call(area: *mut libc::c_void, length: usize, flags: i32) -> Result<(), i32> {
    // SAFETY: the registered memory is an `Area` that lives until it is unregistered; unregistering
    // makes the kernel write less, not more, and the kernel refuses an address or length other than
    // the registered one.
    match unsafe { libc::syscall(libc::SYS_rseq, area, length, flags, SIGNATURE) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}
