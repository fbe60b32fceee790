//! AF_XDP sockets: a network device's frames through memory shared with the kernel, behind a safe
//! interface.
//!
//! ```text
//!                        fill ring                          receive ring
//!     free frames ────────────────────▶ kernel: a frame comes ─────────────▶ Frame, filled
//!          ▲                                                                    │ read, rewritten, moved about
//!          │  completion ring                            transmit ring          ▼
//!          └────────────────────────── kernel: it is sent ◀───────────────── Frame, to be sent
//! ```
//!
//! An area of chunks is registered with the kernel. A [`Frame`] is the right to one chunk. The
//! [`Program`], six instructions of BPF written down in `program.rs`, leads an interface's frames
//! to its sockets; a [`Socket`] is one queue.
//!
//! **Why this is safe.** Each chunk has one `Frame`, made with the area and never cloned. While the
//! kernel has a chunk, its `Frame` lies in the socket's ledger, where no code can reach its bytes.
//! The `Frame` comes out when one of the kernel's rings says that the chunk is ours again. Each
//! ring entry is first checked against ledger and area, so the kernel is trusted only not to write
//! to chunks that it gave back. When a socket is closed, the kernel's frames come out only if the
//! kernel had already taken the socket off its interface. The area is unmapped when its last frame
//! has gone.

mod area;
mod error;
mod features;
mod interface;
mod program;
mod ring;
mod socket;

pub use area::Frame;
pub use error::XdpError;
pub use features::{XdpFeatures, xdp_features};
pub use interface::{ethernet_address, link_is_up};
pub use program::{Attached, Program};
pub use socket::{Closed, CopyMode, Queues, Socket, SocketConfig};
