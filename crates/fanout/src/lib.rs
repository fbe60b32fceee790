//! Queries that go to many servers and end with the last answer: a client that gives each part a
//! deadline.
//!
//! A query that fans out to 100 servers ends late if one of its 100 parts does. So its parts have
//! less time to wait in the servers' queues than the only part of a narrow query with the same
//! SLO. The client computes that time. It goes with each part in its header
//! ([`shinjuku_net::wire::PartHeader`]), and servers under the policy `edf` take the part with the
//! earliest deadline first.
//!
//! ```text
//!  query, SLO --> Client::send: budget = SLO - unloaded latency of this fan-out
//!                   |  a datagram a part, with the budget
//!                   v
//!                 servers: policy `edf`, transport classified by `ByPart`
//!                   |  replies, with the time that the part waited there
//!                   v
//!  end of query <-- Client::poll --> the servers' latencies without waiting, for later budgets
//! ```
//!
//! | to compare | servers' policy | [`Deadline`] |
//! |---|---|---|
//! | TailGuard, TF-EDFQ | `edf` | `SloAndFanout` |
//! | T-EDFQ | `edf` | `Slo` |
//! | PRIQ, a class for each SLO | `priority` | any: the servers ignore it |
//! | FIFO | `c-fcfs` | any |
//!
//! `docs/fanout.md` runs them; `shinjuku_sim::fanout` simulates them.
//!
//! ```
//! use std::time::Duration;
//! use shinjuku_fanout::{Client, ClientConfig, Part, Query};
//! # let silent = std::net::UdpSocket::bind("127.0.0.1:0")?;
//! # let servers = vec![silent.local_addr()?];
//! let config = ClientConfig::new(servers).give_up_after(Duration::from_millis(20));
//! let mut client = Client::new(config)?;
//! let parts = [Part { server: 0, payload: b"what is asked of it" }];
//! let slo = Duration::from_millis(1);
//! client.send(Query { class: 0, slo, parts: &parts })?;
//! let ended = loop {
//!     let reply = |reply: shinjuku_fanout::Reply<'_>| println!("{:?}", reply.payload);
//!     match client.poll(reply) {
//!         Some(ended) => break ended,
//!         None => client.wait(Duration::from_millis(100)),
//!     }
//! };
//! // This server is silent: the part is counted as missing.
//! assert_eq!((ended.missing, ended.met()), (1, false));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Everything answered or counted.** A part is answered, or missing when its query is given up;
//! what else comes is counted by cause ([`Counts`]). After start, [`Client::send`] and
//! [`Client::poll`] allocate only for a fan-out wider than any that its place has had.
//!
//! Source: Wang et al., *TailGuard: Tail Latency SLO Guaranteed Task Scheduling for Data-Intensive
//! User-Facing Applications*, ICDCS 2023.
#![forbid(unsafe_code)]

mod client;
mod config;
mod latencies;

pub use client::{Client, Counts, Ended, Part, Query, QueryId, Reply, SendError};
pub use config::{ClientConfig, ClientError, Deadline, LONGEST_PAYLOAD, MOST_OPEN};
pub use latencies::{Latencies, unloaded_nanos};

/// The manual's page, compiled with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/fanout.md")]
pub struct Page;
