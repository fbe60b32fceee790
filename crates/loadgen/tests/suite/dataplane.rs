//! Datagrams without the kernel, over an in-memory wire.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use shinjuku_dataplane::memory::{MemoryDevice, wire};
use shinjuku_dataplane::{
    Buffer, Checksums, Device, Interface, InterfaceConfig, MacAddr, Outbound, Received, Verdict,
};
use shinjuku_loadgen::{LoadError, Mark, Plan, Settings};
use shinjuku_net::wire::ShinjukuRequest;

use crate::fake::ALONE;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const CLIENT: &str = "10.0.0.2/24";

/// What the server does with a request.
enum Fate {
    /// The request is sent back.
    Reply,
    /// The request is kept, for later.
    Keep,
    /// The request is dropped, and the kept ones are sent back.
    Release,
}

/// A server at one end of a wire; `fate` decides by the requests' numbers.
struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// A bit for each port that requests came from.
    ports: Arc<AtomicU64>,
}

impl Server {
    fn start(fate: fn(u64) -> Fate) -> (Self, MemoryDevice) {
        let (theirs, mut device) = wire(256, 1024, 2048);
        let stop = Arc::new(AtomicBool::new(false));
        let ports = Arc::new(AtomicU64::new(0));
        let (stopped, seen) = (Arc::clone(&stop), Arc::clone(&ports));
        let thread = thread::spawn(move || serve(&mut device, fate, &stopped, &seen));
        let server = Self {
            stop,
            thread: Some(thread),
            ports,
        };
        (server, theirs)
    }
}

fn serve(device: &mut MemoryDevice, fate: fn(u64) -> Fate, stop: &AtomicBool, ports: &AtomicU64) {
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    let mut interface = Interface::new(InterfaceConfig::new(mac, SERVER, &[9000])).unwrap();
    let (mut frames, mut replies, mut kept) = (Vec::with_capacity(64), Vec::new(), Vec::new());
    let (start, mut number) = (Instant::now(), 0);
    while !stop.load(Ordering::Relaxed) {
        device.receive(64, &mut frames);
        let now_ns = start.elapsed().as_nanos() as u64;
        for Received {
            mut buffer,
            verified,
        } in frames.drain(..)
        {
            let (length, fate) = match interface.receive(buffer.frame_mut(), verified, now_ns) {
                Verdict::Answer { length } => (length, Fate::Reply),
                Verdict::Deliver(request) => {
                    let port = request.peer.address.port();
                    ports.fetch_or(1 << (port % 64), Ordering::Relaxed);
                    assert_eq!(request.payload.len(), ShinjukuRequest::LENGTH);
                    let length = request.payload.end;
                    buffer.set_length(length);
                    let offload = device.offload();
                    request.headers.reply(buffer.frame_mut(), offload).unwrap();
                    number += 1;
                    (length, fate(number - 1))
                }
                verdict => panic!("{verdict:?}"),
            };
            buffer.finish(length);
            let checksums = Checksums::default();
            let reply = Outbound { buffer, checksums };
            match fate {
                Fate::Reply => replies.push(reply),
                Fate::Keep => kept.push(reply),
                Fate::Release => {
                    device.free(reply.buffer);
                    replies.append(&mut kept);
                }
            }
        }
        device.transmit(&mut replies);
        thread::yield_now();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking());
    }
}

fn plan(text: &str) -> Plan {
    let server = format!("target = \"{SERVER}:9000\"\nprotocol = \"shinjuku\"\nmix = \"hi\"\n");
    let settings: Settings = toml::from_str(&(server + text)).unwrap();
    settings.check().unwrap()
}

fn over(plan: Plan, device: MemoryDevice) -> Result<Plan, LoadError> {
    let mac = MacAddr([2, 0, 0, 0, 0, 2]);
    plan.over(device, mac, CLIENT.parse().unwrap())
}

#[test]
fn loads_and_what_goes_before_them_share_a_device() {
    let (server, device) = Server::start(|_| Fate::Reply);
    let plan = plan(
        "rate = [500, 1000]\nconnections = 8\nseconds = 0.3\nwarm_up = 0.0\nprobe = 100\ndrain = 5.0",
    );
    let plan = over(plan, device).unwrap();
    let unloaded = plan.unloaded_ns(&ALONE).unwrap();
    assert!(unloaded.iter().all(Option::is_some), "{unloaded:?}");
    for &load in plan.loads() {
        let point = plan.measure(load, 1, &unloaded, &ALONE).unwrap().point;
        assert!(point.all.due > 0);
        assert_eq!(point.all.answered, point.all.due, "{point:?}");
        let probe: u64 = point.probe.iter().map(|one| one.figures.answered).sum();
        assert!(probe > 0);
        let client = &point.client;
        assert_eq!((client.stray_replies, client.connections), (0, 9));
        assert!(!point.marks.contains(&Mark::Losses), "{point:?}");
    }
    // Each flow has a port of its own.
    assert_eq!(server.ports.load(Ordering::Relaxed).count_ones(), 9);
    assert!(plan.transport().contains("device"));
}

#[test]
fn an_earlier_loads_reply_is_not_taken_for_a_later_ones() {
    // The second load's requests are the same, due at the same moments. The server keeps all until
    // ten of them have come.
    let (_server, device) = Server::start(|number| match number {
        30 => Fate::Release,
        _ => Fate::Keep,
    });
    let plan = plan(
        "rate = 1000\nrequests = 20\nconnections = 20\nseconds = 5.0\nwarm_up = 0.0\ndrain = 1.0",
    );
    let plan = over(plan, device).unwrap();
    for expected in [(0, 0), (10, 20)] {
        let load = plan.loads()[0];
        let point = plan.measure(load, 1, &[], &ALONE).unwrap().point;
        let client = &point.client;
        assert_eq!((point.all.answered, client.stray_replies), expected);
    }
}

#[test]
fn a_plan_that_a_device_cannot_carry_is_refused() {
    for (text, expected) in [
        ("rate = 1\nthreads = 2", "threads: "),
        ("rate = 1\nconnections = 65", "connections: "),
        ("rate = 1\nprobe = 1", "connections: "),
    ] {
        let (device, _) = wire(2, 2, 2048);
        let refused = over(plan(text), device).unwrap_err().to_string();
        assert!(refused.starts_with(expected), "{refused}");
    }
}
