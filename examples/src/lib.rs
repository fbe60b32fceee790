//! The parts that the example servers share.
//!
//! The examples themselves are the files beside `src/`; each says at the top what it shows and how
//! to run it.
#![forbid(unsafe_code)]

pub mod options;
pub mod stop;
pub mod store;
pub mod work;
