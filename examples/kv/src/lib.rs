//! A key-value server that speaks Redis's protocol: what one builds with the crate `shinjuku`, in
//! full. Its GETs stay fast while range scans run.
//!
//! Run: `cargo run --release -p shinjuku-kv -- --load 100000`, and then any client of Redis:
//! `redis-cli -p 6380`.
//!
//! | file | |
//! |---|---|
//! | `main.rs` `run.rs` | starting and ending |
//! | `options.rs` `stop.rs` | what the command line and the configuration file say; being asked to end |
//! | `server.rs` `session.rs` | the request handler; what is kept of a connection |
//! | `commands.rs` `commands/` | the table of commands, their classes, and what each does |
//! | `call.rs` `elements.rs` `pattern.rs` | what commands have in common |
//! | `store.rs` `store/` | the database: expiry, atomic changes, cursors |
//! | `engine.rs` `engine/` | where keys and values are kept: in memory, or with RocksDB |
//!
//! A request is framed and classified on the networker's thread, by `net::resp`, and handled in a
//! context, where it can be preempted: at the probes in all loops here that can be long, and, where
//! the runtime may use signals, anywhere but in [`store::Store::update`].
//!
//! Replies are those of Redis 7.0, errors included. What is different: MSET, DEL and the like are
//! atomic for each key, not for all together; there is one database, and strings are all it has;
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
pub mod session;
pub mod stop;
pub mod store;
