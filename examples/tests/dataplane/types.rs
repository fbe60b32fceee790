//! A port for each request type, in RackSched's format, with replies from others: requests to 1234
//! and up, replies from 11234 and up. Over AF_XDP, by itself and behind the rack's switch, and over
//! DPDK; the client is the kernel's.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use shinjuku::net::wire::{RackSchedKind, RackSchedMessage};
use shinjuku_rack::{Config, Rack};
use shinjuku_tests_support::namespace::{Namespace, Pair, must, run};
use shinjuku_tests_support::{PATIENCE, need, test_name};

use crate::server::Server;
use crate::{KERNEL, program, veth};

const TYPES: u16 = 3;
const PORT: u16 = 1234;
const REPLY_PORT: u16 = 11234;
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
/// The rack's switch, where its clients are, and one of them.
const SWITCH: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// How often all types are asked.
const ROUNDS: u32 = 5;

fn config(device: &str) -> String {
    format!(
        "format = 'racksched'\n{device}\n[dataplane.interface]\naddress = '{SERVER}/24'\n\
         ports = [1234, 1235, 1236]\nreply_ports = [11234, 11235, 11236]"
    )
}

/// A socket that any port may answer.
fn client_in(namespace: &Namespace, ip: Ipv4Addr) -> UdpSocket {
    let client = namespace.within(|| UdpSocket::bind((ip, 0)).unwrap());
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

/// The next reply, and the type that its port stands for.
fn reply(client: &UdpSocket, from: Ipv4Addr) -> (RackSchedMessage, u16) {
    let mut bytes = [0; 2048];
    let (length, sender) = client.recv_from(&mut bytes).expect("a reply in time");
    assert_eq!(sender.ip(), from);
    let (message, _) = RackSchedMessage::parse(&bytes[..length]).unwrap();
    assert_eq!(message.kind, RackSchedKind::Reply);
    (message, sender.port() - REPLY_PORT)
}

/// Sends requests of every type, in one packet and in two, and checks that each is answered from
/// the type's port. Then sends bursts, until a reply tells that other requests are left.
fn asks_each_type(client: &UdpSocket, at: Ipv4Addr) {
    let to = |kind: u16| SocketAddr::from((at, PORT + kind));
    for number in 0..ROUNDS * u32::from(TYPES) {
        let kind = (number % u32::from(TYPES)) as u16;
        let request = RackSchedMessage::request(7, number, 20_000, 0);
        if number.is_multiple_of(2) {
            client.send_to(&request.to_bytes(), to(kind)).unwrap();
        } else {
            let total_length = 2 * RackSchedMessage::LENGTH as u32;
            let first = RackSchedMessage {
                total_length,
                ..request
            };
            let second = RackSchedMessage {
                kind: RackSchedKind::Follow,
                sequence: 1,
                ..first
            };
            for packet in [second, first] {
                client.send_to(&packet.to_bytes(), to(kind)).unwrap();
            }
        }
        let (reply, from) = reply(client, at);
        assert_eq!((reply.request, from), (number, kind));
        assert_eq!(reply.queue_lengths[0], 0, "no other of its class is there");
    }
    let told = (0..50).any(|_| {
        for number in 0..4 {
            let request = RackSchedMessage::request(8, number, 500_000, 0);
            client.send_to(&request.to_bytes(), to(1)).unwrap();
        }
        let loads: Vec<_> = (0..4)
            .map(|_| reply(client, at).0.queue_lengths[0])
            .collect();
        assert!(loads.iter().all(|load| *load < 4), "{loads:?}");
        // A reply may overtake one that another thread has stamped before.
        assert!(loads.contains(&0), "{loads:?}");
        loads[0] > 0
    });
    assert!(told, "no reply tells of a load");
}

/// Ends the server, which must have counted the types as its classes.
fn ends_with_all_types(server: Server) {
    let said = server.end_having_answered((ROUNDS * u32::from(TYPES)).into());
    let finished = |class: &str| {
        said.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next()? == class).then(|| words.next()?.parse::<u32>().ok())?
        })
    };
    assert_eq!(finished("type-0"), Some(ROUNDS), "{said}");
    assert!(finished("type-1") > Some(ROUNDS), "{said}");
    assert_eq!(finished("type-2"), Some(ROUNDS), "{said}");
}

/// `None`, having said so: the kernel has no AF_XDP.
fn af_xdp_server(test: &str, namespaces: &Pair) -> Option<Server> {
    let command = namespaces.0[0].command(program());
    match Server::try_start(command, &config("[xdp]\ninterface = 'va'")) {
        Err(refusal) if refusal.contains("cannot open an AF_XDP socket") => {
            println!("SKIPPED {test}: the kernel has no AF_XDP");
            None
        }
        started => Some(must(started)),
    }
}

#[test]
fn each_type_has_a_port_over_af_xdp() {
    let test = "each_type_has_a_port_over_af_xdp";
    let namespaces = need!(veth(test, ["ta", "tb"]));
    let there = &namespaces.0[1];
    there.bring_up("vb", KERNEL);
    let server = need!(af_xdp_server(test, &namespaces));
    asks_each_type(&client_in(there, KERNEL), SERVER);
    ends_with_all_types(server);
}

#[test]
fn each_type_has_a_port_over_dpdk() {
    let namespaces = need!(veth(test_name!(), ["ua", "ub"]));
    let there = &namespaces.0[1];
    there.bring_up("vb", KERNEL);
    let device = config("[dpdk]\ndevice = 'net_af_packet0,iface=va'\nmbufs = 2047");
    let server = Server::start(namespaces.0[0].command(program()), &device);
    asks_each_type(&client_in(there, KERNEL), SERVER);
    ends_with_all_types(server);
}

#[test]
fn a_server_over_af_xdp_is_one_of_the_racks() {
    let test = "a_server_over_af_xdp_is_one_of_the_racks";
    if let Some(missing) = shinjuku_rack::datapath::missing() {
        println!("SKIPPED {test}: built without the XDP program: {missing}");
        return;
    }
    let namespaces = need!(veth(test, ["wa", "wb"]));
    let switch = &namespaces.0[1];
    switch.bring_up("vb", KERNEL);
    let client = Namespace::new("wc").unwrap();
    must(run(&format!(
        "ip link add clients netns {switch} type veth peer name veth0 netns {client}"
    )));
    must(client.run("ethtool -K veth0 tx off"));
    switch.bring_up("clients", SWITCH);
    client.bring_up("veth0", CLIENT);
    let server = need!(af_xdp_server(test, &namespaces));
    let rack = switch.within(|| Rack::start(rack(), |warning| panic!("{warning}")).unwrap());
    asks_each_type(&client_in(&client, CLIENT), SWITCH);
    let status = rack.status().unwrap();
    assert_eq!(status.causes["requests"], status.causes["replies"] + 7);
    assert_eq!(status.servers[0].outstanding, 0, "{status}");
    drop(rack);
    ends_with_all_types(server);
}

/// One server, with a port for each type.
fn rack() -> Config {
    let types = (0..TYPES).map(|kind| {
        format!(
            "[[type]]\nname = 'type-{kind}'\nport = {}\nreply_port = {}\nformat = 'racksched'\n\
             balancer = 'power-of-2'\nload_info = 'int1'\n",
            PORT + kind,
            REPLY_PORT + kind
        )
    });
    let types: String = types.collect();
    let config = format!(
        "address = '{SWITCH}'\ninterfaces = ['clients', 'vb']\nmode = 'generic'\n{types}\
         [[server]]\nname = 'a'\naddress = '{SERVER}'\n"
    );
    Config::from_toml(&config).unwrap()
}
