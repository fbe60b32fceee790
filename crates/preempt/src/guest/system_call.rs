//! System calls of the host side. None goes through libc, which would write the worker's `errno`
//! between a call of the guest's code and its read of the answer.

use std::arch::{asm, naked_asm};

/// A system call as the guest's code made it: number and arguments.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub(super) number: u64,
    pub(super) arguments: [u64; 6],
}

/// Not an answer of the kernel's: the call was abandoned before it began, and shall be made again.
const GIVEN_UP: isize = -4096;

/// Bytes from the start of [`gate`] to its `syscall` instruction, and to the answer for an
/// abandoned call.
const SYSCALL_AT: usize = 5;
const GIVE_UP_AT: usize = 8;

/// Makes the call in the registers unless `[rcx]` is set.
///
/// ```text
///   gate + 0   cmp, jne   ┐ an interrupt that comes here finds a call that has not begun, or that the kernel would
///   gate + 5   syscall    ┘ begin again: it sets the instruction pointer to gate + 8
///   gate + 7   ret          the answer is in rax
///   gate + 8   the call is given up
/// ```
#[unsafe(naked)]
unsafe extern "C" fn gate() {
    naked_asm!(
        "cmp byte ptr [rcx], 0",
        "jne 2f",
        "syscall",
        "ret",
        "2:",
        "mov rax, {given_up}",
        "ret",
        given_up = const GIVEN_UP,
    )
}

/// Whether `gate` was assembled as drawn.
pub(super) fn gate_is_as_drawn() -> bool {
    let code = gate as *const () as *const [u8; GIVE_UP_AT];
    // SAFETY: the function is longer than that, and code can be read.
    let code = unsafe { code.read() };
    code[SYSCALL_AT..] == [0x0f, 0x05, 0xc3]
}

/// Where to resume so that the call at `instruction` is abandoned; `None` if no call can be
/// abandoned there.
pub(super) fn give_up(instruction: usize) -> Option<usize> {
    let start = gate as *const () as usize;
    (start..=start + SYSCALL_AT)
        .contains(&instruction)
        .then_some(start + GIVE_UP_AT)
}

/// Makes `call` for the guest. `None`: an interrupt came first, and the call has not begun. A call
/// that the kernel would restart after a signal also ends like that.
///
/// # Safety
/// The guest's code could have made the call itself here, and `interrupted` can be read.
pub(super) unsafe fn forward(call: &Call, interrupted: *const bool) -> Option<i64> {
    let [a, b, c, d, e, f] = call.arguments;
    let answer: isize;
    // SAFETY: the caller promises it. `gate` reads the flag, makes the call and returns; the kernel
    // clobbers rcx, r11 and rax.
    unsafe {
        asm!(
            "call {gate}",
            gate = sym gate,
            inlateout("rax") call.number as isize => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            inlateout("rcx") interrupted => _,
            lateout("r11") _,
        );
    }
    (answer != GIVEN_UP).then_some(answer as i64)
}

/// Makes a system call; returns the kernel's answer, negative for errors.
///
/// # Safety
/// As for the call.
pub(super) unsafe fn system_call(number: libc::c_long, arguments: [usize; 4]) -> isize {
    let [a, b, c, d] = arguments;
    let answer: isize;
    // SAFETY: the caller promises it. The kernel clobbers rcx, r11 and rax.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// `ioctl`, without `errno`.
///
/// # Safety
/// As for the request.
pub(super) unsafe fn ioctl(file: i32, request: u64, argument: usize) -> isize {
    // SAFETY: the caller promises it.
    unsafe {
        system_call(
            libc::SYS_ioctl,
            [file as usize, request as usize, argument, 0],
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn the_gate_is_as_drawn() {
        assert!(gate_is_as_drawn());
        let start = gate as *const () as usize;
        assert_eq!(give_up(start), Some(start + 8));
        assert_eq!(give_up(start + 5), Some(start + 8));
        assert_eq!(give_up(start + 7), None);
        assert_eq!(give_up(start - 1), None);
    }

    #[test]
    fn a_call_is_made_unless_an_interrupt_came_first() {
        let interrupted = AtomicBool::new(false);
        let call = Call {
            number: libc::SYS_getppid as u64,
            arguments: [0; 6],
        };
        // SAFETY: the call only returns a number.
        let answer = unsafe { forward(&call, interrupted.as_ptr()) };
        assert_eq!(answer, Some(i64::from(std::os::unix::process::parent_id())));
        interrupted.store(true, Ordering::Relaxed);
        // SAFETY: as above.
        assert_eq!(unsafe { forward(&call, interrupted.as_ptr()) }, None);
    }
}
