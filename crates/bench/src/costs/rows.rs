//! The rows of the table of costs that `shinjuku_preempt::measure` measures, and what each is.

/// A row's name, and what is measured, in nanoseconds.
pub const ROWS: &[(&str, &str)] = &[
    (
        "switch/shared-tls",
        "one way: callee-saved registers, mxcsr, x87 control word",
    ),
    (
        "switch/own-tls",
        "one way: the same and wrfsbase; every switch of this crate",
    ),
    (
        "switch/signal-mask",
        "one way: as switch/shared-tls, and a system call for the signal mask",
    ),
    (
        "switch/fp-saved",
        "one way: as switch/shared-tls, and fxsave64: the x87's and the SSE's registers",
    ),
    (
        "switch/fp-restored",
        "one way: as switch/shared-tls, and fxrstor64",
    ),
    (
        "switch/corosensei",
        "one way: the crate corosensei, inlined, without the control words",
    ),
    (
        "switch/swapcontext",
        "one way: glibc's, with a system call for the signal mask",
    ),
    (
        "switch/kernel-thread",
        "one way: from a kernel thread to another on the same core, a futex wake and a wait",
    ),
    (
        "wrfsbase",
        "sets the thread control block; part of every switch between contexts",
    ),
    ("rdfsbase", "reads it"),
    ("syscall/empty", "getppid: into the kernel and back"),
    (
        "context/start-finish",
        "load, run and take of an empty job with its own TLS",
    ),
    (
        "context/start-finish-bound",
        "two bare switches and two wrfsbase of the same run",
    ),
    (
        "probe/chase",
        "a step of a pointer chase in the L1 cache, without a probe",
    ),
    (
        "probe/per-iteration-chase",
        "what a never taken probe adds to such a step",
    ),
    (
        "probe/per-iteration-chase-with-deadline",
        "the same while a deadline is set, as in the inline layout",
    ),
    (
        "probe/sum",
        "an element of a vectorised sum, without a probe",
    ),
    (
        "probe/per-iteration-sum",
        "what a never taken probe per element adds: the sum is no longer vectorised",
    ),
    (
        "probe/per-iteration-sum-every-64",
        "what a probe after every 64th element adds per element",
    ),
    ("guard/enter-leave", "without_preemption around nothing"),
    (
        "cache-line/one-way",
        "from before the store until the other core has seen it, by both cores' TSC",
    ),
    (
        "cache-line/round-trip",
        "and until its acknowledgement on the same line is back",
    ),
    (
        "cache-line/round-trip-two-lines",
        "a word there on one line and back on another, one after the other without a pause",
    ),
    (
        "signal/send",
        "what tgkill to a thread on the other core takes the sender",
    ),
    (
        "signal/until-handler",
        "from before tgkill until the handler's first instruction",
    ),
    (
        "signal/bare",
        "what the interrupted thread loses to a handler that returns at once",
    ),
    (
        "preempt/probe-request",
        "what asking for it takes the sender",
    ),
    (
        "preempt/probe-end-to-end",
        "from before the request until the sender has the suspended context",
    ),
    (
        "preempt/probe",
        "worker time lost, the next context staged in the mailbox",
    ),
    (
        "preempt/probe-unstaged",
        "worker time lost, the next context sent after the answer",
    ),
    (
        "preempt/signal-end-to-end",
        "from before tgkill until the sender has the suspended context",
    ),
    (
        "preempt/signal",
        "worker time lost, the next context staged in the mailbox",
    ),
    (
        "preempt/kernel-thread-end-to-end",
        "from before tgkill until the sender has the suspended context, which is a kernel thread",
    ),
    (
        "preempt/kernel-thread",
        "worker time lost, the next context staged in the mailbox",
    ),
    (
        "preempt/guest-request",
        "what asking for it takes the sender, a write to an eventfd included",
    ),
    (
        "preempt/guest-end-to-end",
        "from before that until the sender has the suspended context, the worker in guest mode",
    ),
    (
        "preempt/guest",
        "worker time lost, the next context staged in the mailbox",
    ),
    (
        "preempt/guest-msi-request",
        "what asking for it takes the sender, by KVM_SIGNAL_MSI",
    ),
    (
        "preempt/guest-msi-end-to-end",
        "from before that until the sender has the suspended context",
    ),
    ("preempt/guest-msi", "worker time lost, sent like that"),
    (
        "preempt/guest-apic-request",
        "what asking for it takes a sender in guest mode, by its own APIC",
    ),
    (
        "preempt/guest-apic-end-to-end",
        "from before that until the sender has the suspended context",
    ),
    ("preempt/guest-apic", "worker time lost, sent like that"),
    (
        "guest/integer-native",
        "a step of dependent integer arithmetic, outside of guest mode",
    ),
    ("guest/integer", "the same in guest mode"),
    (
        "guest/avx2-native",
        "eight elements of a sum by AVX2 in the L1 cache, outside of guest mode",
    ),
    ("guest/avx2", "the same in guest mode"),
    (
        "guest/memory-native",
        "a step of a pointer chase through 8 MiB, outside of guest mode",
    ),
    ("guest/memory", "the same in guest mode"),
    (
        "guest/system-call",
        "an empty system call of code in guest mode, made by the host side",
    ),
];

/// Rows that are measured with stub workers: how many there are, and how many requests are staged
/// at each, the running one included.
pub const STUB_WORKERS: [(&str, usize, usize); 4] = [
    ("dispatcher/c-pre-sq/depth-1", 1, 1),
    ("dispatcher/c-pre-sq/depth-4", 1, 4),
    ("dispatcher/c-pre-sq/8-workers/depth-1", 8, 1),
    ("dispatcher/c-pre-sq/8-workers/depth-4", 8, 4),
];

/// The wholes, and the part or bound that each is compared with in its note.
pub const COMPARED: &[(&str, &str)] = &[
    ("context/start-finish", "context/start-finish-bound"),
    ("preempt/probe", "cache-line/round-trip"),
    ("preempt/signal", "signal/bare"),
    ("preempt/kernel-thread", "preempt/signal"),
    ("preempt/guest", "preempt/signal"),
    ("preempt/guest-msi", "preempt/guest"),
    ("preempt/guest-apic", "preempt/guest"),
    ("guest/integer", "guest/integer-native"),
    ("guest/avx2", "guest/avx2-native"),
    ("guest/memory", "guest/memory-native"),
];

/// The wholes whose notes are in the report's own: what a reader wants to know first.
pub const TOLD: [&str; 5] = [
    "context/start-finish",
    "preempt/probe",
    "preempt/signal",
    "preempt/kernel-thread",
    "preempt/guest",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_that_is_measured_is_explained_once() {
        let explained: Vec<_> = ROWS.iter().map(|(name, _)| *name).collect();
        let measured: Vec<_> = shinjuku_preempt::measure::rows().collect();
        assert_eq!(explained, measured);
        let compared = COMPARED.iter().flat_map(|&(whole, part)| [whole, part]);
        for name in compared.chain(TOLD) {
            assert!(explained.contains(&name), "{name}");
        }
    }
}
