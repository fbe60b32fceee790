//! The IP stack, the transport over it and its client, without a device: a wire in memory.
#![forbid(unsafe_code)]

mod client;
mod fuzz;
mod interface;
mod packet;
mod transport;
