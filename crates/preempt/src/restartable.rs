//! Restartable sequences: an area of a thread's where the kernel writes the CPU that the thread
//! runs on (rseq(2)).
//!
//! Allocators keep a cache for each CPU by it, and rely on being told. But a context's code runs on
//! workers, with the backing thread's thread control block: an area in it, registered for the
//! backing thread, holds the backing thread's CPU, and nobody begins the worker's sequences again.
//! So a backing thread has no area, and a worker one that no context's code knows: where code
//! cannot register, it does without.
//!
//! glibc registers an area for each thread, in the thread control block. Under
//! `GLIBC_TUNABLES=glibc.pthread.rseq=0` it does not, and another library may (tcmalloc does). That
//! one's cannot be taken away without its address.

use crate::platform::Unsupported;
use crate::switch::fs_base;

const UNREGISTER: i32 = 1;
/// What glibc and everybody else puts before abort handlers on x86.
const SIGNATURE: u32 = 0x5305_3053;
/// The kernel's `struct rseq` as it was at first; any kernel takes it.
const ORIGINAL_LENGTH: usize = 32;

/// An area, as the kernel wants it.
#[repr(C, align(32))]
struct Area([u8; ORIGINAL_LENGTH]);

/// Leaves the calling thread, which is to be a backing thread, without an area.
///
/// # Errors
/// [`Unsupported::RestartableSequences`] if it has one that is not glibc's.
pub(crate) fn leave_none() -> Result<(), Unsupported> {
    unregister_that_of_glibc();
    let mut area = Area([0; ORIGINAL_LENGTH]);
    match register(&raw mut area) {
        Ok(()) => {
            unregister(&raw mut area);
            Ok(())
        }
        // The kernel answers this to an area of another address, and else to one that is not
        // aligned.
        Err(libc::EINVAL) => Err(Unsupported::RestartableSequences),
        // A kernel without them, or a filter of system calls before it.
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
        // SAFETY: made by `Box::into_raw`; the kernel writes to it no more.
        drop(unsafe { Box::from_raw(self.area) });
    }
}

fn register(area: *mut Area) -> Result<(), i32> {
    call(area.cast(), ORIGINAL_LENGTH, 0)
}

fn unregister(area: *mut Area) {
    // It is registered, so there is nothing to fail.
    let _ = call(area.cast(), ORIGINAL_LENGTH, UNREGISTER);
}

/// Takes glibc's word for its area's place, since the kernel does not tell.
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
    // 32. SAFETY: getauxval only reads.
    let features = unsafe { libc::getauxval(AT_RSEQ_FEATURE_SIZE) } as usize;
    for length in [ORIGINAL_LENGTH, features.next_multiple_of(32).max(32)] {
        if call(area as *mut libc::c_void, length, UNREGISTER).is_ok() {
            return;
        }
    }
}

fn call(area: *mut libc::c_void, length: usize, flags: i32) -> Result<(), i32> {
    // SAFETY: what is registered is an `Area` that lives until it is unregistered; unregistering
    // makes the kernel write less, not more, and an address or length that is not the registered
    // one is refused.
    match unsafe { libc::syscall(libc::SYS_rseq, area, length, flags, SIGNATURE) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}
