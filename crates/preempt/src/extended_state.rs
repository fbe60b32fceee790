//! The needs of a signal frame on the thread that returns from it, beyond general registers: room
//! for large vector state, and restored rights by protection keys.
//!
//! **Room.** Linux keeps the state that xsave saves in a buffer per thread. AMX's tiles (8 KiB) get
//! room in it only when the thread first uses them (`xfd`: the CPU raises an exception then). All
//! later frames of that thread have room for tiles, too, whatever the code uses. `rt_sigreturn`
//! compares a frame's size with that of the buffer; if the buffer is smaller it restores x87 and
//! SSE, and *silently* nothing else (`check_xstate_in_sigframe`). So a worker that resumes a
//! context checks what its frame has. If the worker may lack room for that, it loads zeroes into
//! it: the CPU raises the exception, and the kernel makes room. It may: the permission for tiles is
//! the process's, and the frame shows that it has been given.
//!
//! **Rights.** The kernel runs handlers with its own default rights by protection keys, and
//! `rt_sigreturn` restores those of the interrupted code. A context that leaves from a handler
//! would leave its worker with the default, under which open keys are closed. So the worker
//! restores the rights that it was bound with.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::atomic::{AtomicU64, Ordering};

/// Protection keys, as a bit of XCR0.
pub(crate) const PROTECTION_KEYS: u64 = 1 << 9;

/// A part of every frame, and of every thread's buffer.
pub(crate) const X87: u64 = 1;

/// Components (bits of XCR0) for which the kernel may make room when they are first used.
static LARGE: AtomicU64 = AtomicU64::new(0);

/// Examines the CPU. Returns the calling thread's rights by protection keys, if there are keys.
pub(crate) fn prepare() -> Option<u32> {
    if !has_xgetbv() {
        return None;
    }
    LARGE.fetch_or(large(), Ordering::Relaxed);
    has_protection_keys().then(rights)
}

/// The vector registers and other components that the kernel has enabled. In guest mode, those that
/// the guest has.
pub(crate) fn xcr0() -> u64 {
    // SAFETY: `has_xgetbv`, or there is virtualisation, and every CPU that has it has the
    // instruction.
    unsafe { xgetbv0() }
}

#[target_feature(enable = "xsave")]
fn xgetbv0() -> u64 {
    // SAFETY: register 0 exists where the instruction does.
    unsafe { _xgetbv(0) }
}

/// Leaf 1, ECX: OSXSAVE.
fn has_xgetbv() -> bool {
    __cpuid(1).ecx & 1 << 27 != 0
}

/// For each component, leaf 0Dh tells whether its first use can raise an exception (ECX bit 2).
fn large() -> u64 {
    let on = xcr0();
    (2..63)
        .filter(|&component| on & 1 << component != 0)
        .filter(|&component| __cpuid_count(0xd, component).ecx & 1 << 2 != 0)
        .fold(0, |large, component| large | 1 << component)
}

/// The parts of the frame for which the thread that returns from it must have room: [`X87`], and
/// large components. Async-signal-safe.
pub(crate) fn components(frame: &libc::ucontext_t) -> u64 {
    /// `struct _fpx_sw_bytes`, behind what `fxsave` stores: a mark, a size, and the components.
    const SOFTWARE_AT: usize = 464;
    const MARK: u32 = 0x4650_5853;
    let state = frame.uc_mcontext.fpregs.cast::<u8>();
    if state.is_null() {
        return X87;
    }
    // SAFETY: the kernel's frame has an area of 512 bytes there, aligned to 16 at least, of which
    // these are the last.
    let (mark, components) = unsafe {
        (
            state.add(SOFTWARE_AT).cast::<u32>().read(),
            state.add(SOFTWARE_AT + 8).cast::<u64>().read(),
        )
    };
    let present = if mark == MARK { components } else { 0 };
    X87 | present & LARGE.load(Ordering::Relaxed)
}

/// Makes the kernel make room for `components` in the calling thread's state, and leaves them as
/// they are before their first use. Allocates nothing.
///
/// # Panics
/// If the components lie beyond those of any CPU so far.
#[cold]
#[inline(never)]
pub(crate) fn make_room(components: u64) {
    /// In the standard format; tiles end at 11,008.
    const BYTES: usize = 16 * 1024;
    const HEADER: usize = 512 / 8;
    /// MXCSR is loaded along with AVX, whatever the header says.
    const MXCSR: usize = 24 / 8;
    #[repr(C, align(64))]
    struct Area([u64; BYTES / 8]);
    assert!(
        standard_bytes(components) <= BYTES,
        "room for {components:#x}"
    );
    let mut area = Area([0; BYTES / 8]);
    area.0[MXCSR] = u64::from(mxcsr());
    // The header's first word selects the components to load; the others are reset to their initial
    // state. Only loading raises the exception.
    for loaded in [components, 0] {
        area.0[HEADER] = loaded;
        // SAFETY: the area is aligned, large enough and of the standard format. No code relies on
        // these components between two calls. Without room, and without more memory, the kernel
        // ends the process.
        unsafe {
            asm!(
                "xrstor64 [{area}]",
                area = in(reg) &raw const area,
                in("eax") components as u32,
                in("edx") (components >> 32) as u32,
                options(nostack),
            );
        }
    }
}

/// Rounding, masks and exceptions of the calling thread's SSE and AVX code.
fn mxcsr() -> u32 {
    let mut mxcsr = 0;
    // SAFETY: stores the register to a local.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut mxcsr, options(nostack, preserves_flags)) };
    mxcsr
}

/// Bytes that `components` take in the standard format. A leaf tells the place and size of each but
/// the first two, which are in the first 576 bytes, with the header.
pub(crate) fn standard_bytes(components: u64) -> usize {
    (2..63)
        .filter(|component| components & 1 << component != 0)
        .map(|component| {
            let leaf = __cpuid_count(0xd, component);
            (leaf.eax + leaf.ebx) as usize
        })
        .fold(576, usize::max)
}

/// Leaf 7, ECX: OSPKE.
fn has_protection_keys() -> bool {
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx & 1 << 4 != 0 && xcr0() & PROTECTION_KEYS != 0
}

/// Two bits for each key: no access, no writing.
fn rights() -> u32 {
    let rights: u32;
    // SAFETY: reads a register that exists.
    unsafe {
        asm!("rdpkru", in("ecx") 0, out("eax") rights, out("edx") _, options(nomem, nostack));
    }
    rights
}

/// Restores the `rights` that [`prepare`] returned on this thread. In guest mode there are none.
#[cold]
#[inline(never)]
pub(crate) fn take_back(rights: u32) {
    if xcr0() & PROTECTION_KEYS != 0 {
        // SAFETY: the register exists, and the thread may reach all memory that these rights open.
        unsafe {
            asm!("wrpkru", in("eax") rights, in("ecx") 0, in("edx") 0, options(nostack));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Cycles;
    use crate::current::current;
    use crate::{Generation, HardPreemption, Outcome, Pool, PoolConfig, Signal, Worker};

    const AVX: u64 = 1 << 2;
    const TILES: u64 = 1 << 18;
    const FIRST: Generation = Generation(1);

    /// Loads a vector, has the running dispatch preempted by signal, and compares the vector.
    fn hold_a_vector() -> bool {
        let from: [u64; 4] = [1, 2, 3, 4];
        let mut to = [0; 4];
        current().expect("in a context").request(FIRST, Cycles(0));
        // SAFETY: a signal to the calling thread, for which there is a handler; it comes before the
        // call returns.
        unsafe {
            let (process, thread) = (libc::getpid(), libc::gettid());
            asm!(
                "vmovups ymm7, [{from}]",
                "syscall",
                "vmovups [{to}], ymm7",
                "vzeroupper",
                from = in(reg) from.as_ptr(),
                to = in(reg) to.as_mut_ptr(),
                inout("rax") libc::SYS_tgkill => _,
                in("rdi") process,
                in("rsi") thread,
                in("rdx") crate::signal::SIGNAL,
                out("rcx") _,
                out("r11") _,
                out("ymm7") _,
            );
        }
        from == to
    }

    /// A request that uses `first` and then a vector migrates in between, by signal. Returns
    /// whether the vector was kept, and the components for which its second worker has room.
    fn migrate_with_a_vector(first: fn()) -> (bool, u64) {
        let config = PoolConfig::default().contexts(1);
        let entry = |first: fn()| {
            first();
            hold_a_vector()
        };
        let Pool { mut idle, handles } = Pool::new(config, entry).unwrap();
        // SAFETY: the job relies on nothing that the token's contract excludes.
        Signal::install(unsafe { HardPreemption::allow() }).unwrap();
        let mut worker = Worker::bind(0).unwrap();
        let ready = idle.pop().unwrap().load(first);
        let Outcome::Preempted(suspended) = worker.run(ready.into(), FIRST) else {
            panic!("it interrupts itself")
        };
        let elsewhere = std::thread::spawn(move || {
            let mut worker = Worker::bind(1).unwrap();
            let Outcome::Finished(finished) = worker.run(suspended.into(), Generation(2)) else {
                panic!("no preemption was requested")
            };
            let (context, kept) = finished.take();
            (context, kept.unwrap(), worker.head.has_room_for.get())
        });
        let (context, kept, room) = elsewhere.join().unwrap();
        let report = handles.hand_back(vec![context], Duration::from_secs(20));
        assert_eq!(report.leaked, 0);
        (kept, room)
    }

    /// The CPU has tiles, and the kernel permits this process to use them.
    fn has_tiles() -> bool {
        const REQUEST_PERMISSION: libc::c_int = 0x1023;
        // SAFETY: asks for a permission; kernels that do not know of it refuse.
        __cpuid_count(7, 0).edx & 1 << 24 != 0
            && unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, 18) } == 0
    }

    #[test]
    fn room_for_what_a_frame_has_is_made_on_the_thread_that_resumes() {
        if !std::arch::is_x86_feature_detected!("avx") {
            eprintln!(
                "SKIPPED room_for_what_a_frame_has_is_made_on_the_thread_that_resumes: no AVX"
            );
            return;
        }
        // Acts as if the first use of AVX raised an exception.
        LARGE.fetch_or(AVX, Ordering::Relaxed);
        assert_eq!(migrate_with_a_vector(|| ()), (true, X87 | AVX));
    }

    #[test]
    fn making_room_leaves_the_masks_and_the_rounding_alone() {
        if !std::arch::is_x86_feature_detected!("avx") {
            eprintln!("SKIPPED making_room_leaves_the_masks_and_the_rounding_alone: no AVX");
            return;
        }
        let before = mxcsr();
        make_room(AVX);
        assert_eq!(mxcsr(), before);
    }

    #[test]
    fn vectors_survive_on_a_thread_that_never_used_tiles() {
        if !has_tiles() {
            eprintln!("SKIPPED vectors_survive_on_a_thread_that_never_used_tiles: no AMX here");
            return;
        }
        let (kept, room) = migrate_with_a_vector(|| make_room(TILES));
        assert!(kept);
        assert_eq!(room & TILES, TILES);
    }
}
