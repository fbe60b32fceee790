//! The safe layer over DPDK, its declarations, and its build.
//!
//! `failed_start` is a program of its own, since a process can try to start DPDK once.
#![allow(missing_docs)]

mod layout;
mod missing_library;
mod rings;
