//! The part of DPDK that a polling networker takes, and a safe layer over it.
//!
//! Without the feature `link` this crate is empty and needs no DPDK. With it, the build finds
//! libdpdk (22.11 or later) by pkg-config and compiles one C file, [`shim.c`](ffi), around the
//! functions that DPDK has as static inlines.
//!
//! # Access to an mbuf
//!
//! | it is | touched by | which holds because |
//! |---|---|---|
//! | in its pool, or in a device's ring | DPDK, on the networker's thread | only [`Queue`] and [`Mempool`] lead there, by `&mut` |
//! | received, until it is sent or dropped | the owner of the [`Mbuf`] | it cannot be cloned, and an mbuf that others may share is not handed out |
//! | dropped | no thread, until the pool's owner collects it | dropping frees nothing: it puts the mbuf on a list |
//!
//! So a handler on a worker may read, write, keep and drop an [`Mbuf`], and may even be preempted
//! forever while it does, and never enters DPDK. Order is not the only reason: DPDK's pools and
//! rings wait for an operation that another thread has begun. If that thread's handler were
//! suspended, the thread that must resume it would wait for it. [`Mempool`] and [`Queue`] may move
//! between threads and work on each, but they belong on a thread that is never suspended.
//!
//! All of this assumes that nothing else in the process uses DPDK. Another library could put mbufs
//! of its own pools into a ring, and those have no list to be dropped onto. Drivers are trusted,
//! including those that DPDK loads because of an argument (`-d`).
//!
//! # What lives how long
//!
//! DPDK can be started once in a process: [`Eal::init`] does, and returns the proof [`Eal`] that
//! everything else is made from. Pools are never freed, because an mbuf can be anywhere; a pool
//! without a handle can be reused when its mbufs are all back. A port is closed when its
//! [`RunningPort`] and all its [`Queue`]s are gone. When the kernel has removed the interface of a
//! virtual device, a reset closes the port and makes it anew, perhaps with another number; a queue
//! uses the number only while the port runs.
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
