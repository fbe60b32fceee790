//! The safe layer, over rings in memory. A process can start DPDK once, so all tests here share it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use shinjuku_dpdk_sys::{
    BURST, Checksum, DpdkError, Eal, EalConfig, Mbuf, Mempool, NoRoom, PortConfig, Queue,
    RunningPort,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn eal() -> Eal {
    static EAL: OnceLock<Eal> = OnceLock::new();
    *EAL.get_or_init(|| {
        Eal::init(&EalConfig::without_hardware(128).argument("--log-level=error"))
            .expect("DPDK starts")
    })
}

fn pool(name: &str, mbufs: u32) -> Mempool {
    eal().pool(name, mbufs, 2048).unwrap()
}

/// A ring's two ends with one queue each, and pools `name.a` and `name.b`.
fn pair(name: &str, slots: u32, mbufs: u32) -> [(RunningPort, Queue); 2] {
    let mut ends = ["a", "b"].into_iter();
    eal().ring_pair(name, 1, slots).unwrap().map(|port| {
        let pool = pool(&format!("{name}.{}", ends.next().unwrap()), mbufs);
        let (port, mut queues) = port.start(&PortConfig::default(), vec![pool]).unwrap();
        (port, queues.pop().unwrap())
    })
}

fn packet(queue: &mut Queue, content: u64) -> Option<Mbuf> {
    let mut mbuf = queue.pool().alloc()?;
    mbuf.extend_from_slice(&[0; 64]).unwrap();
    mbuf[..8].copy_from_slice(&content.to_le_bytes());
    Some(mbuf)
}

fn content(mbuf: &Mbuf) -> u64 {
    u64::from_le_bytes(mbuf[..8].try_into().unwrap())
}

fn batch() -> Vec<Mbuf> {
    Vec::with_capacity(BURST)
}

#[test]
fn starts_once_and_leaves_the_caller_where_it_may_run() {
    let allowed = || thread::available_parallelism().unwrap();
    let before = allowed();
    let eal = eal();
    assert_eq!(allowed(), before);
    assert!(matches!(
        Eal::init(&EalConfig::without_hardware(128)),
        Err(DpdkError::Started)
    ));
    assert!(Eal::current().is_some());
    assert!(eal.version().contains("DPDK"), "{}", eal.version());
}

#[test]
fn arguments_that_would_break_a_promise_are_refused() {
    for argument in [
        "--proc-type=secondary",
        "--pr=auto",
        "-l1",
        "--lcores=1",
        "--main-lcore=0",
        "--mbuf-pool-ops-name=ring_sp_sc",
        "--vdev=net_ring0,internal=0x1000",
        "--vdev=net_memif0,role=client,zero-copy=yes",
        "-n\0",
    ] {
        let refused = Eal::init(&EalConfig::without_hardware(128).argument(argument));
        assert!(
            matches!(refused, Err(DpdkError::Argument { .. })),
            "{argument}: {refused:?}"
        );
    }
}

#[test]
fn what_is_missing_or_taken_or_out_of_range_is_said_with_its_name() {
    let missing = eal().port("net_tap7").unwrap_err().to_string();
    assert!(
        missing.contains("net_tap7") && missing.contains("No such device"),
        "{missing}"
    );
    let device = eal().attach("net_nothing0").unwrap_err().to_string();
    assert!(device.contains("net_nothing0"), "{device}");
    let [a, _b] = eal().ring_pair("taken", 1, 64).unwrap();
    assert!(matches!(
        eal().port("net_ring_taken.a"),
        Err(DpdkError::PortTaken { .. })
    ));
    drop(a);
    let a = eal().port("net_ring_taken.a").unwrap();
    let none = a.start(&PortConfig::default(), Vec::new());
    assert!(matches!(
        none,
        Err(DpdkError::Setting {
            setting: "queues",
            least: 1,
            ..
        })
    ));
    let huge = eal().pool("huge", 1 << 20, 2048).unwrap_err().to_string();
    assert!(
        huge.contains("1048576 mbufs") && huge.contains("memory"),
        "{huge}"
    );
    pool("named", 63);
    assert!(matches!(
        eal().pool("named", 63, 2048),
        Err(DpdkError::Pool { .. })
    ));
}

/// DPDK computes sizes in 32 bits, and follows an address in a device's arguments.
#[test]
fn what_dpdk_would_not_survive_does_not_reach_it() {
    for slots in [u32::MAX, 1 << 31, (1 << 30) + 1] {
        let refused = eal().ring_pair("overflow", 1, slots).unwrap_err();
        assert!(matches!(refused, DpdkError::Device { .. }), "{refused}");
    }
    for (mbufs, data_room) in [(u32::MAX, 2048), (1 << 31, 2048), (63, u16::MAX - 127)] {
        let refused = eal().pool("overflow", mbufs, data_room).unwrap_err();
        assert!(refused.to_string().contains("(22)"), "{refused}");
    }
    let refused = eal().attach("net_ring7,internal=0x1000").unwrap_err();
    assert!(matches!(refused, DpdkError::Argument { .. }), "{refused}");
}

#[test]
fn a_pair_that_cannot_be_made_leaves_nothing_behind() {
    // More queues than such a port supports.
    assert!(eal().ring_pair("half", 17, 16).is_err());
    let pair = eal().ring_pair("half", 1, 16);
    assert!(pair.is_ok(), "{pair:?}");
}

#[test]
fn a_packet_is_its_bytes_within_its_room() {
    let mut pool = pool("bytes", 63);
    let mut mbuf = pool.alloc().unwrap();
    assert_eq!((mbuf.len(), mbuf.headroom(), mbuf.room()), (0, 128, 2048));
    mbuf.extend_from_slice(b"shinjuku").unwrap();
    assert_eq!(&*mbuf, b"shinjuku");
    let too_long = NoRoom {
        needed: 2049,
        room: 2048,
    };
    assert_eq!(mbuf.set_len(2049), Err(too_long));
    assert_eq!(&*mbuf, b"shinjuku");
    mbuf.set_len(2048).unwrap();
    mbuf.fill(7);
    mbuf.set_len(3).unwrap();
    assert_eq!(&*mbuf, [7; 3]);
    assert_eq!(mbuf.rss_hash(), None);
    assert_eq!(
        (mbuf.ip_checksum(), mbuf.udp_checksum()),
        (Checksum::Unknown, Checksum::Unknown)
    );
    assert!(
        mbuf.offload_checksums(14, 20).is_err(),
        "three bytes have no headers"
    );
    mbuf.set_len(42).unwrap();
    mbuf.offload_checksums(14, 20).unwrap();
    for (link, ip) in [
        (14, 21),
        (128, 20),
        (14, 64),
        (14, 16),
        (usize::MAX, usize::MAX),
    ] {
        assert!(mbuf.offload_checksums(link, ip).is_err(), "{link} {ip}");
    }
}

#[test]
fn an_empty_pool_gives_none_until_something_is_dropped() {
    let mut pool = pool("empty", 63);
    let gauge = pool.gauge();
    let mut all: Vec<Mbuf> = std::iter::from_fn(|| pool.alloc()).collect();
    assert_eq!((all.len(), gauge.available(), gauge.size()), (63, 0, 63));
    assert!(pool.alloc().is_none());
    drop(all.pop());
    assert_eq!(gauge.available(), 0, "dropping enters nothing of DPDK's");
    let mbuf = pool.alloc().expect("the dropped one was collected");
    drop((mbuf, all));
    assert_eq!(pool.collect(usize::MAX), 63);
    assert_eq!(gauge.available(), 63);
}

#[test]
fn mbufs_dropped_on_many_threads_all_come_back() {
    const THREADS: usize = 4;
    let mut pool = pool("threads", 255);
    let gauge = pool.gauge();
    thread::scope(|scope| {
        let droppers: Vec<_> = (0..THREADS)
            .map(|_| {
                let (give, take) = mpsc::channel::<Mbuf>();
                scope.spawn(move || take.into_iter().for_each(drop));
                give
            })
            .collect();
        let start = Instant::now();
        for round in 0..40_000 {
            let mbuf = loop {
                assert!(start.elapsed() < PATIENCE, "an mbuf was lost");
                match pool.alloc() {
                    Some(mbuf) => break mbuf,
                    None => thread::yield_now(),
                }
            };
            droppers[round % THREADS].send(mbuf).unwrap();
        }
    });
    pool.collect(usize::MAX);
    assert_eq!(gauge.available(), 255);
}

#[test]
fn a_full_queue_leaves_the_rest_with_the_sender() {
    let [(_a, mut here), (_b, mut there)] = pair("full", 16, 63);
    let mut packets: Vec<Mbuf> = (0..20).map(|i| packet(&mut here, i).unwrap()).collect();
    assert_eq!(here.send(&mut packets), 16);
    assert_eq!(
        packets.iter().map(content).collect::<Vec<_>>(),
        [16, 17, 18, 19]
    );
    assert_eq!(here.send(&mut packets), 0);
    let mut received = batch();
    assert_eq!(there.receive(&mut received, BURST), 16);
    assert_eq!(here.send(&mut packets), 4);
    assert!(packets.is_empty());
    assert_eq!(there.receive(&mut received, BURST), 4);
    assert!(received.iter().map(content).eq(0..20));
    // No room: nothing is taken, and nothing allocated.
    let mut small = Vec::with_capacity(1);
    packets.extend([1, 2].map(|i| packet(&mut here, i).unwrap()));
    here.send(&mut packets);
    assert_eq!(there.receive(&mut small, BURST), 1);
    assert_eq!((there.receive(&mut small, BURST), small.capacity()), (0, 1));
    assert_eq!(there.receive(&mut received, BURST), 1);
}

/// An echo on one thread, and requests from another; some packets are kept for a while and dropped
/// elsewhere.
#[test]
fn a_million_packets_there_and_back_lose_no_mbuf() {
    const PACKETS: u64 = 500_000;
    let [(_a, mut client), (_b, mut server)] = pair("million", 256, 1023);
    let gauges = [client.pool().gauge(), server.pool().gauge()];
    let done = AtomicBool::new(false);
    let (keep, kept) = mpsc::sync_channel::<Mbuf>(64);
    let lost = thread::scope(|scope| {
        scope.spawn(move || kept.into_iter().for_each(drop));
        let server = &mut server;
        let done = &done;
        let serving = scope.spawn(move || {
            let mut packets = batch();
            let mut dropped = 0_u64;
            let start = Instant::now();
            while !done.load(Ordering::Acquire) && start.elapsed() < PATIENCE {
                let before = packets.len();
                server.receive(&mut packets, BURST);
                for at in (before..packets.len()).rev() {
                    let number = content(&packets[at]);
                    if number.is_multiple_of(97) {
                        dropped += 1;
                        let _ = keep.try_send(packets.swap_remove(at));
                    }
                }
                if packets.is_empty() {
                    thread::yield_now();
                }
                server.send(&mut packets);
            }
            dropped
        });
        let (mut sent, mut back) = (0, 0);
        let (mut out, mut received) = (batch(), batch());
        let start = Instant::now();
        let to_be_dropped = PACKETS.div_ceil(97);
        while back < PACKETS - to_be_dropped {
            assert!(start.elapsed() < PATIENCE, "{back} of {sent} came back");
            while sent < PACKETS && out.len() < BURST {
                let Some(mbuf) = packet(&mut client, sent) else {
                    break;
                };
                out.push(mbuf);
                sent += 1;
            }
            client.send(&mut out);
            if client.receive(&mut received, BURST) == 0 {
                thread::yield_now();
            }
            back += received.len() as u64;
            received.clear();
        }
        done.store(true, Ordering::Release);
        assert_eq!(serving.join().unwrap(), to_be_dropped);
        PACKETS - back - to_be_dropped
    });
    assert_eq!(lost, 0);
    client.pool().collect(usize::MAX);
    server.pool().collect(usize::MAX);
    assert_eq!(gauges.map(|gauge| gauge.available()), [1023, 1023]);
    assert_eq!((client.unusable(), server.unusable()), (0, 0));
}

#[test]
fn a_reset_waits_for_the_queue_and_then_all_goes_on() {
    let [(mut port, mut here), (_b, mut there)] = pair("reset", 64, 63);
    let busy = port.reset(Duration::from_millis(5));
    assert!(
        matches!(busy, Err(DpdkError::QueueBusy { queue: 0, .. })),
        "no thread polls: {busy:?}"
    );
    let mut out = vec![packet(&mut here, 1).unwrap()];
    assert_eq!(
        here.send(&mut out),
        1,
        "a reset that was not possible changes nothing"
    );
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let polling = scope.spawn(|| {
            let mut packets = batch();
            let start = Instant::now();
            while !stop.load(Ordering::Acquire) && start.elapsed() < PATIENCE {
                here.receive(&mut packets, BURST);
                here.send(&mut packets);
            }
        });
        for _ in 0..10 {
            port.reset(PATIENCE).unwrap();
        }
        // A ring's packets outlive the reset of one end.
        let start = Instant::now();
        let (mut out, mut back) = (batch(), batch());
        out.push(packet(&mut there, 2).unwrap());
        while back.len() < 2 {
            assert!(start.elapsed() < PATIENCE, "no answer after the reset");
            there.send(&mut out);
            there.receive(&mut back, BURST);
        }
        stop.store(true, Ordering::Release);
        polling.join().unwrap();
    });
    drop(here);
    port.reset(PATIENCE).expect("a dropped queue is at rest");
}

#[test]
fn the_link_goes_down_and_up_and_statistics_count() {
    let [(port, mut here), (other, mut there)] = pair("link", 64, 63);
    assert!(port.link().unwrap().up);
    port.set_link(false).unwrap();
    assert!(!port.link().unwrap().up);
    port.set_link(true).unwrap();
    assert!(port.link().unwrap().up && !port.wants_reset());
    let mut out = vec![packet(&mut here, 1).unwrap(), packet(&mut here, 2).unwrap()];
    here.send(&mut out);
    there.receive(&mut batch(), BURST);
    assert_eq!(port.statistics().unwrap().sent, 2);
    assert_eq!(other.statistics().unwrap().received, 2);
    let info = port.info().unwrap();
    assert_eq!((info.driver.as_str(), info.queues), ("net_ring", 1));
}

#[test]
fn a_port_closes_when_its_parts_are_gone() {
    let [(port, queue), _other] = pair("close", 64, 63);
    drop(port);
    assert!(matches!(
        eal().port("net_ring_close.a"),
        Err(DpdkError::PortTaken { .. })
    ));
    drop(queue);
    assert!(matches!(
        eal().port("net_ring_close.a"),
        Err(DpdkError::NoPort { .. })
    ));
}

#[test]
fn a_virtual_device_can_be_attached_again_after_its_end() {
    for time in 0..3 {
        let port = eal().attach("net_null0,size=60").unwrap();
        let pool = pool(&format!("null.{time}"), 127);
        let (port, mut queues) = port.start(&PortConfig::default(), vec![pool]).unwrap();
        let mut packets = batch();
        assert_eq!(
            queues[0].receive(&mut packets, 8),
            8,
            "it makes packets of nothing"
        );
        // It takes them from the pool: without mbufs nothing comes; with mbufs packets come again.
        let held: Vec<Mbuf> = std::iter::from_fn(|| queues[0].pool().alloc()).collect();
        assert_eq!(queues[0].receive(&mut packets, 8), 0);
        drop(held);
        assert_eq!(queues[0].receive(&mut packets, 8), 8);
        drop((port, queues));
    }
    assert!(eal().port("net_null0").is_err());
}

#[test]
fn a_reset_waits_for_every_queue_but_not_for_those_that_are_gone() {
    let [port, _peer] = eal().ring_pair("queues", 3, 64).unwrap();
    let pools = (0..3).map(|number| pool(&format!("queues.{number}"), 63));
    let (mut port, mut queues) = port.start(&PortConfig::default(), pools.collect()).unwrap();
    drop(queues.pop());
    let lazy = queues.pop().unwrap();
    let mut busy = queues.pop().unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let polling = scope.spawn(|| {
            let start = Instant::now();
            let mut packets = batch();
            while !stop.load(Ordering::Acquire) && start.elapsed() < PATIENCE {
                busy.receive(&mut packets, BURST);
            }
        });
        let result = port.reset(Duration::from_millis(20));
        assert!(
            matches!(result, Err(DpdkError::QueueBusy { .. })),
            "one does not poll: {result:?}"
        );
        drop(lazy);
        port.ask_for_reset();
        assert!(port.wants_reset());
        port.reset(PATIENCE).unwrap();
        assert!(!port.wants_reset());
        stop.store(true, Ordering::Release);
        polling.join().unwrap();
    });
}
