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
