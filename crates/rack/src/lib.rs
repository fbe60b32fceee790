//! A rack of servers that looks like one server: a switch in the kernel's XDP that chooses a server
//! for each request by the load that the servers' replies report, as RackSched does.
//!
//! ```text
//!                      +------------ this host ------------+
//!   client --request-->| XDP program: choice, request table |--request--> server
//!          <---reply---|  (bpf/rack.c)     ^ tables         |<--reply, with its load
//!                      |            control (Rust)          |
//!                      +-----------------------------------+
//! ```
//!
//! No packet of the rack's passes through user space: the program rewrites addresses, adjusts
//! checksums and redirects. All other packets are the kernel's.
//!
//! | module | what it holds |
//! |---|---|
//! | [`Config`] | the configuration file |
//! | [`Rack`] | the control: servers come, go and fail |
//! | [`control`] | commands to a rack at work, as `shinjuku-rack` gives them |
//! | [`registration`] | servers that register by themselves |
//! | [`datapath`] | the program in the kernel, and its tables |
//! | [`metrics`], [`exporter`] | its status as metrics, and the page for Prometheus |
//! | [`tables`] | the layouts that the program and its control share |
//!
//! Building needs clang and libbpf's headers for the program; without them everything but loading
//! it works, and loading says what is missing.
//!
//! Source: Zhu et al., *RackSched: A Microsecond-Scale Scheduler for Rack-Scale Computers*, OSDI
//! 2020.
#![forbid(unsafe_code)]

mod balancer;
mod config;
pub mod control;
pub mod datapath;
mod error;
pub mod exporter;
mod member;
pub mod metrics;
mod neighbour;
mod port;
mod rack;
pub mod registration;
pub mod tables;

pub use balancer::{Balancer, Format, LoadInfo, MOST_DRAWS, UnknownBalancer};
pub use config::{
    Config, FailureConfig, Mac, ServerConfig, TableConfig, TypeConfig, default_control,
};
pub use datapath::Mode;
pub use error::RackError;
pub use member::State;
pub use rack::{Rack, ServerStatus, Status, TICK};
