//! Mappings that change while code in guest mode uses them.

use shinjuku_tests_support::{need, test_name};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::stage::{Flag, Stage};

const PAGE: usize = 4096;

/// A mapping of some pages, unmapped on drop.
struct Pages(*mut u8, usize);

// SAFETY: plain memory.
unsafe impl Send for Pages {}

impl Pages {
    fn new(pages: usize) -> Self {
        // SAFETY: a fresh mapping.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                pages * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        Self(base.cast(), pages * PAGE)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: ours alone.
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }

    /// Write-protects it and lifts that again.
    fn protect_and_lift(&mut self) {
        // SAFETY: our own mapping.
        unsafe {
            assert_eq!(libc::mprotect(self.0.cast(), self.1, libc::PROT_READ), 0);
            let both = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(libc::mprotect(self.0.cast(), self.1, both), 0);
        }
    }

    fn grow(&mut self) {
        // SAFETY: our own mapping, which moves.
        let base = unsafe { libc::mremap(self.0.cast(), self.1, 2 * self.1, libc::MREMAP_MAYMOVE) };
        assert_ne!(base, libc::MAP_FAILED);
        (self.0, self.1) = (base.cast(), 2 * self.1);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: ours, not used any more.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

/// Maps, fills, protects, grows, checks and unmaps once.
fn churn(number: u64) {
    let mut pages = Pages::new(8);
    let mark = number as u8;
    assert!(pages.bytes().iter().all(|byte| *byte == 0), "old contents");
    pages.bytes().fill(mark);
    pages.protect_and_lift();
    pages.bytes()[PAGE] = mark.wrapping_add(1);
    pages.grow();
    assert_eq!(pages.bytes()[PAGE], mark.wrapping_add(1));
    assert_eq!(pages.bytes()[PAGE + 1], mark);
    assert_eq!(pages.bytes()[8 * PAGE], 0);
}

#[test]
fn mappings_may_change_from_all_sides_at_once() {
    let mut stage = need!(Stage::new(test_name!()));
    let stop = Flag::default();
    let storms: Vec<_> = (0..2)
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                let mut number = 0;
                while !stop.is_set() {
                    churn(number);
                    number += 1;
                }
            })
        })
        .collect();
    let done = Arc::new(AtomicU64::new(0));
    let (job_done, job_stop) = (Arc::clone(&done), stop.clone());
    let job = stage.load(move || {
        while !job_stop.is_set() {
            churn(job_done.fetch_add(1, Ordering::Relaxed));
        }
        0
    });
    let mut dispatched = stage.send(0, job);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(600) || done.load(Ordering::Relaxed) < 20 {
        assert!(
            start.elapsed() < shinjuku_tests_support::PATIENCE,
            "the job gets nowhere"
        );
        let suspended = stage.preempt(0, &dispatched);
        dispatched = stage.send(0, suspended.into());
        std::thread::sleep(Duration::from_millis(1));
    }
    stop.set();
    stage.finish(0);
    for storm in storms {
        storm.join().unwrap();
    }
    assert_eq!(stage.guest_counters(0).left, 0);
    stage.end();
}

#[test]
fn memory_of_a_fork_stays_right_on_both_sides() {
    let mut stage = need!(Stage::new(test_name!()));
    let (stop, wrong) = (Flag::default(), Arc::new(AtomicU64::new(0)));
    let (job_stop, job_wrong) = (stop.clone(), Arc::clone(&wrong));
    let job = stage.load(move || {
        let mut numbers = vec![0u64; 1 << 16];
        let mut turn = 0;
        while !job_stop.is_set() {
            turn += 1;
            numbers.iter_mut().for_each(|number| *number += 1);
            let right = numbers.iter().all(|number| *number == turn);
            job_wrong.fetch_add(u64::from(!right), Ordering::Relaxed);
        }
        0
    });
    let mut dispatched = stage.send(0, job);
    for _ in 0..20 {
        // It write-protects every page of the process, tables and interrupt stack included.
        // SAFETY: the child only ends.
        match unsafe { libc::fork() } {
            // SAFETY: ends without running any of the parent's code.
            0 => unsafe { libc::_exit(0) },
            child => {
                assert!(child > 0);
                let suspended = stage.preempt(0, &dispatched);
                dispatched = stage.send(0, suspended.into());
                // SAFETY: our own child.
                unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            }
        }
    }
    stop.set();
    stage.finish(0);
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
    stage.end();
}

#[test]
fn ten_thousand_mappings_are_as_good_as_one() {
    const MAPPINGS: usize = 12_000;
    let mut stage = need!(Stage::new(test_name!()));
    // Every other page has other rights, so that the kernel merges none of them.
    let mut pages = Pages::new(MAPPINGS);
    for page in (0..MAPPINGS).step_by(2) {
        // SAFETY: our own mapping.
        let answer =
            unsafe { libc::mprotect(pages.0.add(page * PAGE).cast(), PAGE, libc::PROT_READ) };
        assert_eq!(answer, 0);
    }
    let (sum, counters) = stage.run(move || {
        let bytes = pages.bytes();
        for page in (1..MAPPINGS).step_by(2) {
            bytes[page * PAGE] = 1;
        }
        let firsts = (0..MAPPINGS).map(|page| usize::from(bytes[page * PAGE]));
        firsts.sum::<usize>()
    });
    assert_eq!(sum, MAPPINGS / 2);
    assert_eq!(counters.left, 0, "{counters:?}");
    stage.end();
}

#[test]
fn the_heap_grows_by_brk() {
    let mut stage = need!(Stage::new(test_name!()));
    let (right, counters) = stage.run(|| {
        const BYTES: usize = 1 << 20;
        // SAFETY: no other code uses `sbrk` here: other heaps grow elsewhere.
        unsafe {
            let base = libc::sbrk(BYTES as isize).cast::<u8>();
            assert_ne!(base as isize, -1);
            (0..BYTES).step_by(PAGE).all(|at| {
                let empty = base.add(at).read_volatile() == 0;
                base.add(at).write_volatile(1);
                empty
            })
        }
    });
    assert!(right);
    assert_eq!(counters.left, 0, "{counters:?}");
    stage.end();
}
