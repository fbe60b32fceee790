//! The key-value server as a process, from its clients' side; and its store, on each engine.

mod abuse;
mod client;
mod clients;
mod comparison;
mod servers;
mod soak;
mod start;
mod store;
