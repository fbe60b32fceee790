//! Making a pool of contexts, and ending their backing threads.

use std::marker::PhantomData;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::backing_thread::{PrivateStack, REFUSED, backing_thread_main};
use crate::context::{ContextId, Handle, Head, Idle, InAndOut};
use crate::kernel_thread::ContextKind;
use crate::platform::{Unsupported, check_platform};
use crate::{credentials, overflow, signal};

/// A new backing thread on another core parks while its maker yields so many times.
const YIELDS: u32 = 50;
/// The first sleep of a maker that waits for longer; each further one lasts this much longer.
const FIRST_SLEEP: Duration = Duration::from_micros(20);

/// So many contexts have a warm stack, those that are used first: 16 MiB in all.
const MOST_WARM: usize = 512;

/// How many contexts, and how large.
///
/// ```
/// use shinjuku_preempt::PoolConfig;
///
/// let config = PoolConfig::default().contexts(8).stack_size(64 * 1024);
/// assert_eq!((config.contexts, config.name.as_str()), (8, "context"));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use]
pub struct PoolConfig {
    /// Number of contexts, 1 to [`PoolConfig::MAX_CONTEXTS`]: how many jobs can have started and
    /// not ended.
    pub contexts: usize,
    /// Bytes of stack that a job may use, 16 KiB or more; room for a signal frame comes on top.
    /// Touched lazily.
    pub stack_size: usize,
    /// Backing threads are named `<name>-<number>`; a stack overflow reports the number.
    pub name: String,
    /// What the contexts are made of.
    pub kind: ContextKind,
}

impl PoolConfig {
    /// Context numbers have 16 bits in a mailbox.
    pub const MAX_CONTEXTS: usize = 1 << 16;
    /// Smallest [`stack_size`](Self::stack_size) in bytes.
    pub const MIN_STACK: usize = 16 * 1024;

    /// Sets [`contexts`](field@Self::contexts).
    pub fn contexts(self, contexts: usize) -> Self {
        Self { contexts, ..self }
    }

    /// Sets [`stack_size`](field@Self::stack_size).
    pub fn stack_size(self, stack_size: usize) -> Self {
        Self { stack_size, ..self }
    }

    /// Sets [`name`](field@Self::name).
    pub fn name(self, name: impl Into<String>) -> Self {
        let name = name.into();
        Self { name, ..self }
    }

    /// Sets [`kind`](field@Self::kind).
    pub fn kind(self, kind: ContextKind) -> Self {
        Self { kind, ..self }
    }
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            contexts: 64,
            stack_size: 256 * 1024,
            name: "context".to_owned(),
            kind: ContextKind::default(),
        }
    }
}

/// Why a pool could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The machine or kernel lacks something.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A number is out of range.
    #[error("{key} is {value}, but must be {allowed}")]
    OutOfRange {
        /// The field's name.
        key: &'static str,
        /// Its value.
        value: usize,
        /// The range that is allowed.
        allowed: String,
    },
    /// The system gave no more threads or memory.
    #[error(
        "backing thread {number} of {wanted} could not be made: {cause}. Each context takes a sleeping thread and its \
         stack: lower `contexts` or `stack_size`, or raise the limits on threads (ulimit -u, the cgroup's pids.max), \
         address space (ulimit -v) and memory maps (vm.max_map_count)"
    )]
    Thread {
        /// How many there were already.
        number: usize,
        /// How many were asked for.
        wanted: usize,
        /// The system's error.
        cause: std::io::Error,
    },
}

/// A fresh pool: its contexts, all idle, and the handles to end it.
#[derive(Debug)]
pub struct Pool<T, R> {
    /// The contexts, in the order of their numbers.
    pub idle: Vec<Idle<T, R>>,
    /// Keep this until the end.
    pub handles: Handles<T, R>,
}

/// Holds a pool's backing threads. Dropping it leaks them.
#[must_use = "hand the contexts back through it, or their threads stay"]
pub struct Handles<T, R> {
    backing_threads: Vec<Option<BackingThread>>,
    of: InAndOut<T, R>,
}

struct BackingThread {
    head: &'static Head,
    /// `None`: the context is a kernel thread.
    private: Option<PrivateStack>,
    thread: JoinHandle<()>,
}

impl<T, R> std::fmt::Debug for Handles<T, R> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "Handles({} contexts)",
            self.backing_threads.len()
        )
    }
}

/// The fate of a pool at its end.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HandBack {
    /// Backing threads that ended, their thread-local destructors run.
    pub returned: usize,
    /// Contexts that were not handed back in time: leaked with their backing thread, stack and
    /// everything on it.
    pub leaked: usize,
}

/// Why one context could not be made.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum Refusal {
    Thread(#[from] std::io::Error),
    Unsupported(#[from] Unsupported),
}

impl<T: Send + 'static, R: Send + 'static> Pool<T, R> {
    /// Makes the pool: every context runs `entry` for each job it is given.
    ///
    /// # Errors
    /// [`PoolError`] if the machine cannot run contexts, a number is out of range, or threads ran
    /// out; contexts made until then are taken down again.
    pub fn new(
        config: PoolConfig,
        entry: impl Fn(T) -> R + Send + Sync + 'static,
    ) -> Result<Self, PoolError> {
        check_platform()?;
        let PoolConfig {
            contexts,
            stack_size,
            kind,
            ..
        } = config;
        if !(1..=PoolConfig::MAX_CONTEXTS).contains(&contexts) {
            let allowed = format!("1 to {}", PoolConfig::MAX_CONTEXTS);
            return Err(PoolError::OutOfRange {
                key: "contexts",
                value: contexts,
                allowed,
            });
        }
        if !(PoolConfig::MIN_STACK..=1 << 40).contains(&stack_size) {
            let allowed = format!("{} to {} bytes", PoolConfig::MIN_STACK, 1u64 << 40);
            return Err(PoolError::OutOfRange {
                key: "stack_size",
                value: stack_size,
                allowed,
            });
        }
        overflow::install();
        let entry: Arc<dyn Fn(T) -> R + Send + Sync> = Arc::new(entry);
        let mut pool = Self {
            idle: Vec::with_capacity(contexts),
            handles: Handles {
                backing_threads: Vec::new(),
                of: PhantomData,
            },
        };
        for number in 0..contexts {
            if let Err(refusal) = pool.add_context(number, &config, Arc::clone(&entry)) {
                pool.handles.hand_back(pool.idle, Duration::from_secs(10));
                return Err(match refusal {
                    Refusal::Thread(cause) => PoolError::Thread {
                        number,
                        wanted: contexts,
                        cause,
                    },
                    Refusal::Unsupported(cause) => cause.into(),
                });
            }
        }
        if kind == ContextKind::Stack {
            credentials::install();
        }
        Ok(pool)
    }

    fn add_context(
        &mut self,
        number: usize,
        config: &PoolConfig,
        entry: Arc<dyn Fn(T) -> R + Send + Sync>,
    ) -> Result<(), Refusal> {
        // Idle contexts are taken from the end.
        let is_warm = number + MOST_WARM >= config.contexts;
        let private = match config.kind {
            ContextKind::Stack => Some(PrivateStack::new()?),
            ContextKind::KernelThread => None,
        };
        let id = ContextId(u16::try_from(number).expect("contexts are at most 2^16"));
        let head = Head::obtain::<T, R>(id, config.kind);
        let private_top = private.as_ref().map(PrivateStack::top);
        let spawned = std::thread::Builder::new()
            .name(format!("{}-{number}", config.name))
            .stack_size(config.stack_size + signal::frame_room())
            .spawn(
                // SAFETY: the head is released, and the private stack freed, only after this thread
                // has ended.
                move || unsafe { backing_thread_main(head, private_top, is_warm, entry) },
            );
        let thread = match spawned {
            Ok(thread) => thread,
            Err(error) => {
                // SAFETY: the thread does not exist, so no other code knows the head.
                unsafe { head.release::<T, R>() };
                return Err(error.into());
            }
        };
        if wait_until_parked(head, &thread, number) == REFUSED {
            let _ = thread.join();
            // SAFETY: the backing thread has ended, and there is no handle.
            unsafe { head.release::<T, R>() };
            return Err(Unsupported::RestartableSequences.into());
        }
        // SAFETY: this is the context's one handle.
        let handle = unsafe { Handle::new(head) };
        self.idle.push(Idle(handle));
        self.handles.backing_threads.push(Some(BackingThread {
            head,
            private,
            thread,
        }));
        Ok(())
    }
}

/// Waits until the backing thread of context `number` has parked or refused; returns which.
///
/// The two may have one core between them. Under SCHED_FIFO the caller keeps that core while it
/// yields, since yielding is for threads of its own priority, and the backing thread has ordinary
/// scheduling. So the caller sleeps before long.
fn wait_until_parked(head: &Head, thread: &JoinHandle<()>, number: usize) -> u32 {
    let mut pauses = 0;
    loop {
        let said = head.parked.load(Ordering::Acquire);
        if said != 0 {
            return said;
        }
        assert!(
            !thread.is_finished(),
            "the backing thread of context {number} died before it could park"
        );
        if pauses < YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(FIRST_SLEEP.saturating_mul(pauses - YIELDS + 1));
        }
        pauses += 1;
    }
}

/// Joins a thread, unless that has not ended by the deadline. Its own panic could only come from a
/// thread-local destructor, reported by the hook.
///
/// [`JoinHandle::is_finished`] would not do: it says so before the C library gives back what the
/// thread has of the allocator, for which that takes locks, and a suspended context may hold one.
fn join_until(thread: JoinHandle<()>, deadline: Option<Instant>) -> Result<(), JoinHandle<()>> {
    let is_late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
    // SAFETY: the handle is there, so the thread was neither joined nor detached.
    while unsafe { libc::pthread_tryjoin_np(thread.as_pthread_t(), std::ptr::null_mut()) } != 0 {
        if is_late() {
            return Err(thread);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    // The thread was joined, so the handle must not detach it.
    let _ = thread.into_pthread_t();
    Ok(())
}

impl<T, R> Handles<T, R> {
    /// Gives the stacks of `idle` back to their backing threads, which end and run their
    /// thread-local destructors. Waits at most `patience` for them. Every context of the pool that
    /// is not among `idle`, or does not end in time, is leaked with its backing thread and counted.
    pub fn hand_back(mut self, idle: Vec<Idle<T, R>>, patience: Duration) -> HandBack {
        let mut ending = Vec::with_capacity(idle.len());
        for Idle(handle) in idle {
            let Some(backing_thread) = self
                .backing_threads
                .get_mut(usize::from(handle.head().id.get().0))
                .and_then(|backing_thread| {
                    // A context of another pool could have the same number.
                    backing_thread
                        .take_if(|backing_thread| std::ptr::eq(backing_thread.head, handle.head()))
                })
            else {
                continue;
            };
            let head = handle.head();
            head.hand_back.store(true, Ordering::Relaxed);
            if head.is_kernel_thread() {
                head.turn.give();
                ending.push(backing_thread);
                continue;
            }
            head.wake.store(1, Ordering::Release);
            // SAFETY: wakes a thread that sleeps on the word; the context lives until it is freed
            // below.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    &raw const head.wake,
                    libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                    1,
                )
            };
            ending.push(backing_thread);
        }
        // A patience beyond what the clock can hold has no end.
        let deadline = Instant::now().checked_add(patience);
        let mut report = HandBack::default();
        for backing_thread in ending {
            let BackingThread {
                head,
                private,
                thread,
            } = backing_thread;
            match join_until(thread, deadline) {
                Ok(()) => {
                    drop(private);
                    // SAFETY: the backing thread ended and the one handle was given up to this
                    // call.
                    unsafe { head.release::<T, R>() };
                    report.returned += 1;
                }
                Err(thread) => {
                    std::mem::forget((private, thread));
                    report.leaked += 1;
                }
            }
        }
        for backing_thread in self.backing_threads.drain(..).flatten() {
            // The context's stack is in use or suspended, so the private stack of its backing
            // thread must stay.
            std::mem::forget(backing_thread);
            report.leaked += 1;
        }
        report
    }
}

impl<T, R> Drop for Handles<T, R> {
    fn drop(&mut self) {
        self.backing_threads.drain(..).for_each(std::mem::forget);
    }
}
