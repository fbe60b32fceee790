//! Contexts and the workers that run them, without a runtime.
#![allow(missing_docs)]

mod alone;
mod credentials;
mod deadlines;
mod listening;
mod protection_keys;
mod realtime;
mod succession;
