//! The C library's code, where a signal rather stops no context.
//!
//! The allocator and the streams of the C library have locks of the whole process. The library
//! holds each for some hundred nanoseconds, and a job that is stopped meanwhile holds it until its
//! next turn: other jobs that allocate run into it, one after the other. A compiled probe never
//! stops a job there, since the library has none. A signal would.
//!
//! So a signal that finds a job in the library's code is in vain, unless the job is at a call of
//! the kernel: every job that waits does so there. The next probe stops the job, or the next
//! signal. Computing in the library may take long (a search, a sort): after [`PATIENCE`] signals in
//! vain the next one stops the job all the same.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::context::Head;

/// So many signals in a row are in vain.
const PATIENCE: u32 = 3;

/// From where to where the library's code lies. Nowhere: not found, or linked into the program.
static CODE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Finds the library. To be called before a signal can stop a context.
pub(crate) fn find() {
    // SAFETY: the callback takes what the loader gives it and keeps nothing.
    unsafe { libc::dl_iterate_phdr(Some(visit), std::ptr::null_mut()) };
}

unsafe extern "C" fn visit(
    object: *mut libc::dl_phdr_info,
    _: libc::size_t,
    _: *mut c_void,
) -> c_int {
    // SAFETY: the loader gives a description that is valid during the call, and so many headers.
    let (object, headers) = unsafe {
        let object = &*object;
        let count = usize::from(object.dlpi_phnum);
        (object, std::slice::from_raw_parts(object.dlpi_phdr, count))
    };
    // SAFETY: the name is a C string, where there is one. The program itself has an empty one.
    let is_program = object.dlpi_name.is_null() || unsafe { *object.dlpi_name } == 0;
    let landmark = (libc::gnu_get_libc_version as *const ()).addr();
    let code = (headers.iter())
        .filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0)
        .map(|header| {
            let start = (object.dlpi_addr + header.p_vaddr) as usize;
            start..start + header.p_memsz as usize
        })
        .find(|code| code.contains(&landmark));
    let Some(code) = code else {
        return 0;
    };
    if !is_program {
        CODE[0].store(code.start, Ordering::Relaxed);
        CODE[1].store(code.end, Ordering::Relaxed);
    }
    1
}

/// Whether the signal with this frame is to be in vain, because it found the job in the library.
pub(crate) fn holds_off(head: &Head, frame: &libc::ucontext_t) -> bool {
    let times = &head.running.held_off;
    let is_held_off = times.get() < PATIENCE && is_within(frame);
    times.set(if is_held_off { times.get() + 1 } else { 0 });
    is_held_off
}

fn is_within(frame: &libc::ucontext_t) -> bool {
    let instruction = frame.uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
    let [start, end] = [0, 1].map(|at: usize| CODE[at].load(Ordering::Relaxed));
    if !(start + CALL.len()..end.saturating_sub(CALL.len())).contains(&instruction) {
        return false;
    }
    // The kernel has put the call back to begin again, or the call has ended.
    !call_at(instruction) && !call_at(instruction - CALL.len())
}

/// The instruction `syscall`.
const CALL: [u8; 2] = [0x0f, 0x05];

/// Whether the library calls the kernel at `address`, which is within its code.
fn call_at(address: usize) -> bool {
    let bytes = std::ptr::with_exposed_provenance::<[u8; 2]>(address);
    // SAFETY: the library's code is mapped as long as the process lives, and read as data by the
    // loader's own maps.
    unsafe { bytes.read_volatile() == CALL }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_librarys_code_is_found_and_the_programs_is_not() {
        find();
        let mut frame: libc::ucontext_t =
            // SAFETY: plain data, for which zeroes are valid.
            unsafe { std::mem::zeroed() };
        let mut is_within = |address: *const ()| {
            frame.uc_mcontext.gregs[libc::REG_RIP as usize] = address.expose_provenance() as i64;
            super::is_within(&frame)
        };
        assert!(is_within(libc::gnu_get_libc_version as *const ()));
        assert!(!is_within(find as *const ()));
    }
}
