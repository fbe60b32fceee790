//! The namespaces of client, switch and servers, and the servers in them.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use shinjuku_rack::Mode;

use crate::process::executable;

/// The rack's address, and its port.
pub const RACK: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 78, 0, 1), 1234);
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);

/// The address of a server, from 1.
pub fn address(server: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 79, server, 2)
}

/// The switch's address in a server's network.
pub fn gateway(server: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 79, server, 1)
}

/// Few threads, which sleep when there is nothing to do.
const CONFIG: &str = "
    workers = 1
    contexts = 64
    spare_workers = 1
    queue = 1024
    idle_backoff_us = 20
    cores = { share = true }
    class = [{ name = 'short' }]
";

pub struct Network {
    prefix: String,
    servers: u8,
    pub mode: Mode,
    config: tempfile::NamedTempFile,
}

impl Network {
    /// `None`, having said so, if this machine cannot.
    pub fn new(test: &str, servers: u8, mode: Mode) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let skip = |reason: &str| println!("SKIPPED {test}: {reason}");
        if let Some(missing) = shinjuku_rack::datapath::missing() {
            skip(&format!("built without the XDP program: {missing}"));
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let network = Self {
            prefix: format!("shinjuku-rack-{}-{number}-", std::process::id()),
            servers,
            mode,
            config: tempfile::NamedTempFile::new().unwrap(),
        };
        std::fs::write(&network.config, CONFIG).unwrap();
        match network.make() {
            Ok(()) => Some(network),
            Err(reason) => {
                skip(&reason);
                None
            }
        }
    }

    fn make(&self) -> Result<(), String> {
        let switch = self.namespace("switch");
        run(&format!("ip netns add {switch}"))?;
        self.connect("client", "clients", RACK.0, CLIENT)?;
        for server in 1..=self.servers {
            let (name, interface) = (server.to_string(), format!("s{server}"));
            self.connect(&name, &interface, gateway(server), address(server))?;
        }
        Ok(())
    }

    /// A namespace with one interface, `veth0`, whose other end is `interface` of the switch.
    fn connect(
        &self,
        name: &str,
        interface: &str,
        gateway: Ipv4Addr,
        host: Ipv4Addr,
    ) -> Result<(), String> {
        let (switch, here) = (self.namespace("switch"), self.namespace(name));
        for command in [
            format!("ip netns add {here}"),
            format!("ip -n {switch} link add {interface} type veth peer name veth0 netns {here}"),
            // Checksums complete, which no device would do for a veth; and the driver's mode takes
            // a peer that polls.
            format!("ip netns exec {here} ethtool -K veth0 tx off gro on"),
            format!("ip -n {switch} addr add {gateway}/24 dev {interface}"),
            format!("ip -n {here} addr add {host}/24 dev veth0"),
            format!("ip -n {switch} link set {interface} up"),
            format!("ip -n {here} link set veth0 up"),
            format!("ip -n {here} link set lo up"),
            format!("ip -n {here} route add default via {gateway}"),
        ] {
            run(&command)?;
        }
        Ok(())
    }

    pub fn namespace(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The switch's interfaces.
    pub fn interfaces(&self) -> Vec<String> {
        let servers = (1..=self.servers).map(|server| format!("s{server}"));
        std::iter::once("clients".to_owned())
            .chain(servers)
            .collect()
    }

    /// Moves the calling thread there.
    pub fn enter(&self, name: &str) {
        let namespace = File::open(format!("/run/netns/{}", self.namespace(name))).unwrap();
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    /// Starts the server with this number.
    pub fn serve(&self, number: u8) -> Server {
        self.serve_at(number, SocketAddr::from((address(number), RACK.1)))
    }

    /// The same, listening elsewhere.
    pub fn serve_at(&self, number: u8, listen: SocketAddr) -> Server {
        let listen = listen.to_string();
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.namespace(&number.to_string())])
            .arg(executable("synthetic"))
            .args(["--listen", &listen, "--format", "racksched", "--config"])
            .arg(self.config.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut head = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut head).unwrap();
        let server = Server {
            child,
            _output: output,
        };
        assert!(head.starts_with("listening on"), "{head}");
        server
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let servers = (1..=self.servers).map(|server| server.to_string());
        for name in ["switch", "client"]
            .map(String::from)
            .into_iter()
            .chain(servers)
        {
            let _ = run(&format!("ip netns del {}", self.namespace(&name)));
        }
    }
}

/// A server; it is killed when it is dropped.
pub struct Server {
    child: Child,
    /// Held open, or the server could not write.
    _output: BufReader<std::process::ChildStdout>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(command: &str) -> Result<(), String> {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            Err(format!("`{command}`: {}", said.trim()))
        }
        Err(error) => Err(format!("`{command}`: {error}")),
    }
}
