//! What a runtime tells of itself: metrics, timelines, the watch socket, and what `auto` logs.
#![allow(missing_docs)]

mod auto;
#[cfg(feature = "metrics")]
mod metrics;
mod timeline;
mod watch;
