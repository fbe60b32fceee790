//! The hand-written declarations agree with DPDK's headers. A file of its own, since it needs no
//! environment of DPDK's, as the others do.

use shinjuku_dpdk_sys::ffi;

#[test]
fn sizes_offsets_and_flags_are_those_of_c() {
    let mut values = std::ptr::null();
    // SAFETY: it writes a pointer to a constant array and returns the array's length.
    let of_c = unsafe {
        let count = ffi::dpdk_layout(&mut values);
        std::slice::from_raw_parts(values, count)
    };
    assert_eq!(of_c.len(), ffi::LAYOUT.len());
    for ((name, of_rust), of_c) in ffi::LAYOUT.iter().zip(of_c) {
        assert_eq!(of_rust, of_c, "{name}");
    }
}
