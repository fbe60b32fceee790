//! The TCP transport between real sockets.
#![allow(missing_docs)]

mod closing;
mod descriptors;
mod framing;
mod house;
mod long;
mod misuse;
mod order;
