//! Contexts that are kernel threads: each has a thread of its own, which is parked where it stands.
//!
//! A context on a stack moves between the workers' threads. A context of this kind does not: its
//! jobs run on its own thread, from their first instruction to their last. Preempted, the thread
//! waits on a futex, at its probe or in the signal's handler; resumed, it goes on. So a job has one
//! thread to its end, whose core and priority alone are the worker's (`seat`). No stack is
//! switched, and no thread control block.
//!
//! What moves instead is the worker's *part*: the right to run the worker's loop, and one context
//! of it. One thread has it at any time.
//!
//! ```text
//!   worker's own thread        X's thread                          Y's thread
//!   loop: next is X
//!   ── part, turn of X ──────▶ job ... ended, or at a probe
//!   waits                      loop: tells, next is Y
//!     :                        ── part, turn of Y ───────────────▶ goes on with its job
//!     :                        waits                               ... ended
//!     :                          :                                 loop: tells, next is Y, anew
//!     :                          :                                 job ... signal
//!   loop: tells, next is X ◀───────────────────────── part ─────── waits, in the handler
//!   ── part, turn of X ──────▶ job ...                               :
//! ```
//!
//! - A thread whose job has ended, or gives way by a call of its own, plays the worker's part until
//!   it knows what comes next. If that is its own context, it goes on, and the kernel is not called
//!   at all: so a worker that starts one request after another does that on one thread, as it would
//!   on one stack. If it is another's, a futex call wakes that thread, and another one parks this
//!   one.
//! - In a signal's handler nothing of the loop runs, since the signal may have come within the
//!   allocator. The thread gives the part back to the worker's own and waits. So a preemption by
//!   signal takes the signal and a switch between kernel threads, and what runs next another one.
//! - The context's handle is out while its thread plays the worker's part. So another worker may
//!   get it, and give it its turn. The thread looks for that each time round: it gives the part
//!   back to the worker's own thread and goes on with its job (`turn`).
//! - An idle worker sleeps on its own thread, and ends there.
//! - [`Worker::run`] gives the loop to no thread: the part comes home with every outcome.
//!
//! What a thread touches when: with its turn, the context, and the `WorkerHead` that the context
//! names, which is lent until the part is back. From the moment on that its handle is out, the
//! part, as long as it has that, and of the context nothing but `turn`. With neither, nothing but
//! `turn`.
//!
//! The signal's handler is that of contexts on stacks up to the question what may be stopped
//! (`signal`). A thread may stop anywhere: its signal mask, its alternate stack and its vector
//! state are its own and stay. It only needs some room on its stack. Other signals reach it while
//! it is parked; the handlers of the program, and glibc's for `setuid`, run there as on any thread.
//!
//! Nothing here allocates or locks.

mod seat;
mod turn;

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

pub(crate) use seat::{Place, Seat};
#[cfg(feature = "measure")]
pub(crate) use turn::Home;
pub(crate) use turn::Turn;

use crate::context::{
    FINISHED, Finished, Generation, Handle, Head, PREEMPTED, Runnable, Suspended,
};
use crate::current;
use crate::service::{Service, Step};
use crate::worker::{Worker, WorkerHead};

/// What a context is made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum ContextKind {
    /// A stack with a thread control block, which moves between the workers' threads. A preemption
    /// costs what interrupting costs, and a switch of stacks.
    #[default]
    Stack,
    /// A kernel thread of its own. A preemption costs a switch between kernel threads on top, and
    /// so does a resumption. The job keeps its thread, which is given the core and the priority of
    /// its worker, so stopping it anywhere takes no [token](crate::HardPreemption):
    /// [`Signal::for_kernel_threads`](crate::Signal::for_kernel_threads).
    KernelThread,
}

/// A worker's part, as the worker's head has it.
#[derive(Default)]
pub(crate) struct Part {
    home: turn::Home,
    /// The loop to go on with; `None`: the part goes home with every outcome.
    service: Cell<Option<Lent>>,
    /// The context that brought the part home and whose handle is not out yet.
    left: Cell<Option<&'static Head>>,
}

/// A worker's loop, lent to the threads that play the worker's part.
#[derive(Clone, Copy)]
struct Lent {
    service: *mut (),
    /// For the types of that loop.
    play: unsafe fn(&'static Head, *const WorkerHead, *mut ()) -> Next,
}

/// The thread that goes on when one has played a worker's part.
enum Next {
    /// The thread itself, with the part.
    Itself,
    /// Another context's thread, which has the part.
    Another,
    /// The worker's own thread: the part is to go there.
    Home,
}

/// Runs a context once and waits for the part.
///
/// # Safety
/// The caller has consumed the context's one handle, on the worker's own thread.
pub(crate) unsafe fn run(worker: &WorkerHead, head: &'static Head) {
    check(worker);
    // SAFETY: as the caller promises.
    unsafe { send_away(worker, head) };
}

fn check(worker: &WorkerHead) {
    assert!(
        worker.mode.is_none(),
        "a kernel thread does not run in the mode of a worker's backend"
    );
}

/// # Safety
/// As for [`run`].
unsafe fn send_away(worker: &WorkerHead, head: &'static Head) {
    worker.part.home.leave();
    // SAFETY: the caller has consumed the handle.
    unsafe { give_turn(worker, head) };
    worker.part.home.wait();
}

/// Runs a context and what comes after it, until the part is back.
pub(crate) fn serve<T, R, S: Service<T, R> + Send>(
    worker: &mut Worker,
    service: &mut S,
    runnable: Runnable<T, R>,
    generation: Generation,
) {
    check(&worker.head);
    let resumed = matches!(runnable, Runnable::Suspended(_));
    let head = runnable.into_handle().head();
    worker.head.begin(head, generation, resumed);
    worker.head.part.service.set(Some(Lent {
        service: std::ptr::from_mut(service).cast(),
        play: play::<T, R, S>,
    }));
    // SAFETY: the handle was consumed above.
    unsafe { send_away(&worker.head, head) };
    worker.head.part.service.set(None);
    if let Some(payload) = worker.head.panic.take() {
        resume_unwind(payload);
    }
    if let Some(left) = worker.head.part.left.take() {
        debug_assert_eq!(left.running.status.get(), PREEMPTED);
        // SAFETY: the loop's types are those of all its contexts. The handle that gave the turn was
        // consumed, and the job has left: this is the one.
        service.preempted(Suspended(unsafe { Handle::new(left) }));
    }
}

/// Hands the worker's part, and the context, to the context's thread.
///
/// # Safety
/// The caller has the part and has consumed the context's one handle. It has neither any more.
unsafe fn give_turn(worker: *const WorkerHead, head: &'static Head) {
    // SAFETY: as the caller promises; the worker's head lives until the part is back.
    unsafe {
        goes_to_the_place_of(worker, head);
        (*worker).seat.taken_by(head.backing_thread.get());
    }
    head.turn.give();
}

/// The context's thread goes where the worker's part is played, which may have changed.
///
/// # Safety
/// The caller has the part and the context, as in [`give_turn`].
unsafe fn goes_to_the_place_of(worker: *const WorkerHead, head: &Head) {
    // SAFETY: the worker's head lives until the part is back.
    let worker = unsafe { &*worker };
    let (place, before) = (worker.seat.place(), head.place.get());
    if place != before {
        place.take(before, head.backing_thread.get(), worker.thread);
        head.place.set(place);
    }
}

/// A job has ended or gives way, with its status noted: its thread plays the worker's part, if it
/// may, and then waits for its turn.
///
/// # Safety
/// Must be called by the context's own thread in its turn, with the guard at 1.
pub(crate) unsafe fn leave(head: &Head, may_play: bool) {
    // SAFETY: the address of the thread's errno. The system calls of waiting and of the worker's
    // loop are not the job's.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: heads are never freed.
    let head: &'static Head = unsafe { &*std::ptr::from_ref(head) };
    let worker: *const WorkerHead = head.running.worker.get();
    // SAFETY: in its turn the thread has the part, and the worker's head lives at least until that
    // is back.
    let next = match unsafe { (*worker).part.service.get() } {
        // SAFETY: the worker is in `serve`, which lent the loop with the function for its types.
        Some(Lent { service, play }) if may_play => unsafe { play(head, worker, service) },
        lent => {
            // SAFETY: this thread has the part.
            unsafe { (*worker).part.left.set(lent.map(|_| head)) };
            head.turn.rest();
            Next::Home
        }
    };
    if let Next::Home = next {
        // SAFETY: the thread still has the part.
        unsafe {
            (*worker).seat.taken_by((*worker).thread);
            turn::Home::give_back(&raw const (*worker).part.home);
        }
    }
    head.turn.wait();
    // SAFETY: as above, on the same thread.
    unsafe { *libc::__errno_location() = errno };
}

/// Tells the loop what became of the job, and goes on with the loop until it is known what comes
/// next.
///
/// # Safety
/// As for [`leave`]. `service` must be what the worker's own thread has lent, of this type, and the
/// types the pool's.
unsafe fn play<T, R, S: Service<T, R> + Send>(
    head: &'static Head,
    worker: *const WorkerHead,
    service: *mut (),
) -> Next {
    let service = service.cast::<S>();
    let status = head.running.status.get();
    head.turn.hand_out();
    // SAFETY: the types are the pool's. The handle that gave the turn was consumed, and the job has
    // left: this is the one. From here on the context is its holder's.
    let handle: Handle<T, R> = unsafe { Handle::new(head) };
    current::note_between_jobs(true);
    let next = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the worker's own thread does not use the loop until the part is back, and the
        // others have not the part, which this thread has. It is `Send`.
        unsafe {
            match status {
                FINISHED => (*service).finished(Finished(handle)),
                _ => (*service).preempted(Suspended(handle)),
            }
            find_next::<T, R, S>(head, worker, service)
        }
    }));
    current::note_between_jobs(false);
    // SAFETY: this thread has the part: the loop panicked before it gave it away.
    next.unwrap_or_else(|payload| unsafe { fail(worker, payload) })
}

/// Worker and loop come as pointers: the thread that is given the part uses both before this
/// function has returned.
///
/// # Safety
/// The calling thread is that of `head`, whose handle is out, and has the part of `worker`, whose
/// loop `service` is.
unsafe fn find_next<T, R, S: Service<T, R>>(
    head: &'static Head,
    worker: *const WorkerHead,
    service: *mut S,
) -> Next {
    loop {
        if head.turn.is_given() {
            return Next::Home;
        }
        // SAFETY: this thread has the part, and with it the loop.
        let (runnable, generation) = match unsafe { (*service).next() } {
            Step::Run(runnable, generation) => (runnable, generation),
            Step::Nothing => continue,
            // On its own thread the worker finds out once more.
            Step::Sleep | Step::End => return Next::Home,
        };
        assert!(
            runnable.is_kernel_thread(),
            "a worker's contexts are all on kernel threads, or all on stacks"
        );
        let resumed = matches!(runnable, Runnable::Suspended(_));
        let next = runnable.into_handle().head();
        // SAFETY: this thread has the part, and the handle was consumed above.
        unsafe {
            (*worker).begin(next, generation, resumed);
            if std::ptr::eq(next, head) {
                goes_to_the_place_of(worker, head);
                head.turn.own_turn();
                return Next::Itself;
            }
            give_turn(worker, next);
        }
        return Next::Another;
    }
}

/// The worker's loop has panicked: that is for the worker's own thread. The context is leaked.
///
/// # Safety
/// The calling thread must have the part of `worker`.
#[cold]
unsafe fn fail(worker: *const WorkerHead, payload: Box<dyn Any + Send>) -> Next {
    // SAFETY: the worker's head lives until the part is back.
    unsafe { (*worker).panic.set(Some(payload)) };
    Next::Home
}
