//! What the example servers are made of, besides the runtime: real work for them to do.
//!
//! The examples themselves are the files beside `src/`, each with what it shows and how to run it on top.
#![forbid(unsafe_code)]

pub mod store;
