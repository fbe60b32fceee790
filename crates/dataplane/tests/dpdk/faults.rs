//! What becomes of `net::dpdk` when its device goes down, is reset, or is deleted and made again,
//! in the midst of being used by a client of the kernel's: over a veth pair (`net_af_packet`) and a
//! tap device (`net_tap`).

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use shinjuku_dataplane::MacAddr;
use shinjuku_dataplane::dpdk::{DpdkDevice, NicConfig};
use shinjuku_tests_support::dpdk::{Host, PORT, missing_after_close, open, until};
use shinjuku_tests_support::namespace::{Namespace, Pair, must};
use shinjuku_tests_support::process::{Part, orders};
use shinjuku_tests_support::{PATIENCE, need, test_name};

const OURS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 80, 0, 1), PORT);
const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 80, 0, 2);
/// What a tap device has.
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

#[test]
fn a_veth_pair_by_af_packet() {
    let namespaces = need!(Pair::new(test_name!(), ["fa", "fb"]));
    let [ours, kernel] = &namespaces.0;
    namespaces.join();
    must(ours.ip(&format!("link set va address {MAC}")));
    let server = Part::start_in(ours, "faults-server net_af_packet0,iface=va,framecnt=512");
    let mut faults = Faults::new(kernel, "vb", server);
    faults.heals("nothing", |_| ());
    faults.heals("the link's end and return", |server| {
        must(ours.ip("link set va down"));
        server.say("down");
        server.hears("@down");
        must(ours.ip("link set va up"));
    });
    faults.heals_after_reset();
    faults.is_told_of_the_loss(|| must(ours.ip("link del va")));
    faults.heals("the interface's return", |_| {
        namespaces.join();
        kernel.bring_up("vb", KERNEL);
    });
    faults.end();
}

#[test]
fn a_tap_device() {
    let namespaces = need!(Pair::new(test_name!(), ["fc", "fd"]));
    let ours = &namespaces.0[0];
    let server = Part::start_in(ours, "faults-server net_tap0,iface=tap");
    let mut faults = Faults::new(ours, "tap", server);
    faults.heals("nothing", |_| ());
    faults.heals("the link's end and return", |server| {
        must(ours.ip("link set tap down"));
        server.say("down");
        server.hears("@down");
        must(ours.ip("link set tap up"));
    });
    faults.heals_after_reset();
    // The device brings its interface with it.
    faults.heals("the interface's end", |server| {
        must(ours.ip("link del tap"));
        server.say("reset");
        server.hears("@reset");
        ours.bring_up("tap", KERNEL);
    });
    faults.end();
}

/// A server that things happen to, and a client that asks until it is answered.
struct Faults {
    server: Part,
    client: Part,
}

impl Faults {
    fn new(kernel: &Namespace, device: &str, mut server: Part) -> Self {
        server.hears("@ready");
        kernel.bring_up(device, KERNEL);
        server.say("up");
        server.hears("@up");
        let client = Part::start_in(kernel, "faults-client");
        Self { server, client }
    }

    fn heals(&mut self, from: &str, fault: impl FnOnce(&mut Part)) {
        println!("after {from}");
        self.client.say("send");
        fault(&mut self.server);
        self.client.say("ask");
        self.client.hears("@answered");
    }

    fn heals_after_reset(&mut self) {
        self.heals("a reset", |server| {
            server.say("reset");
            server.hears("@reset");
        });
    }

    fn is_told_of_the_loss(&mut self, loss: impl FnOnce()) {
        loss();
        self.server.say("lost");
        self.server.hears("@lost");
    }

    fn end(mut self) {
        self.server.say("end");
        let counts = self.server.hears("@counts");
        println!("{counts}");
        assert!(counts.ends_with(" 0"), "mbufs are missing: {counts}");
    }
}

pub fn server(device: &str) {
    let (nic, mut hosts) = open(device, *OURS.ip(), NicConfig::new().mbufs(2047));
    let mut host = hosts.remove(0);
    let orders = orders();
    println!("\n@ready");
    let start = Instant::now();
    while start.elapsed() < 4 * PATIENCE {
        host.echo();
        match orders.try_recv() {
            Ok(order) if order == "reset" => {
                let resets = nic.counts().resets;
                nic.ask_for_reset();
                serve_until(&mut host, "a reset", || nic.counts().resets > resets);
                println!("@reset");
            }
            Ok(order) if order == "up" => {
                serve_until(&mut host, "the link", || nic.link_up());
                println!("@up");
            }
            Ok(order) if order == "down" => {
                serve_until(&mut host, "the link's end", || !nic.link_up());
                assert!(nic.counts().link_changes > 0);
                println!("@down");
            }
            Ok(order) if order == "lost" => {
                serve_until(&mut host, "the loss, and a try in vain", || {
                    let counts = nic.counts();
                    !nic.link_up() && counts.losses == 1 && counts.failed_resets > 0
                });
                println!("@lost");
            }
            Ok(_) | Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => std::thread::sleep(Duration::from_micros(50)),
        }
    }
    let counts = nic.counts();
    let missing = missing_after_close(nic, host);
    println!("@counts {counts:?} {missing}");
}

fn serve_until(host: &mut Host<DpdkDevice>, what: &str, mut done: impl FnMut() -> bool) {
    until(what, || {
        host.echo();
        std::thread::sleep(Duration::from_micros(50));
        done()
    });
}

/// Sends when told so, or asks until there is an answer to that very question.
pub fn client() {
    let socket = UdpSocket::bind((KERNEL, 0)).unwrap();
    let mut number = 0_u32;
    for order in orders() {
        number += 1;
        let question = number.to_le_bytes();
        // The device may be down or gone, and the kernel says so.
        let _ = socket.send_to(&question, OURS);
        if order == "send" {
            continue;
        }
        socket
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let mut reply = [0; 16];
        until("an answer", || {
            let answered = matches!(socket.recv(&mut reply), Ok(4) if reply[..4] == question);
            if !answered {
                let _ = socket.send_to(&question, OURS);
            }
            answered
        });
        println!("\n@answered");
    }
}
