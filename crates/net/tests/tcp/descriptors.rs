//! With too few file descriptors the server says so, or goes on with what it has.
//!
//! Limits are the whole process's: these tests run in processes of their own, which this file
//! starts.

use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shinjuku_net::tcp::{Tcp, TcpConfig, TcpError};
use shinjuku_tests_support::assert_says;
use shinjuku_tests_support::process::{must_pass, this_test};

use crate::house::{House, Lines};

const INSIDE: &str = "SHINJUKU_TEST_DESCRIPTORS";
const LIMIT: u64 = 300;

/// Runs `test`, whose name is given, with a hard limit of [`LIMIT`] descriptors and a soft one
/// below.
fn in_a_small_process(name: &str, test: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_none() {
        must_pass(this_test(name).env(INSIDE, "1"));
        return;
    }
    let small = Rlimit {
        current: Some(LIMIT - 50),
        maximum: Some(LIMIT),
    };
    setrlimit(Resource::Nofile, small).unwrap();
    test();
}

fn listen() -> TcpConfig {
    TcpConfig::new("127.0.0.1:0".parse().unwrap()).buffer(1024)
}

#[test]
fn more_connections_than_descriptors_are_refused_at_start() {
    let name = "descriptors::more_connections_than_descriptors_are_refused_at_start";
    in_a_small_process(name, || {
        let error = Tcp::bind(listen().connections(300), Lines).unwrap_err();
        assert!(
            matches!(error, TcpError::TooFewDescriptors { limit: LIMIT, .. }),
            "{error}"
        );
        assert_says(&error, ["raise the hard limit"]);
        let fitting = Tcp::bind(listen(), Lines).unwrap();
        assert_eq!(fitting.connections(), 44, "all but the reserve");
        let raised = getrlimit(Resource::Nofile).current;
        assert_eq!(raised, Some(LIMIT));
    });
}

#[test]
fn descriptors_used_up_by_others_are_waited_for() {
    let name = "descriptors::descriptors_used_up_by_others_are_waited_for";
    in_a_small_process(name, || {
        let mut house = House::new(listen().connections(4));
        let mut client = house.client();
        client.send("one\n");
        let files: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        house.echo_until("the failure", |house| house.counts().accept_failed > 0);
        // It does not try all the time, and sleeps meanwhile.
        let start = Instant::now();
        let failed = house.counts().accept_failed;
        let mut turns = 0;
        while start.elapsed() < Duration::from_millis(100) {
            house.turn(crate::house::echo);
            house.wait(Duration::from_millis(5));
            turns += 1;
        }
        let elapsed = start.elapsed().as_millis() as u64;
        assert!(turns <= elapsed / 5 + 1, "{turns} turns");
        assert!(house.counts().accept_failed - failed <= elapsed / 10 + 1);
        drop(files);
        house.echo_until("the reply", |_| client.has("one\n"));
    });
}
