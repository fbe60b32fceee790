//! Results for people and for programs: one kind of output a file.

mod csv;
mod hdr;
mod plots;
mod table;

pub use csv::csv;
pub use hdr::hdr_log;
pub use plots::plots;
pub use table::table;

use serde::{Deserialize, Serialize};

use crate::point::Point;

/// All that a command measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Version of this format.
    pub schema: u32,
    /// The command line.
    pub command: String,
    /// The server.
    pub target: String,
    /// How requests travelled.
    #[serde(default)]
    pub transport: String,
    /// Each class's median without load, in us.
    pub unloaded_us: Vec<Option<f64>>,
    /// Points in the order measured.
    pub points: Vec<Point>,
}

/// The current version of [`Report`].
pub const SCHEMA: u32 = 1;
