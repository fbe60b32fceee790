//! The manual. Each page is a module, and its code is compiled with the documentation's tests.
//!
//! | page | about |
//! |---|---|
//! | [`getting_started`] | a server, handlers with state, a pool in a process, configuration |
//! | [`choosing`] | probes or the token, which layout, which policy |
//! | [`pool`] | closures beside an async runtime: waiting, cancelling, borrowing, sizing; from `spawn_blocking` and rayon |
//! | [`serving`] | layouts, transports, past the kernel |
//! | [`policies`] | which request runs next |
//! | [`preemption`] | mechanisms, the token, what still differs from a thread |
//! | [`compiled_probes`] | code without probes of its own, preempted at function entries: `cargo shinjuku` |
//! | [`elevation`] | any threads and processes, scheduled by priorities from user space: `shinjuku-elevate` |
//! | [`deploying`] | threads and memory, containers, bare metal |
//! | [`watching`] | statistics, `shinjuku top`, metrics, a dashboard, a timeline, stalls |
//! | [`troubleshooting`] | by symptom |
//! | [`limits`] | where the crate runs, and when not to use it |
//! | [`upgrading`] | versions, what counts as the interface, which Rust |
//! | [`measurements`] | what was measured, and on which machine |
//! | [`simulator`] | trying a policy, a quantum or a machine without having one |
//! | [`soundness`] | the argument for the unsafe code |
//! | [`pitfalls`] | what goes wrong when ordinary code is preempted, and which test watches it |

macro_rules! pages {
    ($($page:ident: $file:literal;)*) => {
        $(
            #[doc = include_str!(concat!("../docs/", $file))]
            pub mod $page {}
        )*
    };
}

pages! {
    getting_started: "getting-started.md";
    choosing: "choosing.md";
    pool: "pool.md";
    serving: "serving.md";
    policies: "policies.md";
    preemption: "preemption.md";
    compiled_probes: "compiled-probes.md";
    elevation: "elevation.md";
    deploying: "deploying.md";
    watching: "watching.md";
    troubleshooting: "troubleshooting.md";
    limits: "limits.md";
    upgrading: "upgrading.md";
    measurements: "measurements.md";
    simulator: "simulator.md";
    soundness: "unsafe.md";
    pitfalls: "pitfalls.md";
}

/// The landing page's code, compiled with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
