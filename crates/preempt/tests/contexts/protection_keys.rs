//! Rights by protection keys (pkeys(7)) under preemption by signal: the kernel runs handlers with
//! its own rights.

use std::sync::{Arc, OnceLock};

use shinjuku_preempt::{Dispatched, HardPreemption, Mechanism, PoolConfig, Signal};
use shinjuku_tests_support::contexts::{Job, OneThread};

const NO_WRITING: u32 = 2;

/// A key, and a page protected by it. `None` if there are no keys.
fn key_and_page() -> Option<(i32, usize)> {
    const BYTES: usize = 4096;
    // SAFETY: a new mapping; the key has no other user.
    unsafe {
        let key = libc::syscall(libc::SYS_pkey_alloc, 0, 0);
        if key < 0 {
            return None;
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        let answer = libc::syscall(libc::SYS_pkey_mprotect, page, BYTES, protection, key);
        assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
        Some((i32::try_from(key).unwrap(), page as usize))
    }
}

/// The calling thread's rights to what `key` protects.
fn rights(key: i32) -> u32 {
    let all: u32;
    // SAFETY: called only if there are keys.
    unsafe { std::arch::asm!("rdpkru", in("ecx") 0, out("eax") all, out("edx") _) };
    all >> (2 * key) & 3
}

fn set_rights(key: i32, rights: u32) {
    let all: u32;
    // SAFETY: called only if there are keys; the key is the test's.
    unsafe {
        std::arch::asm!("rdpkru", in("ecx") 0, out("eax") all, out("edx") _);
        let all = all & !(3 << (2 * key)) | rights << (2 * key);
        std::arch::asm!("wrpkru", in("eax") all, in("ecx") 0, in("edx") 0);
    }
}

#[test]
fn a_preemption_by_signal_closes_no_key() {
    let Some((key, page)) = key_and_page() else {
        eprintln!("SKIPPED a_preemption_by_signal_closes_no_key: no protection keys here");
        return;
    };
    assert_eq!(rights(key), 0, "open on this thread, the worker's");
    let config = PoolConfig::default().contexts(2);
    let mut thread = OneThread::new(config, |job: Job| job());
    // SAFETY: the jobs rely on nothing that the token's contract excludes.
    let signal = Signal::install(unsafe { HardPreemption::allow() }).unwrap();
    let link = thread.worker.link();
    let dispatched = Arc::new(OnceLock::<Dispatched>::new());
    let job: Job = {
        let dispatched = Arc::clone(&dispatched);
        Box::new(move || {
            set_rights(key, NO_WRITING);
            dispatched.get().unwrap().request();
            signal.interrupt(&link).unwrap();
            let after = rights(key);
            set_rights(key, 0);
            after.into()
        })
    };
    let ready = thread.load(job);
    assert!(dispatched.set(thread.send(ready)).is_ok());
    let suspended = thread.step().expect_err("it was interrupted");
    assert_eq!(rights(key), 0, "the worker's own, not the kernel's default");

    let writes: Job = Box::new(move || {
        let place = page as *mut u32;
        // SAFETY: the page is there for good, and its key is open.
        unsafe {
            place.write_volatile(7);
            place.read_volatile().into()
        }
    });
    let result = thread.run(writes).ok();
    assert_eq!(result, Some(7), "the next request can use what is open");
    thread.send(suspended);
    let result = thread.step().ok();
    assert_eq!(result, Some(NO_WRITING.into()), "its own rights are back");
    assert_eq!(thread.hand_back().unwrap().leaked, 0);
}
