//! After start the runtime's own threads never call the allocator.
//!
//! One test at a time: contexts within the allocator are counted over the whole process.

mod dataplane;
mod dispatcher;
mod networker;

#[global_allocator]
static ALLOCATOR: shinjuku_preempt::stress::CountingAllocator =
    shinjuku_preempt::stress::CountingAllocator;
