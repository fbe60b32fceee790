//! DPDK's devices never call Rust's allocator once they are open: not when frames come and go, not
//! when devices hand frames to each other, not when queues are full or mbufs used up.
#![allow(missing_docs)]

use std::net::{Ipv4Addr, SocketAddrV4};

use shinjuku_dataplane::dpdk::{Nic, NicConfig, PortConfig, Spread};
use shinjuku_dataplane::{Device, MacAddr};
use shinjuku_preempt::stress::{CountingAllocator, allocations_of_this_thread};
use shinjuku_tests_support::dpdk::{Host, PORT, PORTS, start_dpdk};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), PORT);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

#[test]
fn nothing_is_allocated_after_opening() {
    let [server, client] = start_dpdk(&[]).ring_pair("allocation", 1, 128).unwrap();
    let config = NicConfig::new().mbufs(511).port(PortConfig {
        rx_descriptors: 64,
        tx_descriptors: 64,
        ..PortConfig::default()
    });
    let three = config.dispatchers(3).spread(Spread::Software);
    let (nic, devices) = Nic::open(server, three).unwrap();
    let (_client_nic, mut client) = Nic::open(client, config).unwrap();
    let addresses = [
        (MacAddr([2, 0, 0, 0, 0, 1]), *SERVER.ip()),
        (MacAddr([2, 0, 0, 0, 0, 2]), CLIENT),
    ];
    let mut servers: Vec<_> = devices
        .into_iter()
        .map(|device| Host::knowing(addresses[0], addresses[1], device))
        .collect();
    let mut client = Host::knowing(addresses[1], addresses[0], client.remove(0));
    let mut held = Vec::with_capacity(512);

    let allocations = allocations_of_this_thread();
    let before = allocations.count();
    let mut back = 0;
    for round in 0..100 {
        for number in 0..100 {
            client.send(PORT + (round + number) % PORTS, SERVER, &[7; 100]);
        }
        for _ in 0..4 {
            servers.iter_mut().for_each(Host::echo);
        }
        client.turn(|_, _| {
            back += 1;
            false
        });
        // This takes all mbufs, and asks for one more.
        let device = &mut servers[usize::from(round) % 3].device;
        while let Some(mbuf) = device.allocate() {
            held.push(mbuf);
        }
        held.drain(..).for_each(|mbuf| device.free(mbuf));
    }
    assert_eq!(allocations.count() - before, 0);
    let sum = nic.counts().sum();
    assert!(
        back > 1000 && sum.handed_on > 1000,
        "{back} came back; {sum:?}"
    );
    assert!(sum.no_buffer >= 100 && sum.send_queue_full > 0, "{sum:?}");
}
