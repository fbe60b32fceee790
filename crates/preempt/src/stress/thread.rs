//! Operations on a thread's own state: thread-locals of Rust and C, errno, identity.

use std::cell::{Cell, RefCell};

use super::job::{State, spin};
use super::world::World;

thread_local! {
    static VALUE: Cell<u64> = const { Cell::new(0) };
    static LAZY: RefCell<Vec<u64>> = RefCell::new(Vec::with_capacity(1));
}

unsafe extern "C" {
    /// In `stress/thread_locals.c`.
    safe fn stress_thread_locals(expected: u64, next: u64, spins: u64) -> u32;
}

/// The value is the one this context left, also after a spin.
pub(super) fn local_value(state: &mut State, _: &World) -> bool {
    let right = VALUE.get() == state.local_value;
    state.local_value = state.random();
    VALUE.set(state.local_value);
    spin(20);
    right && VALUE.get() == state.local_value
}

/// The address never changes for a context.
pub(super) fn local_address(state: &mut State, _: &World) -> bool {
    #[inline(never)]
    fn find() -> usize {
        VALUE.with(|value| std::hint::black_box(std::ptr::from_ref(value)).addr())
    }
    let before = find();
    spin(20);
    let right = find() == before && (state.local_address == 0 || state.local_address == before);
    state.local_address = before;
    right
}

/// A thread-local with an initialiser, a destructor and a borrow flag that is set over a spin.
pub(super) fn lazy_local(state: &mut State, _: &World) -> bool {
    let number = state.random();
    LAZY.with(|values| {
        let Ok(mut values) = values.try_borrow_mut() else {
            return false;
        };
        let right = *values == state.lazy_values;
        if values.len() == 20 {
            values.clear();
            state.lazy_values.clear();
        }
        values.push(number);
        state.lazy_values.push(number);
        spin(20);
        right && *values == state.lazy_values
    })
}

/// C's own thread-locals.
pub(super) fn c_locals(state: &mut State, _: &World) -> bool {
    let (expected, next) = (state.c_value, state.random() | 1 << 63);
    state.c_value = next;
    stress_thread_locals(expected, next, 20) == 0
}

/// For std the thread is always the backing thread.
pub(super) fn identity(state: &mut State, _: &World) -> bool {
    let thread = std::thread::current();
    spin(10);
    let first = *state.thread.get_or_insert(thread.id());
    thread.id() == first
        && std::thread::current().id() == first
        && thread.name().and_then(|name| name.strip_prefix("stress-"))
            == Some(state.context.to_string().as_str())
}

/// System calls of other threads do not change errno.
pub(super) fn errno(state: &mut State, _: &World) -> bool {
    #[inline(never)]
    fn location() -> *mut i32 {
        // SAFETY: returns the address of the calling thread's errno.
        unsafe { libc::__errno_location() }
    }
    let value = 1000 + state.below(1000) as i32;
    // SAFETY: valid for the calling thread, which is the context as far as libc knows.
    unsafe { location().write(value) };
    spin(20);
    // SAFETY: as above.
    unsafe { location().read() == value }
}
