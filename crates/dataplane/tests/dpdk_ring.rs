//! `net::dpdk` over rings in memory: two hosts in one process, turned by hand.
#![allow(missing_docs)]

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use shinjuku_dataplane::dpdk::{DpdkDevice, DpdkError, Eal, Nic, NicConfig, PortConfig, Spread};
use shinjuku_dataplane::packet::MacAddr;
use shinjuku_dataplane::{Checksums, Device, Outbound};
use shinjuku_tests_support::PATIENCE;
use shinjuku_tests_support::dpdk::{Host, PORT, start_dpdk, until};

const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), PORT);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

fn eal() -> Eal {
    static EAL: OnceLock<Eal> = OnceLock::new();
    *EAL.get_or_init(|| start_dpdk(&[]))
}

/// Small ones, as a test has many.
fn config() -> NicConfig {
    NicConfig::new().mbufs(1023).port(PortConfig {
        rx_descriptors: 64,
        tx_descriptors: 64,
        ..PortConfig::default()
    })
}

type Hosts = (Nic, Vec<Host<DpdkDevice>>);

/// A server with `config` on a port of `queues` queues, and a client with a host for each queue.
fn hosts(name: &str, queues: u16, config: NicConfig) -> (Hosts, Hosts) {
    let [server, client] = eal().ring_pair(name, queues, 256).unwrap();
    let client_config = self::config()
        .dispatchers(queues.into())
        .spread(Spread::Device);
    let open = |port, config, ip: Ipv4Addr| {
        let (nic, devices) = Nic::open(port, config).unwrap();
        // Rings have no address.
        let [_, b, c, d] = ip.octets();
        let mac = MacAddr([2, 0, 0, b, c, d]);
        let hosts = devices.into_iter();
        (
            nic,
            hosts.map(|device| Host::new(mac, ip, device)).collect(),
        )
    };
    (
        open(server, config, *SERVER.ip()),
        open(client, client_config, CLIENT),
    )
}

/// One server, one client.
fn pair(name: &str) -> (Nic, Host<DpdkDevice>, Nic, Host<DpdkDevice>) {
    let ((nic, mut servers), (client_nic, mut clients)) = hosts(name, 1, config());
    (nic, servers.remove(0), client_nic, clients.remove(0))
}

/// Has the client learn the server's address, and leaves nothing on the way.
fn resolve(client: &mut Host<DpdkDevice>, servers: &mut [Host<DpdkDevice>]) {
    until("the server's address and an echo", || {
        client.send(PORT, SERVER, b"first");
        // Twice, since frames may be handed on.
        servers.iter_mut().for_each(Host::echo);
        servers.iter_mut().for_each(Host::echo);
        let mut back = false;
        client.turn(|_, _| {
            back = true;
            false
        });
        back
    });
}

#[test]
fn datagrams_of_all_sizes_come_back_as_they_were() {
    let (_nic, mut server, _client_nic, mut client) = pair("sizes");
    resolve(&mut client, std::slice::from_mut(&mut server));
    for size in 0..=1472_usize {
        let payload: Vec<u8> = (0..size).map(|at| (at + size) as u8).collect();
        assert!(client.send(PORT + 7, SERVER, &payload));
        server.echo();
        let mut back = 0;
        client.turn(|delivery, frame| {
            assert_eq!(frame[delivery.payload.clone()], payload);
            assert_eq!((delivery.peer.address, delivery.port), (SERVER, PORT + 7));
            back += 1;
            false
        });
        assert_eq!(back, 1, "of {size} bytes");
    }
    let counts = server.interface.counters().read();
    assert_eq!((counts.delivered, counts.arp_answered), (1474, 1));
    assert_eq!(client.interface.counters().read().arp_learnt, 1);
}

#[test]
fn a_full_send_queue_keeps_frames_and_counts_until_there_is_room() {
    let (nic, mut server, _client_nic, mut client) = pair("full");
    resolve(&mut client, std::slice::from_mut(&mut server));
    // 256 on the wire, 64 in the device, the rest here.
    for number in 0..400_u16 {
        let mut buffer = server.device.allocate().unwrap();
        buffer.extend_from_slice(&[0; 60]).unwrap();
        buffer[58..].copy_from_slice(&number.to_le_bytes());
        let checksums = Checksums::default();
        server.outbound.push(Outbound { buffer, checksums });
    }
    server.device.transmit(&mut server.outbound);
    assert_eq!(server.outbound.len(), 400 - 256 - 64);
    assert!(nic.counts().sum().send_queue_full > 0);
    let mut numbers = Vec::new();
    until("all frames", || {
        let mut frames = Vec::with_capacity(64);
        client.device.receive(64, &mut frames);
        numbers.extend(
            frames
                .iter()
                .map(|frame| u16::from_le_bytes([frame.buffer[58], frame.buffer[59]])),
        );
        server.device.transmit(&mut server.outbound);
        numbers.len() >= 400
    });
    assert!(numbers.into_iter().eq(0..400));
}

#[test]
fn used_up_mbufs_are_counted_and_dropped_ones_come_back() {
    let (nic, mut server, _client_nic, mut client) = pair("exhausted");
    resolve(&mut client, std::slice::from_mut(&mut server));
    let held: Vec<_> = std::iter::from_fn(|| server.device.allocate()).collect();
    assert_eq!(nic.counts().sum().no_buffer, 1);
    assert_eq!(nic.pools()[0].available(), 0);
    // A server that cannot allocate still answers: replies go out in what came in.
    assert!(client.send(PORT, SERVER, b"still there?"));
    server.echo();
    let mut back = 0;
    client.turn(|_, _| {
        back += 1;
        false
    });
    assert_eq!(back, 1);
    thread::scope(|scope| {
        scope.spawn(move || drop(held));
    });
    assert!(server.device.allocate().is_some());
}

#[test]
fn link_changes_and_resets_are_counted_and_traffic_goes_on() {
    let (nic, mut server, _client_nic, mut client) = pair("link");
    resolve(&mut client, std::slice::from_mut(&mut server));
    assert!(nic.link_up());
    for up in [false, true] {
        nic.set_link(up).unwrap();
        until("the link's change to be seen", || nic.link_up() == up);
    }
    assert_eq!(nic.counts().link_changes, 2);
    assert!(
        matches!(nic.reset(), Err(DpdkError::QueueBusy { .. })),
        "no host polls"
    );

    let stop = AtomicBool::new(false);
    let echoed = thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let start = Instant::now();
            while !stop.load(Ordering::Acquire) && start.elapsed() < PATIENCE {
                server.echo();
                thread::yield_now();
            }
        });
        let mut echoed = 0;
        for _ in 0..5 {
            // On a busy machine the server may not poll for long.
            until("a reset", || nic.reset().is_ok());
            until("an echo after a reset", || {
                client.send(PORT, SERVER, b"again");
                let before = echoed;
                client.turn(|_, _| {
                    echoed += 1;
                    false
                });
                thread::yield_now();
                echoed > before
            });
        }
        stop.store(true, Ordering::Release);
        serving.join().unwrap();
        echoed
    });
    assert!(echoed >= 5);
    let counts = nic.counts();
    assert!(
        counts.resets == 5 && counts.failed_resets >= 1,
        "{counts:?}"
    );
}

/// Client ports, by which of the servers answered; all frames come in on the first queue.
fn spread(name: &str, queues: u16, dispatchers: usize) -> HashMap<u16, usize> {
    const ROUNDS: usize = 4;
    let config = config().dispatchers(dispatchers).spread(Spread::Software);
    let ((nic, mut servers), (_client_nic, mut clients)) = hosts(name, queues, config);
    assert!(!nic.spread_by_device());
    // Neither ARP nor its answer are datagrams: both take the first queue.
    until("the server's address", || {
        let known = clients[0].send(PORT, SERVER, b"first");
        servers.iter_mut().for_each(Host::echo);
        clients[0].turn(|_, _| false);
        known
    });
    for _ in 0..2 {
        servers.iter_mut().for_each(Host::echo);
        clients
            .iter_mut()
            .for_each(|client| client.turn(|_, _| false));
    }
    let before = nic.counts();
    let mut homes = HashMap::new();
    let mut back = 0;
    for _ in 0..ROUNDS {
        for port in PORT..PORT + 64 {
            assert!(clients[0].send(port, SERVER, &port.to_le_bytes()));
        }
        for _ in 0..3 {
            for (number, server) in servers.iter_mut().enumerate() {
                server.turn(|delivery, _| {
                    let port = delivery.peer.address.port();
                    let home = homes.insert(port, number).unwrap_or(number);
                    assert_eq!(home, number, "a flow stays with its dispatcher");
                    true
                });
            }
        }
        for client in &mut clients {
            client.turn(|delivery, frame| {
                assert_eq!(frame[delivery.payload.clone()], delivery.port.to_le_bytes());
                back += 1;
                false
            });
        }
    }
    let counts = nic.counts();
    let sum = counts.sum();
    assert_eq!(sum.received - before.sum().received, 64 * ROUNDS as u64);
    assert_eq!(sum.sent - before.sum().sent, 64 * ROUNDS as u64);
    assert_eq!((sum.handed_on, sum.handing_on_failed), (sum.taken_over, 0));
    assert_eq!(counts.queues.len(), dispatchers);
    assert_eq!(back, 64 * ROUNDS);
    homes
}

fn homes_of(homes: &HashMap<u16, usize>, dispatchers: usize) -> Vec<usize> {
    (0..dispatchers)
        .map(|place| homes.values().filter(|&&home| home == place).count())
        .collect()
}

#[test]
fn software_spreads_flows_over_the_queues_of_two_dispatchers() {
    let homes = spread("two", 2, 2);
    let counts = homes_of(&homes, 2);
    assert_eq!(counts.iter().sum::<usize>(), 64);
    assert!(counts.iter().all(|&count| count > 16), "{counts:?}");
}

#[test]
fn three_dispatchers_share_one_queue() {
    let homes = spread("three", 1, 3);
    let counts = homes_of(&homes, 3);
    assert_eq!(counts.iter().sum::<usize>(), 64);
    assert!(counts.iter().all(|&count| count > 8), "{counts:?}");
}

#[test]
fn a_dispatcher_that_does_not_poll_costs_only_its_own_frames() {
    let config = config().dispatchers(2).spread(Spread::Software);
    let ((nic, mut servers), (_client_nic, mut clients)) = hosts("deaf", 1, config);
    let client = &mut clients[0];
    let (server, deaf) = servers.split_at_mut(1);
    until("the server's address", || {
        let known = client.send(PORT, SERVER, b"first");
        server[0].echo();
        client.turn(|_, _| false);
        known
    });
    let (mut sent, mut back) = (0, 0);
    until("the ring to the deaf one to be full", || {
        for port in PORT..PORT + 64 {
            sent += u64::from(client.send(port, SERVER, b"hear me"));
        }
        for _ in 0..2 {
            server[0].echo();
        }
        client.turn(|_, _| {
            back += 1;
            false
        });
        nic.counts().sum().handing_on_failed > 100
    });
    assert!(back > 0, "the others are served");
    let failed = nic.counts().sum().handing_on_failed;
    let mut heard = 0;
    until("what was in the ring", || {
        deaf[0].turn(|_, _| {
            heard += 1;
            false
        });
        heard >= 512
    });
    assert!(heard + failed < sent);
}

/// Pools are never freed, but had again, once all their mbufs are back.
#[test]
fn devices_opened_again_and_again_take_no_more_memory() {
    // Twice what there is.
    for round in 0..24 {
        let config = config().mbufs(8191);
        let ((nic, mut servers), (client_nic, mut clients)) =
            hosts(&format!("again{round}"), 1, config);
        resolve(&mut clients[0], &mut servers);
        let kept = servers[0].device.allocate();
        drop((servers, nic));
        // Its pool is not whole, and another's.
        drop(kept);
        drop((clients, client_nic));
    }
}

/// The one with the queue has no room for a long time, and the other is served by way of it all the
/// same.
#[test]
fn a_dispatcher_without_room_keeps_nobody_from_theirs() {
    let config = config().dispatchers(2).spread(Spread::Software);
    let ((nic, mut servers), (_client_nic, mut clients)) = hosts("crowded", 1, config);
    let client = &mut clients[0];
    let (crowded, other) = servers.split_at_mut(1);
    until("the server's address", || {
        let known = client.send(PORT, SERVER, b"first");
        crowded[0].echo();
        client.turn(|_, _| false);
        known
    });
    let mut back = [false; 64];
    let mut frames = Vec::with_capacity(1);
    until(
        "the other's replies, and too many for the crowded one",
        || {
            for port in PORT..PORT + 64 {
                client.send(port, SERVER, b"anybody");
            }
            crowded[0].device.receive(0, &mut frames);
            other[0].echo();
            crowded[0].device.receive(0, &mut frames);
            client.turn(|delivery, _| {
                back[usize::from(delivery.port - PORT)] = true;
                false
            });
            nic.counts().sum().overrun > 100
        },
    );
    assert!(frames.is_empty());
    let others = back.iter().filter(|&&back| back).count();
    assert!((16..=48).contains(&others), "{others} of 64 flows");
    // With room for one at a time, each source has its turn.
    until("what was kept", || {
        crowded[0].device.receive(1, &mut frames);
        frames.pop().is_none()
    });
}

#[test]
fn frames_that_the_port_cannot_take_are_counted_and_in_nobodys_way() {
    let (nic, mut server, _client_nic, mut client) = pair("unsendable");
    for length in [13, 14, 1522, 1523] {
        let mut buffer = server.device.allocate().unwrap();
        buffer.extend_from_slice(&[0; 1523][..length]).unwrap();
        let checksums = Checksums::default();
        server.outbound.push(Outbound { buffer, checksums });
    }
    server.device.transmit(&mut server.outbound);
    assert!(server.outbound.is_empty());
    let mut frames = Vec::with_capacity(8);
    client.device.receive(8, &mut frames);
    let lengths: Vec<_> = frames.iter().map(|frame| frame.buffer.len()).collect();
    assert_eq!(lengths, [14, 1522]);
    assert_eq!(nic.counts().sum().unsendable, 2);
}

#[test]
fn settings_out_of_range_are_named() {
    let [port, _peer] = eal().ring_pair("settings", 1, 64).unwrap();
    let name = port.name().to_owned();
    drop(port);
    let cases = [
        (config().dispatchers(0), "dispatchers is 0"),
        (config().dispatchers(65), "dispatchers is 65"),
        (
            config().dispatchers(2).spread(Spread::Device),
            "between 1 and 1",
        ),
        (config().mbufs(100), "mbufs is 100"),
        (
            config().mbufs(2047).port(PortConfig {
                mtu: 10,
                ..PortConfig::default()
            }),
            "mtu is 10",
        ),
    ];
    for (config, said) in cases {
        let port = eal().port(&name).unwrap();
        let error = Nic::open(port, config).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains(&name), "{error}");
    }
}
