//! The functions that instrumented code calls in a program without the runtime; they do nothing.
//!
//! `cargo shinjuku` compiles this file with the program's compiler into a library of its own, so it
//! is a file of its own and no module here. The library is linked last, so that a program with the
//! runtime has the runtime's definitions.
#![no_std]

#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_trace_pc_guard(_: *mut u32) {}

#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_trace_pc_guard_init(_: *mut u32, _: *mut u32) {}
