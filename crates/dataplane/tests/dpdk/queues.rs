//! Two dispatchers on two queues of one device, and clients of the kernel's that the device spreads
//! over them: by the hash of `PACKET_FANOUT` (`net_af_packet`), and by that of a tap device with
//! several queues (`net_tap`). Each client stays with one.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use shinjuku_dataplane::dpdk::{NicConfig, Spread};
use shinjuku_tests_support::dpdk::{PORT, missing_after_close, open};
use shinjuku_tests_support::namespace::{Namespace, Pair};
use shinjuku_tests_support::process::{Part, orders};
use shinjuku_tests_support::{PATIENCE, need, test_name};

const OURS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 79, 0, 1), PORT);
const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);
const QUEUES: usize = 2;
const CLIENTS: usize = 48;
const REQUESTS: usize = 10;

#[test]
fn two_queues_of_af_packet() {
    let namespaces = need!(Pair::new(test_name!(), ["qa", "qb"]));
    let [ours, kernel] = &namespaces.0;
    namespaces.join();
    let host = Part::start_in(
        ours,
        "queues-host net_af_packet0,iface=va,framecnt=512,qpairs=2",
    );
    spreads(kernel, "vb", host);
}

#[test]
fn two_queues_of_a_tap_device() {
    let namespaces = need!(Pair::new(test_name!(), ["qt", "qu"]));
    let ours = &namespaces.0[0];
    let host = Part::start_in(ours, "queues-host net_tap0,iface=tap");
    spreads(ours, "tap", host);
}

fn spreads(kernel: &Namespace, device: &str, mut host: Part) {
    host.hears("@ready");
    kernel.bring_up(device, KERNEL);
    Part::start_in(kernel, "queues-clients").hears("@done");
    host.say("end");
    let counts = host.hears("@counts");
    let numbers: Vec<usize> = counts
        .split_whitespace()
        .skip(1)
        .map(|number| number.parse().unwrap())
        .collect();
    let [first, second, moved, missing] = numbers[..] else {
        panic!("{counts}");
    };
    assert_eq!(first + second, CLIENTS, "{counts}");
    // One of them would get all by chance once in 2^47 runs.
    assert!(first > 0 && second > 0, "{counts}");
    assert_eq!((moved, missing), (0, 0), "{counts}");
}

pub fn host(device: &str) {
    let config = NicConfig::new()
        .dispatchers(QUEUES)
        .spread(Spread::Device)
        .mbufs(2047);
    let (nic, mut hosts) = open(device, *OURS.ip(), config);
    let orders = orders();
    println!("\n@ready");
    let mut homes: HashMap<u16, usize> = HashMap::new();
    let mut moved = 0;
    let start = Instant::now();
    while start.elapsed() < 3 * PATIENCE && orders.try_recv() == Err(TryRecvError::Empty) {
        for (number, host) in hosts.iter_mut().enumerate() {
            host.turn(|delivery, _| {
                let home = homes.entry(delivery.peer.address.port()).or_insert(number);
                moved += usize::from(*home != number);
                true
            });
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    let missing = missing_after_close(nic, hosts);
    let of = |number| homes.values().filter(|&&home| home == number).count();
    println!("@counts {} {} {moved} {missing}", of(0), of(1));
}

pub fn clients() {
    // All at once, so that no two have the same port.
    let sockets = [(); CLIENTS].map(|()| UdpSocket::bind((KERNEL, 0)).unwrap());
    for (number, socket) in sockets.iter().enumerate() {
        socket.connect(SocketAddr::from(OURS)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        for request in 0..REQUESTS {
            let payload = [number as u8, request as u8];
            socket.send(&payload).unwrap();
            let mut reply = [0; 16];
            let length = socket.recv(&mut reply).expect("a reply");
            assert_eq!(reply[..length], payload);
        }
    }
    println!("\n@done");
}
