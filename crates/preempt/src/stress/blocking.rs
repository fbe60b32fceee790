//! Operations that block in the kernel, where the signal interrupts them.

use std::io::Read as _;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::job::State;
use super::world::{Reply, World};

/// Contexts wake each other, or a time-out does.
pub(super) fn condvar(_: &mut State, world: &World) -> bool {
    let mut count = world
        .condvar_mutex
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    *count += 1;
    let mine = *count;
    world.condvar.notify_all();
    let (count, waited) = world
        .condvar
        .wait_timeout_while(count, Duration::from_micros(200), |count| *count == mine)
        .unwrap_or_else(PoisonError::into_inner);
    *count > mine || waited.timed_out()
}

/// Sleeps on a futex, without a time-out, until an ordinary thread wakes it.
pub(super) fn park(state: &mut State, world: &World) -> bool {
    let line = &world.lines[state.context];
    line.thread.get_or_init(std::thread::current);
    let nonce = state.below(255) + 1;
    line.answer.store(0, Ordering::Relaxed);
    if !world.ask_echo(state.context, Reply::Unpark, nonce as u8) {
        return false;
    }
    loop {
        match line.answer.load(Ordering::Acquire) {
            0 => std::thread::park(),
            answer => return answer == nonce,
        }
    }
}

/// Sleeps in `read` until an ordinary thread writes.
pub(super) fn read(state: &mut State, world: &World) -> bool {
    let nonce = state.random() as u8;
    let mut answer = [!nonce];
    world.ask_echo(state.context, Reply::Write, nonce)
        && (&world.lines[state.context].from_echo)
            .read_exact(&mut answer)
            .is_ok()
        && answer == [nonce]
}

/// Sleeps by the clock, and not too briefly.
pub(super) fn sleep(state: &mut State, _: &World) -> bool {
    let time = Duration::from_micros(state.below(100) + 1);
    let start = Instant::now();
    std::thread::sleep(time);
    start.elapsed() >= time
}
