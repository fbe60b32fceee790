//! Clients over TCP against a whole server.
//!
//! One test at a time: each measures the process as a whole, or needs most of its descriptors.
#![allow(missing_docs)]

mod allocation;
mod apart;
mod churn;
mod crowd;
mod overtaking;
mod service;

#[global_allocator]
static ALLOCATOR: shinjuku_preempt::stress::CountingAllocator =
    shinjuku_preempt::stress::CountingAllocator;

/// Held by the running test.
fn turn() -> impl Sized {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
