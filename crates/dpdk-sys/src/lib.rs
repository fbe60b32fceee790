//! The part of DPDK that a polling networker takes, and a safe layer over it.
//!
//! Without the feature `link` this crate is empty and needs no DPDK. With it, the build finds
//! libdpdk (22.11 or later) by pkg-config and compiles one C file, [`shim.c`](ffi), around the
//! functions that DPDK has as static inlines.
//!
//! # Who may touch an mbuf when
//!
//! | it is | touched by | which holds because |
//! |---|---|---|
//! | in its pool, or in a device's ring | DPDK, on the networker's thread | only [`Queue`] and [`Mempool`] lead there, by `&mut` |
//! | received, until it is sent or dropped | whoever owns the [`Mbuf`] | it cannot be cloned, and an mbuf that others may share is not handed out |
//! | dropped | nobody, until the pool's owner collects it | dropping frees nothing: it puts the mbuf on a list |
//!
//! So a handler on a worker may read, write, keep and drop an [`Mbuf`], even be preempted in the
//! midst of that for good, and never enters DPDK. That is needed for more than order: DPDK's pools
//! and rings wait for an operation that another thread has begun, and a handler that is suspended
//! would be waited for by the one who resumes it. [`Mempool`] and [`Queue`] may move between
//! threads; what they do is right on whichever has them, but they belong on one that is never
//! suspended.
//!
//! All of it rests on this: nothing else in the process uses DPDK. Another library that did could
//! put mbufs of its own pools into a ring, and those have no list to be dropped onto. Drivers are
//! trusted, those too that an argument (`-d`) has DPDK load.
//!
//! # What lives how long
//!
//! DPDK can be started once in a process: [`Eal::init`], which gives the proof [`Eal`] that all
//! else is made from. Pools are never freed, because an mbuf can be anywhere; one without a handle
//! whose mbufs are all back can be had again. A port is closed when its [`RunningPort`] and all its
//! [`Queue`]s are gone, and closed and made anew when a virtual device is reset whose interface the
//! kernel has removed; its number, which may change with that, is used by a queue only while it
//! runs.
//!
//! ```no_run
//! # #[cfg(feature = "link")]
//! # fn main() -> Result<(), shinjuku_dpdk_sys::DpdkError> {
//! use shinjuku_dpdk_sys::{Eal, EalConfig, PortConfig};
//!
//! let eal = Eal::init(&EalConfig::without_hardware(256).device("net_tap0,iface=dtap0"))?;
//! let pool = eal.pool("networker", 4095, 2048)?;
//! let (port, mut queues) = eal.port("net_tap0")?.start(&PortConfig::default(), vec![pool])?;
//! println!("{port:?}");
//! let mut packets = Vec::with_capacity(64);
//! loop {
//!     queues[0].receive(&mut packets, 64);
//!     queues[0].send(&mut packets); // echoes
//! }
//! # }
//! # #[cfg(not(feature = "link"))]
//! # fn main() {}
//! ```
#![cfg_attr(not(feature = "link"), allow(rustdoc::broken_intra_doc_links))]
#![cfg(feature = "link")]

mod eal;
mod error;
pub mod ffi;
mod mbuf;
mod memif;
mod pool;
mod port;
mod queue;
mod running;
mod shared;

pub use eal::{Eal, EalConfig};
pub use error::{DpdkError, Errno};
pub use mbuf::{Checksum, Mbuf, NoRoom};
pub use pool::{Mempool, PoolGauge};
pub use port::{Port, PortConfig, PortInfo};
pub use queue::{BURST, Queue};
pub use running::{Link, PortStatistics, RunningPort};
