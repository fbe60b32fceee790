//! Operations that walk or fill the stack: panics, backtraces, deep recursion.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::Cell;
use std::sync::Once;

use super::job::{State, spin};
use super::world::World;
use crate::preempt_point;

/// The payload of a panic that belongs to the test.
struct OnPurpose(u64);

/// The panic hook goes on reporting all other panics.
pub(super) fn silence_panics_on_purpose() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !panic.payload().is::<OnPurpose>() {
                report(panic);
            }
        }));
    });
}

/// Unwinds through a destructor that is preempted, and hands over the payload.
pub(super) fn panic(state: &mut State, _: &World) -> bool {
    struct OnDrop<'a>(&'a Cell<u32>);
    impl Drop for OnDrop<'_> {
        fn drop(&mut self) {
            let before = std::thread::panicking();
            spin(10);
            if before && std::thread::panicking() {
                self.0.set(self.0.get() + 1);
            }
        }
    }
    let number = state.random();
    let dropped = Cell::new(0);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _first = OnDrop(&dropped);
        let _second = (OnDrop(&dropped), vec![number; 10]);
        std::panic::panic_any(OnPurpose(number));
    }));
    spin(10);
    let payload = caught
        .err()
        .and_then(|payload| payload.downcast::<OnPurpose>().ok());
    payload.is_some_and(|payload| payload.0 == number)
        && dropped.get() == 2
        && !std::thread::panicking()
}

pub(super) fn backtrace(_: &mut State, _: &World) -> bool {
    Backtrace::force_capture().status() == BacktraceStatus::Captured
}

/// Recurses down to a few kilobytes from the end of the stack that a job may use, and returns.
pub(super) fn deep_recursion(state: &mut State, _: &World) -> bool {
    const MARGIN: usize = 6 * 1024;
    #[inline(never)]
    fn descend(lowest: usize, depth: u64) -> Option<u64> {
        let mut frame = [depth; 32];
        let here = std::hint::black_box(&mut frame).as_ptr().addr();
        preempt_point();
        let below = if here > lowest {
            descend(lowest, depth + 1)?
        } else {
            0
        };
        let intact = std::hint::black_box(&frame)
            .iter()
            .all(|&word| word == depth);
        intact.then_some(below + 1)
    }
    let lowest = state.stack_top - (state.stack_size - MARGIN);
    descend(lowest, 0).is_some_and(|depth| depth > 20)
}
