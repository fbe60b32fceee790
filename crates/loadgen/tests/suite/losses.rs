//! Errors, lost and refused connections are counted and shown, and never waited for forever.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
use shinjuku_loadgen::{LoadError, Mark};

use crate::fake::{ALONE, Action, measure, ok, plan, serve};

#[test]
fn error_replies_are_counted_by_class_and_the_first_shown() {
    let server = serve(|number, arguments| match arguments[0].as_str() {
        "GET" => ok(),
        _ => Action::Reply(format!("-ERR no {}\r\n", number % 2).into_bytes()),
    });
    let measured = measure(
        server,
        "request = [\"get:1:GET k\", \"bad:1:LPUSH k\"]\nsaturate = 1\nrequests = 100\nconnections = 1\nseconds = 60.0\n\
         warm_up = 0.0",
    );
    let [get, bad] = &measured.point.classes[..] else {
        panic!("two classes");
    };
    assert_eq!((get.figures.errors, bad.figures.answered), (0, 0));
    assert_eq!(get.figures.answered + bad.figures.errors, 100);
    // An error is quick: it must not lower a percentile.
    assert_eq!(bad.figures.p50_us, None);
    let shown: Vec<_> = bad
        .figures
        .first_errors
        .iter()
        .map(String::as_str)
        .collect();
    assert!(
        shown.contains(&"ERR no 0") || shown.contains(&"ERR no 1"),
        "{shown:?}"
    );
    assert_eq!(measured.point.marks, [Mark::Errors]);
}

#[test]
fn a_server_that_closes_ends_the_run_and_the_requests_are_lost() {
    let server = serve(|number, _| if number < 20 { ok() } else { Action::Close });
    let started = Instant::now();
    let measured = measure(
        server,
        "request = [\"GET k\"]\nrate = 1000\nconnections = 3\nseconds = 60.0\nwarm_up = 0.0",
    );
    assert!(started.elapsed() < Duration::from_secs(30), "it waited");
    let point = &measured.point;
    assert_eq!(
        (point.client.connections, point.client.lost_connections),
        (3, 3)
    );
    assert_eq!(
        point.all.due,
        point.all.answered + point.all.lost + point.all.unsent
    );
    assert!(point.all.lost > 0 && point.marks.contains(&Mark::Losses));
}

#[test]
fn the_others_go_on_when_one_connection_is_lost() {
    let server = serve(|number, _| if number == 5 { Action::Close } else { ok() });
    let measured = measure(
        server,
        "request = [\"GET k\"]\nsaturate = 1\nrequests = 300\nconnections = 3\nseconds = 60.0\nwarm_up = 0.0",
    );
    let point = &measured.point;
    assert_eq!((point.all.lost, point.all.answered), (1, 299));
    assert_eq!(point.client.lost_connections, 1);
}

#[test]
fn a_silent_connection_times_out_with_all_that_waits_on_it() {
    let server = serve(|_, _| Action::Silence);
    let measured = measure(
        server,
        "request = [\"GET k\"]\nsaturate = 4\nconnections = 2\nseconds = 60.0\nwarm_up = 0.0\ntimeout = 0.2",
    );
    let point = &measured.point;
    assert_eq!((point.all.timed_out, point.all.due), (8, 8));
    assert!(point.all.p50_us.unwrap() >= 200_000.0);
}

#[test]
fn a_server_that_speaks_something_else_is_given_up() {
    let server = serve(|_, _| Action::Reply(b"HTTP/1.1 400 Bad Request\r\n".to_vec()));
    let measured = measure(
        server,
        "request = [\"GET k\"]\nsaturate = 1\nconnections = 2\nseconds = 60.0\nwarm_up = 0.0",
    );
    let point = &measured.point;
    assert_eq!((point.client.malformed_replies, point.all.lost), (2, 2));
}

#[test]
fn a_server_that_is_not_there_is_an_error() {
    // The port is bound, so that no other process has it, and does not listen, so that it refuses.
    let held = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&held, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let target = SocketAddr::try_from(getsockname(&held).unwrap()).unwrap();
    let plan = plan(target, "request = [\"PING\"]\nrate = 10");
    let error = plan.measure(plan.loads()[0], 1, &[], &ALONE).unwrap_err();
    assert!(matches!(error, LoadError::Connect { .. }), "{error}");
    assert!(error.to_string().contains("is the server running?"));
}

#[test]
fn an_error_before_any_request_is_shown() {
    // Redis does this above its limit on connections.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            use std::io::Write;
            let _ = stream.write_all(b"-ERR max number of clients reached\r\n");
            // Reads until the client closes, so that no reset overtakes the error.
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
    });
    let measured = measure(
        target,
        "request = [\"GET k\"]\nrate = 1000\nconnections = 1\nseconds = 0.5\nwarm_up = 0.25\ndrain = 0.0",
    );
    // The error answers the first request, or none if it comes before that request.
    let client = &measured.point.client;
    let classes = &measured.point.classes;
    let strays = client.first_errors.iter();
    let mut all = strays.chain(&classes[0].figures.first_errors);
    assert!(all.any(|text| text.contains("max number")), "{client:?}");
}
