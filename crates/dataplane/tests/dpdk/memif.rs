//! `net::dpdk` between two processes, over shared memory (`net_memif`). The one that serves is
//! killed in the midst, and started again.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::sync::mpsc::TryRecvError;
use std::time::Instant;

use shinjuku_dataplane::dpdk::{DpdkDevice, Nic, NicConfig};
use shinjuku_tests_support::PATIENCE;
use shinjuku_tests_support::dpdk::{self, Host, PORT, missing_after_close, until};
use shinjuku_tests_support::process::{Part, orders, this_test};

const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 78, 0, 1), PORT);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const MBUFS: u32 = 2047;
/// A payload that is none of the numbered ones.
const HELLO: [u8; 8] = [0xff; 8];

/// A host at one end of the memory.
fn open(socket: &Path, role: &str, ip: Ipv4Addr) -> (Nic, Host<DpdkDevice>) {
    let socket = socket.display();
    // An address of its own, lest it be another after a restart.
    let mac = format!("02:00:00:00:00:{:02}", ip.octets()[3]);
    let device =
        format!("net_memif0,role={role},id=0,socket={socket},socket-abstract=no,mac={mac}");
    let (nic, mut hosts) = dpdk::open(&device, ip, NicConfig::new().mbufs(MBUFS));
    (nic, hosts.remove(0))
}

/// Echoes at one end of the memory.
pub fn server(socket: &str) {
    let (_nic, mut host) = open(Path::new(socket), "server", *SERVER.ip());
    let orders = orders();
    println!("\n@ready");
    let start = Instant::now();
    while start.elapsed() < 3 * PATIENCE && orders.try_recv() == Err(TryRecvError::Empty) {
        host.echo();
        std::thread::yield_now();
    }
}

#[test]
fn a_server_in_another_process_can_die_and_come_again() {
    const PACKETS: u64 = 50_000;
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("memif");
    let start = || {
        // One that was killed leaves its socket behind.
        let _ = std::fs::remove_file(&socket);
        let this = this_test("part");
        let mut server = Part::start(this, &format!("memif-server {}", socket.display()));
        server.hears("@ready");
        server
    };
    let server = start();
    let (nic, mut client) = open(&socket, "client", CLIENT);
    until("the link", || nic.link_up());
    assert_eq!(exchange(&mut client, PACKETS), PACKETS);

    let changes = nic.counts().link_changes;
    drop(server);
    until("the link's end", || !nic.link_up());
    // Sent into the void: neither in the way nor lost as mbufs.
    for _ in 0..100 {
        client.send(PORT, SERVER, &HELLO);
        client.turn(|_, _| false);
    }
    let _server = start();
    // A memif client connects when it is started, and never again by itself.
    nic.ask_for_reset();
    until("the reset", || {
        client.turn(|_, _| false);
        nic.counts().resets == 1
    });
    until("the link's return", || nic.link_up());
    assert_eq!(nic.counts().link_changes, changes + 2);
    assert_eq!(exchange(&mut client, 1000), 1000);

    assert_eq!(missing_after_close(nic, client), 0, "mbufs were lost");
}

/// Has so many datagrams echoed, some at a time; how many came back as they were.
fn exchange(client: &mut Host<DpdkDevice>, packets: u64) -> u64 {
    const WINDOW: u64 = 64;
    until("the server", || {
        client.send(PORT, SERVER, &HELLO);
        let mut heard = false;
        client.turn(|_, _| {
            heard = true;
            false
        });
        std::thread::yield_now();
        heard
    });
    let (mut sent, mut back) = (0, 0);
    until("all echoes", || {
        while sent < packets && sent - back < WINDOW {
            let mut payload = [sent as u8; 1472];
            payload[..8].copy_from_slice(&sent.to_le_bytes());
            let length = 8 + (sent as usize * 131) % 1465;
            if !client.send(PORT, SERVER, &payload[..length]) {
                break;
            }
            sent += 1;
        }
        client.turn(|delivery, frame| {
            let payload = &frame[delivery.payload.clone()];
            let number = u64::from_le_bytes(*payload.first_chunk().unwrap());
            if number != u64::MAX {
                assert_eq!(number, back, "in their order");
                assert_eq!(payload.len(), 8 + (number as usize * 131) % 1465);
                assert!(payload[8..].iter().all(|&byte| byte == number as u8));
                back += 1;
            }
            false
        });
        std::thread::yield_now();
        back == packets
    });
    back
}
