//! The request formats of the original systems' clients, over UDP.
//!
//! | format | bytes | requests of several packets |
//! |---|---|---|
//! | [`ShinjukuRequest`] | 16 | no |
//! | [`RackSchedMessage`] | 41, and a payload if one likes | yes |
//!
//! Here bytes become numbers and numbers bytes; what may stand in them together is for who uses them to check.

mod racksched;
mod shinjuku;

pub use racksched::{NotRackSched, RackSchedKind, RackSchedMessage};
pub use shinjuku::{ShinjukuRequest, WrongLength};
