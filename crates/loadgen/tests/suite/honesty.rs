//! Latency counts from the intended moment; the seed decides the requests; each request is counted
//! exactly once.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shinjuku_loadgen::Mark;

use crate::fake::{Action, measure, ok, serve};

#[test]
fn a_stall_shows_in_all_the_requests_that_were_due_meanwhile() {
    const STALL: Duration = Duration::from_millis(300);
    let server = serve(|number, _| {
        if number == 100 {
            Action::Late(STALL, b"+OK\r\n".to_vec())
        } else {
            ok()
        }
    });
    // One connection: requests behind the stalled one wait for it.
    let measured = measure(
        server,
        "request = [\"GET k\"]\nrate = 1000\nconnections = 1\nseconds = 0.6\nwarm_up = 0.0",
    );
    let all = &measured.point.all;
    assert_eq!(all.answered, all.due);
    // A client that sends the next request only after the last reply counts one slow request. Here,
    // of some 600, the 300 that were due in the stall waited 150 ms in the mean.
    assert!(all.max_us.unwrap() >= 250_000.0, "{all:?}");
    assert!(all.p90_us.unwrap() >= 100_000.0, "{all:?}");
    let slow = measured.histograms[0].count_between(50_000_000, u64::MAX);
    assert!(slow >= all.due / 5, "{slow} of {}", all.due);
}

#[test]
fn unanswered_requests_count_with_their_age() {
    let server = serve(|number, _| if number < 50 { ok() } else { Action::Silence });
    let measured = measure(
        server,
        "request = [\"GET k\"]\nrate = 500\nconnections = 4\nseconds = 0.3\nwarm_up = 0.0\ndrain = 1.0",
    );
    let all = &measured.point.all;
    assert_eq!((all.answered, all.due), (50, 50 + all.unanswered));
    assert!(all.p99_us.unwrap() >= 200_000.0, "{all:?}");
    let marks = &measured.point.marks;
    assert!(marks.contains(&Mark::Losses) && marks.contains(&Mark::Saturated));
}

#[test]
fn a_load_above_what_may_be_under_way_is_not_hidden() {
    let server = serve(|_, _| Action::Silence);
    let measured = measure(
        server,
        "request = [\"GET k\"]\nrate = 2000\nconnections = 4\nseconds = 0.2\ndrain = 0.0\noutstanding = 10",
    );
    let all = &measured.point.all;
    assert!(all.unsent > 0 && all.unanswered <= 10, "{all:?}");
    assert_eq!(all.due, all.unsent + all.unanswered + all.answered);
}

#[test]
fn the_seed_decides_the_requests() {
    let requests = |seed: u64| {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let server = {
            let seen = Arc::clone(&seen);
            serve(move |_, arguments| {
                seen.lock().unwrap().push(arguments.join(" "));
                ok()
            })
        };
        let plan = format!(
            "request = [\"get:2:GET k{{zipf}}\", \"set:1:SET k{{uniform}} {{value:8}}\"]\nseed = {seed}\nrequests = 200\n\
             rate = 5000\nconnections = 1\nseconds = 60.0\nwarm_up = 0.0"
        );
        let measured = measure(server, &plan);
        assert_eq!(measured.point.all.answered, 200);
        let seen = seen.lock().unwrap().clone();
        (seen, measured.point)
    };
    let (first, point) = requests(7);
    assert!(first == requests(7).0, "another sequence for the same seed");
    assert!(first != requests(8).0, "the same sequence for another seed");
    let gets = first.iter().filter(|one| one.starts_with("GET")).count() as u64;
    assert_eq!(point.classes[0].figures.answered, gets);
    assert_eq!(point.classes[1].figures.answered, 200 - gets);
}

#[test]
fn saturation_fills_the_store_with_every_key_once() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let server = {
        let seen = Arc::clone(&seen);
        serve(move |_, arguments| {
            seen.lock().unwrap().push(arguments[1].clone());
            ok()
        })
    };
    let measured = measure(
        server,
        "request = [\"SET k:{sequential} {value:16}\"]\nkeys = 999\nrequests = 999\nsaturate = 16\nthreads = 2\n\
         connections = 5\nseconds = 60.0\nwarm_up = 0.0",
    );
    assert_eq!(measured.point.all.answered, 999);
    assert!(
        measured.point.marks.is_empty(),
        "{:?}",
        measured.point.marks
    );
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 999);
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), 999);
}

#[test]
fn a_probe_is_counted_apart_on_a_connection_of_its_own() {
    let server = serve(|_, arguments| {
        // The load's answers are slow; the probe's connection does not wait for them.
        assert_eq!(arguments[0], "GET");
        ok()
    });
    let measured = measure(
        server,
        "request = [\"GET k\"]\nsaturate = 4\nprobe = 200\nconnections = 2\nseconds = 0.4\nwarm_up = 0.0",
    );
    let point = &measured.point;
    assert_eq!(point.client.connections, 3);
    let probe = &point.probe[0].figures;
    assert!(
        probe.answered > 0 && probe.answered == probe.due,
        "{probe:?}"
    );
    assert!(point.all.answered > 0);
    assert_eq!(measured.histograms.len(), 2);
    assert_eq!(measured.histograms[1].len(), probe.answered);
}

#[test]
fn a_reply_of_any_length_in_any_pieces_is_one_reply() {
    let mut long = b"*2\r\n$1\r\n0\r\n*5000\r\n".to_vec();
    for key in 0..5000 {
        long.extend_from_slice(format!("$16\r\nkey:{key:012}\r\n").as_bytes());
    }
    let server = serve(move |number, arguments| match arguments[0].as_str() {
        "SCAN" => Action::Pieces(1000 + number as usize, long.clone()),
        _ => Action::Pieces(1, b"$3\r\nabc\r\n".to_vec()),
    });
    let measured = measure(
        server,
        "request = [\"get:1:GET k\", \"scan:1:SCAN 0 COUNT 5000\"]\nsaturate = 3\nrequests = 60\nconnections = 4\n\
         seconds = 60.0\nwarm_up = 0.0",
    );
    let point = &measured.point;
    assert_eq!(point.all.answered, 60);
    assert!(point.classes.iter().all(|class| class.figures.answered > 0));
    assert_eq!(point.client.stray_replies, 0);
}
