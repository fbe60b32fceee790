//! The command `shinjuku-rack`, and the XDP program by runs without a network
//! (BPF_PROG_TEST_RUN).
//!
//! | file | what it tests |
//! |---|---|
//! | `command` | the command from its start to its end, in network namespaces |
//! | `frames` | the frames that go in, and a check of those that come out, by etherparse |
//! | `states` | every state of the tables, a case each |
//! | `malformed` | packets cut at each byte, with wrong lengths, options, fragments, tags; random ones |
//! | `choice` | each balancer, and what it learns of the load, against the simulator's, packet by packet |
//!
//! Takes root (or CAP_BPF and CAP_NET_ADMIN), clang and libbpf's headers at build time; without
//! them the tests say `SKIPPED`.
#![forbid(unsafe_code)]

mod choice;
mod command;
mod frames;
mod malformed;
mod states;

use std::net::Ipv4Addr;

use shinjuku_rack::datapath::{Action, Datapath, Program};
use shinjuku_rack::tables::{
    Cause, Injection, Members, ServerEntry, Settings, Station, TICK_NANOS, TYPES, TypeSettings,
};
use shinjuku_rack::{Balancer, Config, RackError};

const RACK: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 7);
/// The interface `lo`, by which frames come in such a run.
const LOOPBACK: u32 = 1;
/// How long a request keeps its entry.
const AGE_TICKS: u64 = 100;
/// A moment long after the clock's start.
const NOW: u64 = 1_000_000 * TICK_NANOS;

/// The type with number 0: RackSched's format.
const RACKSCHED_PORT: u16 = 1234;
/// The type with number 1: Shinjuku's format, replies from another port.
const SHINJUKU_PORT: u16 = 1235;
const SHINJUKU_REPLY_PORT: u16 = 11235;
/// The type with number 2: RackSched's format, too.
const OTHER_PORT: u16 = 1236;

/// The program with its time and random numbers injected.
struct Switch {
    datapath: Datapath,
    counted: [u64; Cause::ALL.len()],
}

/// The address of the server with this number.
fn address(server: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, server, 2)
}

fn station(server: u8) -> Station {
    Station {
        to: [2, 0, 0, 0, 1, server],
        from: [2, 0, 0, 0, 2, server],
        interface: LOOPBACK,
    }
}

fn entry(server: u8) -> ServerEntry {
    ServerEntry {
        address: address(server).octets(),
        station: station(server),
    }
}

fn settings(balancer: &str, load_info: &str) -> Settings {
    let config = Config::from_toml(&format!(
        "address = '{RACK}'
        interfaces = ['lo']
        table = {{ buckets = 1024 }}
        [[type]]
        name = 'a'
        port = {RACKSCHED_PORT}
        format = 'racksched'
        balancer = '{balancer}'
        load_info = '{load_info}'
        [[type]]
        name = 'b'
        port = {SHINJUKU_PORT}
        reply_port = {SHINJUKU_REPLY_PORT}
        format = 'shinjuku'
        balancer = '{balancer}'
        load_info = 'counters'
        [[type]]
        name = 'c'
        port = {OTHER_PORT}
        format = 'racksched'
        balancer = '{balancer}'
        load_info = '{load_info}'"
    ));
    Settings {
        age: AGE_TICKS as u32,
        injected: 1,
        ..config.unwrap().settings()
    }
}

impl Switch {
    /// `None`, having said so, if this machine cannot.
    fn new(test: &str, balancer: &str, load_info: &str, servers: &[u8]) -> Option<Self> {
        Self::with(test, &settings(balancer, load_info), servers)
    }

    fn with(test: &str, settings: &Settings, servers: &[u8]) -> Option<Self> {
        let datapath = match Datapath::load(settings) {
            Ok(datapath) => datapath,
            Err(error @ (RackError::NoProgram(_) | RackError::NotPermitted(_))) => {
                println!("SKIPPED {test}: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let mut switch = Self {
            datapath,
            counted: [0; Cause::ALL.len()],
        };
        switch.datapath.open_interface(LOOPBACK).unwrap();
        for server in servers {
            let set = switch.datapath.set_server(*server, &entry(*server));
            set.unwrap();
        }
        switch.open(servers);
        switch.inject(NOW, &[]);
        Some(switch)
    }

    /// Opens these servers for all types.
    fn open(&mut self, servers: &[u8]) {
        let servers: Vec<_> = servers.iter().map(|server| (*server, 1)).collect();
        let members = [Members::new(&servers); TYPES];
        self.datapath.set_members(&members).unwrap();
    }

    fn inject(&mut self, now: u64, draws: &[u32]) {
        let injection = Injection::new(now, draws);
        self.datapath.inject(&injection).unwrap();
    }

    /// Runs the program once; returns its answer, the frame, and what it counted.
    fn run(&mut self, frame: &[u8]) -> (Action, Vec<u8>, Vec<Cause>) {
        let verdict = self.datapath.run(Program::Rack, frame, 1).unwrap();
        let counted = self.datapath.causes().unwrap();
        let mut causes = Vec::new();
        for (cause, (now, before)) in Cause::ALL.iter().zip(counted.iter().zip(&self.counted)) {
            causes.extend((*before..*now).map(|_| *cause));
        }
        self.counted = counted;
        (verdict.action, verdict.frame, causes)
    }

    /// The frame is the kernel's, untouched, and counted once.
    fn passes(&mut self, frame: &[u8], cause: Cause) {
        let (action, after, causes) = self.run(frame);
        assert_eq!((action, &*causes), (Action::Pass, &[cause][..]));
        assert_eq!(after, frame);
    }

    /// The number of the server that gets this request. All else of the frame is as it was, and
    /// the checksums are right.
    fn serves(&mut self, frame: &[u8]) -> u8 {
        self.serves_counting(frame).0
    }

    /// The same, with what was counted besides the request.
    fn serves_counting(&mut self, frame: &[u8]) -> (u8, Vec<Cause>) {
        let (action, after, mut causes) = self.run(frame);
        assert_eq!(action, Action::Redirect, "{causes:?}");
        let place = causes.iter().position(|cause| *cause == Cause::Request);
        causes.remove(place.expect("it is counted"));
        let server = frames::destination(&after).octets()[2];
        let expected = frames::readdressed(frame, &station(server), None, Some(address(server)));
        assert_eq!(after, expected);
        frames::assert_checksums(&after, frames::has_udp_checksum(frame));
        (server, causes)
    }

    /// The reply reaches the client from the rack's address; all else is as it was.
    fn answers(&mut self, frame: &[u8]) {
        let (action, after, causes) = self.run(frame);
        assert_eq!((action, &*causes), (Action::Redirect, &[Cause::Reply][..]));
        let expected = frames::readdressed(frame, &frames::to_client(), Some(RACK), None);
        assert_eq!(after, expected);
        frames::assert_checksums(&after, frames::has_udp_checksum(frame));
    }

    /// How many requests of the server the program counts as outstanding.
    fn outstanding(&self, server: u8) -> u32 {
        self.datapath.loads(TYPES).unwrap().load[usize::from(server)]
    }

    /// The entries in use of the whole request table.
    fn entries(&self) -> usize {
        let buckets = (0..1024).map(|number| self.datapath.bucket(number).unwrap());
        buckets.flatten().filter(|entry| *entry != 0).count()
    }
}

#[test]
fn settings_are_what_the_configuration_says() {
    let settings = settings("power-of-3", "int2");
    let TypeSettings {
        request_port,
        reply_port,
        draws,
        ..
    } = settings.types[0];
    assert_eq!(u16::from_be_bytes(request_port), RACKSCHED_PORT);
    assert_eq!(u16::from_be_bytes(reply_port), RACKSCHED_PORT);
    assert_eq!(Balancer::PowerOf(draws), "power-of-3".parse().unwrap());
    assert_eq!(settings.types[3].request_port, [0, 0]);
}

/// The settings are constants to the verifier, so each configuration is a program of its own.
#[test]
fn the_verifier_has_room_for_the_largest_configurations() {
    let test = "the_verifier_has_room_for_the_largest_configurations";
    for (balancer, load_info) in [
        ("by-flow", "counters"),
        ("power-of-4", "int2"),
        ("shortest", "int1"),
        ("shortest", "int2"),
        ("shortest", "counters"),
    ] {
        let types = (1..=TYPES).map(|number| {
            format!(
                "[[type]]\nname = '{number}'\nport = {number}\nformat = 'racksched'\n\
                 balancer = '{balancer}'\nload_info = '{load_info}'\n"
            )
        });
        let types: String = types.collect();
        let config = format!("address = '{RACK}'\ninterfaces = ['lo']\n{types}");
        let settings = Config::from_toml(&config).unwrap().settings();
        let Some(switch) = Switch::with(test, &settings, &[]) else {
            return;
        };
        let verified = switch.datapath.verified_instructions().unwrap();
        println!("{test}: {balancer} by {load_info}: {verified:?} instructions");
        // Half of what it takes: other kernels count otherwise.
        assert!(verified.unwrap_or(0) <= 500_000, "{balancer}: {verified:?}");
    }
}
