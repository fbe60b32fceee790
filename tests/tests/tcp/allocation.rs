//! After start, neither dispatcher nor workers call the allocator, whatever happens to connections,
//! while contexts are preempted within malloc and may hold its locks.

use std::io::{ErrorKind, Read, Write};
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use shinjuku::net::tcp::{ReplyBy, Tcp};
use shinjuku::{MechanismKind, Runtime};
use shinjuku_preempt::stress::contexts_in_the_allocator;
use shinjuku_tests_support::runtime::token;
use shinjuku_tests_support::watch::{Watched, WatchedThreads, grown};
use shinjuku_tests_support::{PATIENCE, turn, wait_for};

use crate::service::{Lines, REPEATED, connect, listen, runtime, service};

const WORKERS: usize = 2;
const CONTEXTS: usize = 32;

static THREADS: WatchedThreads = WatchedThreads::new();

/// Everything that can happen to a connection, once.
fn one_of_each(address: SocketAddr) {
    let mut stream = connect(address);
    let all = |stream: &mut std::net::TcpStream, expected: usize| {
        let mut reply = vec![0; expected];
        let read = stream.read_exact(&mut reply);
        read.unwrap_or_else(|error| panic!("not all of {expected} bytes in time: {error}"));
    };
    stream.write_all(&b"a line\n".repeat(16)).unwrap();
    all(&mut stream, 16 * 7);
    // A request that needs a large buffer.
    let long = format!("a {}\n", "x".repeat(40_000));
    stream.write_all(long.as_bytes()).unwrap();
    all(&mut stream, long.len());
    // A slow reply that does not fit the kernel's buffers.
    let line = format!("l {}\n", "x".repeat(800));
    stream.write_all(line.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(2));
    all(&mut stream, line.len() * REPEATED);
    stream.write_all(b"h late\nu unknown\ne fine\n").unwrap();
    // The first request is served if it is handed out at once.
    let mut replies = Vec::new();
    while !replies.ends_with(b"e fine\n") {
        let mut byte = [0];
        stream
            .read_exact(&mut byte)
            .expect("the last reply in time");
        replies.extend(byte);
    }
    stream.write_all(b"p panic\ne never\n").unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "failed\n");
    // One connection too many, or served.
    let mut other = connect(address);
    let sent = other.write_all(b"e half");
    let refused = |error: &std::io::Error| {
        matches!(
            error.kind(),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
        )
    };
    assert!(sent.as_ref().map_or_else(refused, |()| true), "{sent:?}");
    // A request is in flight when the client leaves.
    let mut third = connect(address);
    let _ = third.write_all(b"w one\nl two\na three\n");
}

fn calls_in_steady_state(sloppy: bool, reply_by: ReplyBy) -> Vec<(String, u64)> {
    THREADS.clear();
    let mut config = runtime(WORKERS, MechanismKind::Signal);
    config.contexts = CONTEXTS;
    config.policy.quantum_us = 50.0;
    let listen = listen()
        .connections(24)
        .large_buffers(1)
        .max_reply(16 << 20)
        .reply_by(reply_by);
    let tcp = Tcp::bind(listen, Lines).unwrap();
    let (address, counters) = (tcp.local_addr(), tcp.counters());
    let transport = Watched::new(tcp, &THREADS, sloppy);
    let delivered = transport.delivered();
    let service = service(&config, || THREADS.add_this_thread());
    let server = Runtime::builder(service)
        .config(config)
        .allow_hard_preemption(token())
        .serve(transport)
        .unwrap();
    // Not dropped when the test fails: a dispatcher that hangs in malloc does not end.
    let server = ManuallyDrop::new(server);
    let (enough, most) = (AtomicBool::new(false), AtomicUsize::new(0));
    let calls = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !enough.load(Ordering::Relaxed) {
                    one_of_each(address);
                }
            });
        }
        // Requests to be preempted within the allocator.
        for _ in 0..4 {
            scope.spawn(|| {
                let mut stream = connect(address);
                while !enough.load(Ordering::Relaxed) {
                    stream.write_all(b"a line\n").unwrap();
                    stream.read_exact(&mut [0; 7]).unwrap();
                }
            });
        }
        let start = Instant::now();
        let warm = |what: &dyn Fn() -> bool| {
            while !what() {
                most.fetch_max(contexts_in_the_allocator(), Ordering::Relaxed);
                if start.elapsed() > PATIENCE {
                    enough.store(true, Ordering::Relaxed);
                    panic!("not enough happened: {:?}", counters.read());
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        };
        warm(&|| counters.read().failed > 8);
        // The calls are counted before the requests here, and after them at the end. So the calls
        // of all counted requests are counted.
        let before = THREADS.counts();
        let at = delivered.load(Ordering::Acquire);
        let from = counters.read();
        warm(&|| {
            let now = counters.read();
            delivered.load(Ordering::Acquire) > at + 400
                && now.failed > from.failed + 8
                && now.refused > from.refused + 16
                && now.accepted > from.accepted + 24
                && server.statistics().preemptions.taken() > 200
                && most.load(Ordering::Relaxed) > WORKERS
        });
        let after = THREADS.counts();
        enough.store(true, Ordering::Relaxed);
        grown(&before, after)
    });
    wait_for("the end of all connections", || counters.read().open == 0);
    let (report, transport) = ManuallyDrop::into_inner(server).shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
    drop(transport);
    crate::service::assert_sums(&counters.read());
    calls
}

#[test]
fn over_tcp_no_thread_allocates() {
    let _turn = turn();
    let hook = Arc::new(std::panic::take_hook());
    let theirs = Arc::clone(&hook);
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some("on purpose") {
            theirs(panic);
        }
    }));
    for reply_by in [ReplyBy::Worker, ReplyBy::Networker] {
        let grown = calls_in_steady_state(false, reply_by);
        for expected in ["dispatcher", "worker-0", "worker-1"] {
            let watched = grown.iter().any(|(name, _)| name.ends_with(expected));
            assert!(watched, "{expected} is watched: {grown:?}");
        }
        let guilty: Vec<_> = grown.iter().filter(|(_, calls)| *calls > 0).collect();
        assert!(
            guilty.is_empty(),
            "{reply_by:?}: calls of malloc: {guilty:?}"
        );
    }
    // The opposite case shows that the test would notice a call.
    let sloppy = calls_in_steady_state(true, ReplyBy::Worker);
    let dispatcher = sloppy.iter().find(|(name, _)| name.ends_with("dispatcher"));
    assert!(dispatcher.unwrap().1 > 100, "{sloppy:?}");
}
