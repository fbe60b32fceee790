//! A key-value server that speaks Redis's protocol: a complete program on the crate `shinjuku`. Its
//! GETs stay fast while range scans run.
//!
//! Run: `cargo run --release -p shinjuku-kv -- --load 100000`, and then any client of Redis:
//! `redis-cli -p 6380`.
//!
//! | file | |
//! |---|---|
//! | `main.rs` `run.rs` | starting and ending |
//! | `options.rs` `stop.rs` | the command line and the configuration file; requests to end |
//! | `server.rs` | the request handler |
//! | `commands/` | the table of commands, their classes, and their functions |
//! | `call.rs` `elements.rs` `pattern.rs` | a command being executed, with its connection's state; arrays of unknown length; patterns |
//! | `store/` | the database: expiry, atomic changes, cursors |
//! | `engine/` | where keys and values are stored: in memory, or with RocksDB |
//!
//! `net::resp` frames and classifies a request on the networker's thread. A context handles it, and
//! can be preempted: at the probes in all loops here that can be long and, where the runtime may
//! use signals, anywhere but in [`store::Store::update`].
//!
//! Replies are those of Redis 7.0, errors included. The differences: MSET, DEL and the like are
//! atomic for each key, not for all together; there is one database, and it has only strings;
//! cursors of SCAN are known for some ten thousand steps; values and arguments are at most as long
//! as a request may be (`[tcp] max_request`).
#![forbid(unsafe_code)]

pub mod call;
pub mod commands;
pub mod elements;
pub mod engine;
pub mod options;
pub mod pattern;
pub mod run;
pub mod server;
pub mod stop;
pub mod store;
