//! The memory shared with the kernel, and the right to a piece of it.

use std::ffi::c_void;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::XdpError;

/// A contiguous series of chunks of memory.
pub(crate) struct Area {
    start: NonNull<u8>,
    length: usize,
    chunk: usize,
}

// SAFETY: the area is plain memory, valid on every thread. Only frames reach its bytes, and each
// chunk has one frame.
unsafe impl Send for Area {}
// SAFETY: as above: a shared area gives out no bytes by itself.
unsafe impl Sync for Area {}

impl Area {
    /// Memory for `chunks` chunks of `chunk` bytes, all zero, and a frame for each.
    pub(crate) fn new(chunks: u32, chunk: u32) -> Result<(Arc<Self>, Vec<Frame>), XdpError> {
        let length = chunks as usize * chunk as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place that the kernel chooses; no other code knows of it.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                length,
                protection,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )
        };
        let start = start.map_err(XdpError::system("take the memory for frames"))?;
        let start = NonNull::new(start.cast()).expect("mmap does not give null");
        let area = Arc::new(Self {
            start,
            length,
            chunk: chunk as usize,
        });
        let frame = |number| Frame {
            area: Arc::clone(&area),
            number,
            offset: 0,
            length: 0,
        };
        let frames = (0..chunks).map(frame).collect();
        Ok((area, frames))
    }

    /// The area's start, for the kernel.
    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The chunk of the byte at `address` from the area's start, and the byte's offset in that
    /// chunk. `None`: beyond the area.
    pub(crate) fn place(&self, address: u64) -> Option<(u32, u32)> {
        let address = usize::try_from(address).ok()?;
        if address >= self.length {
            return None;
        }
        let number = u32::try_from(address / self.chunk).ok()?;
        let offset = u32::try_from(address % self.chunk).ok()?;
        Some((number, offset))
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no frame can reach it any more: every frame holds the
        // area. The kernel, if it still has chunks, holds the pages themselves.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast::<c_void>(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A chunk with one owner, and the frame's place in it.
///
/// Invariant: `offset + length` is at most the chunk's length, and `number` is a chunk of the area.
pub struct Frame {
    area: Arc<Area>,
    number: u32,
    offset: u32,
    length: u32,
}

impl Frame {
    /// The frame's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: by the invariant the bytes are within the chunk, and so within the area, which
        // lives as long as `self`. They were zero at first, and so are initialised. Each chunk has
        // one frame, and the kernel does not have the chunk while the frame can be reached (see the
        // crate); so nothing writes to it while `self` is shared.
        unsafe { std::slice::from_raw_parts(self.start(), self.length as usize) }
    }

    /// The frame's bytes, to be written.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; and `self` is borrowed mutably, so nothing else reads the bytes.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.length as usize) }
    }

    /// The longest that the frame can get, in bytes: the rest of the chunk from the frame's start.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.area.chunk - self.offset as usize
    }

    /// Makes the frame `length` bytes long; new bytes hold the chunk's old contents. A length above
    /// [`capacity`](Self::capacity) is cut to it.
    pub fn set_length(&mut self, length: usize) {
        // A chunk's length fits, so this does.
        self.length = length.min(self.capacity()) as u32;
    }

    fn start(&self) -> *mut u8 {
        let at = self.number as usize * self.area.chunk + self.offset as usize;
        // SAFETY: by the invariant this is within the area, or just behind it.
        unsafe { self.area.start.as_ptr().add(at) }
    }

    /// Empties the frame, which then has the whole chunk.
    pub(crate) fn clear(&mut self) {
        (self.offset, self.length) = (0, 0);
    }

    /// Places the frame at `offset`, `length` bytes long. Returns false, and does nothing, if the
    /// chunk is shorter.
    pub(crate) fn set_place(&mut self, offset: u32, length: u32) -> bool {
        let fits = offset as usize + length as usize <= self.area.chunk;
        if fits {
            (self.offset, self.length) = (offset, length);
        }
        fits
    }

    /// The number of the frame's chunk.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The frame's start, from the area's start.
    pub(crate) fn address(&self) -> u64 {
        u64::from(self.number) * self.area.chunk as u64 + u64::from(self.offset)
    }

    /// Its length in bytes.
    pub(crate) fn length(&self) -> u32 {
        self.length
    }

    /// Whether the frame is a chunk of `area`.
    pub(crate) fn is_of(&self, area: &Arc<Area>) -> bool {
        Arc::ptr_eq(&self.area, area)
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Frame")
            .field("number", &self.number)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u32 = 2048;

    #[test]
    fn every_frame_has_bytes_of_its_own() {
        let (area, mut frames) = Area::new(4, CHUNK).unwrap();
        for frame in &mut frames {
            let mark = frame.number() as u8;
            frame.set_length(frame.capacity());
            assert!(frame.bytes().iter().all(|&byte| byte == 0), "zero at first");
            frame.bytes_mut().fill(mark + 1);
        }
        for frame in &frames {
            let mark = frame.number() as u8 + 1;
            assert_eq!(frame.bytes(), [mark; CHUNK as usize]);
            let place = (frame.number(), 0);
            assert_eq!(area.place(frame.address()), Some(place));
        }
    }

    #[test]
    fn a_frame_stays_within_its_chunk() {
        let (area, mut frames) = Area::new(2, CHUNK).unwrap();
        let frame = &mut frames[0];
        assert!(frame.set_place(256, 1000));
        assert_eq!((frame.bytes().len(), frame.capacity()), (1000, 1792));
        frame.set_length(9000);
        assert_eq!(frame.bytes().len(), 1792);
        for (offset, length) in [(256, 1793), (2048, 1), (u32::MAX, u32::MAX)] {
            assert!(!frame.set_place(offset, length), "{offset} {length}");
            assert_eq!((frame.bytes().len(), frame.capacity()), (1792, 1792));
        }
        assert!(frame.set_place(2048, 0));
        assert_eq!(frame.bytes_mut(), []);
        frame.clear();
        assert_eq!(frame.capacity(), 2048);
        let end = 2 * u64::from(CHUNK);
        assert_eq!(area.place(end - 1), Some((1, CHUNK - 1)));
        assert_eq!(area.place(end), None);
        assert_eq!(area.place(u64::MAX), None);
    }

    #[test]
    fn a_frame_outlives_the_rest() {
        let (area, mut frames) = Area::new(3, CHUNK).unwrap();
        let mut frame = frames.remove(1);
        drop((area, frames));
        frame.set_length(5);
        frame.bytes_mut().copy_from_slice(b"still");
        let elsewhere = std::thread::spawn(move || frame.bytes().to_vec());
        assert_eq!(elsewhere.join().unwrap(), b"still");
    }
}
