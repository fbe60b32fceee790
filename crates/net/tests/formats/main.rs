//! The formats of requests and replies: whole, in pieces, malformed, and any bytes at all.
#![forbid(unsafe_code)]

mod reassembly;
mod reply;
mod reply_fuzz;
mod resp;
mod resp_fuzz;
mod wire;
