//! A rack of `synthetic` servers behind the switch, each in a network namespace of its own.
//!
//! ```text
//!   client 10.78.0.2 --- 10.78.0.1 switch 10.79.N.1 --- 10.79.N.2 server N
//! ```
//!
//! Takes root, `ip`, `ethtool` and the XDP program; without them the tests say `SKIPPED`.

mod accounts;
mod bad_path;
mod client;
mod network;
mod side_by_side;
mod switch;

use std::time::{Duration, Instant};

use self::accounts::assert_accounted;
use self::bad_path::{BadPath, behind};
use self::client::Client;
use self::network::{Network, RACK, gateway};
use self::switch::{Switch, register};
use shinjuku_rack::{Mode, State};
use shinjuku_tests_support::{assert_says, need, test_name};

/// A batch of requests that two cores, shared by four servers, serve in a moment.
const BATCH: u32 = 300;

/// What each server has been sent, in the order of the servers.
fn sent(switch: &Switch) -> Vec<u64> {
    let status = switch.status();
    status.servers.iter().map(|server| server.sent).collect()
}

fn count(switch: &Switch, cause: &str) -> u64 {
    switch.status().causes[cause]
}

fn everything_is_answered(test: &str, mode: Mode) {
    let network = need!(Network::new(test, 4, mode));
    let servers: Vec<_> = (1..=4).map(|number| network.serve(number)).collect();
    let switch = Switch::start(&network, &[1, 2, 3, 4]);
    let mut client = Client::new(&network);
    client.ask_all(BATCH);
    let sent = sent(&switch);
    // Power of two choices leaves no server out.
    assert!(sent.iter().all(|sent| *sent > 0), "{sent:?}");
    assert!(sent.iter().sum::<u64>() >= u64::from(BATCH), "{sent:?}");
    // A request has two packets, and the second goes to the server of the first.
    assert!(count(&switch, "affine") >= u64::from(BATCH));
    for nothing in ["no-port", "table-full", "unknown-client", "bad-lengths"] {
        assert_eq!(count(&switch, nothing), 0, "{nothing}");
    }
    // A server may have dropped a request of which the packets came too far apart: such a one is
    // outstanding until its age.
    switch.until("nothing is outstanding", |status| {
        status.servers.iter().all(|server| server.outstanding == 0)
    });
    assert_accounted(&switch, &client, servers);
}

#[test]
fn everything_is_answered_in_generic_mode() {
    everything_is_answered(test_name!(), Mode::Generic);
}

#[test]
fn everything_is_answered_in_the_drivers_mode() {
    everything_is_answered(test_name!(), Mode::Driver);
}

#[test]
fn servers_are_added_and_drained_in_mid_load_without_loss() {
    without_loss(test_name!(), Mode::Generic);
}

#[test]
fn the_drivers_mode_loses_nothing_while_servers_are_added_and_drained() {
    without_loss(test_name!(), Mode::Driver);
}

fn without_loss(test: &str, mode: Mode) {
    let network = need!(Network::new(test, 3, mode));
    let servers: Vec<_> = (1..=3).map(|number| network.serve(number)).collect();
    let switch = Switch::start(&network, &[1, 2]);
    let mut client = Client::new(&network);
    client.ask_all_while(BATCH, |answered| {
        if answered == BATCH / 3 {
            switch.add(3);
        }
    });
    assert!(sent(&switch)[2] > 0);

    client.ask_all_while(BATCH, |answered| {
        if answered == BATCH / 3 {
            switch.drain(1);
        }
    });
    let before = sent(&switch);
    client.ask_all(BATCH);
    let after = sent(&switch);
    assert_eq!(after[0], before[0], "it is drained");
    assert!(after[1] > before[1] && after[2] > before[2]);

    switch.remove(1);
    switch.until("it is gone", |status| status.servers.len() == 2);
    // A server that is open already is added once more: with another weight, for example.
    client.ask_all_while(BATCH, |answered| {
        if answered % 10 == 0 {
            switch.add(2);
        }
    });
    // Nothing but what a slow machine had a server wait for too long.
    assert_accounted(&switch, &client, servers);
}

#[test]
fn a_killed_server_is_left_out_and_comes_back() {
    killed(test_name!(), Mode::Generic);
}

#[test]
fn the_drivers_mode_leaves_out_a_killed_server() {
    killed(test_name!(), Mode::Driver);
}

fn killed(test: &str, mode: Mode) {
    let network = need!(Network::new(test, 3, mode));
    let mut servers: Vec<_> = (1..=3).map(|number| network.serve(number)).collect();
    let switch = Switch::start(&network, &[1, 2, 3]);
    let mut client = Client::new(&network);
    client.ask_all(BATCH);

    let killed = servers.remove(1);
    let mut killed = Some(killed);
    let lost = client.ask_some(BATCH, |asked| {
        if asked == BATCH / 3 {
            drop(killed.take());
        }
    });
    assert!(lost < BATCH / 2, "{lost} of {BATCH} lost");
    // Requests go on until the switch knows.
    let state_of_second = |status: &shinjuku_rack::Status| status.servers[1].state;
    let deadline = Instant::now() + Duration::from_secs(20);
    while state_of_second(&switch.status()) != State::Failed {
        assert!(Instant::now() < deadline, "it never failed");
        client.ask_some(8, |_| {});
    }
    client.ask_all(BATCH);

    servers.push(network.serve(2));
    switch.add(2);
    let before = sent(&switch);
    client.ask_all(BATCH);
    assert!(sent(&switch)[1] > before[1], "it is back");
}

#[test]
fn a_server_registers_and_goes_with_its_lease() {
    registered(test_name!(), Mode::Generic);
}

#[test]
fn the_drivers_mode_takes_registrations() {
    registered(test_name!(), Mode::Driver);
}

fn registered(test: &str, mode: Mode) {
    let network = need!(Network::new(test, 2, mode));
    let _servers: Vec<_> = (1..=2).map(|number| network.serve(number)).collect();
    let switch = Switch::start(&network, &[1]);
    let mut client = Client::new(&network);
    // The first try may find that the kernel does not know the way back yet.
    let lease = |lease_ms| {
        let start = Instant::now();
        while let Err(error) = register(&network, "2", gateway(2), 2, lease_ms) {
            assert!(start.elapsed() < Duration::from_secs(20), "{error}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    lease(60_000);
    client.ask_all(BATCH);
    assert!(sent(&switch)[1] > 0, "it has registered");
    // A renewed registration ends with the new lease, not with the old one.
    lease(100);
    switch.until("its lease is over", |status| status.servers.len() == 1);
    client.ask_all(BATCH);
    // The server registers once more, and leaves by itself.
    lease(60_000);
    switch.until("it is back", |status| status.servers.len() == 2);
    lease(0);
    switch.until("it has left", |status| status.servers.len() == 1);

    let stranger = register(&network, "client", RACK.0, 2, 1000).unwrap_err();
    assert_says(&stranger, ["registration.from"]);
    let forever = register(&network, "2", gateway(2), 2, u64::MAX).unwrap_err();
    assert!(forever.to_string().contains("lease_ms"), "{forever}");
    // A server cannot have another's name, and a server of the configuration cannot leave.
    let taken = register(&network, "2", gateway(2), 1, 1000).unwrap_err();
    assert_says(&taken, ["server-1 at 10.79.1.2"]);
    register(&network, "1", gateway(1), 1, 0).unwrap();
    client.ask_all(BATCH);
}

/// The table has room for eight requests.
#[test]
fn requests_beyond_the_tables_room_are_counted_and_answered() {
    let network = need!(Network::new(test_name!(), 2, Mode::Generic));
    let _servers: Vec<_> = (1..=2).map(|number| network.serve(number)).collect();
    let switch = Switch::start_with(&network, &[1, 2], "table = { buckets = 1, age_ms = 200 }");
    let mut client = Client::with_window(&network, 32);
    let (sent, received) = client.ask_in_spite_of_all(BATCH);
    assert!(count(&switch, "table-full") > 0);
    assert_eq!(count(&switch, "requests"), sent);
    assert_eq!(count(&switch, "replies"), received);
    for nothing in ["no-port", "unknown-client", "bad-lengths"] {
        assert_eq!(count(&switch, nothing), 0, "{nothing}");
    }
}

/// A restarted switch has empty tables, and learns all entries anew.
#[test]
fn a_switch_that_is_started_anew_recovers_by_itself() {
    let network = need!(Network::new(test_name!(), 2, Mode::Generic));
    let _servers: Vec<_> = (1..=2).map(|number| network.serve(number)).collect();
    let switch = Switch::start(&network, &[1, 2]);
    let mut client = Client::new(&network);
    client.ask_all(BATCH);
    drop(switch);
    let lost = client.ask_some(4, |_| {});
    assert_eq!(lost, 4, "without a switch there is no rack");
    let switch = Switch::start(&network, &[1, 2]);
    client.ask_all(BATCH);
    assert!(sent(&switch).iter().all(|sent| *sent > 0));
}

/// Between switch and servers a twentieth of all datagrams is lost, a tenth is doubled, and a tenth
/// comes late: every request is answered in the end, and each packet is accounted for on either
/// side.
#[test]
fn what_the_path_loses_doubles_and_delays_is_answered_or_counted() {
    let network = need!(Network::new(test_name!(), 3, Mode::Generic));
    let _servers: Vec<_> = (1..=3)
        .map(|number| network.serve_at(number, behind()))
        .collect();
    let paths: Vec<_> = (1..=3)
        .map(|number| BadPath::to(&network, number))
        .collect();
    let switch = Switch::start(&network, &[1, 2, 3]);
    let mut client = Client::new(&network);
    let (sent, received) = client.ask_in_spite_of_all(BATCH / 2);

    let sum = |replies: bool| {
        let counts = paths.iter().map(|path| match replies {
            true => path.replies.read(),
            false => path.requests.read(),
        });
        counts.fold([0; 5], |sum, counts| {
            std::array::from_fn(|at| sum[at] + counts[at])
        })
    };
    // Nothing is under way: the paths hold datagrams for 5 ms, and the client has waited longer.
    let [came, lost, doubled, late, went] = sum(false);
    assert_eq!(came + doubled, lost + went);
    assert!(lost > 0 && doubled > 0 && late > 0);
    assert_eq!(count(&switch, "requests"), came);
    assert_eq!(sent, came + count(&switch, "no-server"));
    let [came, lost, doubled, _, went] = sum(true);
    assert_eq!(came + doubled, lost + went);
    assert!(lost > 0 && doubled > 0);
    assert_eq!(count(&switch, "replies"), went);
    assert_eq!(received, went);
    for nothing in ["no-port", "table-full", "unknown-client", "bad-lengths"] {
        assert_eq!(count(&switch, nothing), 0, "{nothing}");
    }
}

/// The same between client and switch: what the switch never saw, it does not count.
#[test]
fn what_the_clients_path_loses_doubles_and_delays_is_answered_or_counted() {
    let network = need!(Network::new(test_name!(), 2, Mode::Generic));
    let _servers: Vec<_> = (1..=2).map(|number| network.serve(number)).collect();
    let switch = Switch::start(&network, &[1, 2]);
    let path = BadPath::to_rack(&network);
    let mut client = Client::behind_a_bad_path(&network);
    let (sent, received) = client.ask_in_spite_of_all(BATCH / 2);
    let [came, lost, doubled, late, went] = path.requests.read();
    assert_eq!((sent, came + doubled), (came, lost + went));
    assert!(lost > 0 && doubled > 0 && late > 0);
    assert_eq!(count(&switch, "requests"), went);
    let [came, lost, doubled, _, went] = path.replies.read();
    assert_eq!(count(&switch, "replies"), came);
    assert_eq!((received, came + doubled), (went, lost + went));
    assert!(lost > 0 && doubled > 0);
    // Later packets that come first, and copies that come late, lead no request astray.
    assert!(count(&switch, "affine") > 0);
    for nothing in ["no-port", "no-server", "table-full", "unknown-client"] {
        assert_eq!(count(&switch, nothing), 0, "{nothing}");
    }
}
