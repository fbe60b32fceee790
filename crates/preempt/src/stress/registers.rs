//! Operations that hold values in general and x87 registers, flags, control words and the red zone.
//!
//! They are in assembly, since the compiler would place the values at will.

use std::arch::naked_asm;

use super::job::State;
use super::world::World;

const SPINS: u64 = 20;

/// Fills every general register, the carry flag and the 128 bytes below the stack pointer from
/// `seed`, spins, and returns 1 if all are unchanged.
///
/// ```text
///   rsp + 8 ..    rbp, rbx, r12 to r15
///   rsp           seed
///   rsp - 8 n     seed + 100 + n, for n = 1 to 16: the red zone
/// ```
#[unsafe(naked)]
extern "C" fn hold_general(seed: u64, spins: u64) -> u64 {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "push rdi",
        "mov rcx, rsi",
        ".irp n, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16",
        "lea rax, [rdi + 100 + \\n]",
        "mov [rsp - 8 * \\n], rax",
        ".endr",
        "lea rax, [rdi + 1]",
        "lea rbx, [rdi + 2]",
        "lea rdx, [rdi + 3]",
        "lea rsi, [rdi + 4]",
        "lea rbp, [rdi + 5]",
        ".irp n, 8, 9, 10, 11, 12, 13, 14, 15",
        "lea r\\n, [rdi + \\n]",
        ".endr",
        "stc",
        // Neither instruction touches the carry flag.
        "2: pause",
        "dec rcx",
        "jnz 2b",
        "jnc 3f",
        "cmp rdi, [rsp]",
        "jne 3f",
        "sub rax, rdi",
        "cmp rax, 1",
        "jne 3f",
        "sub rbx, rdi",
        "cmp rbx, 2",
        "jne 3f",
        "sub rdx, rdi",
        "cmp rdx, 3",
        "jne 3f",
        "sub rsi, rdi",
        "cmp rsi, 4",
        "jne 3f",
        "sub rbp, rdi",
        "cmp rbp, 5",
        "jne 3f",
        ".irp n, 8, 9, 10, 11, 12, 13, 14, 15",
        "sub r\\n, rdi",
        "cmp r\\n, \\n",
        "jne 3f",
        ".endr",
        ".irp n, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16",
        "mov rax, [rsp - 8 * \\n]",
        "sub rax, rdi",
        "cmp rax, 100 + \\n",
        "jne 3f",
        ".endr",
        "mov eax, 1",
        "jmp 4f",
        "3: xor eax, eax",
        "4: pop rdi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// Sets MXCSR and the x87 control word, spins, and returns their values then: MXCSR in the upper
/// half. Restores the caller's.
#[unsafe(naked)]
extern "C" fn hold_control_words(mxcsr: u32, x87: u32, spins: u64) -> u64 {
    naked_asm!(
        // rsp - 8: the caller's MXCSR and control word; rsp - 16: ours. Leaf code may use the red
        // zone.
        "stmxcsr [rsp - 8]",
        "fnstcw [rsp - 4]",
        "mov [rsp - 16], edi",
        "mov [rsp - 12], esi",
        "ldmxcsr [rsp - 16]",
        "fldcw [rsp - 12]",
        "2: pause",
        "dec rdx",
        "jnz 2b",
        "stmxcsr [rsp - 16]",
        "fnstcw [rsp - 12]",
        "ldmxcsr [rsp - 8]",
        "fldcw [rsp - 4]",
        "mov eax, [rsp - 16]",
        "shl rax, 32",
        "movzx ecx, word ptr [rsp - 12]",
        "or rax, rcx",
        "ret",
    )
}

/// Loads eight numbers into the x87 stack, spins, and stores them to `out`, last first.
///
/// # Safety
/// `numbers` must be readable and `out` writable for eight numbers.
#[unsafe(naked)]
unsafe extern "C" fn hold_x87(numbers: *const f64, out: *mut f64, spins: u64) {
    naked_asm!(
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7",
        "fld qword ptr [rdi + 8 * \\n]",
        ".endr",
        "2: pause",
        "dec rdx",
        "jnz 2b",
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7",
        "fstp qword ptr [rsi + 8 * \\n]",
        ".endr",
        "ret",
    )
}

pub(super) fn general(state: &mut State, _: &World) -> bool {
    hold_general(state.random(), SPINS) == 1
}

/// Every context has its rounding modes; all exceptions stay masked.
pub(super) fn control_words(state: &mut State, _: &World) -> bool {
    let mode = state.below(4) as u32;
    let mxcsr = 0x1f80 | mode << 13;
    let x87 = 0x037f & !(3 << 10) | mode << 10;
    hold_control_words(mxcsr, x87, SPINS) == u64::from(mxcsr) << 32 | u64::from(x87)
}

pub(super) fn x87_stack(state: &mut State, _: &World) -> bool {
    let numbers: [f64; 8] = std::array::from_fn(|_| state.below(1 << 50) as f64);
    let mut out = [0.0; 8];
    // SAFETY: both arrays have eight numbers, and the x87 stack is empty between functions.
    unsafe { hold_x87(numbers.as_ptr(), out.as_mut_ptr(), SPINS) };
    out.reverse();
    out == numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_comes_back() {
        assert_eq!(hold_general(0x1234_5678_9abc_def0, 3), 1);
        assert_eq!(hold_control_words(0x5f80, 0x0b7f, 3), 0x5f80_0000_0b7f);
        assert_eq!(hold_control_words(0x1f80, 0x037f, 3), 0x1f80_0000_037f);
        assert_eq!(1.0f64 / 3.0 * 3.0, std::hint::black_box(1.0));
    }
}
