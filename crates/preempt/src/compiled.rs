//! Probes that the stock compiler inserts: at the entry of every function of the crates that
//! `cargo shinjuku` builds, foreign ones included.
//!
//! The probes are those of LLVM's coverage pass with gated callbacks. An entry loads the *gate*, a
//! word of the process, and calls the callback below unless the gate is 0. The gate counts the
//! requests to give way that a compiled probe may take and has not answered yet, of all dispatchers
//! and runtimes together. So in the usual case an entry costs a load and a branch.
//!
//! ```text
//!   dispatcher                        gate                     instrumented code, on any thread
//!   ──────────                        ────                     ────────────────────────────────
//!   request: names the dispatch        0     entry ─▶ goes on
//!   in `at_entries`, `requested` ───▶ +1     entry ─▶ callback: not a context, not the named
//!        │                             1              dispatch, or guard up ─────────▶ goes on
//!        │                             1     entry ─▶ callback: the named dispatch
//!        │                             1                │ not on the context's stack, panicking,
//!        │                             1                │ or another signal mask ────▶ goes on
//!        │                             1                └─▶ gives way, as a probe does
//!   the answer, or whatever else ────▶ −1
//!   ends the `Outstanding`             0     entry ─▶ goes on
//! ```
//!
//! Where the dispatcher shares the worker's thread, it does not run while a request does, and the
//! request is there from the start, with its deadline. So there the worker's timer raises the gate:
//! its handler runs on top of the context, and the context lowers the gate on its way out, before
//! another worker can have it. Both are one thread's, one after the other. The dispatcher's signal
//! does the same where it finds the context within the allocator, once a dispatch: a request that
//! is suspended there would keep the allocator's lock (`library_code`).
//!
//! The count is one atomic word that is only added to and subtracted from, and [`Outstanding`]
//! subtracts by its `Drop`. So the gate comes down however a request ends: taken, finished,
//! recalled, replaced by an interrupt, or with its dispatcher. The gate only makes code look. That
//! it is seen late, or up for another context's sake, changes no decision.
//!
//! The callback may be called anywhere: before `main` and after it, on foreign threads, in signal
//! handlers, in destructors of thread-locals. `CURRENT` is null wherever the caller is not within a
//! context's job or its loop, and in the loop the guard is up. Neither this crate nor what the
//! callback calls is instrumented, so it does not recurse.
//!
//! The symbols are there with the feature `compiled-probes` only: sanitizers and fuzzers define the
//! same.

use std::cell::Cell;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;

use crate::context::Head;
use crate::mailbox::Dispatched;
use crate::token::HardPreemption;

/// Alone on its cache lines, which every core reads all the time.
#[repr(C, align(128))]
struct Gate(AtomicU64);

/// Instrumented code has weak definitions of this symbol; the linker takes this one.
// SAFETY: the symbol is LLVM's name for a word of 64 bits that instrumented code only loads, and
// the word is at the static's start. With another strong definition the program does not link.
#[cfg_attr(
    feature = "compiled-probes",
    unsafe(export_name = "__sancov_should_track")
)]
#[cfg(not(loom))]
static GATE: Gate = Gate(AtomicU64::new(0));

#[cfg(loom)]
loom::lazy_static! {
    static ref GATE: Gate = Gate(AtomicU64::new(0));
}

/// The two that write the gate are compiled in this crate alone. LLVM's pass defines the symbol in
/// each module that it instruments, as a plain word, and a module of an instrumented crate into
/// which they were inlined would have it twice, with two types.
#[inline(never)]
fn raise() {
    GATE.0.fetch_add(1, Ordering::Relaxed);
}

#[inline(never)]
fn lower() {
    let before = GATE.0.fetch_sub(1, Ordering::Relaxed);
    debug_assert_ne!(before, 0, "only what was raised is lowered");
}

/// A signal has found the context past its moment, in its own code at guard 0: raises the gate
/// until the dispatch is over. Returns whether this has raised it. For the signal's handler.
pub(crate) fn raise_for(head: &Head) -> bool {
    raise_once(&head.running.is_gate_up)
}

fn raise_once(is_up: &Cell<bool>) -> bool {
    let raises = !is_up.replace(true);
    if raises {
        raise();
    }
    raises
}

/// The dispatch is over, or was asked to give way and does: takes back what [`raise_for`] has
/// raised. Called by the context with its guard up, under which that raises nothing.
#[inline]
pub(crate) fn lower_for(head: &Head) {
    lower_once(&head.running.is_gate_up);
}

#[inline]
fn lower_once(is_up: &Cell<bool>) {
    if is_up.get() {
        is_up.set(false);
        lower();
    }
}

/// How many probes the program has. Stored before `main`.
static PROBES: AtomicUsize = AtomicUsize::new(0);

/// The right to have code stopped at compiled probes: at function entries, where its author may not
/// have thought of it.
#[derive(Clone, Copy, Debug)]
pub struct CompiledProbes(());

/// Why compiled probes cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompiledProbesError {
    /// No crate of this program was instrumented.
    #[error("this program has no compiled probes: build it by `cargo shinjuku build`")]
    NoneHere,
}

impl CompiledProbes {
    /// Lets requests be taken at compiled probes. Installs nothing: the probes are there or not.
    ///
    /// # Errors
    /// [`CompiledProbesError::NoneHere`] if the program was built without them.
    pub fn install(_: HardPreemption) -> Result<Self, CompiledProbesError> {
        match Self::in_this_program() {
            0 => Err(CompiledProbesError::NoneHere),
            _ => Ok(Self(())),
        }
    }

    /// How many compiled probes the program has: the functions of its instrumented crates.
    #[must_use]
    pub fn in_this_program() -> usize {
        PROBES.load(Ordering::Relaxed)
    }

    /// How many requests keep the gate up now, of all runtimes of the process.
    #[must_use]
    #[inline(never)]
    pub fn outstanding() -> u64 {
        GATE.0.load(Ordering::Relaxed)
    }

    /// Asks the context to give way, as [`Dispatched::request`] does, and at compiled probes as
    /// well while the answer lives. Two atomic additions in all; does not allocate.
    #[inline]
    pub fn request(self, dispatched: &Dispatched) -> Outstanding {
        dispatched.request_at_entries();
        Outstanding::new()
    }
}

/// A request that compiled probes may take: keeps the gate up while it lives. To be dropped when
/// the request was answered, or when an interrupt is to answer it: meanwhile all instrumented code
/// pays for a call at every function entry.
#[must_use = "compiled probes take the request only while this lives"]
#[derive(Debug)]
pub struct Outstanding(());

impl Outstanding {
    #[inline]
    fn new() -> Self {
        raise();
        Self(())
    }
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        lower();
    }
}

/// What instrumented code calls, by names that LLVM gives.
#[cfg(feature = "compiled-probes")]
mod callbacks {
    use std::hint::black_box;
    use std::sync::atomic::Ordering;

    use super::PROBES;
    use crate::context::Head;
    use crate::current::{self, CURRENT};
    use crate::signal;

    /// Called before `main`, and by each instrumented module, with the bounds of an array that has
    /// a word for each probe of the program (or of the shared library).
    // SAFETY: LLVM's name and signature; with another strong definition the program does not link.
    #[unsafe(no_mangle)]
    extern "C" fn __sanitizer_cov_trace_pc_guard_init(start: *const u32, end: *const u32) {
        let probes = (end.addr() - start.addr()) / size_of::<u32>();
        PROBES.fetch_max(probes, Ordering::Relaxed);
    }

    /// Called at a function's entry while the gate is up.
    // SAFETY: LLVM's name and signature; with another strong definition the program does not link.
    #[unsafe(no_mangle)]
    extern "C" fn __sanitizer_cov_trace_pc_guard(_: *mut u32) {
        let head = CURRENT.get();
        if head.is_null() {
            return;
        }
        // SAFETY: set only by a backing thread to its own context, which outlives the thread.
        let head = unsafe { &*head };
        if head.is_requested_at_entries() && head.running.guard.load(Ordering::Relaxed) == 0 {
            entry_found(head);
        }
    }

    /// The dispatch that runs is to give way: it does, if an interrupt could leave here as well.
    #[cold]
    #[inline(never)]
    fn entry_found(head: &Head) {
        let frame = 0u8;
        let stack_pointer = std::ptr::from_ref(black_box(&frame)).addr();
        let on_its_stack = (head.stack_low.get()..head.stack_high.get()).contains(&stack_pointer);
        // Signal handlers are instrumented without their author's knowledge. The mask tells them.
        // A deadline may have been put off since the gate was raised for it, or not be over yet
        // where that is up for another's sake.
        if on_its_stack
            && head.is_due()
            && !std::thread::panicking()
            && current::has_workers_mask(head, signal::mask_of_this_thread)
        {
            current::entered(head);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_gate_is_up_while_any_request_is_outstanding() {
        let up = CompiledProbes::outstanding;
        assert_eq!(up(), 0);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(move || {
                    for _ in 0..1_000 {
                        let (first, second) = (Outstanding::new(), Outstanding::new());
                        assert!(up() >= 2);
                        drop(first);
                        assert!(up() >= 1);
                        drop(second);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(up(), 0);
    }

    #[test]
    fn instrumented_code_finds_the_gate_at_its_symbols_start() {
        assert_eq!(
            std::ptr::from_ref(&GATE).addr(),
            std::ptr::from_ref(&GATE.0).addr()
        );
    }
}

/// Dispatchers and workers raise and lower the one gate: never is it down for those who have raised
/// it, and at the end it is.
#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;

    /// Contexts that no worker runs, each with its mark. Workers take turns with them.
    type Contexts = Arc<Mutex<Vec<Cell<bool>>>>;

    fn model(check: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(check);
    }

    fn contexts(number: usize) -> Contexts {
        Arc::new(Mutex::new((0..number).map(|_| Cell::new(false)).collect()))
    }

    /// A worker's turn with whatever context is there. Its code finds a signal twice, or, with
    /// `signals` 0, is never past its moment; then it goes out by `leave`.
    fn turn(contexts: &Contexts, signals: usize, leave: fn(&Cell<bool>)) {
        let Some(is_up) = contexts.lock().unwrap().pop() else {
            return;
        };
        for signal in 0..signals {
            assert_eq!(raise_once(&is_up), signal == 0, "once a dispatch");
            assert!(CompiledProbes::outstanding() >= 1, "the gate is down");
        }
        leave(&is_up);
        contexts.lock().unwrap().push(is_up);
    }

    /// A request, and another one to a second worker before the first is answered.
    fn dispatch() {
        let first = Outstanding::new();
        let second = Outstanding::new();
        assert!(CompiledProbes::outstanding() >= 2, "the gate is down");
        drop(first);
        assert!(CompiledProbes::outstanding() >= 1, "the gate is down");
        drop(second);
    }

    /// Two contexts, one worker that is signalled and one that is not, and a dispatcher beside.
    fn all_at_once(leave: fn(&Cell<bool>)) {
        let contexts = contexts(2);
        let workers = [2, 0].map(|signals| {
            let contexts = Arc::clone(&contexts);
            thread::spawn(move || turn(&contexts, signals, leave))
        });
        dispatch();
        for worker in workers {
            worker.join().unwrap();
        }
        assert_eq!(CompiledProbes::outstanding(), 0, "the gate stays up");
    }

    #[test]
    fn loom_the_gate_is_up_while_any_request_is_outstanding_and_then_down() {
        model(|| all_at_once(lower_once));
    }

    /// Two workers share one context: what one dispatch has raised, the next does not lower.
    #[test]
    fn loom_a_context_that_changes_workers_takes_back_its_own() {
        model(|| {
            let contexts = contexts(1);
            let other = {
                let contexts = Arc::clone(&contexts);
                thread::spawn(move || {
                    turn(&contexts, 1, lower_once);
                    turn(&contexts, 0, lower_once);
                })
            };
            turn(&contexts, 1, lower_once);
            other.join().unwrap();
            assert_eq!(CompiledProbes::outstanding(), 0, "the gate stays up");
        });
    }

    /// The model fails where the gate is a flag: a context takes it down under another's request.
    #[test]
    #[should_panic(expected = "the gate")]
    fn loom_a_gate_that_does_not_count_is_down_too_early() {
        model(|| {
            all_at_once(|is_up| {
                if is_up.replace(false) {
                    GATE.0.store(0, Ordering::Relaxed);
                }
            });
        });
    }

    /// And where one goes out with the gate still up.
    #[test]
    #[should_panic(expected = "the gate stays up")]
    fn loom_a_way_out_that_lowers_nothing_leaves_the_gate_up() {
        model(|| all_at_once(|_| ()));
    }
}
