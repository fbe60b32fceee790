//! `net::dpdk` and its stack against the kernel's: ping, arping, a kernel's UDP client and UDP
//! server, with frames of all sizes, over a veth pair (`net_af_packet`, `net_af_xdp`) and over a
//! tap device (`net_tap`).
//!

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use shinjuku_dataplane::dpdk::{BURST, NicConfig};
use shinjuku_dataplane::{Device, DropReason};
use shinjuku_tests_support::dpdk::{Host, PORT, missing_after_close, open, until};
use shinjuku_tests_support::namespace::{Namespace, Pair, must};
use shinjuku_tests_support::process::{Part, Process, orders};
use shinjuku_tests_support::{PATIENCE, need, test_name};

const OURS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), PORT);
const KERNEL: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 2), 9100);
/// Payloads around the shortest frame, and up to the MTU.
const SIZES: [usize; 9] = [0, 1, 17, 18, 19, 64, 512, 1471, 1472];
const ROUNDS: usize = 20;

#[test]
fn a_veth_pair_by_af_packet() {
    let namespaces = need!(Pair::new(test_name!(), ["va", "vb"]));
    let [ours, kernel] = &namespaces.0;
    namespaces.join();
    let host = Part::start_in(ours, "kernel-host net_af_packet0,iface=va,framecnt=512");
    // AF_PACKET's sockets put fragments together, to what then does not fit a frame.
    interoperates(kernel, "vb", host, (0, 0));
}

#[test]
fn a_veth_pair_by_af_xdp() {
    let namespaces = need!(Pair::new(test_name!(), ["xa", "xb"]));
    let [ours, kernel] = &namespaces.0;
    namespaces.join();
    let host = Part::start_in(ours, "kernel-host net_af_xdp0,iface=va");
    // net_af_xdp does not give back what is in its fill queue.
    let kept = 2048 + BURST as u64;
    interoperates(kernel, "vb", host, (3, kept));
}

#[test]
fn a_tap_device() {
    let namespaces = need!(Pair::new(test_name!(), ["ta", "tb"]));
    let ours = &namespaces.0[0];
    // The device's other end is the kernel's, in the same namespace.
    let host = Part::start_in(ours, "kernel-host net_tap0,iface=tap");
    interoperates(ours, "tap", host, (3, 0));
}

/// `device` is the kernel's end, in the namespace `kernel`; `host` is at the other. It is to see as
/// many `fragments`, and its driver may keep as many mbufs as `kept`.
fn interoperates(kernel: &Namespace, device: &str, mut host: Part, (fragments, kept): (u64, u64)) {
    // The tap device fills in checksums, so that both ways of doing it are tried.
    assert_eq!(host.hears("@ready"), format!("@ready {}", device == "tap"));
    kernel.bring_up(device, *KERNEL.ip());
    let ours = OURS.ip().to_string();
    let capture = std::env::temp_dir().join(format!("{kernel}.pcap"));
    let mut dump = kernel.command("tcpdump");
    dump.args(["-i", device, "-U", "--immediate-mode", "-s", "2048"]);
    dump.args(["-B", "16384", "-Z", "root", "-w"]).arg(&capture);
    let mut dump = Process::start(dump.stderr(Stdio::piped()));
    wait_for_line(dump.0.stderr.take().unwrap(), "listening on");

    // First, so that the kernel's address must be asked for.
    let mut server = Part::start_in(kernel, "kernel-server");
    server.hears("@ready");
    host.say("ask");
    host.hears("@answered");

    must(kernel.run(&format!("arping -c 3 -w 10 -I {device} {ours}")));
    for size in [0, 56, 1472] {
        // -M do: the kernel must not fragment.
        let ping = format!("ping -c 4 -i 0.05 -W 5 -M do -s {size} {ours}");
        must(kernel.run(&ping));
    }
    let large = kernel.run(&format!("ping -c 1 -W 1 -s 3000 {ours}"));
    assert!(large.is_err(), "fragments are not put together");

    let mut client = Part::start_in(kernel, "kernel-client");
    client.hears("@done");

    until("all that we sent in the capture", || {
        checksums_are_right(&capture) >= 2 * SIZES.len() * ROUNDS
    });
    drop(dump);
    std::fs::remove_file(&capture).unwrap();

    host.say("end");
    let counts = host.hears("@counts");
    let numbers: Vec<u64> = counts
        .split_whitespace()
        .skip(1)
        .map(|n| n.parse().unwrap())
        .collect();
    let [delivered, echoes, arps, learnt, seen_fragments, missing] = numbers[..] else {
        panic!("{counts}");
    };
    let exchanged = (SIZES.len() * ROUNDS) as u64;
    assert!(delivered >= 2 * exchanged, "{counts}");
    assert!(echoes >= 12 && arps >= 3, "{counts}");
    assert_eq!(learnt, 1, "{counts}");
    assert_eq!(seen_fragments, fragments, "{counts}");
    assert!(missing <= kept, "mbufs are missing: {counts}");
}

/// Looks at all that we sent with tcpdump's eyes; how many datagrams there are.
fn checksums_are_right(capture: &Path) -> usize {
    let output = Command::new("tcpdump")
        .args(["-nn", "-vv", "-r"])
        .arg(capture)
        .args(["src", "host", &OURS.ip().to_string()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines();
    let bad = lines.find(|line| line.contains("bad ") || line.contains("wrong "));
    assert_eq!(bad, None);
    text.matches("[udp sum ok]").count()
}

/// Serves over DPDK until it is told to end.
pub fn host(device: &str) {
    // net_af_xdp takes 2048 for itself.
    let (nic, mut hosts) = open(device, *OURS.ip(), NicConfig::new().mbufs(4095));
    let mut host = hosts.remove(0);
    let orders = orders();
    println!("\n@ready {}", host.device.offload().udp);
    let start = Instant::now();
    while start.elapsed() < 3 * PATIENCE {
        host.echo();
        match orders.try_recv() {
            Ok(line) if line == "ask" => {
                ask(&mut host);
                println!("@answered");
            }
            Ok(_) | Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => std::thread::sleep(Duration::from_micros(50)),
        }
    }
    let counts = host.interface.counters().read();
    let missing = missing_after_close(nic, host);
    println!(
        "@counts {} {} {} {} {} {missing}",
        counts.delivered,
        counts.echo_answered,
        counts.arp_answered,
        counts.arp_learnt,
        counts.dropped_for(DropReason::Fragment),
    );
}

/// Is a client of the kernel's.
fn ask<D: Device>(host: &mut Host<D>) {
    for round in 0..ROUNDS {
        for size in SIZES {
            let payload = content(round, size);
            until("the kernel to be resolved", || {
                host.echo();
                host.send(PORT, KERNEL, &payload)
            });
            until("the kernel's answer", || {
                let mut answered = false;
                host.turn(|delivery, frame| {
                    answered = delivery.peer.address == KERNEL;
                    if answered {
                        assert_eq!(frame[delivery.payload.clone()], payload);
                    }
                    !answered
                });
                answered
            });
        }
    }
}

fn content(round: usize, size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 7 + round) as u8).collect()
}

pub fn kernel_client() {
    let socket = UdpSocket::bind((*KERNEL.ip(), 0)).unwrap();
    socket.connect(SocketAddr::from(OURS)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reply = [0; 2048];
    for round in 0..ROUNDS {
        for size in SIZES {
            let payload = content(round, size);
            socket.send(&payload).unwrap();
            let length = socket.recv(&mut reply).expect("a reply");
            assert_eq!(reply[..length], payload);
        }
    }
    println!("\n@done");
}

pub fn kernel_server() {
    let socket = UdpSocket::bind(SocketAddr::from(KERNEL)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    println!("\n@ready");
    let mut request = [0; 2048];
    for _ in 0..ROUNDS * SIZES.len() {
        let (length, peer) = socket.recv_from(&mut request).expect("a request");
        socket.send_to(&request[..length], peer).unwrap();
    }
}

fn wait_for_line(from: impl std::io::Read, what: &str) {
    let mut lines = BufReader::new(from).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains(what)), "{what} never came");
}
