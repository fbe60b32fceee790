//! Dune's kernel interface.
//!
//! Dune (OSDI'12) is a kernel module for Intel CPUs that lets a process run in guest mode: the
//! process owns an interrupt table and page tables while it keeps its address space and its system
//! calls. Shinjuku (NSDI'19) added the posted interrupts by which its dispatcher preempts workers
//! without their leaving guest mode. This crate declares that interface:
//!
//! | module | what it holds |
//! |---|---|
//! | [`ioctl`], [`config`] | the device's requests and what goes with them |
//! | [`device`] | opening the device, and finding out whether it is Dune |
//! | [`descriptor`] | posting interrupts: requests, the outstanding bit, and in which order they are cleared |
//! | [`apic`] | the local APIC's page: sending, ending |
//! | [`trap_frame`] | what interrupt handlers get, segment selectors |
//! | `libdune` | the C library (feature `libdune`) |
//!
//! # Requirements
//! An Intel CPU with VT-x and posted interrupts, and a module: `libdbos`
//! (<https://github.com/zxjcarrot/libdbos>) builds for Linux 6.2 to 6.11; the forks of project-dune
//! and Shinjuku for 3.x to 4.4. All share the interface declared here. The kernel must run with
//! `nox2apic`, or the APIC's page is dead ([`apic::ApicError::Dead`]).
//!
//! Nothing here has been run against the module: layouts and numbers were compared with its
//! sources, and code that works on memory is tested on ordinary memory.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("dune-sys needs x86-64 Linux: Dune is a Linux module for Intel CPUs");

pub mod apic;
pub mod config;
pub mod descriptor;
pub mod device;
pub mod ioctl;
#[cfg(feature = "libdune")]
pub mod libdune;
pub mod trap_frame;

pub use descriptor::{Posted, PostedInterruptDescriptor, Vectors};
pub use device::{Device, DeviceError};

/// Guest-physical, and under libdune guest-virtual, address of the posted-interrupt descriptors.
pub const DESCRIPTORS: u64 = 1 << 45;
/// Distance from one CPU's descriptor to the next one's.
pub const DESCRIPTOR_STRIDE: u64 = 4096;
/// CPUs whose descriptors libdune can map.
pub const MAX_CPUS: u32 = 256;
