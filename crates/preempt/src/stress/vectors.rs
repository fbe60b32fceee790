//! Operations that hold values in vector and mask registers.

use std::arch::naked_asm;
use std::arch::x86_64::__cpuid_count;

use super::job::State;
use super::world::World;

const SPINS: u64 = 20;

/// Room for AVX-512's 32 registers of 64 bytes and 8 masks.
#[repr(C, align(64))]
struct Registers {
    vectors: [[u64; 8]; 32],
    masks: [u64; 8],
}

/// One of AMX's tiles: 16 rows of 64 bytes.
type Tile = [[u64; 8]; 16];

type Hold = unsafe extern "C" fn(*const Registers, *mut Registers, u64);

/// Loads xmm0 to xmm15, spins, stores them.
///
/// # Safety
/// The pointers must be valid for a [`Registers`] each, and the CPU must have the registers.
#[unsafe(naked)]
unsafe extern "C" fn hold_sse(from: *const Registers, to: *mut Registers, spins: u64) {
    naked_asm!(
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
        "movups xmm\\n, [rdi + 64 * \\n]",
        ".endr",
        "2: pause",
        "dec rdx",
        "jnz 2b",
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
        "movups [rsi + 64 * \\n], xmm\\n",
        ".endr",
        "ret",
    )
}

/// Loads ymm0 to ymm15, spins, stores them.
///
/// # Safety
/// As for [`hold_sse`].
#[unsafe(naked)]
unsafe extern "C" fn hold_avx(from: *const Registers, to: *mut Registers, spins: u64) {
    naked_asm!(
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
        "vmovups ymm\\n, [rdi + 64 * \\n]",
        ".endr",
        "2: pause",
        "dec rdx",
        "jnz 2b",
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
        "vmovups [rsi + 64 * \\n], ymm\\n",
        ".endr",
        "vzeroupper",
        "ret",
    )
}

/// Loads zmm0 to zmm31 and k0 to k7, spins, stores them.
///
/// # Safety
/// As for [`hold_sse`].
#[unsafe(naked)]
unsafe extern "C" fn hold_avx512(from: *const Registers, to: *mut Registers, spins: u64) {
    naked_asm!(
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
        "vmovups zmm\\n, [rdi + 64 * \\n]",
        ".endr",
        ".irp n, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31",
        "vmovups zmm\\n, [rdi + 64 * \\n]",
        ".endr",
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7",
        "kmovq k\\n, [rdi + 2048 + 8 * \\n]",
        ".endr",
        "2: pause",
        "dec rdx",
        "jnz 2b",
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
        "vmovups [rsi + 64 * \\n], zmm\\n",
        ".endr",
        ".irp n, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31",
        "vmovups [rsi + 64 * \\n], zmm\\n",
        ".endr",
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7",
        "kmovq [rsi + 2048 + 8 * \\n], k\\n",
        ".endr",
        "vzeroupper",
        "ret",
    )
}

/// Whether `registers` registers of `words` words each, and the masks if there are any, keep their
/// values.
///
/// # Safety
/// The CPU must have the registers that `hold` names.
unsafe fn held(
    state: &mut State,
    hold: Hold,
    registers: usize,
    words: usize,
    masks: usize,
) -> bool {
    let from = Registers {
        vectors: std::array::from_fn(|_| std::array::from_fn(|_| state.random())),
        masks: std::array::from_fn(|_| state.random()),
    };
    let mut to = Registers {
        vectors: [[0; 8]; 32],
        masks: [0; 8],
    };
    // SAFETY: both are of the required type; the caller answers for the CPU.
    unsafe { hold(&from, &mut to, SPINS) };
    let vectors = from.vectors.iter().zip(&to.vectors).take(registers);
    vectors
        .into_iter()
        .all(|(before, after)| before[..words] == after[..words])
        && from.masks[..masks] == to.masks[..masks]
}

pub(super) fn sse(state: &mut State, _: &World) -> bool {
    // SAFETY: every x86-64 CPU has SSE2.
    unsafe { held(state, hold_sse, 16, 2, 0) }
}

pub(super) fn avx(state: &mut State, _: &World) -> bool {
    // SAFETY: in the list of operations only if the CPU has AVX.
    unsafe { held(state, hold_avx, 16, 4, 0) }
}

pub(super) fn avx512(state: &mut State, _: &World) -> bool {
    // SAFETY: in the list of operations only if the CPU has AVX-512BW.
    unsafe { held(state, hold_avx512, 32, 8, 8) }
}

/// Loads tmm0, spins, stores it, and leaves the tiles unused.
///
/// # Safety
/// The pointers must be valid for a [`Tile`] each, and [`has_tiles`] must have returned true.
#[unsafe(naked)]
unsafe extern "C" fn hold_tile(from: *const Tile, to: *mut Tile, spins: u64) {
    naked_asm!(
        "ldtilecfg [rip + {shape}]",
        "mov eax, 64",
        "tileloadd tmm0, [rdi + 1 * rax]",
        "2: pause",
        "dec rdx",
        "jnz 2b",
        "tilestored [rsi + 1 * rax], tmm0",
        "tilerelease",
        "ret",
        shape = sym SHAPE,
    )
}

/// The operand of `ldtilecfg`: palette 1, and a single tile of 16 rows of 64 bytes.
static SHAPE: [u8; 64] = {
    let mut shape = [0; 64];
    shape[0] = 1;
    shape[16] = 64;
    shape[48] = 16;
    shape
};

/// Whether the CPU has tiles (leaf 7, EDX: AMX-TILE) and the kernel lets this process use them.
pub(super) fn has_tiles() -> bool {
    const REQUEST_PERMISSION: libc::c_int = 0x1023;
    const TILES: libc::c_int = 18;
    // SAFETY: asks for a permission; kernels that do not know of it refuse.
    __cpuid_count(7, 0).edx & 1 << 24 != 0
        && unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILES) } == 0
}

/// Because of this, the other operations on vectors run both on threads that have used tiles and on
/// threads that have not.
pub(super) fn tiles(state: &mut State, _: &World) -> bool {
    let from: Tile = std::array::from_fn(|_| std::array::from_fn(|_| state.random()));
    let mut to: Tile = [[0; 8]; 16];
    // SAFETY: both are of the required type; in the list of operations only if there are tiles.
    unsafe { hold_tile(&from, &mut to, SPINS) };
    from == to
}
