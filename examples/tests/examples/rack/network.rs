//! The namespaces of client, switch and servers, and the servers in them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use shinjuku_rack::Mode;
use shinjuku_tests_support::namespace::Namespace;
use shinjuku_tests_support::process::Server;
use tempfile::NamedTempFile;

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
    namespaces: BTreeMap<String, Namespace>,
    servers: u8,
    pub mode: Mode,
    config: NamedTempFile,
}

impl Network {
    /// Makes the network. `None` if this machine cannot; says then that the test is skipped.
    pub fn new(test: &str, servers: u8, mode: Mode) -> Option<Self> {
        let made = match shinjuku_rack::datapath::missing() {
            Some(missing) => Err(format!("built without the XDP program: {missing}")),
            None => Self::make(servers, mode),
        };
        match made {
            Ok(network) => Some(network),
            Err(reason) => {
                println!("SKIPPED {test}: {reason}");
                None
            }
        }
    }

    fn make(servers: u8, mode: Mode) -> Result<Self, String> {
        let mut network = Self {
            namespaces: BTreeMap::from([("switch".to_owned(), Namespace::new("r")?)]),
            servers,
            mode,
            config: server_config(),
        };
        network.connect("client", "clients", RACK.0, CLIENT)?;
        for server in 1..=servers {
            let (name, interface) = (server.to_string(), format!("s{server}"));
            network.connect(&name, &interface, gateway(server), address(server))?;
        }
        Ok(network)
    }

    /// Makes a namespace with one interface, `veth0`, whose other end is `interface` of the switch.
    fn connect(
        &mut self,
        name: &str,
        interface: &str,
        gateway: Ipv4Addr,
        host: Ipv4Addr,
    ) -> Result<(), String> {
        let (switch, here) = (self.namespace("switch"), Namespace::new("r")?);
        switch.ip(&format!(
            "link add {interface} type veth peer name veth0 netns {here}"
        ))?;
        // Packets need complete checksums, which no device makes for a veth; and the driver's mode
        // needs a peer that polls.
        here.run("ethtool -K veth0 tx off gro on")?;
        switch.ip(&format!("addr add {gateway}/24 dev {interface}"))?;
        here.ip(&format!("addr add {host}/24 dev veth0"))?;
        switch.ip(&format!("link set {interface} up"))?;
        here.ip("link set veth0 up")?;
        here.ip("link set lo up")?;
        here.ip(&format!("route add default via {gateway}"))?;
        self.namespaces.insert(name.to_owned(), here);
        Ok(())
    }

    /// The namespace of `switch`, of `client`, or of the server with that number.
    pub fn namespace(&self, name: &str) -> &Namespace {
        &self.namespaces[name]
    }

    /// The switch's interfaces.
    pub fn interfaces(&self) -> Vec<String> {
        let servers = (1..=self.servers).map(|server| format!("s{server}"));
        std::iter::once("clients".to_owned())
            .chain(servers)
            .collect()
    }

    /// Starts the server with this number; it is killed when it is dropped.
    pub fn serve(&self, number: u8) -> Server {
        self.serve_at(number, SocketAddr::from((address(number), RACK.1)))
    }

    /// As [`serve`](Self::serve), listening at another address.
    pub fn serve_at(&self, number: u8, listen: SocketAddr) -> Server {
        let here = self.namespace(&number.to_string());
        serve_in(here, listen, &self.config)
    }
}

/// The configuration of a server, as a file.
pub fn server_config() -> NamedTempFile {
    let config = NamedTempFile::new().unwrap();
    std::fs::write(&config, CONFIG).unwrap();
    config
}

/// Starts a server; it is killed when it is dropped.
pub fn serve_in(here: &Namespace, listen: SocketAddr, config: &NamedTempFile) -> Server {
    let mut command = here.command(executable("synthetic"));
    command.args(["--listen", &listen.to_string()]);
    command.args(["--format", "racksched", "--config"]);
    Server::start(command.arg(config.path()), "listening on").unwrap()
}
