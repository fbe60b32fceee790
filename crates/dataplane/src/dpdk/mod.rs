//! Network devices by DPDK, without the kernel.
//!
//! ```no_run
//! use shinjuku_dataplane::{Dataplane, DataplaneConfig, InterfaceConfig};
//! use shinjuku_dataplane::dpdk::{Eal, EalConfig, Nic, NicConfig};
//!
//! // Once in a process, before anything else.
//! let eal = Eal::init(&EalConfig::without_hardware(256).device("net_af_packet0,iface=eth1"))?;
//! let (nic, devices) = Nic::open(eal.port("net_af_packet0")?, NicConfig::new())?;
//! println!("{} is {}", nic.name(), nic.mac());
//! for device in devices {
//!     // One for each dispatcher; `nic` stays here.
//!     let interface = InterfaceConfig::new(nic.mac(), "10.0.0.1".parse()?, &[9000]);
//!     let transport = Dataplane::new(device, DataplaneConfig::new(interface))?;
//!     // To a runtime: Runtime::builder(handler).serve(transport)
//!     # drop(transport);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Nic::open`] takes all memory and starts the port: for each dispatcher a [`DpdkDevice`] with
//! its own receive and send queue and its own pool of mbufs. What a device receives *is* the
//! request's payload, and, written over, the reply's. Only the thread that polls a device enters
//! DPDK for it; a handler that drops a request puts the mbuf on a list, which the next poll
//! empties.
//!
//! | comes about | what happens | where it is counted |
//! |---|---|---|
//! | the link goes down | the device receives nothing; what is sent is lost or waits, as the driver has it; when it is up again all goes on | [`NicCounts::link_changes`] |
//! | the kernel removes the interface that a virtual device is at | the device is made anew when there is one of that name again, looked for every second; until then as above | [`NicCounts::losses`], [`NicCounts::failed_resets`] |
//! | the device wants a reset | [`Nic`]'s thread does it while the queues rest between two polls; frames in them are lost | [`NicCounts::resets`] |
//! | a send queue is full | frames wait, at most [`BURST`] here, the rest with the dataplane | [`QueueCounts::send_queue_full`] |
//! | the mbufs are used up | the device drops what comes (its `no_mbuf`); nothing can be allocated, until some are dropped | [`QueueCounts::no_buffer`], [`NicCounts::port`] |
//!
//! Some devices come up again only when they are reset: `net_memif` as a client connects when it is
//! started, and never again by itself. [`Nic::ask_for_reset`] is for that.
//!
//! [`DpdkConfig`] is all of that as a table of a configuration file.
//!
//! `net_af_xdp` takes 2048 mbufs for itself, and loses them when it is closed (DPDK 22.11); the
//! module `xdp` does without it.
//!
//! A virtual device at an end of a veth pair (`net_af_packet`, `net_af_xdp`) gets from the kernel
//! at the other end what that would send to a network card: checksums to be filled in.
//! `ethtool -K NAME tx off` has it complete them.
//!
//! Several dispatchers need their requests spread. The device does it by RSS if it can; else, or if
//! it has fewer queues than there are dispatchers, [`DpdkDevice`]s hand frames on to each other by
//! a [hash](Spread) of the sender's address. Then a dispatcher without a queue of its own is
//! reached by way of another's, and no more once that has ended.

mod config;
mod counters;
mod device;
mod nic;
mod spread;
mod toml;

pub use config::NicConfig;
pub use counters::{NicCounts, QueueCounts};
pub use device::DpdkDevice;
pub use nic::Nic;
pub use shinjuku_dpdk_sys::{
    BURST, DpdkError, Eal, EalConfig, Link, Mbuf, Port, PortConfig, PortInfo, PortStatistics,
};
pub use spread::Spread;
pub use toml::DpdkConfig;
