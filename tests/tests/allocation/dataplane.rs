//! The dataplane's polling and its workers' side never call the allocator, whatever comes:
//! requests, ARP requests, useless frames, more frames than there are buffers.

use std::net::{Ipv4Addr, SocketAddrV4};

use shinjuku::net::{Arrival, Refusal, Replier, Transport};
use shinjuku_dataplane::memory::{MemoryDevice, wire};
use shinjuku_dataplane::{
    Buffer, Checksums, Dataplane, DataplaneConfig, Device, Interface, InterfaceConfig, MacAddr,
    Offload, Outbound,
};
use shinjuku_preempt::stress::allocations_of_this_thread;

const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 9000);
const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const CLIENT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

#[test]
fn nothing_is_allocated_after_start() {
    let (mut theirs, ours) = wire(64, 128, 2048);
    let ports = [SERVER.port()];
    let client = InterfaceConfig::new(CLIENT_MAC, Ipv4Addr::new(10, 0, 0, 2), &ports);
    let client = Interface::new(client).unwrap();
    let config = DataplaneConfig::new(InterfaceConfig::new(SERVER_MAC, *SERVER.ip(), &ports));
    let mut dataplane = Dataplane::new(ours, config.buffers(8).batch(8)).unwrap();
    let mut replier = dataplane.replier().unwrap();
    let mut frames = Vec::with_capacity(64);
    let mut received = Vec::with_capacity(64);
    let mut held = Vec::with_capacity(16);
    let counters = dataplane.counters();

    let allocations = allocations_of_this_thread();
    let before = allocations.count();
    for round in 0..200_u64 {
        for kind in 0..12_u8 {
            frames.push(frame(&mut theirs, &client, kind));
        }
        theirs.transmit(&mut frames);
        // More frames than buffers: the first half is answered before the second comes.
        for _ in 0..2 {
            for _ in 0..3 {
                dataplane.poll(round, 64, |arrival| held.push(arrival));
            }
            for Arrival { request, route, .. } in held.drain(..) {
                match request[0] {
                    0 => dataplane.refuse(request, route, Refusal::QueueFull),
                    1 => drop(request),
                    _ => {
                        let reply = Ok(Some(request.echo()));
                        replier.send(Dataplane::<MemoryDevice>::conclude(route, reply));
                    }
                }
            }
        }
        dataplane.poll(round, 0, |_| unreachable!("there is no room"));
        theirs.receive(64, &mut received);
        for answer in received.drain(..) {
            theirs.free(answer.buffer);
        }
    }
    assert_eq!(allocations.count(), before);
    let counts = counters.read();
    assert!(counts.replies > 0 && counts.refused > 0 && counts.no_buffer > 0);
    assert!(counts.interface.arp_answered > 0 && counts.interface.dropped.iter().sum::<u64>() > 0);
}

/// A request of that kind, an ARP request, or a frame for another host.
fn frame(
    device: &mut MemoryDevice,
    client: &Interface,
    kind: u8,
) -> Outbound<<MemoryDevice as Device>::Buffer> {
    let mut buffer = device.allocate().expect("buffers are enough");
    let checksums = Checksums::default();
    if kind == 2 {
        buffer.set_length(Interface::ARP_FRAME);
        let written = client.write_arp_request(buffer.frame_mut(), *SERVER.ip());
        assert!(written.is_some());
        return Outbound { buffer, checksums };
    }
    buffer.set_length(Interface::PAYLOAD + 1);
    let frame = buffer.frame_mut();
    frame[Interface::PAYLOAD] = kind;
    let station = if kind == 3 { CLIENT_MAC } else { SERVER_MAC };
    let left = client.write_datagram(frame, 1234, station, SERVER, Offload::default());
    assert_eq!(left, Some(checksums));
    Outbound { buffer, checksums }
}
