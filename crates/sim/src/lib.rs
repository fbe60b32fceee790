//! A discrete-event simulator in which the runtime's own scheduling policies schedule simulated cores.
#![forbid(unsafe_code)]

mod calendar;
mod error;
mod estimate;
pub mod fanout;
pub mod imbalance;
pub mod machine;
pub mod overheads;
pub mod plan;
pub mod policies;
mod predict;
pub mod rack;
pub mod replicate;
mod request;
pub mod scenario;
pub mod server;
pub mod sharing;
mod source;
pub mod sweep;
pub mod tally;
pub mod theory;

pub use error::SimError;
pub use estimate::Estimate;
pub use machine::Machine;
pub use overheads::Overheads;
pub use policies::PolicySpec;
pub use predict::{Predicted, Prediction, REQUESTS as PREDICT_REQUESTS, predict};
pub use replicate::{Replicated, Sample, Until, replicate};
pub use request::{Outcome, Request};
pub use scenario::{Run, Scenario};
pub use server::{Server, Shape};
pub use tally::{Figures, Measure, Tally};
