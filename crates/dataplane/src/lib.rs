//! The network without the kernel: frames of a device are turned into requests here, and replies
//! into frames.
//!
//! ```text
//!              Device::receive      Interface::receive           deliver
//!     device ─────────────────▶ frame ──────────────▶ verdict ──────────▶ request, its payload the device's buffer
//!       ▲                                                │                       │
//!       │  Device::transmit                              │ answer (ARP, echo)    │ handler, on any thread
//!       ├────────────────────────────────────────────────┘                       ▼
//!       └─────────────────────────── Headers::reply ◀──────────── reply, in the same buffer
//! ```
//!
//! [`Device`] is what DPDK, AF_XDP and tests implement: batches of frames in buffers that are
//! moved. [`Interface`] is the IP stack, a pure machine over the bytes. A server's loop, with
//! neither threads nor pools:
//!
//! ```
//! use shinjuku_dataplane::{Buffer, Checksums, Device, Interface, Outbound, Received, Verdict};
//!
//! /// Sends back every datagram; `frames` and `replies` are taken at start, as long as a batch.
//! fn turn<D: Device>(
//!     device: &mut D,
//!     interface: &mut Interface,
//!     frames: &mut Vec<Received<D::Buffer>>,
//!     replies: &mut Vec<Outbound<D::Buffer>>,
//!     now_nanos: u64,
//! ) {
//!     let offload = device.offload();
//!     device.receive(frames.capacity(), frames);
//!     for Received { mut buffer, verified } in frames.drain(..) {
//!         let (length, checksums) = match interface.receive(buffer.frame_mut(), verified, now_nanos) {
//!             Verdict::Deliver(request) => {
//!                 // The reply's payload lies where the request's did; here it is the same. Cut what is behind it.
//!                 let length = request.payload.end;
//!                 buffer.set_length(length);
//!                 match request.headers.reply(buffer.frame_mut(), offload) {
//!                     Some(checksums) => (length, checksums),
//!                     None => {
//!                         device.free(buffer);
//!                         continue;
//!                     }
//!                 }
//!             }
//!             Verdict::Answer { length } => (length, Checksums::default()),
//!             Verdict::Learnt | Verdict::Drop(_) => {
//!                 device.free(buffer);
//!                 continue;
//!             }
//!         };
//!         buffer.finish(length);
//!         replies.push(Outbound { buffer, checksums });
//!     }
//!     device.transmit(replies);
//! }
//! ```
//!
//! Sending without having been asked goes by [`Interface::resolve`], which says when to send an ARP
//! request ([`Interface::write_arp_request`]) and when to give up, and
//! [`Interface::write_datagram`].
//!
//! [`Dataplane`] is that loop as a [`Transport`](shinjuku_net::Transport) for any [`Device`];
//! [`Client`] is the other side's.
//!
//! | feature | module |
//! |---|---|
//! | `dpdk` | `dpdk`: a network device's queues, by DPDK; links libdpdk, 22.11 or later |
//! | `xdp` | `xdp`: an interface of the kernel's past its stack, by AF_XDP sockets; Linux 5.9 or later |
#![forbid(unsafe_code)]

mod client;
mod config;
mod counters;
mod datagram;
mod device;
#[cfg(feature = "dpdk")]
pub mod dpdk;
mod drop_reason;
mod in_flight;
mod interface;
pub mod memory;
mod neighbours;
#[doc(hidden)]
pub mod packet;
mod replier;
mod toml;
mod transport;
#[cfg(feature = "xdp")]
pub mod xdp;

pub use client::{Client, SendError};
pub use config::{DataplaneConfig, InterfaceConfig, InterfaceError, MOST_PORTS};
pub use counters::{DataplaneCounters, DataplaneCounts, InterfaceCounters, InterfaceCounts};
pub use datagram::{Datagram, DatagramReply, ReplyExceedsPacket};
pub use device::{Buffer, Checksums, Device, Offload, Outbound, Received, Room, VerifiedChecksums};
pub use drop_reason::DropReason;
pub use interface::{Headers, Incoming, Interface, Peer, Verdict};
pub use neighbours::Resolution;
pub use replier::{DataplaneReplier, Outgoing};
pub use toml::{HostAddress, HostAddressError};
pub use transport::{Dataplane, RequestId};

pub use crate::packet::{MacAddr, MacAddrError, ParseError};
