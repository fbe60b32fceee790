//! What a runtime starts with: its configuration, and mechanisms that this build or this machine
//! may not have.
#![allow(missing_docs)]

mod backends;
mod config;
#[cfg(feature = "dune")]
mod dune;
