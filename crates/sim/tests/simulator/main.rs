//! The simulator against theory, against the papers' claims, and in detail.

mod best_effort;
mod claims;
mod closed_forms;
mod layouts;
mod own_loop;
mod plans;
mod racks;
mod servers;
