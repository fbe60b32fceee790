//! The parts that the tests of several packages share. Only tests use this package: where something
//! is not as it should be, or takes longer than [`PATIENCE`], what is here panics, and says why.
//!
//! | module | |
//! |---|---|
//! | [`process`] | child processes with a time limit, ended by their own ids; servers that say when they are ready; tests that take several processes |
//! | [`namespace`] | network namespaces that tests make and remove |
//! | [`waiting`] | waiting, with a limit; one test at a time |
//! | [`usage`] | the resources that a process uses |
//! | `runtime` `watch` | with feature `runtime`: runtimes for few cores, and threads that must not call the allocator |
//! | `contexts` | with feature `contexts`: contexts under a small scheduler |
//! | `dpdk` | with feature `dpdk`: hosts on DPDK's devices |

/// What a test needs of the machine. Where it is `None`, the test ends here: who gave `None` has
/// said that the test is skipped, and why.
#[macro_export]
macro_rules! need {
    ($needed:expr) => {
        match $needed {
            Some(there) => there,
            None => return,
        }
    };
}

/// The test's own name, as libtest knows it.
#[macro_export]
macro_rules! test_name {
    () => {{
        fn here() {}
        let name = std::any::type_name_of_val(&here);
        let name = name.strip_suffix("::here").unwrap();
        name.split_once("::").unwrap().1
    }};
}

/// Asserts that all of these words are in what was said.
#[track_caller]
pub fn assert_says<const N: usize>(said: impl std::fmt::Display, words: [&str; N]) {
    let said = said.to_string();
    for words in words {
        assert!(said.contains(words), "{words:?} is not in:\n{said}");
    }
}

#[cfg(feature = "contexts")]
pub mod contexts;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod namespace;
pub mod process;
#[cfg(feature = "runtime")]
pub mod runtime;
pub mod usage;
pub mod waiting;
#[cfg(feature = "runtime")]
pub mod watch;

pub use usage::Usage;
pub use waiting::{PATIENCE, comes_true, turn, wait_for};
