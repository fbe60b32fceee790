//! DPDK's devices against the kernel's stack, in network namespaces that the tests make and remove,
//! and between processes.
//!
//! DPDK can be started once in a process, and a process is in one namespace, so a test runs this
//! program again for each part: see [`part`]. So is `dpdk_ring` a program of its own.
#![allow(missing_docs)]

mod faults;
mod kernel;
mod memif;
mod queues;

use shinjuku_tests_support::process::this_part;

/// A part of another test, in a process of its own.
#[test]
#[ignore = "no test: the others run it in other processes"]
fn part() {
    let Some(part) = this_part() else {
        return;
    };
    let (name, of) = part.split_once(' ').unwrap_or((&part, ""));
    match name {
        "faults-server" => faults::server(of),
        "faults-client" => faults::client(),
        "kernel-host" => kernel::host(of),
        "kernel-client" => kernel::kernel_client(),
        "kernel-server" => kernel::kernel_server(),
        "memif-server" => memif::server(of),
        "queues-host" => queues::host(of),
        "queues-clients" => queues::clients(),
        _ => panic!("{part}"),
    }
}
