//! Workers in guest mode under this machine's /dev/kvm. Where there is none, each test is skipped
//! by name.
#![allow(missing_docs)]

mod code;
mod endings;
mod faults;
mod interrupts;
mod machine;
mod memory;
mod refusals;
mod signals;
mod stage;
