//! The switch, on a thread of its own in its namespace.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use shinjuku_rack::registration::{Registrar, Registration};
use shinjuku_rack::{Config, Mode, Rack, RackError, ServerConfig, Status};
use shinjuku_tests_support::namespace::Namespace;

use super::network::{Network, RACK, address};

const PATIENCE: Duration = Duration::from_secs(20);

/// Where servers may register: at the switch's address in each server's network.
const REGISTRATION: u16 = 7777;

/// A server that does not reply soon counts as failed, and is not tried again.
pub const FAILURE: &str = "failure = { silence_ms = 300, requests = 3, retry_ms = 0 }";

type Task = Box<dyn FnOnce(&mut Rack) + Send>;

pub struct Switch {
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
}

fn server(number: u8) -> ServerConfig {
    ServerConfig {
        name: format!("server-{number}"),
        address: address(number),
        workers: 1,
        types: None,
        mac: None,
        interface: None,
    }
}

/// A configuration with these interfaces and servers, and more.
pub fn config(interfaces: &[String], servers: &[u8], more: &str) -> Config {
    let mut config = Config::from_toml(&format!(
        "address = '{}'
        interfaces = {interfaces:?}
        registration = {{ listen = '0.0.0.0:{REGISTRATION}', from = ['10.79.0.0/16'] }}
        {more}
        [[type]]
        name = 'short'
        port = {}
        format = 'racksched'
        balancer = 'power-of-2'
        load_info = 'int1'",
        RACK.0, RACK.1
    ))
    .unwrap();
    config.servers = servers.iter().map(|number| server(*number)).collect();
    config
}

impl Switch {
    /// Starts the switch with these servers.
    pub fn start(network: &Network, servers: &[u8]) -> Self {
        Self::start_with(network, servers, "")
    }

    /// As [`start`](Self::start), with more of a configuration.
    pub fn start_with(network: &Network, servers: &[u8], more: &str) -> Self {
        let more = format!("{FAILURE}\n{more}");
        let mut config = config(&network.interfaces(), servers, &more);
        config.mode = network.mode;
        let switch = Self::start_in(network.namespace("switch"), config);
        if network.mode == Mode::Driver {
            assert_eq!(switch.status().mode, Mode::Driver);
        }
        switch
    }

    /// Starts a switch in any namespace.
    pub fn start_in(namespace: &Namespace, config: Config) -> Self {
        let (tasks, to_do): (_, Receiver<Task>) = mpsc::channel();
        let (ready, is_ready) = mpsc::channel();
        // The thread inherits the namespace.
        let thread = namespace.within(|| {
            thread::spawn(move || {
                let warn = |warning: &str| panic!("{warning}");
                let registrar = config.registration.as_ref().map(Registrar::listen);
                let registrar = registrar.unwrap().unwrap();
                let mut rack = Rack::start(config, warn).unwrap();
                ready.send(()).unwrap();
                serve(&mut rack, &registrar, &to_do);
            })
        });
        let switch = Self {
            tasks: Some(tasks),
            thread: Some(thread),
        };
        is_ready.recv_timeout(PATIENCE).expect("it starts");
        switch
    }

    /// Runs `task` on the switch's thread, and waits for its result.
    fn have<T: Send + 'static>(&self, task: impl FnOnce(&mut Rack) -> T + Send + 'static) -> T {
        let (done, is_done) = mpsc::channel();
        let task: Task = Box::new(move |rack| {
            let _ = done.send(task(rack));
        });
        self.tasks.as_ref().unwrap().send(task).unwrap();
        is_done.recv_timeout(PATIENCE).expect("it does it")
    }

    pub fn add(&self, number: u8) {
        self.have(move |rack| rack.add(server(number)).unwrap());
    }

    pub fn drain(&self, number: u8) {
        self.have(move |rack| rack.drain(&server(number).name).unwrap());
    }

    pub fn remove(&self, number: u8) {
        self.have(move |rack| rack.remove(&server(number).name).unwrap());
    }

    pub fn status(&self) -> Status {
        self.have(|rack| rack.status().unwrap())
    }

    pub fn until(&self, what: &str, condition: impl Fn(&Status) -> bool) {
        let start = Instant::now();
        while !condition(&self.status()) {
            assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn serve(rack: &mut Rack, registrar: &Registrar, to_do: &Receiver<Task>) {
    loop {
        match to_do.recv_timeout(Duration::from_millis(20)) {
            Ok(task) => task(rack),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        rack.tick().unwrap();
        registrar.serve(rack);
    }
}

/// Registers the server with this number, from the host called `name`, which reaches the switch at
/// `gateway`.
pub fn register(
    network: &Network,
    name: &str,
    gateway: Ipv4Addr,
    number: u8,
    lease_ms: u64,
) -> Result<(), RackError> {
    let ServerConfig { name: server, .. } = server(number);
    let registration = Registration {
        name: server,
        workers: 1,
        types: None,
        lease_ms,
    };
    let start = Instant::now();
    loop {
        let here = network.namespace(name);
        let answer = here.within(|| registration.send(SocketAddrV4::new(gateway, REGISTRATION)));
        match answer {
            // A slow machine's switch may take longer than a datagram's sender waits.
            Err(error) if error.to_string().contains("does not answer: ") => {
                assert!(start.elapsed() < PATIENCE, "{error}");
            }
            answer => return answer,
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking());
        }
    }
}
