//! Plots of measurements: latency against load, one line a contender, as SVG and as PNG; pictures
//! of timelines; and tables as text.
//!
//! ```
//! use shinjuku_plot::{Figure, Point, Series, Style, XAxis, YAxis};
//!
//! let points = [(10_000.0, 35.0), (20_000.0, 60.0)];
//! let figure = Figure {
//!     name: "get-p99".into(),
//!     title: "GET".into(),
//!     x: XAxis::Linear("throughput (requests/s)"),
//!     y: YAxis::Logarithmic,
//!     y_label: "p99 latency (µs, log)".into(),
//!     bars: "lowest and highest repetition",
//!     series: vec![Series {
//!         label: "server".into(),
//!         style: Style::Contender(0),
//!         points: points.map(|(x, y)| Point { x, y: Some(y), spread: None }).into(),
//!     }],
//! };
//! assert!(shinjuku_plot::svg(&figure)?.contains("throughput"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `figure` | what is drawn |
//! | `draw` | where it goes |
//! | [`timeline`] | what each thread ran when |
//! | `axis` `marker` | ticks; colours and shapes |
//! | `table` | rows and columns as text |
//!
//! The font is bundled (`assets`), so that a plot looks the same on a machine without any.

#![forbid(unsafe_code)]

mod axis;
mod draw;
mod figure;
mod marker;
mod table;
pub mod timeline;

pub use draw::{png, svg};
pub use figure::{Figure, Point, Series, Style, XAxis, YAxis};
pub use table::Table;
