//! What a user writes: the same settings as options on the command line and as keys of a plan.
//!
//! A plan is a TOML file whose keys are the options' names, with `_` for `-`:
//!
//! ```
//! # use shinjuku_loadgen::Settings;
//! let plan = r#"
//!     target = "127.0.0.1:6379"
//!     request = ["get:99.5:GET key:{zipf}", "scan:0.5:SCAN 0 COUNT 5000"]
//!     rate = "10k..60k/6"
//!     arrivals = { kind = "mmpp", rate_ratio = 10.0, burst_fraction = 0.1, burst_requests = 100.0 }
//!     seconds = 5.0
//! "#;
//! let settings: Settings = toml::from_str(plan)?;
//! assert_eq!(settings.check()?.loads().len(), 6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A plan's values are checked when it is read, so that an error names its line;
//! [`Settings::check`] finds settings that conflict.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Deserialize;
use shinjuku_dataplane::{HostAddress, MacAddr};
use shinjuku_workload::{Arrivals, Mix};

use crate::error::LoadError;
use crate::keys::{Keys, MOST_KEYS};
use crate::plan::{Load, Pick, Plan};
use crate::rates::Rates;
use crate::requests::{Command, Format, Requests};
use crate::transport_setup::{Copying, Transport, TransportSetup, Words};

/// Most bytes of requests that may wait on a thread because the server does not read.
const MOST_BYTES: usize = 1 << 30;

/// The protocol spoken with the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// RESP (Redis) over TCP.
    Resp,
    /// Shinjuku's 16-byte datagrams.
    Shinjuku,
    /// RackSched's 41-byte datagrams.
    Racksched,
}

/// Every setting, where given.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The server: an address or name, and a port [default: 127.0.0.1:6379]
    #[arg(long, short, value_name = "HOST:PORT", help_heading = "Server")]
    pub target: Option<String>,
    /// The protocol spoken with it [default: resp]
    #[arg(long, value_enum, help_heading = "Server")]
    pub protocol: Option<Protocol>,
    /// Connections (RESP) or flows (UDP), over all threads [default: 64]
    #[arg(long, short, value_name = "N", help_heading = "Server")]
    pub connections: Option<usize>,

    /// UDP: what carries the datagrams; dpdk and xdp take --address, and up to 64 flows [default:
    /// sockets]
    #[arg(long, value_enum, help_heading = "Without the kernel")]
    pub transport: Option<Transport>,
    /// The client's own address, and how many bits of it name the net: 10.0.0.2/24
    #[arg(long, value_name = "ADDRESS", help_heading = "Without the kernel")]
    pub address: Option<HostAddress>,
    /// Its Ethernet address [default: the device's]
    #[arg(long, help_heading = "Without the kernel")]
    pub mac: Option<MacAddr>,
    /// The gateway to a server in another net
    #[arg(long, value_name = "ADDRESS", help_heading = "Without the kernel")]
    pub gateway: Option<Ipv4Addr>,
    /// DPDK: the device; a virtual one with its parameters, such as
    /// net_memif0,socket=/run/memif.sock, or a PCI address
    #[arg(long, help_heading = "Without the kernel")]
    pub device: Option<String>,
    /// DPDK: arguments of its environment abstraction layer [default: for virtual devices, 256 MiB
    /// without huge pages]
    #[arg(
        long,
        value_name = "ARGUMENTS",
        allow_hyphen_values = true,
        help_heading = "Without the kernel"
    )]
    pub eal: Option<Words>,
    /// AF_XDP: the interface. All frames of its first queue are taken from the kernel; it should
    /// have no other (ethtool -L)
    #[arg(long, value_name = "NAME", help_heading = "Without the kernel")]
    pub interface: Option<String>,
    /// AF_XDP: whether the kernel copies frames [default: auto]
    #[arg(long, value_enum, help_heading = "Without the kernel")]
    pub copying: Option<Copying>,

    /// A class of RESP requests: NAME:WEIGHT:COMMAND, or just the command. May be given several
    /// times. Places in it: {uniform} {zipf} {sequential} for a key's number (12 digits), {value:N}
    /// for N letters
    #[arg(long, short, value_name = "REQUEST", help_heading = "Requests")]
    #[serde(default)]
    pub request: Vec<Command>,
    /// Number of keys [default: 100000]
    #[arg(long, value_name = "N", help_heading = "Requests")]
    pub keys: Option<u64>,
    /// Exponent of {zipf} [default: 0.99]
    #[arg(long, value_name = "S", help_heading = "Requests")]
    pub zipf: Option<f64>,
    /// UDP: how long the server is asked to work: hi, mid, tri, exp, fixed, lognormal, tpcc; a plan
    /// can describe others
    #[arg(long, help_heading = "Requests")]
    pub mix: Option<Mix>,

    /// Open loop: requests per second, such as 20k, a list 10k,20k or a range 10k..100k/10
    #[arg(long, value_name = "RATES", help_heading = "Load")]
    pub rate: Option<Rates>,
    /// Instead, keep N requests under way on each connection: finds what the server can do
    #[arg(long, value_name = "N", conflicts_with = "rate", help_heading = "Load")]
    pub saturate: Option<usize>,
    /// Besides, N requests per second on a connection of their own, measured apart
    #[arg(long, value_name = "N", help_heading = "Load")]
    pub probe: Option<f64>,
    /// When requests are due: poisson or deterministic; a plan can have bursts (mmpp) or a trace
    /// [default: poisson]
    #[arg(long, value_parser = arrivals, help_heading = "Load")]
    pub arrivals: Option<Arrivals>,
    /// Which connection takes a request [default: idle]
    #[arg(long, value_enum, help_heading = "Load")]
    pub pick: Option<Pick>,
    /// How long a load lasts [default: 5]
    #[arg(long, value_name = "SECONDS", help_heading = "Load")]
    pub seconds: Option<f64>,
    /// Its beginning, of which nothing is measured [default: a twentieth]
    #[arg(long, value_name = "SECONDS", help_heading = "Load")]
    pub warm_up: Option<f64>,
    /// End a load after this many requests, too
    #[arg(long, value_name = "N", help_heading = "Load")]
    pub requests: Option<u64>,
    /// Measure each load this many times, one after the other [default: 1]
    #[arg(long, value_name = "N", help_heading = "Load")]
    pub repetitions: Option<u32>,
    /// The first repetition's seed, which decides moments, classes and keys; others count up
    /// [default: 1]
    #[arg(long, help_heading = "Load")]
    pub seed: Option<u64>,

    /// Threads; each sends its share of the load over its share of the connections [default: 1]
    #[arg(long, value_name = "N", help_heading = "Client")]
    pub threads: Option<usize>,
    /// Pin the threads to these cores, such as 1 or 2,3
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "Client"
    )]
    #[serde(default)]
    pub cores: Vec<usize>,
    /// Give a request up after this time; over TCP its connection with it [default: 10]
    #[arg(long, value_name = "SECONDS", help_heading = "Client")]
    pub timeout: Option<f64>,
    /// Wait for answers no longer than this after the last request [default: 2]
    #[arg(long, value_name = "SECONDS", help_heading = "Client")]
    pub drain: Option<f64>,
    /// Requests sent later than this count as late [default: 50]
    #[arg(long, value_name = "MICROSECONDS", help_heading = "Client")]
    pub late_us: Option<f64>,
    /// Most requests under way on a thread; those over it are not sent, and counted [default:
    /// 100000, or what 1 GiB holds]
    #[arg(long, value_name = "N", help_heading = "Client")]
    pub outstanding: Option<usize>,
    /// Do not measure each class alone first, which slowdown needs
    #[arg(long, help_heading = "Client")]
    #[serde(default)]
    pub no_unloaded: bool,
}

/// Arrivals without parameters, by name.
fn arrivals(name: &str) -> Result<Arrivals, String> {
    match name {
        "poisson" => Ok(Arrivals::poisson()),
        "deterministic" => Ok(Arrivals::deterministic()),
        _ => Err("it is neither poisson nor deterministic; describe others in a plan".to_owned()),
    }
}

impl Settings {
    /// Reads a plan.
    ///
    /// # Errors
    /// The plan cannot be read or understood; the error names line and key.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let text = std::fs::read_to_string(path).map_err(|cause| LoadError::Read {
            path: path.to_owned(),
            cause,
        })?;
        Self::parse(&text, path)
    }

    /// Reads a plan from its text; errors name `path`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn parse(text: &str, path: &Path) -> Result<Self, LoadError> {
        let settings: Self = toml::from_str(text).map_err(|cause| LoadError::Plan {
            path: path.to_owned(),
            cause,
        })?;
        match settings.out_of_range() {
            None => Ok(settings),
            Some((key, what)) => Err(LoadError::PlanSetting {
                path: path.to_owned(),
                line: line_of(text, key),
                key,
                what,
            }),
        }
    }

    /// These settings; those not given come from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        // A rate given here replaces the plan's saturation, and the other way round.
        let (rate, saturate) = match (&self.rate, self.saturate) {
            (None, None) => (other.rate, other.saturate),
            _ => (self.rate, self.saturate),
        };
        let list = |own: Vec<_>, other| if own.is_empty() { other } else { own };
        Self {
            target: self.target.or(other.target),
            protocol: self.protocol.or(other.protocol),
            connections: self.connections.or(other.connections),
            transport: self.transport.or(other.transport),
            address: self.address.or(other.address),
            mac: self.mac.or(other.mac),
            gateway: self.gateway.or(other.gateway),
            device: self.device.or(other.device),
            eal: self.eal.or(other.eal),
            interface: self.interface.or(other.interface),
            copying: self.copying.or(other.copying),
            request: if self.request.is_empty() {
                other.request
            } else {
                self.request
            },
            keys: self.keys.or(other.keys),
            zipf: self.zipf.or(other.zipf),
            mix: self.mix.or(other.mix),
            rate,
            saturate,
            probe: self.probe.or(other.probe),
            arrivals: self.arrivals.or(other.arrivals),
            pick: self.pick.or(other.pick),
            seconds: self.seconds.or(other.seconds),
            warm_up: self.warm_up.or(other.warm_up),
            requests: self.requests.or(other.requests),
            repetitions: self.repetitions.or(other.repetitions),
            seed: self.seed.or(other.seed),
            threads: self.threads.or(other.threads),
            cores: list(self.cores, other.cores),
            timeout: self.timeout.or(other.timeout),
            drain: self.drain.or(other.drain),
            late_us: self.late_us.or(other.late_us),
            outstanding: self.outstanding.or(other.outstanding),
            no_unloaded: self.no_unloaded || other.no_unloaded,
        }
    }

    /// The first value out of its range: its key, and what is wrong.
    fn out_of_range(&self) -> Option<(&'static str, String)> {
        let counts = [
            ("connections", self.connections, 1_000_000),
            ("saturate", self.saturate, 4096),
            ("threads", self.threads, 1024),
            ("outstanding", self.outstanding, 10_000_000),
            (
                "repetitions",
                self.repetitions.map(|one| one as usize),
                1_000,
            ),
            (
                "keys",
                self.keys.map(|one| one as usize),
                MOST_KEYS as usize,
            ),
        ];
        let counts = counts.into_iter().filter_map(|(key, given, most)| {
            let given = given.filter(|given| !(1..=most).contains(given))?;
            Some((
                key,
                format!("it is {given}: it must lie between 1 and {most}"),
            ))
        });
        let numbers = [
            ("seconds", self.seconds, 0.001, 86_400.0),
            ("warm_up", self.warm_up, 0.0, 86_400.0),
            ("timeout", self.timeout, 0.001, 86_400.0),
            ("drain", self.drain, 0.0, 86_400.0),
            ("late_us", self.late_us, 0.0, 1e9),
            ("probe", self.probe, 1e-3, 1e9),
            ("zipf", self.zipf, 0.0, 100.0),
        ];
        let numbers = numbers.into_iter().filter_map(|(key, given, least, most)| {
            let given = given.filter(|given| !(least..=most).contains(given))?;
            Some((
                key,
                format!("it is {given}: it must lie between {least} and {most}"),
            ))
        });
        counts.chain(numbers).next()
    }

    /// The complete plan that these settings ask for.
    ///
    /// # Errors
    /// A setting is out of range or does not go with another, or the server's name cannot be found.
    pub fn check(self) -> Result<Plan, LoadError> {
        let refuse = |key, what: &str| {
            Err(LoadError::Setting {
                key,
                what: what.to_owned(),
            })
        };
        if let Some((key, what)) = self.out_of_range() {
            return refuse(key, &what);
        }
        let requests = self.described_requests()?;
        let setup = TransportSetup::of(&self)?;
        let threads = self.threads.unwrap_or(1);
        let connections = self.connections.unwrap_or(64);
        if connections < threads {
            return refuse("connections", "give each thread at least one");
        }
        if !self.cores.is_empty() && self.cores.len() != threads {
            return refuse("cores", "give as many cores as threads");
        }
        let longest = requests.longest();
        let most_outstanding = self
            .outstanding
            .unwrap_or(100_000.min(MOST_BYTES / longest));
        if most_outstanding > MOST_BYTES / longest {
            let most = MOST_BYTES / longest;
            return refuse(
                "outstanding",
                &format!("requests of {longest} bytes allow {most}"),
            );
        }
        if let Some(depth) = self.saturate
            && connections.div_ceil(threads) * depth > most_outstanding
        {
            let what = format!(
                "{depth} on each of {connections} connections is more than outstanding allows"
            );
            return refuse("saturate", &what);
        }
        let loads = match (self.rate, self.saturate) {
            (Some(rates), None) => rates.per_second().iter().copied().map(Load::Rate).collect(),
            (None, Some(depth)) => vec![Load::Saturate(depth)],
            (Some(_), Some(_)) => return refuse("saturate", "it excludes rate"),
            (None, None) => return refuse("rate", "give a rate such as 20k, or saturate"),
        };
        let duration =
            |given: Option<f64>, default| Duration::from_secs_f64(given.unwrap_or(default));
        let length = duration(self.seconds, 5.0);
        let warm_up = self.warm_up.map_or(length / 20, Duration::from_secs_f64);
        if warm_up >= length {
            return refuse("warm_up", "it must be shorter than seconds");
        }
        let plan = Plan {
            target: resolve(self.target.as_deref().unwrap_or("127.0.0.1:6379"))?,
            connections,
            requests,
            loads,
            probe: self.probe,
            arrivals: self.arrivals.unwrap_or_else(Arrivals::poisson),
            pick: self.pick.unwrap_or(Pick::Idle),
            length,
            warm_up,
            most_requests: self.requests.unwrap_or(u64::MAX),
            repetitions: self.repetitions.unwrap_or(1),
            seed: self.seed.unwrap_or(1),
            threads,
            cores: self.cores,
            timeout: duration(self.timeout, 10.0),
            drain: duration(self.drain, 2.0),
            late_ns: (self.late_us.unwrap_or(50.0) * 1e3) as u64,
            most_outstanding,
            unloaded: !self.no_unloaded,
            line: None,
        };
        let line = match setup {
            None => None,
            Some(setup) => Some(setup.line(plan.server_past_the_kernel()?)),
        };
        Ok(Plan { line, ..plan })
    }

    fn described_requests(&self) -> Result<Requests, LoadError> {
        let refuse = |key, what: String| Err(LoadError::Setting { key, what });
        let format = match self.protocol.unwrap_or(Protocol::Resp) {
            Protocol::Resp => None,
            Protocol::Shinjuku => Some(Format::Shinjuku),
            Protocol::Racksched => Some(Format::RackSched),
        };
        if let Some(format) = format {
            return match &self.mix {
                None => refuse("mix", "UDP needs one: say how long requests run".to_owned()),
                Some(_) if !self.request.is_empty() => {
                    refuse("request", "commands are RESP's; UDP takes a mix".to_owned())
                }
                Some(mix) => Ok(Requests::synthetic(mix, format)),
            };
        }
        if self.mix.is_some() {
            return refuse("mix", "it is for UDP; RESP takes request".to_owned());
        }
        if self.request.is_empty() {
            return refuse(
                "request",
                "give at least one, such as \"GET key:{uniform}\"".to_owned(),
            );
        }
        if self.request.len() > 1_000 {
            return refuse("request", "at most 1000 classes are told apart".to_owned());
        }
        for (at, one) in self.request.iter().enumerate() {
            if self.request[..at]
                .iter()
                .any(|other| other.name == one.name)
            {
                let what = format!(
                    "two classes are named {}; give NAME:WEIGHT:COMMAND",
                    one.name
                );
                return refuse("request", what);
            }
        }
        let (count, exponent) = (self.keys.unwrap_or(100_000), self.zipf.unwrap_or(0.99));
        let keys = Keys::new(count, exponent).expect("both are in range");
        Ok(Requests::commands(&self.request, keys))
    }
}

/// The line, from 1, on which a plan sets `key`.
fn line_of(text: &str, key: &str) -> usize {
    let sets = |line: &str| {
        let name = line.split('=').next().unwrap_or_default();
        name.trim().trim_matches(['"', '\'']) == key
    };
    text.lines().position(sets).map_or(1, |at| at + 1)
}

fn resolve(target: &str) -> Result<SocketAddr, LoadError> {
    let refuse = |what| LoadError::Setting {
        key: "target",
        what,
    };
    let mut found = target
        .to_socket_addrs()
        .map_err(|error| refuse(format!("{target:?} is no address and port: {error}")))?;
    found
        .next()
        .ok_or_else(|| refuse(format!("{target:?} has no address")))
}
