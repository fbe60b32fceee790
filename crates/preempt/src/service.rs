//! A worker's loop as a value: what the worker asks for contexts to run, and tells of them.
//!
//! [`Worker::serve`] runs such a loop. It is a value so that it can go from thread to thread where
//! contexts are kernel threads: see [`ContextKind::KernelThread`](crate::ContextKind).

use crate::context::{Finished, Generation, Outcome, Runnable, Suspended};
use crate::kernel_thread;
use crate::worker::Worker;

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
}
