//! Why a runtime did not start.

use shinjuku_preempt::{
    BackendError, CompiledProbesError, PoolError, RealtimeError, SignalError, TimerError,
    Unsupported,
};

use crate::config::{ConfigError, MechanismKind};
use crate::layout::LayoutError;
use crate::watch::WatchError;

/// Why a runtime did not start. The module [`error`](crate::error) has the errors within it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A value of the configuration is not allowed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Contexts cannot be made.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Workers cannot run here.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A thread cannot have its core.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Real-time priority was asked for and refused.
    #[error(transparent)]
    Realtime(#[from] RealtimeError),
    /// The signal handler cannot be installed.
    #[error(transparent)]
    Signal(#[from] SignalError),
    /// Compiled probes were asked for by name, and the program has none.
    #[error("preemption.mechanism is \"compiled-probe\", but {0}")]
    CompiledProbes(CompiledProbesError),
    /// Workers, or the dispatcher, cannot enter the special mode that the mechanism needs.
    #[error("preemption.mechanism is \"{mechanism}\", but {cause}")]
    Backend {
        /// What was asked for.
        mechanism: MechanismKind,
        /// What is missing, and what to do about it.
        cause: BackendError,
    },
    /// A mechanism was asked for that is not in this program.
    #[error(
        "preemption.mechanism is \"{mechanism}\", but this program was built without it: turn on the feature `{feature}` of \
         the crate shinjuku"
    )]
    NotBuilt {
        /// What was asked for.
        mechanism: MechanismKind,
        /// The feature that has it.
        feature: &'static str,
    },
    /// Special modes take another thread that interrupts.
    #[error(
        "preemption.mechanism is \"{mechanism}\", but in the inline layout and the symmetric one there is \
         no dispatcher's thread to interrupt the request: take layout \"threads\", or \"escalation\""
    )]
    Inline {
        /// What was asked for.
        mechanism: MechanismKind,
    },
    /// A worker's special mode does not extend to contexts that are kernel threads.
    #[error(
        "preemption.mechanism is \"{mechanism}\", but context_kind is \"kernel-thread\", and a request's own thread \
         is not in a worker's special mode: take \"signal\" or \"escalation\", or leave context_kind out"
    )]
    KernelThreads {
        /// What was asked for.
        mechanism: MechanismKind,
    },
    /// A thread of the layouts `inline` and `symmetric` cannot have its timer.
    #[error(transparent)]
    Timer(#[from] TimerError),
    /// A mechanism that interrupts handlers anywhere was asked for without the token.
    #[error(
        "preemption.mechanism is \"{mechanism}\", which interrupts handlers at any instruction: call \
         `allow_hard_preemption` on the builder with the token, whose constructor says what handlers must not rely on; \
         or choose \"probe\""
    )]
    NotAllowed {
        /// What was asked for.
        mechanism: MechanismKind,
    },
    /// The handler's `init` returned an error.
    #[error("the handler's init failed: {0}")]
    Init(Box<dyn std::error::Error + Send + Sync>),
    /// A callback panicked.
    #[error("the handler's {callback} panicked on {place}")]
    Panicked {
        /// Which callback.
        callback: &'static str,
        /// On which thread.
        place: String,
    },
    /// The transport cannot serve another worker.
    #[error("the transport failed to start: {0}")]
    Transport(std::io::Error),
    /// The socket on which the runtime is watched cannot be made.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// The operating system gave no thread.
    #[error("thread {name} could not be started: {cause}")]
    Thread {
        /// The thread's name.
        name: String,
        /// The system's error.
        cause: std::io::Error,
    },
}
