//! Operations that use much of the kernel: files, sockets, mappings, threads.

use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::FromRawFd as _;
use std::os::unix::net::UnixStream;

use super::job::{State, spin};
use super::world::World;

/// Data written to a file is read from it.
pub(super) fn file(state: &mut State, _: &World) -> bool {
    // SAFETY: makes a new descriptor, owned below.
    let descriptor = unsafe { libc::memfd_create(c"stress".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return false;
    }
    // SAFETY: just made, and it has no other owner.
    let mut file = unsafe { std::fs::File::from_raw_fd(descriptor) };
    let written = state.random().to_le_bytes();
    let mut read = [0; 8];
    file.write_all(&written).is_ok()
        && file.seek(SeekFrom::Start(0)).is_ok()
        && file.read_exact(&mut read).is_ok()
        && read == written
}

/// Data sent at one end of a socket arrives at the other.
pub(super) fn socket(state: &mut State, _: &World) -> bool {
    let Ok((mut one, mut other)) = UnixStream::pair() else {
        return false;
    };
    let sent = [state.random() as u8; 256];
    let mut received = [0; 256];
    one.write_all(&sent).is_ok() && {
        spin(5);
        other.read_exact(&mut received).is_ok() && received == sent
    }
}

/// Fresh memory is empty and holds written data, also after it has moved.
pub(super) fn mapping(state: &mut State, _: &World) -> bool {
    const BYTES: usize = 64 * 1024;
    let number = state.random();
    // SAFETY: a mapping that no other code knows, unmapped at the end.
    unsafe {
        let base = libc::mmap(
            std::ptr::null_mut(),
            BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if base == libc::MAP_FAILED {
            return false;
        }
        let empty = base.cast::<u64>().read_volatile() == 0;
        base.cast::<u64>().write_volatile(number);
        spin(5);
        let moved = libc::mremap(base, BYTES, 2 * BYTES, libc::MREMAP_MAYMOVE);
        if moved == libc::MAP_FAILED {
            return false;
        }
        let kept = moved.cast::<u64>().read_volatile() == number;
        libc::munmap(moved, 2 * BYTES) == 0 && empty && kept
    }
}

/// A thread started here runs in parallel, and is joined.
pub(super) fn thread(state: &mut State, _: &World) -> bool {
    let number = state.random();
    std::thread::Builder::new()
        .stack_size(64 * 1024)
        .spawn(move || number.rotate_left(7))
        .is_ok_and(|thread| {
            thread
                .join()
                .is_ok_and(|answer| answer == number.rotate_left(7))
        })
}
