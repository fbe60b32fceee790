//! Where the code of the C library lies, and that of the allocator.
//!
//! A signal stops a request wherever it is. Within the allocator the request holds a lock that the
//! next ones want: those run into the lock one after the other, and each costs a signal and a turn.
//! A request is there for long only while the kernel works for the allocator, since that asks for
//! memory or gives it back; the signal comes when the kernel has done that, and the lock is given
//! back some hundred nanoseconds later.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::OnceLock;

/// The instruction that calls the kernel.
const SYSTEM_CALL: [u8; 2] = [0x0f, 0x05];

/// The code of the shared objects that have `malloc` and the C library's system calls. They are
/// two where the program brings an allocator. Empty where the program is linked statically.
static CODE: OnceLock<[Range<usize>; 2]> = OnceLock::new();

/// Looks where the two lie. Allocates, and takes the dynamic linker's lock.
pub(crate) fn find() {
    let functions = [
        libc::malloc as *const () as usize,
        libc::mprotect as *const () as usize,
    ];
    CODE.get_or_init(|| functions.map(code_around));
}

/// Whether the registers are those of code within the C library or the allocator that runs there.
/// Code that the signal has found asleep in a system call does not run: the kernel is about to
/// begin that again, or has answered that it was interrupted. For the signal's handler.
pub(crate) fn runs_there(registers: &[libc::greg_t]) -> bool {
    let instruction = registers[libc::REG_RIP as usize] as usize;
    let is_interrupted = registers[libc::REG_RAX as usize] == -libc::greg_t::from(libc::EINTR);
    is_there(instruction)
        && !is_system_call(instruction)
        && !(is_interrupted && is_system_call(instruction.wrapping_sub(SYSTEM_CALL.len())))
}

fn is_there(address: usize) -> bool {
    let code = CODE.get().into_iter().flatten();
    code.into_iter().any(|range| range.contains(&address))
}

fn is_system_call(address: usize) -> bool {
    // SAFETY: both bytes lie in code that is mapped for reading, and stays so: this crate's own
    // calls of `malloc` and `mprotect` are bound to these objects, which keeps them loaded.
    is_there(address)
        && is_there(address + 1)
        && unsafe { *(address as *const [u8; 2]) } == SYSTEM_CALL
}

/// The executable segment that has this function; empty if that is the program's own. A program
/// that is no PIE may take a stub of its own for the function.
fn code_around(function: usize) -> Range<usize> {
    let mut search = Search {
        function,
        found: 0..0,
        is_program: true,
    };
    // SAFETY: `visit` gets what it is called with here, for as long as this call lasts.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

struct Search {
    function: usize,
    found: Range<usize>,
    /// The object that is visited is the first, which is the program.
    is_program: bool,
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: `data` is `code_around`'s, which waits. The linker's description of an object has so
    // many headers, which live as long as this call.
    let (search, info, headers) = unsafe {
        let info = &*info;
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        (&mut *data.cast::<Search>(), info, headers)
    };
    let is_program = std::mem::replace(&mut search.is_program, false);
    let is_code = |header: &&libc::Elf64_Phdr| {
        let readable_code = libc::PF_R | libc::PF_X;
        header.p_type == libc::PT_LOAD && header.p_flags & readable_code == readable_code
    };
    let found = headers.iter().filter(is_code).find_map(|header| {
        let start = (info.dlpi_addr + header.p_vaddr) as usize;
        let code = start..start + header.p_memsz as usize;
        code.contains(&search.function).then_some(code)
    });
    let Some(code) = found else {
        return 0;
    };
    if !is_program {
        search.found = code;
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers(instruction: usize, result: i64) -> [libc::greg_t; 23] {
        let mut registers = [0; 23];
        registers[libc::REG_RIP as usize] = instruction as i64;
        registers[libc::REG_RAX as usize] = result;
        registers
    }

    #[test]
    fn the_c_librarys_code_is_told_from_the_programs() {
        find();
        let malloc = libc::malloc as *const () as usize;
        assert!(runs_there(&registers(malloc, 0)));
        assert!(!runs_there(&registers(find as *const () as usize, 0)));
        assert!(!runs_there(&registers(0, 0)));
        assert!(!runs_there(&registers(usize::MAX, 0)));
    }

    #[test]
    fn code_that_slept_in_a_system_call_does_not_run() {
        find();
        let code = CODE.get().unwrap()[1].clone();
        let call = code
            .clone()
            .find(|&address| is_system_call(address))
            .unwrap();
        assert!(!runs_there(&registers(call, 0)), "it begins again");
        assert!(!runs_there(&registers(call + 2, -i64::from(libc::EINTR))));
        assert!(
            runs_there(&registers(call + 2, 0)),
            "it has done what it was to do"
        );
    }
}
