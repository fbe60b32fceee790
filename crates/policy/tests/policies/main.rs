//! Properties of the policies, and of the watch over them.

mod best_effort;
mod darc;
mod driver;
mod learner;
mod multi_queue;
mod parameters;
mod reference;
mod same_as_reference;
mod stealing;
mod verified;
mod verified_errors;
mod verified_progress;
