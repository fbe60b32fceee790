//! Faults in guest mode cause the same signals as elsewhere.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Output;

use shinjuku_tests_support::process::{as_child, is_child, this_test};
use shinjuku_tests_support::{need, test_name};

use crate::stage::{Stage, guest};

/// Runs `test` of this binary in a process that is meant to die. `None`: it is skipped here.
fn child(test: &str) -> Option<Output> {
    drop(guest(test, Default::default())?);
    Some(as_child(test).output().unwrap())
}

/// Asserts that the process died of `signal` with `words` in its message.
fn assert_died(output: &Output, signal: i32, words: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(signal), "{text}");
    assert!(text.contains(words), "{text}");
}

/// In this test's child runs `job`, which must die of `signal`, with `words` in the message.
fn dies(test: &str, signal: i32, words: &str, job: impl FnOnce() -> u64 + Send + 'static) {
    if is_child() {
        die_of(job);
    }
    assert_died(&need!(child(test)), signal, words);
}

fn die_of(job: impl FnOnce() -> u64 + Send + 'static) -> ! {
    let mut stage = Stage::new("").unwrap();
    let job = stage.load(job);
    stage.send(0, job);
    stage.finish(0);
    unreachable!("the process has died");
}

/// In this test's child runs `part`, which must end well.
fn ends_well(test: &str, part: fn()) {
    if is_child() {
        return part();
    }
    let output = need!(child(test));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

#[test]
fn a_wild_access_dies_with_a_message_that_names_the_context() {
    // SAFETY: none: the point is to fault.
    dies(
        test_name!(),
        libc::SIGSEGV,
        "the request in context 0 dies of signal 11 (address 0x123456789000)",
        || unsafe { (std::hint::black_box(0x1234_5678_9000usize) as *const u64).read_volatile() },
    );
}

#[test]
fn an_access_behind_the_last_page_dies() {
    // SAFETY: none: the point is to fault.
    dies(
        test_name!(),
        libc::SIGSEGV,
        "the request in context 0 dies of signal 11 (address 0x7ffffffff000)",
        || unsafe { (std::hint::black_box(0x7fff_ffff_f000usize) as *const u64).read_volatile() },
    );
}

#[test]
fn an_access_that_kvm_does_in_parts_leaves_nothing_behind() {
    ends_well(test_name!(), skip_a_wide_access);
}

/// Reads 16 bytes where there is no memory, by an instruction that the handler skips; then runs
/// more code in guest mode.
fn skip_a_wide_access() {
    extern "C" fn skip(_: libc::c_int, _: *mut libc::siginfo_t, frame: *mut libc::c_void) {
        // `movdqu xmm0, [rax]`
        const LENGTH: i64 = 4;
        // SAFETY: the kernel passes a valid frame, of the instruction below.
        let registers = unsafe { &mut (*frame.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        registers[libc::REG_RIP as usize] += LENGTH;
    }
    // SAFETY: before any other handler.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = skip as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
    }
    // In the last GiB, so that guest mode gets it, and KVM has to emulate accesses behind its end.
    const LAST: usize = 0x7fff_fff0_0000;
    // SAFETY: a fresh mapping, if there is none.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        libc::mmap(
            LAST as *mut libc::c_void,
            4096,
            libc::PROT_READ,
            flags,
            -1,
            0,
        );
    }
    let mut stage = Stage::new("").unwrap();
    // SAFETY: the page is mapped now.
    stage.run(|| unsafe { (LAST as *const u8).read_volatile() });
    for _ in 0..3 {
        let ((), counters) = stage.run(|| {
            // SAFETY: the handler skips it.
            unsafe {
                std::arch::asm!("movdqu xmm0, [rax]", in("rax") 0x7fff_ffff_f000usize, out("xmm0") _)
            }
        });
        assert_eq!(counters.left, 1, "{counters:?}");
        let (sum, counters) = stage.run(|| (0..1000u64).map(std::hint::black_box).sum::<u64>());
        assert_eq!((sum, counters.left), (499_500, 0), "{counters:?}");
    }
    stage.end();
}

#[test]
fn a_null_pointer_dies_with_a_message_that_names_the_context() {
    // SAFETY: none: the point is to fault.
    dies(
        test_name!(),
        libc::SIGSEGV,
        "the request in context 0 dies of signal 11 (address 0x40)",
        || unsafe { (std::hint::black_box(64usize) as *const u64).read_volatile() },
    );
}

#[test]
fn a_write_to_code_dies() {
    dies(
        test_name!(),
        libc::SIGSEGV,
        "the request in context 0 dies of signal 11",
        || {
            // SAFETY: none: the point is to fault.
            unsafe { (is_child as *const () as *mut u8).write_volatile(0) };
            0
        },
    );
}

#[test]
fn an_access_behind_the_end_of_a_file_dies_with_a_message_that_names_the_context() {
    dies(
        test_name!(),
        libc::SIGBUS,
        "the request in context 0 dies of signal 7",
        || {
            let path = std::env::temp_dir().join(format!("shinjuku-end-{}", std::process::id()));
            let file = std::fs::File::create_new(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            // SAFETY: none: the point is to fault.
            unsafe {
                let page = libc::mmap(
                    std::ptr::null_mut(),
                    4096,
                    libc::PROT_READ,
                    libc::MAP_PRIVATE,
                    std::os::fd::AsRawFd::as_raw_fd(&file),
                    0,
                );
                page.cast::<u64>().read_volatile()
            }
        },
    );
}

/// A page that may be read and written, except for a guard by `madvise`, with which newer C
/// libraries guard stacks. `None` if the kernel has no such guards.
fn guarded_page() -> Option<usize> {
    const MADV_GUARD_INSTALL: libc::c_int = 102;
    // SAFETY: a fresh mapping.
    unsafe {
        let page = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(page, libc::MAP_FAILED);
        (libc::madvise(page, 4096, MADV_GUARD_INSTALL) == 0).then_some(page as usize)
    }
}

#[test]
fn an_access_to_a_guarded_page_dies_with_a_message_that_names_the_context() {
    let Some(page) = guarded_page() else {
        println!("SKIPPED {}: the kernel has no such guards", test_name!());
        return;
    };
    // SAFETY: none: the point is to fault.
    dies(
        test_name!(),
        libc::SIGSEGV,
        "the request in context 0 dies of signal 11",
        move || unsafe { (page as *const u64).read_volatile() },
    );
}

#[test]
fn a_stack_overflow_dies_with_a_message_that_names_the_context() {
    #[inline(never)]
    fn descend(n: u64) -> u64 {
        std::hint::black_box([n; 64])[3] + if n == u64::MAX { 0 } else { descend(n + 1) }
    }
    dies(
        test_name!(),
        libc::SIGABRT,
        "the request in context 0 has overflowed its stack of 256 KiB",
        || descend(0),
    );
}

#[test]
fn a_division_by_zero_is_sigfpe() {
    dies(test_name!(), libc::SIGFPE, "", || {
        // SAFETY: none: the point is to fault.
        unsafe {
            std::arch::asm!("div {0:e}", in(reg) 0, inout("eax") 1 => _, inout("edx") 0 => _);
        }
        0
    });
}

#[test]
fn an_undefined_instruction_is_sigill() {
    // SAFETY: none: the point is to fault.
    dies(test_name!(), libc::SIGILL, "", || unsafe {
        std::arch::asm!("ud2", options(noreturn))
    });
}

/// Which instruction the child executes.
const INSTRUCTION: &str = "SHINJUKU_TEST_INSTRUCTION";

#[test]
fn privileged_instructions_and_breakpoints_are_what_they_are() {
    drop(need!(guest(test_name!(), Default::default())));
    for (name, signal) in [
        ("hlt", libc::SIGSEGV),
        ("out", libc::SIGSEGV),
        ("int3", libc::SIGTRAP),
    ] {
        let mut child = this_test("faults::die_of_an_instruction");
        let output = child.env(INSTRUCTION, name).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(signal), "{name}: {text}");
    }
}

#[test]
#[ignore = "the child of another test"]
fn die_of_an_instruction() {
    let name = std::env::var(INSTRUCTION).unwrap_or_default();
    // SAFETY: none: the point is to fault.
    die_of(move || unsafe {
        match name.as_str() {
            "hlt" => std::arch::asm!("hlt"),
            "out" => std::arch::asm!("out 0x80, al", in("al") 0u8),
            "int3" => std::arch::asm!("int3"),
            other => panic!("no such instruction: {other}"),
        }
        0
    });
}

#[test]
fn a_fault_that_the_program_handles_goes_on_where_it_was() {
    ends_well(test_name!(), recover);
}

/// Writes to `page` while values are in vector registers, in the flags and in the red zone, and
/// checks them afterwards.
fn write_with_all_registers_in_use(page: usize) -> bool {
    let (low, high) = ([0x1111_2222_3333_4444u64; 2], [0x5555_6666_7777_8888u64; 2]);
    let (mut low_after, mut high_after) = ([0u64; 2], [0u64; 2]);
    let (carry, red_zone): (u8, u64);
    // SAFETY: the handler makes the page writable; the two words below the stack pointer are the
    // red zone's.
    unsafe {
        std::arch::asm!(
            "movdqu xmm3, [{low}]",
            "movdqu xmm12, [{high}]",
            "mov [rsp - 16], {page}",
            "stc",
            "mov [{page}], {page}",
            "setc {carry}",
            "mov {red_zone}, [rsp - 16]",
            "movdqu [{low_after}], xmm3",
            "movdqu [{high_after}], xmm12",
            page = in(reg) page,
            low = in(reg) low.as_ptr(),
            high = in(reg) high.as_ptr(),
            low_after = in(reg) low_after.as_mut_ptr(),
            high_after = in(reg) high_after.as_mut_ptr(),
            carry = out(reg_byte) carry,
            red_zone = out(reg) red_zone,
            out("xmm3") _, out("xmm12") _,
        );
    }
    // SAFETY: written just now.
    let written = unsafe { (page as *const usize).read_volatile() };
    carry == 1
        && written == page
        && red_zone == page as u64
        && low_after == low
        && high_after == high
}

/// As above, with the registers of AVX-512, which are restored last: 64 bytes and a mask.
#[target_feature(enable = "avx512f")]
fn write_with_wide_registers_in_use(page: usize) -> bool {
    let (low, high) = ([0x1122_3344u32; 16], [0x5566_7788u32; 16]);
    let (mut low_after, mut high_after) = ([0u32; 16], [0u32; 16]);
    let mask: u32;
    // SAFETY: the handler makes the page writable.
    unsafe {
        std::arch::asm!(
            "vmovdqu32 zmm3, [{low}]",
            "vmovdqu32 zmm29, [{high}]",
            "mov {mask:e}, 0x5a5a",
            "kmovw k3, {mask:e}",
            "mov [{page}], {page}",
            "kmovw {mask:e}, k3",
            "vmovdqu32 [{low_after}], zmm3",
            "vmovdqu32 [{high_after}], zmm29",
            page = in(reg) page,
            low = in(reg) low.as_ptr(),
            high = in(reg) high.as_ptr(),
            low_after = in(reg) low_after.as_mut_ptr(),
            high_after = in(reg) high_after.as_mut_ptr(),
            mask = out(reg) mask,
            out("zmm3") _, out("zmm29") _, out("k3") _,
        );
    }
    mask == 0x5a5a && low_after == low && high_after == high
}

/// As above, with the registers of AVX.
#[target_feature(enable = "avx")]
fn write_with_long_registers_in_use(page: usize) -> bool {
    let (low, high) = ([0x1122_3344u32; 8], [0x5566_7788u32; 8]);
    let (mut low_after, mut high_after) = ([0u32; 8], [0u32; 8]);
    // SAFETY: the handler makes the page writable.
    unsafe {
        std::arch::asm!(
            "vmovdqu ymm3, [{low}]",
            "vmovdqu ymm12, [{high}]",
            "mov [{page}], {page}",
            "vmovdqu [{low_after}], ymm3",
            "vmovdqu [{high_after}], ymm12",
            page = in(reg) page,
            low = in(reg) low.as_ptr(),
            high = in(reg) high.as_ptr(),
            low_after = in(reg) low_after.as_mut_ptr(),
            high_after = in(reg) high_after.as_mut_ptr(),
            out("ymm3") _, out("ymm12") _,
        );
    }
    low_after == low && high_after == high
}

/// Installs a handler that maps the missing page, as garbage collectors do.
fn recover() {
    static HANDLED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    extern "C" fn map_it(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel passes valid info; the page is ours, below.
        unsafe {
            let page = (*info).si_addr() as usize & !4095;
            HANDLED.store(page, std::sync::atomic::Ordering::Relaxed);
            libc::mprotect(
                page as *mut libc::c_void,
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
            );
        }
    }
    // SAFETY: before any other handler.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = map_it as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
    }
    let mut writes: Vec<fn(usize) -> bool> = vec![write_with_all_registers_in_use];
    if is_x86_feature_detected!("avx") {
        // SAFETY: the CPU has it, and guest mode has what the CPU has.
        writes.push(|page| unsafe { write_with_long_registers_in_use(page) });
    }
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: as above.
        writes.push(|page| unsafe { write_with_wide_registers_in_use(page) });
    }
    let mut stage = Stage::new("").unwrap();
    for (at, write) in writes.into_iter().enumerate() {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping without another user.
        let page = unsafe {
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_NONE, flags, -1, 0) as usize
        };
        let (kept, counters) = stage.run(move || write(page));
        assert!(
            kept,
            "registers were lost on the way out of guest mode: {at}"
        );
        assert_eq!(HANDLED.load(std::sync::atomic::Ordering::Relaxed), page);
        assert_eq!(counters.left, 1, "{counters:?}");
    }
    stage.end();
}
