//! Criterion benchmarks, a file each under `benches/`.
//! `cargo bench -p shinjuku-benches --bench policies` runs one.
//!
//! | bench | what it times |
//! |---|---|
//! | `dispatcher` | decisions a second, stub workers answering from the other core |
//! | `policies` | a request's way through each policy, bare and under the core's watch |
//! | `mailbox` | a context through a mailbox, both ends on one thread |
//! | `switch` | into a context and out again |
//! | `probe` | probes that are never taken, and the guard |
//!
//! What needs two cores and ratios of one run is in the cost table of `cargo xtask bench` instead.
#![forbid(unsafe_code)]
