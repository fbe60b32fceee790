//! Two switches of one rack behind a router that spreads flows over them by ECMP: what works then,
//! and what does not.
//!
//! ```text
//!                             +- 10.76.1.1 switch 1 -+- server 1, 10.79.1.2
//!   client --- router, ECMP --+                      |   each has a wire to either switch
//!   10.78.0.2                 +- 10.76.2.1 switch 2 -+- server 2, 10.79.2.2
//! ```
//!
//! Both switches have the rack's address. The servers' routes tell by which switch replies go back.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use shinjuku::net::wire::RackSchedMessage;
use shinjuku_rack::{Mode, State};
use shinjuku_tests_support::namespace::{Namespace, must};
use shinjuku_tests_support::{need, test_name};
use tempfile::NamedTempFile;

use super::client::{Client, packets};
use super::network::{CLIENT, RACK, address, serve_in, server_config};
use super::switch::{FAILURE, Switch, config};
use super::{BATCH, count, sent};

const PATIENCE: Duration = Duration::from_secs(20);
/// The numbers of the switches, and of the servers.
const NUMBERS: [u8; 2] = [1, 2];

struct Place {
    client: Namespace,
    router: Namespace,
    switches: [Namespace; 2],
    servers: [Namespace; 2],
    config: NamedTempFile,
}

impl Place {
    /// Makes the network. `None` if this machine cannot; says then that the test is skipped.
    fn new(test: &str) -> Option<Self> {
        let made = match shinjuku_rack::datapath::missing() {
            Some(missing) => Err(format!("built without the XDP program: {missing}")),
            None => Self::make(),
        };
        made.inspect_err(|reason| println!("SKIPPED {test}: {reason}"))
            .ok()
    }

    fn make() -> Result<Self, String> {
        let place = Self {
            client: namespace()?,
            router: namespace()?,
            switches: [namespace()?, namespace()?],
            servers: [namespace()?, namespace()?],
            config: server_config(),
        };
        let Self { client, router, .. } = &place;
        set(router, "ip_forward", "1");
        set(router, "fib_multipath_hash_policy", "1");
        link((client, "veth0"), (router, "clients"))?;
        client.ip(&format!("addr add {CLIENT}/24 dev veth0"))?;
        router.ip("addr add 10.78.0.254/24 dev clients")?;
        client.ip(&format!("route add {} via 10.78.0.254", RACK.0))?;
        for (number, switch) in NUMBERS.iter().zip(&place.switches) {
            let (up, back) = (format!("up{number}"), format!("veth{number}"));
            link((router, &up), (switch, "clients"))?;
            router.ip(&format!("addr add 10.76.{number}.254/24 dev {up}"))?;
            switch.ip(&format!("addr add 10.76.{number}.1/24 dev clients"))?;
            switch.ip(&format!("addr add {}/32 dev lo", RACK.0))?;
            for (server, here) in NUMBERS.iter().zip(&place.servers) {
                let down = format!("s{server}");
                link((here, &back), (switch, &down))?;
                switch.ip(&format!("route add {} dev {down}", address(*server)))?;
                let table = 100 + number;
                here.ip(&format!(
                    "route add default via 10.76.{number}.1 dev {back} onlink table {table}"
                ))?;
            }
        }
        for (server, here) in NUMBERS.iter().zip(&place.servers) {
            here.ip(&format!("addr add {}/32 dev lo", address(*server)))?;
            here.ip("rule add priority 2000 lookup 101")?;
        }
        place.lead_over(&NUMBERS)?;
        Ok(place)
    }

    /// Makes the router spread flows over these switches.
    fn lead_over(&self, switches: &[u8]) -> Result<(), String> {
        let hops = switches
            .iter()
            .map(|number| format!(" nexthop via 10.76.{number}.1 dev up{number}"));
        let hops: String = hops.collect();
        self.router.ip(&format!("route replace {}{hops}", RACK.0))
    }

    /// Makes replies to this port of the client go back by the second switch, and all others by the
    /// first.
    fn lead_back_by_second(&self, port: u16) {
        for server in &self.servers {
            let rule = format!("rule add priority 1000 ipproto udp dport {port} lookup 102");
            must(server.ip(&rule));
        }
    }

    /// Starts the switches, with both servers each.
    fn start(&self, more: &str) -> [Switch; 2] {
        let interfaces = ["clients", "s1", "s2"].map(str::to_owned);
        self.switches.each_ref().map(|switch| {
            let mut config = config(&interfaces, &NUMBERS, more);
            config.mode = Mode::Generic;
            Switch::start_in(switch, config)
        })
    }

    /// Opens so many flows by either switch. All replies come back by the first switch, which
    /// therefore always knows its servers, and counts each request that comes to it.
    fn flows(&self, switches: &[Switch; 2], of_each: usize) -> [Vec<Client>; 2] {
        let mut flows = [Vec::new(), Vec::new()];
        let start = Instant::now();
        while flows.iter().any(|flows: &Vec<_>| flows.len() < of_each) {
            assert!(start.elapsed() < PATIENCE, "ECMP spreads nothing");
            let mut client = Client::at(&self.client, 4);
            let before = count(&switches[0], "requests");
            client.ask_some(1, |_| {});
            let by = usize::from(count(&switches[0], "requests") == before);
            flows[by].push(client);
        }
        flows
    }
}

/// A namespace that accepts packets by another way than their answers take.
fn namespace() -> Result<Namespace, String> {
    let made = Namespace::new("e")?;
    for interfaces in ["all", "default"] {
        set(&made, &format!("conf/{interfaces}/rp_filter"), "0");
    }
    made.ip("link set lo up")?;
    Ok(made)
}

/// Sets a key of the kernel's IPv4 settings in the namespace.
fn set(namespace: &Namespace, key: &str, value: &str) {
    let path = format!("/proc/sys/net/ipv4/{key}");
    namespace.within(|| fs::write(path, value).unwrap());
}

/// A wire, over which packets go with complete checksums.
fn link(one: (&Namespace, &str), other: (&Namespace, &str)) -> Result<(), String> {
    let (here, name) = one;
    let (there, peer) = other;
    here.ip(&format!(
        "link add {name} type veth peer name {peer} netns {there}"
    ))?;
    for (namespace, end) in [one, other] {
        namespace.run(&format!("ethtool -K {end} tx off"))?;
        namespace.ip(&format!("link set {end} up"))?;
    }
    Ok(())
}

#[test]
fn two_switches_hold_while_both_directions_of_a_flow_pass_the_same_one() {
    let place = need!(Place::new(test_name!()));
    let _servers = [0, 1].map(|at| {
        let listen = SocketAddr::from((address(NUMBERS[at]), RACK.1));
        serve_in(&place.servers[at], listen, &place.config)
    });
    let switches = place.start(FAILURE);
    let [mut by_first, mut by_second] = place.flows(&switches, 2);

    // All replies pass the first switch, which knows the client, so the requests are answered. The
    // second switch sees no reply, and takes its servers for failed.
    let [first, second] = &switches;
    let start = Instant::now();
    while second
        .status()
        .servers
        .iter()
        .any(|one| one.state != State::Failed)
    {
        assert!(start.elapsed() < PATIENCE, "{}", second.status());
        by_second[0].ask_some(4, |_| {});
    }
    assert_eq!(count(second, "replies"), 0);
    assert_eq!(by_second[0].ask_some(4, |_| {}), 4, "it has no server left");
    assert!(count(second, "no-server") > 0);
    assert!(
        first
            .status()
            .servers
            .iter()
            .all(|one| one.state == State::Open)
    );

    // Both directions pass the same switch, as if each switch had a rack of its own.
    for client in &by_second {
        place.lead_back_by_second(client.port());
    }
    NUMBERS.iter().for_each(|number| second.add(*number));
    for (switch, flows) in switches.iter().zip([&mut by_first, &mut by_second]) {
        is_a_rack_by_itself(switch, &mut flows[..2]);
    }
    // Requests of which the second switch saw no reply count there as out until their entries have
    // aged, as one here that a server has dropped.
    first.until("nothing is out", |status| {
        status.servers.iter().all(|one| one.outstanding == 0)
    });

    // One switch goes. The other has its flows then, and all replies come back by that.
    must(place.lead_over(&[1]));
    for server in &place.servers {
        for _ in &by_second {
            must(server.ip("rule del priority 1000"));
        }
    }
    for client in by_first.iter_mut().chain(&mut by_second).take(4) {
        client.ask_all(BATCH / 4);
    }
}

/// Checks that the requests of these flows and their replies go by the switch, to both servers, and
/// that it counts nothing else.
fn is_a_rack_by_itself(switch: &Switch, flows: &mut [Client]) {
    let (before, sent_before) = (switch.status().causes, sent(switch));
    let (mut asked, mut answered, mut requests) = (0, 0, 0);
    for client in flows {
        let old = client.packets();
        let new = client.ask_in_spite_of_all(BATCH / 4);
        (asked, answered) = (asked + new.0 - old.0, answered + new.1 - old.1);
        requests += u64::from(BATCH / 4);
    }
    let more = |cause: &str| count(switch, cause) - before[cause];
    assert_eq!((more("requests"), more("replies")), (asked, answered));
    // A server answers only requests of which it has both packets.
    assert!(answered >= requests && more("affine") >= requests);
    for nothing in ["no-server", "no-port", "table-full"] {
        assert_eq!(more(nothing), 0, "{nothing}");
    }
    let mut shares = sent(switch).into_iter().zip(sent_before);
    assert!(shares.all(|(now, before)| now > before));
}

/// The servers are the test's own sockets, so that it sees which packets each gets.
#[test]
fn a_flow_that_moves_may_tear_a_request_that_one_switch_has_chosen_for() {
    let place = need!(Place::new(test_name!()));
    let servers = [0, 1].map(|at| {
        let listen = (address(NUMBERS[at]), RACK.1);
        let server = place.servers[at].within(|| UdpSocket::bind(listen).unwrap());
        server.set_nonblocking(true).unwrap();
        server
    });
    let patient = "failure = { silence_ms = 60000, requests = 100000, retry_ms = 0 }
                   table = { buckets = 1024, age_ms = 60000 }";
    let [first, second] = place.start(patient);
    let client = place
        .client
        .within(|| UdpSocket::bind((CLIENT, 0)).unwrap());
    client.connect(SocketAddr::from(RACK)).unwrap();
    let requests = 0..32_u32;
    let send = |by: u8, number: u32, packet: usize| {
        must(place.lead_over(&[by]));
        for number in number..number + requests.end {
            client.send(&packets(number)[packet].to_bytes()).unwrap();
        }
        servers_of(&servers, requests.len())
    };
    // The switch chooses the first packet's server. The second packet, by a switch that does not
    // know the request, goes to the server that a hash gives.
    let chosen = send(1, 0, 0);
    let hashed = send(2, 0, 1);
    let together = chosen.iter().filter(|one| hashed.contains(one)).count();
    assert!((1..32).contains(&together), "{together} of 32 are whole");
    assert_eq!((count(&first, "affine"), count(&second, "affine")), (0, 0));
    // The switch that has seen the first packet keeps to the server.
    assert_eq!(send(1, 0, 1), chosen);
    assert_eq!(count(&first, "affine"), 32);

    // A second packet that comes before the first goes to the server that the hash gives, which is
    // the same in both switches. The first packet follows it, by the switch that has seen it.
    let hashed = send(1, 100, 1);
    assert_eq!(send(2, 100, 1), hashed);
    assert_eq!(send(2, 100, 0), hashed);
    let all = [&first, &second].map(|switch| count(switch, "requests"));
    assert_eq!(all, [96, 96], "each counts what passes it");
}

/// Receives so many packets. Gives the numbers of their requests and the servers that got them,
/// sorted.
fn servers_of(servers: &[UdpSocket; 2], packets: usize) -> Vec<(u32, usize)> {
    let mut got = Vec::new();
    let start = Instant::now();
    while got.len() < packets {
        assert!(start.elapsed() < PATIENCE, "{} of {packets}", got.len());
        for (number, server) in servers.iter().enumerate() {
            let mut bytes = [0; 2048];
            while let Ok(length) = server.recv(&mut bytes) {
                // The switch's kernel asks for addresses by datagrams to another port.
                let (message, _) = RackSchedMessage::parse(&bytes[..length]).unwrap();
                got.push((message.request, number));
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    got.sort_unstable();
    got
}
