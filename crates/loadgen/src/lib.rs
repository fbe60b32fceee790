//! An open-loop load generator: the library behind the command `shinjuku-load`.
//!
//! Requests are due at moments drawn in advance, whatever the server does, and a latency counts
//! from the intended moment. So a server that stalls for 10 ms shows 10 ms, and a client that could
//! not keep its own schedule says so ([`Mark::Behind`](point::Mark)).
//!
//! ```no_run
//! use std::sync::atomic::AtomicBool;
//! use shinjuku_loadgen::{Control, Settings};
//!
//! let settings: Settings = toml::from_str(r#"
//!     target = "127.0.0.1:6379"
//!     request = ["get:99.5:GET key:{zipf}", "scan:0.5:SCAN 0 COUNT 5000"]
//!     rate = 20e3
//! "#)?;
//! let plan = settings.check()?;
//! let stop = AtomicBool::new(false);
//! let control = Control { stop: &stop, watch: None };
//! let unloaded = plan.unloaded_ns(&control)?;
//! let measured = plan.measure(plan.loads()[0], 1, &unloaded, &control)?;
//! println!("GET p99: {:?} us", measured.point.classes[0].figures.p99_us);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `settings` `plan` `rates` | what a user writes, as options or as a TOML plan; the checked plan |
//! | `requests` `template` `keys` | classes, commands with places, key distributions |
//! | `engine` | the loop of a thread: what is due, what has come |
//! | `client` `tcp` `readiness` | connections, and which of them takes a request |
//! | `datagrams` `udp` `dataplane` `transport_setup` | flows of datagrams, over sockets or over a device without the kernel; the choice between these |
//! | `record` [`point`] | counting; the figures, and what must be said about them |
//! | `measure` | one load: connections, threads, the sum |
//! | [`report`] | tables, CSV, HdrHistogram log |

#![forbid(unsafe_code)]

mod client;
mod datagrams;
mod dataplane;
mod engine;
mod error;
mod keys;
mod measure;
mod plan;
pub mod point;
mod rates;
mod readiness;
mod record;
pub mod report;
mod requests;
mod settings;
mod tcp;
mod template;
mod transport_setup;
mod udp;

pub use error::LoadError;
pub use measure::{Control, Measurement, Progress};
pub use plan::{Load, Pick, Plan};
pub use point::{Figures, Mark, Point};
pub use rates::{Rates, RatesError};
pub use requests::{Command, CommandError, Requests};
pub use settings::{Protocol, Settings};
pub use template::TemplateError;
pub use transport_setup::{Copying, Transport, Words};
