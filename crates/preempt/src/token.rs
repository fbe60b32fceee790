//! The permission to preempt code without probes. It has a file of its own: its `# Safety` section
//! is the one contract that a user of the runtime signs.

/// Permission to stop handlers where they do not poll: at any instruction, by signal or posted
/// interrupt, or at function entries, by compiled probes.
///
/// Probes preempt code where it polls, so they need no permission. A hard mechanism stops code
/// anywhere, and [compiled probes](crate::CompiledProbes) stop it at function entries. That code
/// may resume under another OS thread; only a person who knows the code can promise that this is
/// sound. The token is `Copy`: the promise is about the program, not about one use.
#[derive(Clone, Copy, Debug)]
pub struct HardPreemption(());

impl HardPreemption {
    /// Allows hard preemption in this process.
    ///
    /// # Safety
    /// No code that handlers reach, in any language, may rely for its *soundness* on:
    /// - **the identity of the OS thread** staying the same within a request: `gettid`, thread ids
    ///   given to other processes or to the kernel, the kernel's per-thread state (credentials,
    ///   signal mask, timers directed at a thread, robust-futex lists, `io_uring` rings set up with
    ///   `SINGLE_ISSUER`, per-thread seccomp filters, protection keys set by `pkey_set` within a
    ///   request (keys that were open on the worker's thread before stay open), restartable
    ///   sequences registered by hand). `pthread_self`, `std::thread::current` and thread-local
    ///   variables *do* stay the same;
    /// - **contended priority-inheritance futexes** (`PTHREAD_PRIO_INHERIT` mutexes): the kernel
    ///   records the OS thread as owner, and a release from another one fails or hangs;
    /// - **shadow stacks** (CET): a process that runs with them is refused at start;
    /// - **system calls that never answer `EINTR`**: the handler is installed with `SA_RESTART`,
    ///   but `poll`, `epoll_wait`, `nanosleep` in C code, and `recv` with a time-out still answer
    ///   `EINTR`. (`std` retries where it promises to.)
    ///
    /// Signal handlers that run on workers must not switch stacks or leave by `longjmp`; those
    /// installed with `SA_NODEFER`, an empty mask and without `SA_ONSTACK` must not depend on the
    /// thread they return on. No code may unblock or block the preemption signal within a request
    /// without restoring it before the request ends.
    #[must_use]
    pub const unsafe fn allow() -> Self {
        Self(())
    }
}
