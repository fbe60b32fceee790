//! The example `dataplane` and the command `shinjuku-load`, a process each, joined without the
//! kernel's stack.
//!
//! Each test makes its network namespaces and removes them. `cargo build -p shinjuku-loadgen
//! --features dpdk,xdp` must have built the command.

mod load;
mod server;
mod types;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use load::load;
use rustix::process::Signal;
use server::{DISPATCHER, Server, replies};
use shinjuku_tests_support::namespace::{Pair, must};
use shinjuku_tests_support::process::{Process, built};
use shinjuku_tests_support::wait_for;
use shinjuku_tests_support::{assert_says, need};

const INTERFACE: &str = "[dataplane]\ninterface = { address = '10.79.0.1/24', ports = [9000] }";
/// The address of a veth when the kernel's stack is the client.
const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);

/// Two namespaces joined by a veth pair, `va` and `vb`, without addresses; `None`: the machine
/// cannot make them.
fn veth(test: &str, tags: [&str; 2]) -> Option<Pair> {
    let namespaces = Pair::new(test, tags)?;
    namespaces.join();
    let [first, second] = &namespaces.0;
    must(second.ip("link set vb up"));
    must(first.run("ethtool -K va tx off"));
    Some(namespaces)
}

/// The example, which `cargo test` has built, too.
fn program() -> PathBuf {
    built("examples/dataplane", "run the whole package's tests")
}

fn server_in(namespaces: &Pair, device: &str) -> Server {
    let command = namespaces.0[0].command(program());
    Server::start(command, &format!("{device}\n{INTERFACE}"))
}

fn load_in(namespaces: &Pair) -> Command {
    namespaces.0[1].command(load())
}

#[test]
fn over_shared_memory() {
    let directory = tempfile::tempdir().unwrap();
    let device = |role| memif(directory.path(), role);
    let config = format!("[dpdk]\ndevice = '{}'\n{INTERFACE}", device("server"));
    let server = Server::start(Command::new(program()), &config);
    let head = server.head();
    assert!(head.contains("net_memif0 by DPDK"), "{head}");
    let mut client = Command::new(load());
    client.args(["--transport", "dpdk", "--device", &device("client")]);
    let report = load::measure(client.args(["--address", "10.79.0.2/24"]));
    let requests = load::all_answered(&report);
    assert_eq!(report["transport"], "net_memif0 (DPDK, net_memif)");
    let said = server.end_having_answered(requests);
    let (_, queues) = said.split_once("\nqueues: ").expect("the device's counts");
    assert!(!queues.contains("as the device counts"), "{said}");
}

#[test]
fn a_socket_of_shared_memory_has_one_server_and_outlives_none() {
    const DEVICE: &str = "net_memif0,socket=made/socket,socket-abstract=no";
    let directory = tempfile::tempdir().unwrap();
    let there = |path| {
        let mut command = Command::new(path);
        command.current_dir(&directory);
        command
    };
    let client = || {
        let mut command = there(load());
        command.args(["--transport", "dpdk", "--device", DEVICE]);
        command.args(["--address", "10.79.0.2/24"]);
        command
    };
    let early = client()
        .args(["--target", "10.79.0.1:9000", "--protocol", "shinjuku"])
        .args(["--mix", "hi", "--rate", "1k"])
        .output()
        .unwrap();
    let says = String::from_utf8_lossy(&early.stderr);
    assert!(!early.status.success(), "{says}");
    assert!(says.contains("start the server first"), "{says}");

    let config = format!("[dpdk]\ndevice = '{DEVICE},role=server'\n{INTERFACE}");
    let server = || Server::try_start(there(program()), &config);
    let first = server().unwrap_or_else(|refusal| panic!("{refusal}"));
    let Err(refusal) = server() else {
        panic!("two servers have one socket");
    };
    assert!(refusal.contains("no other server is using"), "{refusal}");
    // A killed server leaves its socket behind.
    drop(first);
    assert!(directory.path().join("made/socket").exists());
    let again = server().unwrap_or_else(|refusal| panic!("{refusal}"));
    let report = load::measure(&mut client());
    again.end_having_answered(load::all_answered(&report));
}

#[test]
fn a_client_that_waits_for_the_other_end_can_be_interrupted() {
    let directory = tempfile::tempdir().unwrap();
    let mut client = Command::new(load());
    // The client has the server's end of the socket, and no process connects to it.
    client.args(["--transport", "dpdk", "--address", "10.79.0.2/24"]);
    client.args(["--device", &memif(directory.path(), "server")]);
    client.args(["--target", "10.79.0.1:9000", "--protocol", "shinjuku"]);
    client.args(["--mix", "hi", "--rate", "1k"]);
    let mut client = Process::start(client.stderr(Stdio::piped()));
    wait_for("its socket", || directory.path().join("memif").exists());
    client.signal(Signal::INT);
    let status = client.end().expect("it can be interrupted");
    assert!(!status.success(), "it measured nothing");
    let mut says = String::new();
    let errors = client.0.stderr.as_mut().unwrap();
    std::io::Read::read_to_string(errors, &mut says).unwrap();
    assert!(says.contains("interrupted before"), "{says}");
}

#[test]
fn two_dispatchers_count_apart_and_together() {
    let directory = tempfile::tempdir().unwrap();
    let config = format!(
        "[dpdk]\ndevice = '{}'\nspread = 'software'\n{INTERFACE}\n{DISPATCHER}",
        memif(directory.path(), "server")
    );
    let server = Server::start(Command::new(program()), &config);
    let head = server.head();
    assert!(head.contains("spread by software"), "{head}");
    let mut client = Command::new(load());
    // In the form of DPDK's own command line.
    let device = format!("--vdev={}", memif(directory.path(), "client"));
    let eal = format!("--no-huge -m 64 --no-pci --no-shconf --no-telemetry {device}");
    client.args(["--transport", "dpdk", "--device", "net_memif0"]);
    client.args(["--eal", &eal, "--address", "10.79.0.2/24"]);
    let requests = load::all_answered(&load::measure(&mut client));
    let said = server.end_having_answered(requests);
    let (apart, together) = said.split_once("all dispatchers:").expect("the sum");
    let [first, second] = replies(apart)[..] else {
        panic!("two dispatchers: {apart}");
    };
    assert!(first > 0 && second > 0, "one has got all: {apart}");
    assert_eq!(replies(together), [first + second]);
}

fn memif(directory: &Path, role: &str) -> String {
    let socket = directory.join("memif");
    let socket = socket.display();
    format!("net_memif0,role={role},socket={socket},socket-abstract=no")
}

#[test]
fn over_a_veth_pair_by_packet_sockets_of_dpdk() {
    let name = "over_a_veth_pair_by_packet_sockets_of_dpdk";
    let namespaces = need!(veth(name, ["pa", "pb"]));
    let server = server_in(
        &namespaces,
        "[dpdk]\ndevice = 'net_af_packet0,iface=va'\nmbufs = 2047",
    );
    let mut client = load_in(&namespaces);
    client.args(["--transport", "dpdk", "--address", "10.79.0.2/24"]);
    let report = load::measure(client.args(["--device", "net_af_packet0,iface=vb"]));
    server.end_having_answered(load::all_answered(&report));
}

#[test]
fn over_a_veth_pair_by_af_xdp() {
    let name = "over_a_veth_pair_by_af_xdp";
    let namespaces = need!(veth(name, ["xa", "xb"]));
    let server = need!(af_xdp_server(name, &namespaces));
    let mut client = load_in(&namespaces);
    client.args(["--transport", "xdp", "--address", "10.79.0.2/24"]);
    let report = load::measure(client.args(["--interface", "vb", "--copying", "copy"]));
    let requests = load::all_answered(&report);
    let transport = report["transport"].as_str().unwrap();
    assert!(
        transport.starts_with("vb (AF_XDP, copy mode"),
        "{transport}"
    );
    let said = server.end_having_answered(requests);
    assert!(said.contains("queue 0: "), "{said}");
}

#[test]
fn a_client_of_the_kernels_reaches_a_server_over_af_xdp() {
    let name = "a_client_of_the_kernels_reaches_a_server_over_af_xdp";
    let namespaces = need!(veth(name, ["ka", "kb"]));
    let second = &namespaces.0[1];
    second.bring_up("vb", KERNEL);
    let server = need!(af_xdp_server(name, &namespaces));
    must(second.run("ping -c 3 -W 10 -i 0.01 10.79.0.1"));
    let report = load::measure(&mut load_in(&namespaces));
    let requests = load::all_answered(&report);
    assert_eq!(report["transport"], "UDP");
    let said = server.end_having_answered(requests);
    assert!(said.contains("3 echo requests answered"), "{said}");
}

/// Also prints whether copying was avoided as asked, which depends on the kernel's driver.
fn af_xdp_server(test: &str, namespaces: &Pair) -> Option<Server> {
    const TABLE: &str = "[xdp]\ninterface = 'va'";
    let command = || namespaces.0[0].command(program());
    let config = |copy| format!("{TABLE}\ncopy = '{copy}'\n{INTERFACE}");
    match Server::try_start(command(), &config("zero-copy")) {
        Ok(server) => {
            println!("zero-copy on a veth: {}", server.head());
            server.end_having_answered(0);
        }
        Err(refusal) => {
            println!("zero-copy on a veth: {refusal}");
            if refusal.contains("cannot open an AF_XDP socket") {
                println!("SKIPPED {test}: the kernel has no AF_XDP");
                return None;
            }
            assert!(refusal.contains("cannot do without copying"), "{refusal}");
        }
    }
    let server = Server::start(command(), &config("auto"));
    let head = server.head();
    assert_says(head, ["va by AF_XDP,", "mode"]);
    Some(server)
}

#[test]
fn what_is_missing_is_said() {
    for (device, says) in [
        (
            "[xdp]\ninterface = 'shinjuku-none'",
            "interface shinjuku-none",
        ),
        ("[xdp]\ninterface = 'lo'", "lo is no Ethernet interface"),
        ("[dpdk]\ndevice = 'net_nothing0'", "net_nothing0"),
        (
            "[dpdk]\ndevice = 'net_null0'\neal = ['-m', '64', '--huge-dir=/shinjuku-none', '--no-pci']",
            "--no-huge",
        ),
        ("[dpdk]\ndevice = 'net_null0'\nmbufs = 4", "mbufs is 4"),
        ("[dpdk]\ndevice = '0000:01:00.0'", "eal = [\"-a\", ADDRESS]"),
        (
            "[dpdk]\ndevice = 'net_null0'\n[xdp]\ninterface = 'lo'",
            "exactly one of the tables",
        ),
        (
            "[dpdk]\ndevices = 'net_null0'",
            "line 2, column 1, in `dpdk`: unknown field `devices`",
        ),
        (
            "[[dispatcher]]\nworkers = 1\n[[dispatcher]]\n[xdp]\ninterface = 'lo'\nqueues = 1",
            "lo is no",
        ),
    ] {
        refuses(&format!("{device}\n{INTERFACE}"), says);
    }
}

fn refuses(config: &str, says: &str) {
    let refusal = match Server::try_start(Command::new(program()), config) {
        Ok(server) => panic!("{config}\nserves: {}", server.head()),
        Err(refusal) => refusal,
    };
    assert!(refusal.contains(says), "{config}\n{refusal}");
}

#[test]
fn what_the_device_has_no_room_for_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let memif = memif(directory.path(), "server");
    let long = INTERFACE.replace("] }", "], mtu = 2000 }");
    refuses(
        &format!("[dpdk]\ndevice = '{memif}'\n{long}"),
        "mtu is 2000, but must be between 68 and 1500",
    );
    refuses(
        &format!("[dpdk]\ndevice = 'net_null0'\nmbufs = 2047\n{INTERFACE}\nbuffers = 2048"),
        "buffers is 2048, but the device was opened with room for 2047",
    );
    refuses(
        &format!("[dpdk]\ndevice = 'net_null0'\ndispatchers = 2\n{INTERFACE}"),
        "queues: 2, tables `dispatcher`: 1",
    );
}

#[test]
fn it_says_how_it_is_called_and_a_cause_once() {
    let say = |argument| {
        let mut command = Command::new(program());
        let output = command.env("RUST_BACKTRACE", "0").arg(argument).output();
        let output = output.unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    };
    for asked in ["-h", "--help"] {
        let (well, said) = say(asked);
        assert!(well && said.starts_with("usage: dataplane FILE"), "{said}");
    }
    let (well, said) = say("/shinjuku-none.toml");
    assert!(!well);
    assert_eq!(said.matches("No such file").count(), 1, "{said}");
}
