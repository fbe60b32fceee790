//! The part of libdune that this project uses. libdune is the C library that sets up page tables,
//! interrupt table and system calls and enters Dune mode (`libdune/dune.h` of libdbos). The safety
//! rules are libdune's own; the main ones stand at the functions.
//!
//! Link without PIE and without ASLR of the heap (`-C relocation-model=static`): libdune maps the
//! first GiB of memory and the surroundings of the mapping area and the stack.

use std::ffi::{c_int, c_void};

use crate::trap_frame::TrapFrame;

/// Called at an interrupt, in ring 0, with interrupts on or off as the gate says. Must not unwind.
pub type InterruptHandler = unsafe extern "C" fn(frame: *mut TrapFrame);
/// Called at a page fault with its address and error code.
pub type PageFaultHandler =
    unsafe extern "C" fn(address: usize, error_code: u64, frame: *mut TrapFrame);

unsafe extern "C" {
    /// Sets libdune up, once a process, before any thread enters. `map_full` maps all that the
    /// process may map later. Ignores most signals from then on. Returns 0, or a negative error
    /// number.
    pub fn dune_init(map_full: bool) -> c_int;
    /// Takes the calling thread into Dune mode; it stays there. Returns 0, or a negative error
    /// number.
    pub fn dune_enter() -> c_int;
    /// Has `handler` called for interrupts of `vector`. Returns 0, or a negative error number.
    pub fn dune_register_intr_handler(vector: c_int, handler: Option<InterruptHandler>) -> c_int;
    /// Has `handler` called for `signal`.
    pub fn dune_register_signal_handler(signal: c_int, handler: Option<InterruptHandler>) -> c_int;
    /// Has `handler` called at page faults.
    pub fn dune_register_pgflt_handler(handler: Option<PageFaultHandler>);
    /// Has `handler` called for system calls of ring 3.
    pub fn dune_register_syscall_handler(handler: Option<InterruptHandler>);
    /// Makes libdune's table of APICs. `dune_init` of libdbos calls it itself.
    pub fn dune_setup_apic();
    /// Enters the calling CPU's APIC into that table. `dune_enter` of libdbos calls it itself.
    pub fn dune_apic_init_rt_entry();
    /// Posts `vector` to the thread in Dune mode on `cpu`.
    pub fn dune_apic_send_posted_ipi(vector: u8, cpu: u32);
    /// Ends an interrupt.
    pub fn dune_apic_eoi();
    /// Maps guest-physical memory.
    pub fn dune_vm_map_phys(
        root: *mut u64,
        address: *mut c_void,
        length: usize,
        physical: *mut c_void,
        permissions: c_int,
    ) -> c_int;
    /// Maps new pages.
    pub fn dune_vm_map_pages(
        root: *mut u64,
        address: *mut c_void,
        length: usize,
        permissions: c_int,
    ) -> c_int;
    /// Changes permissions.
    pub fn dune_vm_mprotect(
        root: *mut u64,
        address: *mut c_void,
        length: usize,
        permissions: c_int,
    ) -> c_int;
    /// Unmaps.
    pub fn dune_vm_unmap(root: *mut u64, address: *mut c_void, length: usize);
    /// Finds a page-table entry, and makes missing tables if `create` is not 0.
    pub fn dune_vm_lookup(
        root: *mut u64,
        address: *mut c_void,
        create: c_int,
        entry: *mut *mut u64,
    ) -> c_int;
    /// The root of the page tables.
    pub static mut pgroot: *mut u64;
}
