//! What the example servers are made of, besides the runtime.
//!
//! The examples themselves are the files beside `src/`, each with what it shows and how to run it
//! on top.
#![forbid(unsafe_code)]

pub mod options;
pub mod stop;
pub mod store;
pub mod work;
