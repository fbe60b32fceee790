//! The declared functions are in libdune. Needs the feature `libdune`, and no PIE:
//! `RUSTFLAGS="-C relocation-model=static" LIBDUNE_DIR=... cargo test --target x86_64-unknown-linux-gnu -p dune-sys --features libdune`

use dune_sys::libdune;

#[test]
fn all_declared_functions_link() {
    let functions = [
        libdune::dune_init as *const (),
        libdune::dune_enter as *const (),
        libdune::dune_register_intr_handler as *const (),
        libdune::dune_register_signal_handler as *const (),
        libdune::dune_register_pgflt_handler as *const (),
        libdune::dune_register_syscall_handler as *const (),
        libdune::dune_setup_apic as *const (),
        libdune::dune_apic_init_rt_entry as *const (),
        libdune::dune_apic_send_posted_ipi as *const (),
        libdune::dune_apic_eoi as *const (),
        libdune::dune_vm_map_phys as *const (),
        libdune::dune_vm_map_pages as *const (),
        libdune::dune_vm_mprotect as *const (),
        libdune::dune_vm_unmap as *const (),
        libdune::dune_vm_lookup as *const (),
        (&raw const libdune::pgroot).cast(),
    ];
    let distinct: std::collections::HashSet<_> = functions.iter().collect();
    assert_eq!(distinct.len(), functions.len());
}

#[test]
fn registering_a_handler_works_without_the_module() {
    extern "C" fn handler(_: *mut dune_sys::trap_frame::TrapFrame) {}
    // SAFETY: libdune only records the handler in its table, and refuses vectors beyond it.
    unsafe {
        assert_eq!(libdune::dune_register_intr_handler(0xf2, Some(handler)), 0);
        assert!(libdune::dune_register_intr_handler(256, Some(handler)) < 0);
        assert_eq!(libdune::dune_register_intr_handler(0xf2, None), 0);
    }
}
