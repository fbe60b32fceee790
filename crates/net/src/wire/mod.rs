//! The request formats of the original systems' clients, over UDP: for measurements with those
//! clients, and for [`UdpConfig::racksched`](crate::udp::UdpConfig::racksched). A server has a
//! format of its own. Beside these is a format of this project: parts of queries that fan out.
//!
//! | format | bytes | requests of several packets |
//! |---|---|---|
//! | [`ShinjukuRequest`] | 16 | no |
//! | [`RackSchedMessage`] | 41, and a payload if one likes | yes: [`Reassembly`] |
//! | [`PartHeader`] | 24, and a payload if one likes | no |
//!
//! The formats only turn bytes into numbers and back; which numbers make sense is checked where
//! they are used.

mod part;
mod racksched;
mod reassembly;
mod server;
mod shinjuku;

pub use part::{ByPart, NotAPart, PartHeader, PartKind};
pub use racksched::{NotRackSched, RackSchedKind, RackSchedMessage};
pub use reassembly::{
    Added, Assembled, Reassembly, ReassemblyConfig, ReassemblyCounters, ReassemblyCounts, Rejected,
};
pub use server::{RackSched, RackSchedConfig, RackSchedLoad};
pub use shinjuku::{ShinjukuRequest, WrongLength};
