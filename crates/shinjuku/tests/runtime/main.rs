//! The runtime from outside: requests submitted in this process.
#![allow(missing_docs)]

#[path = "suite.rs"]
mod suite;
mod threads;
