//! Connections that come and go leave nothing behind.

use std::io::{Read, Write};

use shinjuku::MechanismKind;
use shinjuku_tests_support::{Usage, turn, wait_for};

use crate::service::{House, REPEATED, connect, listen, runtime};

/// Some connections' lives, by several clients at once.
fn come_and_go(house: &House, rounds: usize) {
    let address = house.address;
    let accepted = house.counters.read().accepted + 4 * rounds as u64;
    std::thread::scope(|scope| {
        let clients = [0, 1, 2, 3].map(|client| {
            scope.spawn(move || {
                for round in 0..rounds {
                    let mut stream = connect(address);
                    match (client + round) % 5 {
                        0 => drop(stream.write_all(b"e half a requ")),
                        1 => {
                            // The client leaves without waiting for its replies.
                            drop(stream.write_all(b"l line\nw line\ne line\n"));
                        }
                        2 => {
                            stream.write_all(b"l line\n").unwrap();
                            let mut reply = vec![0; REPEATED * "l line\n".len()];
                            stream.read_exact(&mut reply).unwrap();
                        }
                        _ => {
                            stream.write_all(b"e one\nw two\n").unwrap();
                            stream.read_exact(&mut [0; 12]).unwrap();
                        }
                    }
                }
            })
        });
        // The scope's own end does not wait for a thread's, which has its stack until then.
        for client in clients {
            client.join().unwrap();
        }
    });
    // A client may be gone before the server has accepted its connection.
    wait_for("the end of all connections", || {
        let counts = house.counters.read();
        counts.accepted == accepted && counts.open == 0
    });
}

#[test]
fn neither_descriptors_nor_memory_grow_with_connections() {
    let _turn = turn();
    let house = House::start(runtime(2, MechanismKind::Probe), listen());
    come_and_go(&house, 100);
    let before = Usage::now();
    come_and_go(&house, 500);
    let after = Usage::now();
    assert_eq!(before.descriptors, after.descriptors);
    // The kernel's list has a joined thread for a moment longer.
    wait_for("the end of every client's thread", || {
        Usage::now().threads <= before.threads
    });
    let grown = after.data_kib.saturating_sub(before.data_kib);
    assert!(grown < 2048, "{grown} KiB: {before:?} {after:?}");
    let counts = house.end();
    assert_eq!(counts.accepted, 2400);
}
