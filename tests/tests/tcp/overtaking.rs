//! Short requests are answered while long ones run on the only worker, and replies keep their
//! connection's order.

use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::time::Instant;

use shinjuku::MechanismKind;
use shinjuku_tests_support::{PATIENCE, turn, wait_for};

use crate::service::{House, assert_sums, listen, runtime};

fn expect(mut stream: &std::net::TcpStream, expected: &str) {
    let mut reply = vec![0; expected.len()];
    stream.read_exact(&mut reply).expect("a reply in time");
    assert_eq!(String::from_utf8_lossy(&reply), expected);
}

#[test]
fn short_requests_are_answered_while_long_ones_run_on_the_only_worker() {
    let _turn = turn();
    for mechanism in [MechanismKind::Probe, MechanismKind::Signal] {
        for kind in ["c-pre-sq", "c-pre-mq"] {
            let mut config = runtime(1, mechanism);
            config.policy.kind = kind.into();
            let house = House::start(config, listen());
            let patient: Vec<_> = (0..3).map(|_| house.client()).collect();
            let mut hasty = house.client();
            for mut stream in &patient {
                stream.write_all(b"g one\ne two\n").unwrap();
            }
            wait_for("the start of the long ones", || {
                house.gate.entered.load(Ordering::Relaxed) == 3
            });
            let start = Instant::now();
            let mut rounds = 0;
            while rounds < 10 || house.server.statistics().preemptions.taken() == 0 {
                hasty.write_all(b"e three\ne four\n").unwrap();
                expect(&hasty, "e three\ne four\n");
                assert!(start.elapsed() < PATIENCE / 2, "{mechanism} {kind:?}");
                rounds += 1;
            }
            for stream in &patient {
                stream.set_nonblocking(true).unwrap();
                let nothing = (&*stream).read(&mut [0]);
                assert!(nothing.is_err(), "the second waits for the first");
                stream.set_nonblocking(false).unwrap();
            }
            house.gate.open.store(true, Ordering::Relaxed);
            for stream in &patient {
                expect(stream, "g one\ne two\n");
            }
            drop((patient, hasty));
            let counts = house.end();
            assert_eq!(counts.answered, counts.received);
        }
    }
}

#[test]
fn a_shutdown_lets_what_was_admitted_finish() {
    let _turn = turn();
    let house = House::start(runtime(1, MechanismKind::Probe), listen());
    let streams: Vec<_> = (0..4).map(|_| house.client()).collect();
    let idle = house.client();
    for mut stream in &streams {
        stream.write_all(b"g one\ne two\n").unwrap();
    }
    wait_for("the start", || {
        house.gate.entered.load(Ordering::Relaxed) == 4
    });
    let House {
        server,
        counters,
        gate,
        ..
    } = house;
    let end = std::thread::spawn(move || server.shutdown(PATIENCE));
    assert_eq!((&idle).read(&mut [0]).unwrap(), 0, "nothing of it runs");
    assert!(!end.is_finished(), "the long ones are still there");
    gate.open.store(true, Ordering::Relaxed);
    for mut stream in &streams {
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        assert_eq!(all, "g one\nrefused\n");
    }
    let (report, transport) = end.join().unwrap();
    assert!(report.is_clean(), "{report}");
    drop(transport);
    let counts = counters.read();
    assert_sums(&counts);
    assert_eq!((counts.answered, counts.refused, counts.open), (4, 4, 0));
}
