//! The numbers of the ioctls of `/dev/dune`, made from their fields as `_IO`, `_IOR` and `_IOW` do.
//! They are apart from `config`, since they are numbers, and that is the layout of memory.
//!
//! ```text
//!   31 30 29            16 15       8 7        0
//!   ┌────┬────────────────┬──────────┬──────────┐
//!   │ way│ argument's size│ 233      │ number   │
//!   └────┴────────────────┴──────────┴──────────┘
//! ```
//! Dune's header reverses the ways: the module reads arguments marked `_IOR`, and writes those
//! marked `_IOW`.

use std::ffi::c_ulong;

use crate::config::{Config, Layout, TrapConfig};

/// Minor number of the misc device, and the ioctls' type byte.
pub const MINOR: u8 = 233;

/// Runs the caller in Dune mode. Argument: [`Config`].
pub const ENTER: c_ulong = number(READ, 1, size_of::<Config>());
/// Answers the address of the kernel's system-call entry (MSR LSTAR) as its return value. No
/// argument.
pub const GET_SYSCALL: c_ulong = number(NONE, 2, 0);
/// Writes a [`Layout`].
pub const GET_LAYOUT: c_ulong = number(WRITE, 3, size_of::<Layout>());
/// Calls a function when the process reaches an address. Argument: [`TrapConfig`].
pub const TRAP_ENABLE: c_ulong = number(READ, 4, size_of::<TrapConfig>());
/// Takes [`TRAP_ENABLE`] back. No argument.
pub const TRAP_DISABLE: c_ulong = number(NONE, 5, 0);

const NONE: c_ulong = 0;
const WRITE: c_ulong = 1;
const READ: c_ulong = 2;

const fn number(way: c_ulong, number: c_ulong, size: usize) -> c_ulong {
    way << 30 | (size as c_ulong) << 16 | (MINOR as c_ulong) << 8 | number
}

const _: () = {
    assert!(ENTER == 0x80B0_E901);
    assert!(GET_SYSCALL == 0x0000_E902);
    assert!(GET_LAYOUT == 0x4018_E903);
    assert!(TRAP_ENABLE == 0x8029_E904);
    assert!(TRAP_DISABLE == 0x0000_E905);
};
