//! How each system call of code in guest mode is handled.
//!
//! Most have the same effect whichever side makes them for the worker's thread: they are
//! *forwarded*, made by the host side with the same arguments. Some depend on the caller's
//! registers, on its FS base, or on where it would resume. For these the worker leaves guest mode
//! with all registers and makes the call itself, *natively*; it comes back to guest mode when it
//! next enters a context. Native calls are right by construction, and merely slower.

/// The handling of a system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Policy {
    /// The host side makes it.
    Forward,
    /// Forwarded; then the thread's signal mask is read, which decides whether the code may be
    /// preempted.
    ForwardAndReadMask,
    /// The worker leaves guest mode and makes it.
    Native,
    /// Answered with an error.
    Refuse(i32),
    /// Our own call: the worker leaves guest mode and resumes after the call.
    Leave,
}

/// The number of the call that leaves guest mode. Linux has no such number, and would answer
/// ENOSYS.
pub(super) const LEAVE: u64 = 0x5368_6a6b;

/// The handling of call `number`.
pub(super) fn policy(number: u64) -> Policy {
    if number == LEAVE {
        return Policy::Leave;
    }
    match number as libc::c_long {
        // The child resumes behind the call, with the caller's registers: a thread with the stack
        // and FS base that it was given, a process with copies. Neither is in guest mode.
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork => Policy::Native,
        // The program is replaced, and with it the virtual machine's mapping.
        libc::SYS_execve | libc::SYS_execveat => Policy::Native,
        // It takes all registers from a frame on the caller's stack. (A worker in guest mode that
        // resumes a context preempted by a signal ends up here.)
        libc::SYS_rt_sigreturn => Policy::Native,
        // FS and GS base are the caller's, not the host side's; so are the rights to use more
        // vector state.
        libc::SYS_arch_prctl => Policy::Native,
        // Descriptor tables and port rights are the host's: guest mode has its own.
        libc::SYS_modify_ldt
        | libc::SYS_set_thread_area
        | libc::SYS_get_thread_area
        | libc::SYS_iopl
        | libc::SYS_ioperm => Policy::Native,
        // The thread ends, but not on the host side's stack.
        libc::SYS_exit => Policy::Native,
        // The kernel could not abort a critical section whose instructions it does not see.
        // Libraries manage without.
        libc::SYS_rseq => Policy::Refuse(libc::ENOSYS),
        libc::SYS_rt_sigprocmask => Policy::ForwardAndReadMask,
        // Ends the process from anywhere.
        libc::SYS_exit_group
        // Calls about the kernel's thread, which the host side runs on. (Code on the alternate
        // stack is a signal handler, and those run natively.)
        | libc::SYS_sigaltstack
        | libc::SYS_set_tid_address
        | libc::SYS_set_robust_list
        // Calls about addresses, which are the same on both sides. KVM follows their changes in the
        // page tables.
        | libc::SYS_futex
        | libc::SYS_mmap
        | libc::SYS_munmap
        | libc::SYS_mremap
        | libc::SYS_brk
        | libc::SYS_mprotect
        | libc::SYS_madvise => Policy::Forward,
        // All others: about memory, files, sockets, clocks, the process or the kernel's thread.
        // Numbers unknown here get the kernel's own answer.
        _ => Policy::Forward,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_depend_on_the_callers_registers_are_made_natively() {
        for number in [
            libc::SYS_clone,
            libc::SYS_clone3,
            libc::SYS_vfork,
            libc::SYS_execve,
            libc::SYS_rt_sigreturn,
            libc::SYS_arch_prctl,
            libc::SYS_exit,
        ] {
            assert_eq!(policy(number as u64), Policy::Native, "call {number}");
        }
        assert_eq!(policy(libc::SYS_read as u64), Policy::Forward);
        assert_eq!(policy(9999), Policy::Forward);
        assert_eq!(policy(LEAVE), Policy::Leave);
    }
}
