//! An array whose length is known only with its last element: it is gathered first, within a bound
//! for each array and a bound for all together.

use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};

use shinjuku::net::resp::{Protocol, Writer};
use shinjuku::net::tcp::Output;

/// The memory for gathering, in bytes.
#[derive(Debug)]
pub struct Bounds {
    each: usize,
    together: usize,
    taken: AtomicUsize,
}

impl Bounds {
    /// Each array may have `each` bytes, and all arrays `together`.
    #[must_use]
    pub fn new(each: usize, together: usize) -> Self {
        Self {
            each,
            together,
            taken: AtomicUsize::new(0),
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Elements<'a> {
    written: Vec<u8>,
    count: usize,
    bounds: &'a Bounds,
    /// The share of the bound for all that this array has taken.
    taken: usize,
    full: bool,
}

impl<'a> Elements<'a> {
    /// An empty array.
    #[must_use]
    pub fn new(bounds: &'a Bounds) -> Self {
        Self {
            written: Vec::new(),
            count: 0,
            bounds,
            taken: 0,
            full: false,
        }
    }

    /// Adds an element. Breaks off if there is no room for it; then [`write_to`](Self::write_to)
    /// fails.
    pub fn push(&mut self, bytes: &[u8]) -> ControlFlow<()> {
        // The element's kind, digits and two line ends.
        let needed = self.written.len() + bytes.len() + 32;
        if needed > self.taken && !self.take(needed) {
            self.full = true;
            return ControlFlow::Break(());
        }
        // Bulk strings are the same in both versions, and vectors take everything.
        let _ = Writer::new(&mut self.written, Protocol::Resp2).bulk(bytes);
        self.count += 1;
        ControlFlow::Continue(())
    }

    /// Takes twice as much as before, so that this happens seldom.
    fn take(&mut self, needed: usize) -> bool {
        if needed > self.bounds.each {
            return false;
        }
        let size = (self.taken * 2).max(4096).min(self.bounds.each).max(needed);
        let more = size - self.taken;
        let taken = self.bounds.taken.fetch_add(more, Ordering::Relaxed) + more;
        if taken > self.bounds.together {
            self.bounds.taken.fetch_sub(more, Ordering::Relaxed);
            return false;
        }
        self.taken = size;
        self.written.reserve_exact(size - self.written.len());
        true
    }

    /// Writes the array.
    ///
    /// # Errors
    /// There was no room for all elements, or there is none in the reply.
    pub fn write_to(self, reply: &mut Writer<'_, Output>) -> io::Result<()> {
        if self.full {
            let text = "the reply would be longer than replies may be: ask for less";
            return Err(io::Error::new(io::ErrorKind::StorageFull, text));
        }
        reply.array(self.count)?;
        io::Write::write_all(reply.get_mut(), &self.written)
    }
}

impl Drop for Elements<'_> {
    fn drop(&mut self) {
        self.bounds.taken.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_for_each_and_for_all_together() {
        let bounds = Bounds::new(10_000, 15_000);
        let fill = |elements: &mut Elements<'_>| {
            let pushed = (0..1000).take_while(|_| elements.push(&[7; 100]).is_continue());
            pushed.count()
        };
        let mut first = Elements::new(&bounds);
        let most = fill(&mut first);
        assert!((60..100).contains(&most) && first.full, "{most}");
        let mut second = Elements::new(&bounds);
        assert!(fill(&mut second) < most);
        drop(first);
        drop(second);
        assert_eq!(bounds.taken.load(Ordering::Relaxed), 0);
        let mut third = Elements::new(&bounds);
        assert_eq!(fill(&mut third), most);
    }
}
