//! Requests are served although their workers sleep, or other threads have the cores.
//!
//! The tests are a program of their own and run one at a time, since they take the cores from
//! others.

mod blocked;
mod symmetric;
