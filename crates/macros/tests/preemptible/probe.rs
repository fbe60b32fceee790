//! Stands in for the crate `shinjuku`: a probe that counts its calls. It is a module of its own,
//! since the attribute calls `preempt_point` by the path of a crate.

use std::cell::Cell;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// What `#[preemptible(crate = crate::probe)]` calls.
pub fn preempt_point() {
    CALLS.set(CALLS.get() + 1);
}

/// What `run` returns, and how many probes it passed.
pub fn counted<T>(run: impl FnOnce() -> T) -> (T, u64) {
    let before = CALLS.get();
    let value = run();
    (value, CALLS.get() - before)
}

/// Defines a module with one function three times: `plain`, as written; `each`, probed each
/// iteration; `fourth`, probed each fourth iteration.
#[macro_export]
#[allow(clippy::crate_in_macro_def)] // the tests' own `probe`
macro_rules! variants {
    ($(fn $name:ident($($argument:tt)*) $(-> $output:ty)? $body:block)*) => {$(
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            pub fn plain($($argument)*) $(-> $output)? $body
            #[shinjuku_macros::preemptible(crate = crate::probe)]
            pub fn each($($argument)*) $(-> $output)? $body
            #[shinjuku_macros::preemptible(crate = crate::probe, every = 4)]
            pub fn fourth($($argument)*) $(-> $output)? $body
        }
    )*};
}

/// Checks that the three variants of `name` agree on the arguments, and how many probes the two
/// probed ones pass.
#[macro_export]
macro_rules! assert_probes {
    ($name:ident($($argument:expr),*): each $each:expr, fourth $fourth:expr) => {
        let expected = $name::plain($($argument),*);
        assert_eq!($crate::probe::counted(|| $name::each($($argument),*)), (expected.clone(), $each), "each");
        assert_eq!($crate::probe::counted(|| $name::fourth($($argument),*)), (expected, $fourth), "fourth");
    };
}
