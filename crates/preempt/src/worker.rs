//! Workers: OS threads that enter contexts and get control back.
//!
//! [`Worker::run`] is the only way into a context. It consumes the handle on entry and makes it
//! again on return, when the switch has saved the context completely: only then can another worker
//! get it.

use std::any::Any;
use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::backend::{Backend, BackendError, Mode, WorkerMode};
use crate::clock::Cycles;
use crate::context::{
    FINISHED, Finished, Generation, Handle, Head, Idle, Outcome, PREEMPTED, Panicked, Runnable,
    Suspended,
};
use crate::counters::{Counters, CountersSnapshot, count};
use crate::fault::{self, Defence};
use crate::kernel_thread::{self, Part, Seat};
use crate::mailbox::Completion;
use crate::mechanism::WorkerLink;
use crate::platform::{Unsupported, check_platform};
use crate::processor_time::ProcessorTime;
use crate::restartable::Occupied;
use crate::switch::{fs_base, switch, switch_same_tls};
use crate::{extended_state, overflow, signal};

/// The worker's data on which a context relies to return. Lives as long as the worker.
pub(crate) struct WorkerHead {
    pub(crate) id: u32,
    pub(crate) stack_pointer: Cell<usize>,
    pub(crate) fs: usize,
    /// The signals blocked on the worker's thread outside of any handler.
    pub(crate) signal_mask: u64,
    pub(crate) counters: Arc<Counters>,
    /// Components of the extended state for which the thread is known to have room.
    pub(crate) has_room_for: Cell<u64>,
    /// The thread's rights by protection keys, if there are keys.
    rights: Option<u32>,
    /// Called when a job has ended: points to a [`Successor`] of the types of the running context.
    /// Null: there is none.
    pub(crate) successor: Cell<*mut ()>,
    /// Asked by probes while a job runs: points to a [`Listener`]. Null: there is none.
    pub(crate) listener: Cell<*mut ()>,
    /// The payload of the successor's panic.
    pub(crate) panic: Cell<Option<Box<dyn Any + Send>>>,
    /// The mode that the worker entered.
    pub(crate) mode: Option<Box<dyn Mode>>,
    /// The kernel's number of the worker's own thread.
    pub(crate) thread: libc::pid_t,
    pub(crate) seat: Arc<Seat>,
    /// Of a worker whose contexts are kernel threads.
    pub(crate) part: Part,
    pub(crate) time: ProcessorTime,
}

thread_local! {
    /// The counters of the worker that is bound to this thread, for interrupts that arrive in its
    /// own code.
    pub(crate) static SCHEDULING: Cell<*const Counters> = const { Cell::new(std::ptr::null()) };
}

/// An OS thread that runs contexts. Stays on the thread it was bound to:
/// ```compile_fail,E0277
/// let worker = shinjuku_preempt::Worker::bind(0).unwrap();
/// std::thread::spawn(move || drop(worker));
/// ```
#[derive(Debug)]
pub struct Worker {
    pub(crate) head: Box<WorkerHead>,
    link: WorkerLink,
    /// For a thread without restartable sequences: an area, so that no context's code registers
    /// one.
    _no_sequences: Option<Occupied>,
    not_send: PhantomData<*mut ()>,
}

/// A job that has ended, as [`Worker::run_on`] reports it.
#[derive(Debug)]
pub struct Ended<R> {
    /// The job's result.
    pub result: Result<R, Panicked>,
    /// The sum that [`Suspended::add_run_time`] added while the job ran.
    pub run_time: Cycles,
    /// What [`Suspended::note_start`] noted; `None`: the job was never preempted.
    pub first_start: Option<Cycles>,
}

/// Takes a job's result, and may return the next job, which runs on the same context under a
/// generation of its own.
pub type Successor<'a, T, R> = &'a mut dyn FnMut(Ended<R>) -> Option<(T, Generation)>;

/// Tells whether the thread that runs a job is wanted elsewhere.
pub type Listener<'a> = &'a mut dyn FnMut() -> bool;

impl std::fmt::Debug for WorkerHead {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "worker {}", self.id)
    }
}

impl WorkerHead {
    /// The context runs on this worker from now on, as the dispatch `generation`.
    #[inline]
    pub(crate) fn begin(&self, head: &Head, generation: Generation, resumed: bool) {
        let running = &head.running;
        running.generation.store(generation.0, Ordering::Relaxed);
        running.worker.set(self);
        running.stride.begin(!resumed);
        // What a kernel thread runs is not on the thread that listens.
        let listens = !self.listener.get().is_null() && !head.is_kernel_thread();
        running.listens.set(listens);
        let last_worker = running.last_worker.replace(self.id);
        if !resumed {
            running.forget_times();
        } else if last_worker != self.id {
            count(&self.counters.migrations);
        }
    }
}

impl Worker {
    /// Makes the calling thread a worker, numbered `id` as
    /// [`current_worker`](crate::current_worker) reports. Unblocks the preemption signal on the
    /// thread, whose signal mask must stay as it is then, and so should its rights by protection
    /// keys (`pkey_set`).
    ///
    /// # Errors
    /// [`Unsupported`] if the machine cannot run contexts.
    ///
    /// # Panics
    /// If the thread is a worker already, or is itself a context.
    pub fn bind(id: u32) -> Result<Self, Unsupported> {
        check_platform()?;
        assert!(
            SCHEDULING.get().is_null(),
            "this thread is a worker already"
        );
        assert!(!crate::in_context(), "a context cannot be a worker");
        overflow::ensure_alternate_stack();
        let signal_mask = signal::unblock();
        let counters = Arc::<Counters>::default();
        SCHEDULING.set(Arc::as_ptr(&counters));
        let link = WorkerLink::of_this_thread(Arc::clone(&counters));
        let head = Box::new(WorkerHead {
            thread: link.thread,
            seat: Arc::clone(&link.seat),
            part: Part::default(),
            id,
            stack_pointer: Cell::new(0),
            fs: fs_base(),
            signal_mask,
            counters,
            has_room_for: Cell::new(extended_state::X87),
            rights: extended_state::prepare(),
            successor: Cell::new(std::ptr::null_mut()),
            listener: Cell::new(std::ptr::null_mut()),
            panic: Cell::new(None),
            mode: None,
            time: ProcessorTime::of_this_thread(),
        });
        Ok(Self {
            head,
            link,
            _no_sequences: Occupied::on_this_thread(),
            not_send: PhantomData,
        })
    }

    /// From its next [`run`](Self::run) on, the worker runs in the mode of `backend`, its own code
    /// included. Links taken before do not know the mode. A worker that is already in a mode stays
    /// there.
    ///
    /// # Errors
    /// [`BackendError`] if there is no place for it, or if the thread cannot enter (some modes
    /// require it to be pinned to a CPU). The worker goes on as before.
    pub fn enter(&mut self, backend: &dyn Backend) -> Result<(), BackendError> {
        if self.head.mode.is_none() {
            let WorkerMode { own, links } = backend.admit()?;
            self.link.mode = Some(links);
            self.head.mode = Some(own);
        }
        Ok(())
    }

    /// A link to interrupt this worker and to read its counters.
    #[must_use]
    pub fn link(&self) -> WorkerLink {
        self.link.clone()
    }

    /// How long the worker's thread was away from its CPU.
    #[must_use]
    pub fn processor_time(&self) -> ProcessorTime {
        self.head.time.clone()
    }

    /// What the worker has counted so far.
    #[must_use]
    pub fn counters(&self) -> CountersSnapshot {
        self.link.counters()
    }

    /// Starts a job or resumes one, until it ends or is preempted. `generation` names this
    /// dispatch; it must differ from all that were used with this context before (a
    /// [`mailbox`](crate::mailbox) makes sure of that).
    ///
    /// Allocates nothing and calls nothing but the context.
    ///
    /// # Panics
    /// If the context is a kernel thread and the worker in the mode of a [`Backend`].
    #[inline]
    pub fn run<T, R>(&mut self, runnable: Runnable<T, R>, generation: Generation) -> Outcome<T, R> {
        let resumed = matches!(runnable, Runnable::Suspended(_));
        let handle = runnable.into_handle();
        let head = handle.head();
        let running = &head.running;
        self.head.begin(head, generation, resumed);
        if head.is_kernel_thread() {
            // SAFETY: the handle was consumed, and this is the worker's own thread.
            unsafe { kernel_thread::run(&self.head, head) };
            return outcome(handle);
        }
        self.make_room(head);
        if let Some(mode) = &self.head.mode {
            self.prepare(&**mode, head);
        }
        debug_assert_eq!(
            running.guard.load(Ordering::Relaxed),
            1,
            "guarded until its own code runs"
        );
        // SAFETY: the handle proves that the context does not run and that its frame is in
        // `stack_pointer` with `fs` as its thread control block; consuming the handle keeps other
        // workers from entering. The context comes back through the frame stored in this worker's
        // head, which no other code enters.
        unsafe {
            if fault::without(Defence::FsSwitch) {
                switch_same_tls(
                    self.head.stack_pointer.as_ptr(),
                    running.stack_pointer.get(),
                );
            } else {
                switch(
                    self.head.stack_pointer.as_ptr(),
                    running.stack_pointer.get(),
                    head.fs.get(),
                );
            }
        }
        if head.running.frame.get() != 0
            && let Some(rights) = self.head.rights
        {
            extended_state::take_back(rights);
        }
        outcome(handle)
    }

    /// Makes the context's signal frame, if it has one, fit this thread.
    #[inline]
    fn make_room(&self, head: &Head) {
        let has = self.head.has_room_for.get();
        let missing = head.running.frame.get() & !has;
        if missing != 0 {
            self.leave_mode();
            extended_state::make_room(missing);
            self.head.has_room_for.set(has | missing);
        }
    }

    #[inline(never)]
    fn prepare(&self, mode: &dyn Mode, head: &Head) {
        // SAFETY: a worker stays on its thread, and this is its own code.
        for _ in 0..unsafe { mode.before_entering(head) } {
            count(&self.head.counters.late);
        }
    }

    #[cold]
    fn leave_mode(&self) {
        if let Some(mode) = &self.head.mode {
            // SAFETY: a worker stays on its thread, and this is its own code.
            unsafe { mode.leave() };
        }
    }

    /// As [`run`](Self::run), but continues: when a job has ended, `next` gets its result and may
    /// return the context's next job, which starts without a switch in between. Returns when there
    /// is no next job, or when one was preempted; `next` has then got the results of all ended
    /// jobs.
    ///
    /// `next` runs on the context's stack and with its thread control block, so that thread-locals
    /// in it are the context's and not the worker's; preemption is held off. If `next` panics,
    /// `run_on` panics, and the context is leaked.
    ///
    /// In the mode of a [`Backend`], and where the context is a kernel thread, this is only a loop
    /// around `run`, and `next` is called on the worker's own thread.
    #[inline]
    pub fn run_on<T, R>(
        &mut self,
        runnable: Runnable<T, R>,
        generation: Generation,
        mut next: Successor<'_, T, R>,
    ) -> Completion<T, R> {
        // The thread of a context cannot call `next`, which need not be `Send`.
        if self.head.mode.is_some() || runnable.is_kernel_thread() {
            return self.run_one_by_one(runnable, generation, next);
        }
        let asked = Asked(self);
        asked.0.head.successor.set((&raw mut next).cast());
        let outcome = asked.0.run(runnable, generation);
        drop(asked);
        if let Some(payload) = self.head.panic.take() {
            resume_unwind(payload);
        }
        match outcome {
            Outcome::Finished(Finished(handle)) => Completion::Finished(Idle(handle)),
            Outcome::Preempted(suspended) => Completion::Preempted(suspended),
        }
    }

    /// As [`run`](Self::run), and probes that read the clock ask `is_wanted`: those of a dispatch
    /// that has a moment ([`Dispatched::request_at`]), about twice a microsecond. If that says so,
    /// the moment has come. Nobody asks without a moment, or where the context is a kernel thread.
    ///
    /// `is_wanted` runs on the context's stack and with its thread control block, so that
    /// thread-locals in it are the context's; preemption is held off. If it panics, the job does.
    ///
    /// [`Dispatched::request_at`]: crate::Dispatched::request_at
    pub(crate) fn run_listening<T, R>(
        &mut self,
        runnable: Runnable<T, R>,
        generation: Generation,
        mut is_wanted: Listener<'_>,
    ) -> Outcome<T, R> {
        let listening = Listening(self);
        let listener = &listening.0.head.listener;
        listener.set((&raw mut is_wanted).cast());
        listening.0.run(runnable, generation)
    }

    fn run_one_by_one<T, R>(
        &mut self,
        mut runnable: Runnable<T, R>,
        mut generation: Generation,
        next: Successor<'_, T, R>,
    ) -> Completion<T, R> {
        loop {
            let finished = match self.run(runnable, generation) {
                Outcome::Finished(finished) => finished,
                Outcome::Preempted(suspended) => return Completion::Preempted(suspended),
            };
            let (run_time, first_start) = (finished.run_time(), finished.first_start());
            let (idle, result) = finished.take();
            let ended = Ended {
                result,
                run_time,
                first_start,
            };
            let Some((job, its_generation)) = next(ended) else {
                return Completion::Finished(idle);
            };
            runnable = idle.load(job).into();
            generation = its_generation;
        }
    }
}

/// A worker with a successor set. Dropping it, however that happens, removes the successor.
struct Asked<'a>(&'a mut Worker);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.0.head.successor.set(std::ptr::null_mut());
    }
}

/// A worker with a listener set. Dropping it, however that happens, removes the listener.
struct Listening<'a>(&'a mut Worker);

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.head.listener.set(std::ptr::null_mut());
    }
}

#[inline]
fn outcome<T, R>(handle: Handle<T, R>) -> Outcome<T, R> {
    match handle.head().running.status.get() {
        FINISHED => Outcome::Finished(Finished(handle)),
        PREEMPTED => Outcome::Preempted(Suspended(handle)),
        other => unreachable!("a context leaves with a status, not {other}"),
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.leave_mode();
        SCHEDULING.set(std::ptr::null());
    }
}

/// Fault injection: hands the context on before its stack is saved, as a scheduler does that
/// publishes from the interrupt handler.
#[cfg(feature = "fault-injection")]
pub(crate) fn publish_early(head: &Head, status: u32) {
    if status == PREEMPTED && fault::without(Defence::LatePublication) {
        crate::stress::publish_early(head);
    }
}

#[cfg(not(feature = "fault-injection"))]
#[inline(always)]
pub(crate) fn publish_early(_: &Head, _: u32) {}
