//! The runtime from outside: requests submitted in this process, in each layout.
//!
//! A layout's module has what holds only there, and `suite`, which holds in every layout: compiled
//! once in each.
#![allow(missing_docs)]
#![allow(clippy::duplicate_mod, reason = "the suite is that of each layout")]

mod inline;
mod kernel_threads;
mod symmetric;
mod threads;
mod works;
