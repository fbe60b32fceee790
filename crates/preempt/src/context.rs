//! Contexts: the memory behind them, and the handles through which the safe crates move them.
//!
//! ```text
//!            load(job)            send / run
//!   Idle ───────────────▶ Ready ────────────┐
//!    ▲  ◀─────────────── unload (recalled)  ▼
//!    │                                   running on a worker ◀──┐
//!    │ take()                               │      │            │ run
//!   Finished ◀──────────────────────────────┘      ▼            │
//!              the job ended                    Suspended ──────┘
//!                                   (its stack wholly saved)
//! ```
//!
//! Each arrow consumes the handle it starts from, and no handle can be cloned: code that runs one
//! context twice, or loads a running one, does not compile. A handle that is dropped leaks its
//! context, which is safe.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::clock::Cycles;
use crate::fault::{self, Defence};
use crate::kernel_thread::{ContextKind, Place, Turn};
use crate::mailbox::QuantumEnd;
use crate::processor_time::ProcessorTime;
use crate::stride::Stride;
use crate::worker::WorkerHead;

/// A request found this long after its moment, about 10 us: its thread may have been away from its
/// CPU.
const LATE: Cycles = Cycles(1 << 15);
/// Within a quantum this long, about 50 us, the thread may have been away from its CPU. So the
/// context asks the kernel at the end of each, which takes less than a hundredth of it.
const LONG: u64 = 1 << 17;

/// A context, numbered from 0 within its pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ContextId(pub u16);

/// Names one dispatch of one context, so that a preemption meant for an earlier one is recognised
/// as stale. Never 0, and never used twice for one context.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Generation(pub u64);

/// Why control came back to the worker.
pub(crate) const FINISHED: u32 = 1;
pub(crate) const PREEMPTED: u32 = 2;

/// The part of a context that does not depend on the job's type. There are three groups of fields
/// by writer, each on its own cache lines (128 bytes: CPUs fetch lines in pairs).
///
/// Heads are never freed, only used again by later pools. So a [`Dispatched`](crate::Dispatched) of
/// a context that is gone can still ask it to give way, and merely finds another generation.
#[repr(C, align(128))]
pub(crate) struct Head {
    /// The generation that shall be preempted; 0: none was so far. Written by the dispatcher alone,
    /// polled by probes. Never cleared: the context would have to wait for the line, and the next
    /// dispatch has another generation anyway.
    requested: AtomicU64,
    /// The request holds from this moment on (TSC); 0: at once. Written before `requested`.
    not_before: AtomicU64,
    /// The quantum that ends at that moment, in cycles of its thread's time on the CPU; 0: the
    /// moment holds whatever the thread did. Written before `requested`.
    quantum: AtomicU64,
    /// Nothing but probes looks for that moment: no timer is set. Written before `requested`.
    is_for_probes: AtomicBool,
    /// The timer that finds that moment past raises the gate of compiled probes, and stops nothing
    /// itself. Written before `requested`.
    is_for_entries: AtomicBool,
    /// The generation that compiled probes may stop as well; 0: none was so far. Written before
    /// `requested`, by the dispatcher alone.
    at_entries: AtomicU64,

    pub(crate) running: Running,

    pub(crate) id: Cell<ContextId>,
    /// The [`OwnLines<T, R>`] of the head's pool.
    slot: AtomicPtr<()>,
    /// Lowest and highest address of the stack.
    pub(crate) stack_low: Cell<usize>,
    pub(crate) stack_high: Cell<usize>,
    pub(crate) fs: Cell<usize>,
    /// The kernel's number of the backing thread.
    pub(crate) backing_thread: Cell<libc::pid_t>,
    /// The backing thread sleeps on this; non-zero gives stack and thread control block back to it.
    pub(crate) wake: AtomicU32,
    pub(crate) parked: AtomicU32,
    pub(crate) hand_back: AtomicBool,

    // Of contexts that are kernel threads:
    pub(crate) turn: Turn,
    /// Where the thread runs.
    pub(crate) place: Cell<Place>,
}

/// What the worker and the running context write.
#[repr(C, align(128))]
pub(crate) struct Running {
    /// How many times preemption is held off. 1 whenever the context is outside its own code.
    pub(crate) guard: AtomicU32,
    /// [`FINISHED`] or [`PREEMPTED`], set on the way out.
    pub(crate) status: Cell<u32>,
    pub(crate) generation: AtomicU64,
    pub(crate) worker: Cell<*const WorkerHead>,
    pub(crate) last_worker: Cell<u32>,
    /// Whether the context is a kernel thread. Never changes while there is a handle.
    is_kernel_thread: Cell<bool>,
    /// The stack pointer while the context does not run.
    pub(crate) stack_pointer: Cell<usize>,
    /// The part of its signal frame for which the next worker must have room (`extended_state`); 0:
    /// no frame.
    pub(crate) frame: Cell<u64>,
    /// Whether a signal stopped it as it waited for a lock.
    pub(crate) waits_for_a_lock: Cell<bool>,
    /// The cycles that the context ran, as its worker adds them up.
    pub(crate) run_time: Cell<u64>,
    /// When the job ran for the first time, as its worker has noted it; 0: it has not.
    pub(crate) first_start: Cell<u64>,
    /// How often the context was preempted.
    pub(crate) preemptions: AtomicU64,
    /// How often its probes read the clock.
    pub(crate) stride: Stride,
    /// Whether a signal's handler has raised the gate for this dispatch. Written in the context's
    /// own code, and in handlers on top of it.
    pub(crate) is_gate_up: Cell<bool>,
    /// Cycles within the last dispatch for which the worker's thread was away from its CPU.
    pub(crate) away: Cell<u64>,
    /// Whether the probes of this dispatch that read the clock ask the worker's listener.
    pub(crate) listens: Cell<bool>,
}

// Two lines that the processor fetches together. More would cost each switch.
const _: () = assert!(size_of::<Running>() == 128);

impl Running {
    /// A job is about to run for the first time.
    #[inline]
    pub(crate) fn forget_times(&self) {
        self.run_time.set(0);
        self.first_start.set(0);
    }

    /// When the job ran for the first time, if it was preempted since.
    #[inline]
    pub(crate) fn first_start(&self) -> Option<Cycles> {
        let first = self.first_start.get();
        (first > 0).then_some(Cycles(first))
    }
}

/// Where a job enters and its result leaves.
pub(crate) enum Slot<T, R> {
    Empty,
    Job(T),
    Result(Result<R, Panicked>),
}

/// A slot on cache lines of its own: a small job is one line to fetch.
#[repr(align(128))]
struct OwnLines<T, R>(UnsafeCell<Slot<T, R>>);

// SAFETY: only the owner of the context touches the cells (its handle's holder, or the code that
// runs in it), one at a time; handing over goes through atomics (`parked`, a mailbox) that order
// the accesses.
unsafe impl Sync for Head {}

static UNUSED: Mutex<Vec<&'static Head>> = Mutex::new(Vec::new());

impl Head {
    /// A head for a new context: one from an earlier pool, or a leaked new one.
    pub(crate) fn obtain<T, R>(id: ContextId, kind: ContextKind) -> &'static Self {
        let used = UNUSED.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let head = used.unwrap_or_else(|| Box::leak(Box::new(Self::new())));
        head.requested.store(0, Ordering::Relaxed);
        head.not_before.store(0, Ordering::Relaxed);
        head.quantum.store(0, Ordering::Relaxed);
        head.running.away.set(0);
        head.at_entries.store(0, Ordering::Relaxed);
        head.running.guard.store(1, Ordering::Relaxed);
        head.running.generation.store(0, Ordering::Relaxed);
        head.running.worker.set(std::ptr::null());
        head.running.last_worker.set(u32::MAX);
        head.running.frame.set(0);
        head.running.waits_for_a_lock.set(false);
        head.id.set(id);
        let slot = Box::into_raw(Box::new(OwnLines(UnsafeCell::new(Slot::<T, R>::Empty))));
        head.slot.store(slot.cast(), Ordering::Relaxed);
        head.wake.store(0, Ordering::Relaxed);
        head.parked.store(0, Ordering::Relaxed);
        head.hand_back.store(false, Ordering::Relaxed);
        let is_kernel_thread = kind == ContextKind::KernelThread;
        head.running.is_kernel_thread.set(is_kernel_thread);
        head.turn.reset();
        head
    }

    /// Frees the context's memory and keeps the head for the next pool.
    ///
    /// # Safety
    /// The head must come from `obtain` with the same types, and no handle to it be left; its
    /// backing thread has ended.
    pub(crate) unsafe fn release<T, R>(&'static self) {
        let slot = self
            .slot
            .swap(std::ptr::null_mut(), Ordering::Relaxed)
            .cast::<OwnLines<T, R>>();
        // SAFETY: made by `Box::into_raw` in `obtain` with these types; no other code can reach it
        // any more.
        drop(unsafe { Box::from_raw(slot) });
        UNUSED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(self);
    }

    /// The context's slot.
    ///
    /// # Safety
    /// `T` and `R` must be the pool's. The caller must know whether the slot may be touched.
    pub(crate) unsafe fn slot<T, R>(&self) -> *mut Slot<T, R> {
        // SAFETY: points to the box of `obtain` until `release`.
        unsafe {
            (*self.slot.load(Ordering::Relaxed).cast::<OwnLines<T, R>>())
                .0
                .get()
        }
    }

    fn new() -> Self {
        Self {
            requested: AtomicU64::new(0),
            not_before: AtomicU64::new(0),
            quantum: AtomicU64::new(0),
            is_for_probes: AtomicBool::new(false),
            is_for_entries: AtomicBool::new(false),
            at_entries: AtomicU64::new(0),
            running: Running {
                guard: AtomicU32::new(1),
                status: Cell::new(0),
                generation: AtomicU64::new(0),
                worker: Cell::new(std::ptr::null()),
                last_worker: Cell::new(u32::MAX),
                is_kernel_thread: Cell::new(false),
                stack_pointer: Cell::new(0),
                frame: Cell::new(0),
                waits_for_a_lock: Cell::new(false),
                run_time: Cell::new(0),
                first_start: Cell::new(0),
                preemptions: AtomicU64::new(0),
                is_gate_up: Cell::new(false),
                away: Cell::new(0),
                listens: Cell::new(false),
                stride: Stride::new(),
            },
            id: Cell::new(ContextId(0)),
            slot: AtomicPtr::new(std::ptr::null_mut()),
            stack_low: Cell::new(0),
            stack_high: Cell::new(0),
            fs: Cell::new(0),
            backing_thread: Cell::new(0),
            wake: AtomicU32::new(0),
            parked: AtomicU32::new(0),
            hand_back: AtomicBool::new(false),
            turn: Turn::new(),
            place: Cell::default(),
        }
    }

    /// Whether the context is a kernel thread of its own. Asked by the context's own code, or by
    /// the holder of its handle.
    #[inline(always)]
    pub(crate) fn is_kernel_thread(&self) -> bool {
        self.running.is_kernel_thread.get()
    }

    /// Prefetches the lines that entering the context will touch first. A hint: it reads no value.
    #[inline]
    pub(crate) fn prefetch(&self) {
        // SAFETY: prefetching reads nothing, whatever the address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(&self.running).cast());
            _mm_prefetch::<_MM_HINT_T0>(self.slot.load(Ordering::Relaxed).cast_const().cast());
        }
    }

    /// Asks the context to give way if it runs dispatch `generation` at the moment `not_before` or
    /// later.
    #[inline]
    pub(crate) fn request(&self, generation: Generation, not_before: Cycles) {
        self.quantum.store(0, Ordering::Relaxed);
        self.is_for_probes.store(false, Ordering::Relaxed);
        self.is_for_entries.store(false, Ordering::Relaxed);
        self.ask(generation, not_before);
    }

    #[inline]
    fn ask(&self, generation: Generation, not_before: Cycles) {
        debug_assert_ne!(generation.0, 0, "0 means that nothing is requested");
        self.not_before.store(not_before.0, Ordering::Relaxed);
        // Release: code that finds this generation finds its moment.
        self.requested.store(generation.0, Ordering::Release);
    }

    /// As [`request`](Self::request), at the end of a quantum that counts from `start` on, and
    /// while the worker's thread is on its CPU.
    #[inline]
    pub(crate) fn request_after(
        &self,
        generation: Generation,
        start: Cycles,
        quantum: Cycles,
        end: QuantumEnd,
    ) {
        self.quantum.store(quantum.0, Ordering::Relaxed);
        let (is_for_probes, is_for_entries) = match end {
            QuantumEnd::Probes => (true, false),
            QuantumEnd::Timer => (false, false),
            QuantumEnd::Entries(_) => {
                self.permit_entries(generation);
                (false, true)
            }
        };
        self.is_for_probes.store(is_for_probes, Ordering::Relaxed);
        self.is_for_entries.store(is_for_entries, Ordering::Relaxed);
        self.ask(generation, Cycles(start.0.saturating_add(quantum.0)));
    }

    /// Puts the moment off if the worker's thread was away from its CPU for some of the quantum.
    /// Gives what is left of that; `None`: nothing. Of short quanta the kernel is asked only if the
    /// moment is long past. An interrupt (`is_forced`) also stops what waits in the kernel. Called
    /// by the context with its guard up; `read` is the clock if that was read a moment ago.
    pub(crate) fn put_off(
        &self,
        time: &ProcessorTime,
        is_forced: bool,
        read: Option<Cycles>,
    ) -> Option<Cycles> {
        let quantum = self.quantum.load(Ordering::Relaxed);
        if quantum == 0 {
            return None;
        }
        let (moment, now) = (self.not_before(), read.unwrap_or_else(Cycles::now));
        if quantum < LONG && now.since(Cycles(moment)) < LATE {
            return None;
        }
        let before = time.away();
        let gone = time.ask().since(before);
        // Some of that may have been before this dispatch.
        let moment = (moment.saturating_add(gone.0)).min(now.0.saturating_add(quantum));
        if moment <= now.0 || is_forced && time.has_waited() {
            return None;
        }
        self.not_before.store(moment, Ordering::Relaxed);
        Some(Cycles(moment - now.0))
    }

    /// Lets compiled probes take the next request, if that is for dispatch `generation`.
    #[inline]
    pub(crate) fn permit_entries(&self, generation: Generation) {
        self.at_entries.store(generation.0, Ordering::Relaxed);
    }

    /// Whether compiled probes may stop the running dispatch.
    #[inline(always)]
    pub(crate) fn is_requested_at_entries(&self) -> bool {
        self.at_entries.load(Ordering::Relaxed) == self.running.generation.load(Ordering::Relaxed)
    }

    /// Whether the running dispatch is asked to give way, now or later. A request for an earlier
    /// one is stale. No request is for a later one: generations are sent before they are asked for.
    #[inline(always)]
    pub(crate) fn is_requested(&self) -> bool {
        let requested = self.requested.load(Ordering::Relaxed);
        requested == self.running.generation.load(Ordering::Relaxed)
            || fault::without(Defence::GenerationCheck) && requested != 0
    }

    /// Whether the running dispatch is asked to give way by now.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.is_requested() && self.is_due()
    }

    /// The same at the moment `now`.
    #[inline]
    pub(crate) fn is_asked_by(&self, now: Cycles) -> bool {
        self.is_requested() && self.not_before() <= now.0
    }

    /// Whether the next probes will find in time what is asked of the running dispatch, and no
    /// other code has to look.
    #[inline]
    pub(crate) fn is_left_to_probes(&self) -> bool {
        self.is_requested() && self.is_for_probes.load(Ordering::Relaxed)
    }

    /// Whether a timer is to raise the gate of compiled probes where it finds the moment past.
    pub(crate) fn is_left_to_entries(&self) -> bool {
        self.is_requested() && self.is_for_entries.load(Ordering::Relaxed)
    }

    /// How long it still has if it is asked to give way later. Of a timer that fires before the
    /// dispatch has begun, the moment counts as well.
    pub(crate) fn not_due_for(&self) -> Option<Cycles> {
        let left = Cycles(self.not_before()).since(Cycles::now());
        (left.0 > 0).then_some(left)
    }

    /// Whether the moment of what is requested has come.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        let not_before = self.not_before();
        not_before == 0 || Cycles::now().0 >= not_before
    }

    /// The same for a probe whose turn it is to read the clock. Gives what that says if the moment
    /// has come; 0 where it does not matter.
    #[inline]
    pub(crate) fn due_at_probe(&self) -> Option<Cycles> {
        let not_before = self.not_before();
        let mut now = Cycles(0);
        if not_before != 0 {
            now = Cycles::now();
            if now.0 < not_before {
                self.running.stride.read(now, Cycles(not_before));
                return None;
            }
        }
        self.running.stride.stay_over();
        Some(now)
    }

    /// The moment of what is requested is `now`. Called by the context itself.
    #[inline]
    pub(crate) fn bring_forward(&self, now: Cycles) {
        self.not_before.store(now.0, Ordering::Relaxed);
    }

    #[inline]
    fn not_before(&self) -> u64 {
        // Acquire: the moment is that of the generation found, or of a later one.
        let _ = self.requested.load(Ordering::Acquire);
        self.not_before.load(Ordering::Relaxed)
    }

    /// Fault injection: without the comparison of generations a request has to be taken down, or
    /// the context would never get on.
    #[inline(always)]
    pub(crate) fn take_down_request(&self) {
        if fault::without(Defence::GenerationCheck) {
            self.requested.store(0, Ordering::Relaxed);
        }
    }
}

/// The job panicked. The panic hook reported the panic, and the context dropped its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Panicked;

impl fmt::Display for Panicked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the job panicked")
    }
}

impl std::error::Error for Panicked {}

/// Jobs go in as `T` and come out again by `unload`, results come out as `R`: neither a subtype nor
/// a supertype will do.
pub(crate) type InAndOut<T, R> = PhantomData<fn(T, R) -> (T, R)>;

/// The one reference to a context that is not running. Its holder owns the context's memory.
pub(crate) struct Handle<T, R> {
    head: &'static Head,
    /// Invariant: jobs go in and come out, so neither a shorter- nor a longer-lived type may stand
    /// for the pool's.
    owns: InAndOut<T, R>,
}

// SAFETY: a handle is the only way to its context (it cannot be cloned, and while the context runs
// there is none), so sending it transfers the context as a whole, with a T or an R. The suspended
// frames of a job on the stack may hold values that are not Send: for them the thread, as Rust
// knows it, does not change, because the thread control block moves with the context
// (docs/unsafe.md, "Migration").
unsafe impl<T: Send, R: Send> Send for Handle<T, R> {}

impl<T, R> Handle<T, R> {
    /// # Safety
    /// `head` must come from `Head::obtain` with these types, and no other handle to it may exist.
    pub(crate) unsafe fn new(head: &'static Head) -> Self {
        Self {
            head,
            owns: PhantomData,
        }
    }

    pub(crate) fn head(&self) -> &'static Head {
        self.head
    }

    fn replace_slot(&mut self, new: Slot<T, R>) -> Slot<T, R> {
        // SAFETY: the types are the pool's; the context does not run (there is a handle), and `&mut
        // self` is the one handle, so no other code touches the slot.
        unsafe { std::mem::replace(&mut *self.head.slot::<T, R>(), new) }
    }
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[must_use = "dropping the handle leaks the context"]
        pub struct $name<T, R>(pub(crate) Handle<T, R>);

        impl<T, R> $name<T, R> {
            /// Its number within the pool.
            #[must_use]
            pub fn id(&self) -> ContextId {
                self.0.head().id.get()
            }
        }

        impl<T, R> fmt::Debug for $name<T, R> {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!(stringify!($name), "({})"), self.id().0)
            }
        }
    };
}

handle! {
    /// A context without a job.
    ///
    /// Like every handle it cannot be cloned:
    /// ```compile_fail,E0599
    /// fn twice(idle: shinjuku_preempt::Idle<u64, u64>) {
    ///     let (_one, _two) = (idle.clone(), idle);
    /// }
    /// ```
    /// A job that lives shorter than the pool's would outlive its borrow:
    /// ```compile_fail
    /// fn shorter<'a>(idle: shinjuku_preempt::Idle<&'static str, ()>, text: &'a str) {
    ///     let idle: shinjuku_preempt::Idle<&'a str, ()> = idle;
    ///     let _ = idle.load(text);
    /// }
    /// ```
    Idle
}
handle! {
    /// A context with a job that has not started.
    ///
    /// It runs once. The outcome has the handle that can run again:
    /// ```compile_fail,E0382
    /// use shinjuku_preempt::{Generation, Ready, Worker};
    ///
    /// fn twice(worker: &mut Worker, ready: Ready<u64, u64>) {
    ///     let _ = worker.run(ready.into(), Generation(1));
    ///     let _ = worker.run(ready.into(), Generation(2));
    /// }
    /// ```
    Ready
}
handle! {
    /// A context whose job was preempted; its stack and registers are completely saved.
    ///
    /// One worker resumes it:
    /// ```compile_fail,E0382
    /// use shinjuku_preempt::{Sender, Suspended};
    ///
    /// fn twice(one: &mut Sender<u64, u64>, two: &mut Sender<u64, u64>, it: Suspended<u64, u64>) {
    ///     let _ = one.send(it.into());
    ///     let _ = two.send(it.into());
    /// }
    /// ```
    Suspended
}
handle! {
    /// A context whose job has ended, with the result still in it.
    Finished
}

impl<T, R> Idle<T, R> {
    /// Puts a job in. Allocates nothing: the job moves into the context's memory. That memory is
    /// not read: it may be in another core's cache, and waiting for it would take longer than all
    /// the rest.
    pub fn load(self, job: T) -> Ready<T, R> {
        // SAFETY: the types are the pool's; the context does not run (there is a handle), and
        // `self` is the one handle, so no other code touches the slot. An idle context's slot is
        // empty, so nothing is to be dropped.
        unsafe {
            let slot = self.0.head().slot::<T, R>();
            debug_assert!(
                matches!(*slot, Slot::Empty),
                "an idle context holds nothing"
            );
            slot.write(Slot::Job(job));
        }
        Ready(self.0)
    }
}

impl<T, R> Ready<T, R> {
    /// Takes the job out again.
    pub fn unload(mut self) -> (Idle<T, R>, T) {
        match self.0.replace_slot(Slot::Empty) {
            Slot::Job(job) => (Idle(self.0), job),
            Slot::Empty | Slot::Result(_) => unreachable!("a ready context holds its job"),
        }
    }
}

impl<T, R> Suspended<T, R> {
    /// Adds to [`run_time`](Self::run_time). The worker loop measures; the context only stores.
    pub fn add_run_time(&mut self, cycles: Cycles) {
        let total = &self.0.head().running.run_time;
        total.set(total.get().wrapping_add(cycles.0));
    }

    /// The sum of what was added since the job was loaded.
    #[must_use]
    pub fn run_time(&self) -> Cycles {
        Cycles(self.0.head().running.run_time.get())
    }

    /// Whether a signal stopped the job as it slept in the kernel until another thread of the
    /// process wakes it, without a time limit: it waits for a lock, or for an event. It may wait
    /// for another suspended job. In guest mode and under Dune this is not told.
    #[must_use]
    pub fn waits_for_a_lock(&self) -> bool {
        self.0.head().running.waits_for_a_lock.get()
    }

    /// Notes when the job began to run, unless an earlier dispatch has.
    pub fn note_start(&mut self, start: Cycles) {
        let first = &self.0.head().running.first_start;
        if first.get() == 0 {
            first.set(start.0);
        }
    }
}

impl<T, R> Finished<T, R> {
    /// The sum that [`Suspended::add_run_time`] added while the job ran.
    #[must_use]
    pub fn run_time(&self) -> Cycles {
        Cycles(self.0.head().running.run_time.get())
    }

    /// What [`Suspended::note_start`] noted; `None`: the job was never preempted.
    #[must_use]
    pub fn first_start(&self) -> Option<Cycles> {
        self.0.head().running.first_start()
    }

    /// The context for the next job, and this job's result.
    pub fn take(mut self) -> (Idle<T, R>, Result<R, Panicked>) {
        match self.0.replace_slot(Slot::Empty) {
            Slot::Result(result) => (Idle(self.0), result),
            Slot::Empty | Slot::Job(_) => unreachable!("a finished context holds its result"),
        }
    }
}

/// A context that a worker can run.
#[must_use = "dropping the handle leaks the context"]
#[derive(Debug)]
pub enum Runnable<T, R> {
    /// A job to start.
    Ready(Ready<T, R>),
    /// A job to resume.
    Suspended(Suspended<T, R>),
}

impl<T, R> Runnable<T, R> {
    /// The context's number within the pool.
    #[must_use]
    pub fn id(&self) -> ContextId {
        match self {
            Self::Ready(ready) => ready.id(),
            Self::Suspended(suspended) => suspended.id(),
        }
    }

    /// Whether the context is a kernel thread of its own.
    pub(crate) fn is_kernel_thread(&self) -> bool {
        let (Self::Ready(Ready(handle)) | Self::Suspended(Suspended(handle))) = self;
        handle.head().is_kernel_thread()
    }

    pub(crate) fn into_handle(self) -> Handle<T, R> {
        match self {
            Self::Ready(Ready(handle)) | Self::Suspended(Suspended(handle)) => handle,
        }
    }
}

impl<T, R> From<Ready<T, R>> for Runnable<T, R> {
    fn from(ready: Ready<T, R>) -> Self {
        Self::Ready(ready)
    }
}

impl<T, R> From<Suspended<T, R>> for Runnable<T, R> {
    fn from(suspended: Suspended<T, R>) -> Self {
        Self::Suspended(suspended)
    }
}

/// How a run on a worker ended.
#[must_use = "dropping the handle leaks the context"]
#[derive(Debug)]
pub enum Outcome<T, R> {
    /// The job ended, by returning or by a panic.
    Finished(Finished<T, R>),
    /// The job was preempted.
    Preempted(Suspended<T, R>),
}
