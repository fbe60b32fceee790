//! No data of one connection reaches another, whatever handlers do, with preemption and with
//! connections that come and go.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use shinjuku::MechanismKind;
use shinjuku_tests_support::{PATIENCE, turn};

use crate::service::{House, connect, listen, runtime};

/// One connection's life: bursts of requests that carry its tag; all replies must carry the same
/// tag.
fn live(address: SocketAddr, tag: u64, requests: usize) {
    let mut random = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = move |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 16) % bound
    };
    let mut stream = connect(address);
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    for number in 0..requests {
        let kind = match draw(40) {
            0 => 's',
            1 => 'p',
            2 => 'h',
            3..10 => 'w',
            _ => 'e',
        };
        // The server may have closed it: for a panic, or a swap.
        if writeln!(stream, "{kind} {tag} {number}").is_err() {
            break;
        }
        if draw(4) == 0 {
            match stream.read(&mut buffer) {
                Ok(length) if length > 0 => received.extend_from_slice(&buffer[..length]),
                _ => break,
            }
        }
    }
    if draw(3) > 0 {
        // An orderly close; otherwise the client vanishes with requests in flight.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut received);
    }
    let text = String::from_utf8(received).unwrap();
    let mut last = None;
    for line in text.lines() {
        let mut words = line.split(' ');
        let (kind, its, number) = (words.next(), words.next(), words.next());
        let Some(its) = its else {
            let said = ["refused", "failed"];
            assert!(
                said.iter().any(|said| said.starts_with(kind.unwrap())),
                "{line:?} reached {tag}"
            );
            continue;
        };
        let Some(number) = number else {
            // The last line, which may be cut off.
            assert!(tag.to_string().starts_with(its), "{line:?} reached {tag}");
            continue;
        };
        assert_eq!(its, tag.to_string(), "{line:?} reached {tag}");
        let number: Option<usize> = number.parse().ok();
        let in_order = last.is_none() || number > last || !text.ends_with('\n');
        assert!(in_order, "{line:?} after {last:?} at {tag}");
        last = number;
    }
}

#[test]
fn nothing_of_one_connection_reaches_another() {
    let _turn = turn();
    // The test causes many panics on purpose.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some("on purpose") {
            hook(panic);
        }
    }));
    for mechanism in [MechanismKind::Probe, MechanismKind::Signal] {
        let house = House::start(runtime(2, mechanism), listen().connections(12));
        let (start, tags) = (Instant::now(), AtomicU64::new(1));
        let (address, counters) = (house.address, &house.counters);
        let observer = house.server.observer();
        let enough = || {
            let counts = counters.read();
            let statistics = observer.statistics();
            counts.misdirected > 5
                && counts.failed > 20
                && counts.refused > 20
                && counts.accepted > 200
                && statistics.preemptions.taken() > 50
        };
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    while !enough() {
                        assert!(start.elapsed() < PATIENCE, "{:?}", counters.read());
                        live(address, tags.fetch_add(1, Ordering::Relaxed), 60);
                    }
                });
            }
        });
        house.end();
    }
    drop(std::panic::take_hook());
}
