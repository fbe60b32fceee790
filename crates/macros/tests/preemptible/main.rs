//! What `#[preemptible]` changes: probes, and nothing else.

#[macro_use]
mod probe;

mod control_flow;
mod lints;
mod semantics;
