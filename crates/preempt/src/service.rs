//! A worker's loop as a value: what the worker asks for contexts to run, and tells of them.
//!
//! [`Worker::serve`] runs such a loop. It is a value so that it can go from thread to thread where
//! contexts are kernel threads: see [`ContextKind::KernelThread`](crate::ContextKind).

use crate::context::{Finished, Generation, Outcome, Runnable, Suspended};
use crate::kernel_thread;
use crate::worker::{Listener, Worker};

/// What a worker's loop shall do next.
#[derive(Debug)]
pub enum Step<T, R> {
    /// Run this, as the dispatch of this number.
    Run(Runnable<T, R>, Generation),
    /// There is nothing at this moment: ask again.
    Nothing,
    /// There has been nothing for long: [`sleep`](Service::sleep).
    Sleep,
    /// The loop is over.
    End,
}

/// A worker's loop. With contexts on stacks, all its calls come on the worker's own thread. With
/// contexts on kernel threads they come on the thread that plays the worker's part, one at a time;
/// only [`sleep`](Self::sleep) is called on the worker's own, and [`End`](Step::End) is found
/// there.
///
/// Of its code must hold what holds of all that runs between contexts: no allocation, no lock, no
/// user's value dropped, since a suspended context may hold any lock. None of it is called in a
/// signal's handler.
pub trait Service<T, R> {
    /// What comes next. Returns before long.
    fn next(&mut self) -> Step<T, R>;

    /// The job of the last dispatch has ended.
    fn finished(&mut self, finished: Finished<T, R>);

    /// The job of the last dispatch was preempted.
    fn preempted(&mut self, suspended: Suspended<T, R>);

    /// Waits until there may be something to do.
    fn sleep(&mut self);
}

impl Worker {
    /// Runs the loop until it is over. Allocates nothing and calls nothing but the contexts and the
    /// loop.
    ///
    /// # Panics
    /// As the loop does. With contexts on kernel threads: if the worker is in the mode of a
    /// backend, or if there is one on a stack among them.
    pub fn serve<T, R>(&mut self, service: &mut (impl Service<T, R> + Send)) {
        loop {
            match service.next() {
                Step::Run(runnable, generation) if runnable.is_kernel_thread() => {
                    kernel_thread::serve(self, service, runnable, generation);
                }
                Step::Run(runnable, generation) => match self.run(runnable, generation) {
                    Outcome::Finished(finished) => service.finished(finished),
                    Outcome::Preempted(suspended) => service.preempted(suspended),
                },
                Step::Nothing => {}
                Step::Sleep => service.sleep(),
                Step::End => return,
            }
        }
    }

    /// Runs what the loop has next, if it has anything: one dispatch, on this thread. Probes of a
    /// dispatch with a moment ([`Dispatched::request_at`](crate::Dispatched::request_at)) that read
    /// the clock, about twice a microsecond, ask `is_wanted`; if that says so, the context gives
    /// way there.
    ///
    /// `is_wanted` runs on the context's stack and with its thread control block, so that
    /// thread-locals in it are the context's and not the worker's; preemption is held off. What
    /// holds of the loop's code holds of it. If it panics, the job does.
    ///
    /// # Panics
    /// As the loop does; and if the context is a kernel thread.
    pub fn serve_once<T, R>(&mut self, service: &mut impl Service<T, R>, is_wanted: Listener<'_>) {
        let Step::Run(runnable, generation) = service.next() else {
            return;
        };
        assert!(
            !runnable.is_kernel_thread(),
            "a kernel thread goes on with a loop, and not with one dispatch of it"
        );
        match self.run_listening(runnable, generation, is_wanted) {
            Outcome::Finished(finished) => service.finished(finished),
            Outcome::Preempted(suspended) => service.preempted(suspended),
        }
    }
}
