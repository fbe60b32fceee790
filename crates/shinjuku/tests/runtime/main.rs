//! The runtime from outside: requests submitted in this process, in each layout.
//!
//! A layout's module has the tests of that layout, and `suite`, the tests that every layout passes,
//! which is compiled once in each module.
#![allow(missing_docs)]
#![allow(clippy::duplicate_mod, reason = "the suite is that of each layout")]

mod inline;
mod kernel_threads;
mod symmetric;
mod threads;
mod works;
