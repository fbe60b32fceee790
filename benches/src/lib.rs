//! Criterion benchmarks, a file each under `benches/`.
//! `cargo bench -p shinjuku-benches --bench costs` runs one.
//!
//! | bench | what it times |
//! |---|---|
//! | `costs` | mailboxes, policies, probes in loops, the simulator: rows of the table of costs |
//! | `dispatcher` | decisions a second, stub workers answering from the other core |
//!
//! The table of costs itself, with what needs two cores, is `cargo xtask bench`'s.
#![forbid(unsafe_code)]
