//! The load generator against servers that misbehave on purpose.

mod command;
mod dataplane;
mod fake;
mod honesty;
mod losses;
mod plans;
mod udp;
