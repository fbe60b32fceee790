//! Threads on given cores, and timing on them: what every measurement here begins with.

use std::hint::black_box;
use std::sync::mpsc;

use super::MeasureError;
use crate::affinity::Affinity;
use crate::clock::{Clock, Cycles};
use crate::realtime::Realtime;

/// Pins the calling thread.
pub(super) fn pin(core: usize) -> Result<(), MeasureError> {
    let core_alone = Affinity::of_core(core).ok_or(std::io::ErrorKind::InvalidInput.into());
    let pinned = core_alone.and_then(|core| core.apply());
    pinned.map_err(|cause| MeasureError::Pin { core, cause })
}

/// Runs `here` on this thread and `there` on one pinned to `core`, from the moment that both are in
/// place. The other thread has this one's scheduling class.
pub(super) fn beside<There: Send, Here>(
    core: usize,
    there: impl FnOnce() -> There + Send,
    here: impl FnOnce() -> Here,
) -> (There, Here) {
    let priority = Realtime::priority_of_current();
    std::thread::scope(|scope| {
        let (in_place, wait) = mpsc::channel();
        let other = scope.spawn(move || {
            pin(core).unwrap_or_else(|error| panic!("it worked at first: {error}"));
            let _realtime = priority.map(Realtime::enter);
            let _ = in_place.send(());
            there()
        });
        // Sleeping, not spinning: the other thread starts out on this core.
        let here = wait.recv().map(|()| here());
        let there = other
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let Ok(here) = here else {
            unreachable!("the other thread ends without a word only by a panic")
        };
        (there, here)
    })
}

/// Nanoseconds of one of `times` calls, their loop included.
#[inline(always)]
pub(super) fn per_call(times: u32, mut call: impl FnMut()) -> f64 {
    let start = Cycles::now();
    for _ in 0..black_box(times) {
        call();
    }
    nanos(Cycles::now().since(start)) / f64::from(times)
}

/// Nanoseconds with their fraction.
pub(super) fn nanos(cycles: Cycles) -> f64 {
    cycles.0 as f64 / Clock::get().cycles_per_nano()
}
