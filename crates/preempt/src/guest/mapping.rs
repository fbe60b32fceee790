//! Anonymous memory, unmapped on drop.

use super::error::GuestError;

/// Zeroed, page-aligned memory.
pub(super) struct Mapping {
    base: usize,
    length: usize,
    start: usize,
}

impl Mapping {
    /// `bytes` of memory, touched lazily.
    pub(super) fn new(bytes: usize) -> Result<Self, GuestError> {
        // SAFETY: a fresh mapping touches no other memory.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(GuestError::Kvm {
                what: "taking memory",
                cause: std::io::Error::last_os_error(),
            });
        }
        let base = base as usize;
        Ok(Self {
            base,
            length: bytes,
            start: base,
        })
    }

    /// `bytes` of memory that do not cross a GiB's end: half of a mapping of twice the size.
    pub(super) fn within_a_gib(bytes: usize) -> Result<Self, GuestError> {
        const GIB: usize = 1 << 30;
        let mut mapping = Self::new(2 * bytes)?;
        if mapping.base / GIB != (mapping.base + bytes - 1) / GIB {
            mapping.start = (mapping.base + bytes) / GIB * GIB;
        }
        Ok(mapping)
    }

    /// A stack: memory whose lowest page faults on every access.
    pub(super) fn stack(bytes: usize) -> Result<Self, GuestError> {
        let mapping = Self::new(bytes)?;
        // SAFETY: the page is ours, and unused.
        let answer =
            unsafe { libc::mprotect(mapping.base as *mut libc::c_void, 4096, libc::PROT_NONE) };
        if answer == 0 {
            Ok(mapping)
        } else {
            Err(GuestError::Kvm {
                what: "guarding a stack",
                cause: std::io::Error::last_os_error(),
            })
        }
    }

    pub(super) fn start(&self) -> usize {
        self.start
    }

    pub(super) fn end(&self) -> usize {
        self.base + self.length
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and has no user left when it is dropped.
        unsafe { libc::munmap(self.base as *mut libc::c_void, self.length) };
    }
}
