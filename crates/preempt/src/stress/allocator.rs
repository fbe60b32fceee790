//! A global allocator that counts, thread by thread, to show which threads allocate.
//!
//! The count is found through a thread-local, and a context's thread-locals are its own: a
//! handler's allocations are not counted for the worker that runs it. The worker's calls between
//! two jobs on a context's stack ([`Worker::run_on`](crate::Worker::run_on)) have a separate count.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::in_context;

/// The system's allocator. Declare it as a test program's `#[global_allocator]`.
#[derive(Clone, Copy, Default, Debug)]
pub struct CountingAllocator;

thread_local! {
    /// The count of the calling thread's calls; `None`: they are not counted.
    static ACCOUNT: Cell<Option<Allocations>> = const { Cell::new(None) };
}

/// Contexts within the allocator, including those that were preempted there.
static CONTEXTS: AtomicUsize = AtomicUsize::new(0);

/// One thread's count, readable from any thread.
#[derive(Clone, Copy, Debug)]
pub struct Allocations(&'static AtomicU64);

impl Allocations {
    /// Calls of the allocator so far: to allocate, to change a size, to free.
    #[must_use]
    pub fn count(self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The calling thread's count, which begins with the first call. It is leaked.
#[must_use]
pub fn allocations_of_this_thread() -> Allocations {
    ACCOUNT.get().unwrap_or_else(|| {
        let account = Allocations(Box::leak(Box::default()));
        ACCOUNT.set(Some(account));
        account
    })
}

/// How many contexts are within the allocator now. If there are more than threads to run them, some
/// are suspended there, and may hold its locks.
#[must_use]
pub fn contexts_in_the_allocator() -> usize {
    CONTEXTS.load(Ordering::Relaxed)
}

/// Calls made between two jobs, on contexts' stacks.
static BETWEEN_JOBS: AtomicU64 = AtomicU64::new(0);

/// Calls of the allocator so far that workers made between two jobs, on contexts' stacks and
/// thread-locals.
#[must_use]
pub fn allocations_between_jobs() -> u64 {
    BETWEEN_JOBS.load(Ordering::Relaxed)
}

/// Blocks taken so far, by all threads: calls to allocate and to change a size.
#[must_use]
pub fn blocks_taken() -> u64 {
    TAKEN.load(Ordering::Relaxed)
}

static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Counts one call, `body`, that takes a block.
fn taking<Out>(body: impl FnOnce() -> Out) -> Out {
    TAKEN.fetch_add(1, Ordering::Relaxed);
    counted(body)
}

/// Counts one call, `body`.
fn counted<Out>(body: impl FnOnce() -> Out) -> Out {
    if let Some(Allocations(count)) = ACCOUNT.get() {
        count.fetch_add(1, Ordering::Relaxed);
    }
    if crate::current::is_between_jobs() {
        BETWEEN_JOBS.fetch_add(1, Ordering::Relaxed);
    }
    let context = usize::from(in_context());
    CONTEXTS.fetch_add(context, Ordering::Relaxed);
    let out = body();
    CONTEXTS.fetch_sub(context, Ordering::Relaxed);
    out
}

// SAFETY: every call goes to the system's allocator with the same arguments, whose contract is the
// same. The counting allocates nothing, does not panic, and reads thread-locals with constant
// initialisers and no destructor.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the same.
        taking(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the same.
        taking(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller's promise is the same.
        taking(|| unsafe { System.realloc(old, layout, new_size) })
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the same.
        counted(|| unsafe { System.dealloc(old, layout) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_counted_on_the_account_of_its_thread() {
        let layout = Layout::from_size_align(100, 8).unwrap();
        let mine = allocations_of_this_thread();
        let before = mine.count();
        // SAFETY: one block, grown once and freed once with the layout it has.
        let use_it = move || unsafe {
            let block = CountingAllocator.alloc(layout);
            let block = CountingAllocator.realloc(block, layout, 200);
            CountingAllocator.dealloc(block, Layout::from_size_align(200, 8).unwrap());
        };
        use_it();
        assert_eq!(mine.count() - before, 3);
        let theirs = std::thread::spawn(move || {
            use_it();
            let theirs = allocations_of_this_thread();
            use_it();
            theirs.count()
        });
        assert_eq!(theirs.join().unwrap(), 3);
        assert_eq!(mine.count() - before, 3);
        assert_eq!(allocations_of_this_thread().count(), mine.count());
        assert_eq!(contexts_in_the_allocator(), 0);
    }
}
