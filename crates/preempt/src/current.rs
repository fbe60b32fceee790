//! What runs inside a context: probes, the guard, and the way out.
//!
//! A preemption is a *state* before it is an event: the dispatcher stores the generation it wants
//! stopped in the context's `requested` word. Probes poll the word. A signal only makes the context
//! look at it. Code that holds preemption off looks at the word when it lets go. So a request that
//! arrives at a bad moment (in a guard, during the switch) is never lost, and one that arrives late
//! finds another generation and is dropped. A request can carry a moment before which it does not
//! hold: the *deadline probes* of a dispatcher that shares the worker's thread. `stride` tells
//! which of these probes read the clock.
//!
//! ```text
//!        guard = 0: own code ──probe or interrupt, requested == generation──▶ guard = 1
//!            ▲                                                                   │ leave(PREEMPTED)
//!            │ nothing requested                                                 ▼
//!        guard = 0, look again ◀──resumed by a worker, maybe another one── stack saved, worker's loop
//! ```
//!
//! The guard counts in the context, not in the worker: its address never changes for the code that
//! runs there, so no migration can come between computing the address and using it. The one thing
//! that migration does change, the worker, is read only while the guard is up, afresh after every
//! way out.
//!
//! Nothing here allocates or locks. The one system call asks for the thread's time on its CPU,
//! where a deadline seems to have passed long ago.

use std::any::Any;
use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::resume_unwind;
use std::sync::atomic::{Ordering, compiler_fence};
use std::time::{Duration, Instant};

use crate::clock::Cycles;
use crate::context::{ContextId, FINISHED, Generation, Head, PREEMPTED, Panicked, Slot};
use crate::counters::{Counters, count};
use crate::fault::{self, Defence};
use crate::processor_time::ProcessorTime;
use crate::worker::{Ended, Listener, Successor};
use crate::x87::Exceptions;
use crate::{compiled, kernel_thread, switch, worker};

thread_local! {
    /// The context that owns this thread control block, or null on every other thread. Constant
    /// initialiser and no destructor: reading it is one instruction, allowed in a signal handler.
    pub(crate) static CURRENT: Cell<*const Head> = const { Cell::new(std::ptr::null()) };
}

pub(crate) fn current() -> Option<&'static Head> {
    let head = CURRENT.get();
    // SAFETY: set only by a backing thread to its own context, which outlives the thread.
    unsafe { head.as_ref() }
}

/// Gives way if the dispatcher asks for it: a *probe*. A probe costs a load and a branch, and while
/// a moment is set a countdown; outside a context it does nothing. `#[preemptible]` puts probes
/// into loops. Signal handlers must not call it: a context that leaves from there returns from the
/// handler on another thread.
#[inline(always)]
pub fn preempt_point() {
    let head = CURRENT.get();
    if head.is_null() {
        return;
    }
    // SAFETY: as in `current`.
    let head = unsafe { &*head };
    if head.is_requested() && head.running.stride.is_over() {
        probe_found(head);
    }
}

/// How long a waiting context gives way before it blocks its worker. The request that it waits for
/// may have to run on that worker, and a spare takes some milliseconds to come.
const GIVES_WAY_FOR: Duration = Duration::from_millis(1);

/// In a context, gives way until `look` finds something, for a millisecond at most, and no longer
/// than until `deadline`. Outside of contexts it does not look.
pub fn give_way_until<Out>(
    deadline: Option<Instant>,
    mut look: impl FnMut() -> Option<Out>,
) -> Option<Out> {
    if !in_context() {
        return None;
    }
    let patience = Instant::now() + GIVES_WAY_FOR;
    let end = deadline.map_or(patience, |deadline| deadline.min(patience));
    loop {
        let found = look();
        if found.is_some() || Instant::now() >= end {
            return found;
        }
        preempt_point();
        std::hint::spin_loop();
    }
}

/// Whether the caller runs in a context.
#[must_use]
pub fn in_context() -> bool {
    !CURRENT.get().is_null()
}

/// The context that the caller runs in; `None` outside.
#[must_use]
pub fn current_context() -> Option<ContextId> {
    current().map(|head| head.id.get())
}

/// Runs `body` without being preempted (`call_safe` of Shinjuku, NSDI'19, section 3.6). Nests. A
/// preemption asked for meanwhile happens at the end. Outside a context it only calls `body`.
///
/// It does not keep the kernel from scheduling the worker's thread. Other requests wait until
/// `body` ends, so keep it short.
pub fn without_preemption<Out>(body: impl FnOnce() -> Out) -> Out {
    let _guard = Guard::raise();
    body()
}

/// The number of the worker that the calling context runs on. Within [`without_preemption`] it
/// stays true until the end; outside of it the answer may be stale when it arrives. `None` outside
/// a context.
#[must_use]
pub fn current_worker() -> Option<u32> {
    let head = current()?;
    let _guard = Guard::raise();
    // SAFETY: the guard is up, so the context cannot leave the worker whose head this is, and that
    // worker is in `Worker::run`, which borrows the head.
    has_worker(head).then(|| unsafe { (*head.running.worker.get()).id })
}

/// How often the calling context was preempted so far, in this job and in those before. 0 outside a
/// context.
#[must_use]
pub fn preemptions() -> u64 {
    current().map_or(0, |head| head.running.preemptions.load(Ordering::Relaxed))
}

/// Holds preemption off while it lives.
struct Guard {
    head: Option<&'static Head>,
    /// Lowered on the context that raised it.
    not_send: PhantomData<*mut ()>,
}

impl Guard {
    #[inline]
    fn raise() -> Self {
        let head = if fault::without(Defence::Guard) {
            None
        } else {
            current()
        };
        if let Some(head) = head {
            raise(head);
        }
        Self {
            head,
            not_send: PhantomData,
        }
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        if let Some(head) = self.head {
            lower(head);
        }
    }
}

/// Only the context itself and the interrupt handlers on top of it write the guard, and a handler
/// leaves it as found: a load and a store do.
#[inline]
fn raise(head: &Head) {
    let depth = head.running.guard.load(Ordering::Relaxed);
    head.running.guard.store(depth + 1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
}

#[inline]
fn lower(head: &Head) {
    compiler_fence(Ordering::SeqCst);
    let depth = head.running.guard.load(Ordering::Relaxed);
    debug_assert!(depth > 0, "the guard is lowered as often as it is raised");
    head.running.guard.store(depth - 1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    if depth == 1 && head.is_asked() {
        let _ = give_way(head, Cause::Guard, None);
    }
}

#[cold]
#[inline(never)]
fn probe_found(head: &Head) {
    let Some(now) = head.due_at_probe().or_else(|| heard(head)) else {
        return;
    };
    if head.running.guard.load(Ordering::Relaxed) != 0 {
        return deferred(head);
    }
    let _ = give_way(head, Cause::Probe, Some(now));
}

/// The moment is still to come. Gives the clock if it is brought forward to now, since the worker's
/// listener wants the thread back.
#[inline]
fn heard(head: &Head) -> Option<Cycles> {
    (head.running.listens.get() && is_wanted(head)).then(|| {
        let now = Cycles::now();
        head.bring_forward(now);
        now
    })
}

/// What the listener says of the dispatch that runs; no where preemption is held off, or where the
/// context has left meanwhile.
#[inline(never)]
fn is_wanted(head: &Head) -> bool {
    if head.running.guard.load(Ordering::Relaxed) != 0 {
        // Also while the listener itself runs, which is lent to one caller.
        return false;
    }
    let generation = &head.running.generation;
    let asked_in = generation.load(Ordering::Relaxed);
    let is_wanted = {
        let _guard = Guard::raise();
        // SAFETY: the guard is up, and the worker is in `Worker::run`, which borrows its head.
        let listener = unsafe { (*head.running.worker.get()).listener.get() };
        // SAFETY: the worker is in `run_listening`, to which it was lent until the context has
        // left, and this is its thread. Nobody else calls it: the guard is up meanwhile.
        !listener.is_null() && unsafe { (*listener.cast::<Listener<'_>>())() }
    };
    is_wanted && generation.load(Ordering::Relaxed) == asked_in
}

/// Whether a worker runs the context, asked on the context's stack with the guard up. A kernel
/// thread has no worker while it is parked, and handlers of the program's signals run there then.
fn has_worker(head: &Head) -> bool {
    !head.is_kernel_thread() || head.turn.is_given()
}

/// The guard holds off what was found on the context's stack.
pub(crate) fn deferred(head: &Head) {
    if has_worker(head) {
        // SAFETY: the guard is up, hence the worker is the one that runs this context, now and
        // while it is read.
        count(unsafe { &worker_counters(head).deferred });
    }
}

/// An interrupt arrived in the context's own code, at guard 0.
///
/// Gives what is left of the quantum if the context goes on because its thread was away from its
/// CPU.
pub(crate) fn interrupted(head: &Head) -> Option<Cycles> {
    debug_assert_eq!(head.running.guard.load(Ordering::Relaxed), 0);
    give_way(head, Cause::Interrupt, None)
}

/// A compiled probe found a request, at guard 0 and where the context can leave.
#[cfg(feature = "compiled-probes")]
pub(crate) fn entered(head: &Head) {
    let _ = give_way(head, Cause::Entry, None);
}

/// An interrupt arrived at guard 0, but where the context cannot leave: too little stack, or
/// another signal's handler.
pub(crate) fn interrupted_in_vain(head: &Head) {
    raise(head);
    // SAFETY: the guard is up.
    count(unsafe { &worker_counters(head).deferred });
    compiler_fence(Ordering::SeqCst);
    // Not `lower`: leaving is what cannot be.
    head.running.guard.store(0, Ordering::Relaxed);
}

/// Whether `mask`, asked with the guard up, tells the one that the context's worker has. Called by
/// an interrupt handler or a compiled probe at guard 0.
pub(crate) fn has_workers_mask(head: &Head, mask: impl FnOnce() -> u64) -> bool {
    head.running.guard.store(1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    // SAFETY: the guard is up, and the worker is in `Worker::run`, which borrows its head.
    let same = unsafe { (*head.running.worker.get()).signal_mask } == mask();
    compiler_fence(Ordering::SeqCst);
    // The caller, or the code that it leaves this to, looks next at requests that arrive in
    // between.
    head.running.guard.store(0, Ordering::Relaxed);
    same
}

/// What makes a context look at its request word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Probe,
    /// A compiled probe, at a function's entry.
    #[cfg(feature = "compiled-probes")]
    Entry,
    Interrupt,
    /// The guard was lowered.
    Guard,
}

impl Cause {
    /// Whether the code called for it itself, so that other code can be called there, too. An
    /// interrupt comes within any function, and a compiled probe within an allocator.
    fn is_a_call(self) -> bool {
        matches!(self, Self::Probe | Self::Guard)
    }
}

/// Leaves to the worker as long as the running generation is asked for; called at guard 0, returns
/// at guard 0. Gives what is left of its quantum if it does not leave for an interrupt. `read` is
/// the clock if that was read a moment ago: reading it takes longer than most of the rest.
fn give_way(head: &Head, mut cause: Cause, mut read: Option<Cycles>) -> Option<Cycles> {
    let is_a_call = cause.is_a_call();
    // The interrupt's timer has fired, whatever makes the context look again below.
    let has_fired = cause == Cause::Interrupt;
    let mut left = None;
    loop {
        head.running.guard.store(1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the guard is up; neither reference is used after leaving.
        let (counters, time) = unsafe { (worker_counters(head), worker_time(head)) };
        let is_forced = cause == Cause::Interrupt;
        let now = read.take();
        if !now.map_or_else(|| head.is_asked(), |now| head.is_asked_by(now)) {
            if is_forced {
                count(&counters.late);
            }
        } else if let Some(rest) = head.put_off(time, is_forced, now) {
            left = has_fired.then_some(rest);
        } else {
            head.take_down_request();
            count(match cause {
                Cause::Probe => &counters.taken_by_probe,
                #[cfg(feature = "compiled-probes")]
                Cause::Entry => &counters.taken_by_compiled_probe,
                Cause::Interrupt => &counters.taken_by_interrupt,
                Cause::Guard => &counters.taken_at_guard,
            });
            let preemptions = head.running.preemptions.load(Ordering::Relaxed);
            head.running
                .preemptions
                .store(preemptions + 1, Ordering::Relaxed);
            let exceptions = Exceptions::take();
            // SAFETY: the guard is up, and this is the context's own code.
            unsafe { leave(head, PREEMPTED, is_a_call) };
            exceptions.put_back();
            left = None;
        }
        compiler_fence(Ordering::SeqCst);
        head.running.guard.store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // What arrived while the guard was up found it up and relied on this look.
        if head.is_left_to_probes() || !head.is_asked() {
            return left;
        }
        cause = Cause::Guard;
    }
}

/// # Safety
/// The guard is up: the context cannot change workers while the reference lives.
pub(crate) unsafe fn worker_counters(head: &Head) -> &Counters {
    // SAFETY: a running context's worker is in `Worker::run`, which borrows the worker's head.
    unsafe { &(*head.running.worker.get()).counters }
}

/// # Safety
/// As for [`worker_counters`], and the caller runs in the context.
unsafe fn worker_time(head: &Head) -> &ProcessorTime {
    // SAFETY: as in `worker_counters`; the context runs on the worker's thread.
    unsafe { &(*head.running.worker.get()).time }
}

/// Goes back to the worker's loop, which sees `status`. Returns when a worker runs the context
/// again. A kernel thread goes on with that loop itself meanwhile if the code called for it itself.
///
/// # Safety
/// Must be called on the context's stack with its guard at 1; and the worker's pointer must be read
/// here, after the guard was raised, not kept from before.
unsafe fn leave(head: &Head, status: u32, is_a_call: bool) {
    compiled::lower_for(head);
    head.running.status.set(status);
    if head.is_kernel_thread() {
        // SAFETY: on the context's stack, which is its own thread's, at guard 1.
        return unsafe { kernel_thread::leave(head, is_a_call) };
    }
    let worker: *const worker::WorkerHead = head.running.worker.get();
    worker::publish_early(head, status);
    // SAFETY: the worker waits in `Worker::run` with its stack pointer and thread control block in
    // its head, and this stack is handed on only after the switch has saved it (the worker
    // publishes, not we).
    unsafe {
        if fault::without(Defence::FsSwitch) {
            switch::switch_same_tls(
                head.running.stack_pointer.as_ptr(),
                (*worker).stack_pointer.get(),
            );
        } else {
            switch::switch(
                head.running.stack_pointer.as_ptr(),
                (*worker).stack_pointer.get(),
                (*worker).fs,
            );
        }
    }
}

/// First thing in a context's own code after it was entered for a job: lowers the guard that held
/// off preemption since the last way out. And looks: a timer that fired on the way in found nothing
/// to stop. Without one, what has a moment is left to the probes.
pub(crate) fn start(head: &Head) {
    if !head.is_left_to_probes() {
        return lower(head);
    }
    compiler_fence(Ordering::SeqCst);
    head.running.guard.store(0, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
}

/// The job is over. With another one to go on with it returns at once, at guard 0. Else it returns
/// when the context is entered for the next one, or handed back.
///
/// # Safety
/// Must be called on the context's own stack by its backing thread's loop, at guard 0, with the
/// pool's types.
pub(crate) unsafe fn finish<T, R>(head: &Head, result: Result<R, Panicked>) -> Option<T> {
    raise(head);
    assert_eq!(
        head.running.guard.load(Ordering::Relaxed),
        1,
        "guards are scoped, so none outlives its job"
    );
    // SAFETY: the guard is up, and the worker is in `Worker::run`, which borrows its head.
    let successor = unsafe { (*head.running.worker.get()).successor.get() };
    if successor.is_null() {
        // SAFETY: the types are the pool's; the context runs, so no handle exists and the slot is
        // ours.
        unsafe { *head.slot::<T, R>() = Slot::Result(result) };
    } else {
        // SAFETY: the worker is in `run_on`, which was given this context's handle, so its types
        // are the context's; what it points to is its own, lent to no other code, until the context
        // has left.
        let successor = unsafe { &mut *successor.cast::<Successor<'_, T, R>>() };
        let run_time = Cycles(head.running.run_time.get());
        note_between_jobs(true);
        let first_start = head.running.first_start();
        let next = successor(Ended {
            result,
            run_time,
            first_start,
        });
        note_between_jobs(false);
        if let Some((job, generation)) = next {
            go_on(head, generation);
            return Some(job);
        }
    }
    // SAFETY: on the context's stack at guard 1.
    unsafe { leave(head, FINISHED, true) };
    None
}

#[cfg(feature = "stress")]
thread_local! {
    /// The context's worker asks what comes next. For the counting allocator: constant initialiser,
    /// no destructor.
    static BETWEEN_JOBS: Cell<bool> = const { Cell::new(false) };
}

#[cfg(feature = "stress")]
pub(crate) fn is_between_jobs() -> bool {
    BETWEEN_JOBS.get()
}

#[cfg(feature = "stress")]
pub(crate) fn note_between_jobs(so: bool) {
    BETWEEN_JOBS.set(so);
}

#[cfg(not(feature = "stress"))]
#[inline(always)]
pub(crate) fn note_between_jobs(_: bool) {}

/// The successor panicked, which the worker reports from `run_on`. Returns as [`finish`] does.
///
/// # Safety
/// Must be called on the context's own stack by its backing thread's loop, at guard 1.
pub(crate) unsafe fn fail(head: &Head, payload: Box<dyn Any + Send>) {
    // SAFETY: the guard is up, and the worker is in `Worker::run`, which borrows its head.
    let worker = unsafe { &*head.running.worker.get() };
    if worker.successor.get().is_null() {
        // No successor was called, so this panic is a bug of this crate.
        resume_unwind(payload);
    }
    worker.panic.set(Some(payload));
    // SAFETY: on the context's stack at guard 1.
    unsafe { leave(head, FINISHED, true) };
}

/// The next dispatch begins, without a way out and in.
fn go_on(head: &Head, generation: Generation) {
    compiled::lower_for(head);
    head.running
        .generation
        .store(generation.0, Ordering::Relaxed);
    head.running.forget_times();
    head.running.stride.begin(true);
    start(head);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_a_context_everything_is_a_plain_call() {
        preempt_point();
        assert!(!in_context());
        assert_eq!(current_worker(), None);
        assert_eq!(without_preemption(|| without_preemption(|| 7)), 7);
    }
}
