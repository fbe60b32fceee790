//! The configuration file.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::registration::RegistrationConfig;
use crate::tables::{SERVERS, Settings, TICK_NANOS, TYPES, TypeSettings, network_order};
use crate::{Balancer, Format, LoadInfo, Mode, RackError};

/// A rack: where it is, its request types, and its servers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where clients send requests: an address that this host answers ARP for.
    pub address: Ipv4Addr,
    /// The interfaces of clients and servers.
    pub interfaces: Vec<String>,
    /// How the interfaces run the program.
    #[serde(default)]
    pub mode: Mode,
    /// The socket of the commands.
    #[serde(default = "default_control")]
    pub control: PathBuf,
    /// Where Prometheus reads the metrics, if it may: an address and TCP port of this host.
    pub metrics: Option<SocketAddr>,
    /// The request table.
    #[serde(default)]
    pub table: TableConfig,
    /// When a server counts as failed.
    #[serde(default)]
    pub failure: FailureConfig,
    /// Where servers register by themselves, if they may.
    pub registration: Option<RegistrationConfig>,
    /// The request types, 1 to 8.
    #[serde(rename = "type")]
    pub types: Vec<TypeConfig>,
    /// The servers at start, up to 64.
    #[serde(rename = "server", default)]
    pub servers: Vec<ServerConfig>,
}

/// The socket of the commands where a configuration says nothing of it.
#[must_use]
pub fn default_control() -> PathBuf {
    PathBuf::from("/run/shinjuku-rack.sock")
}

/// The table that keeps a request's packets together.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TableConfig {
    /// Buckets of eight requests each: a power of two, 1 to 2^20. Each takes 64 bytes.
    pub buckets: u32,
    /// How long a request that gets no reply keeps its entry, in milliseconds, 1 to 3,600,000:
    /// longer than a request and its packets take, or they may be torn apart.
    pub age_ms: u64,
}

impl Default for TableConfig {
    fn default() -> Self {
        Self {
            buckets: 1 << 15,
            age_ms: 1000,
        }
    }
}

/// When a server counts as failed for a type: it gets no further requests of that type then.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FailureConfig {
    /// How long there has been no reply, in milliseconds, 1 to 3,600,000: longer than the longest
    /// request takes, with the requests before it.
    pub silence_ms: u64,
    /// How many requests it has been sent meanwhile, at the least; 1 or more.
    pub requests: u64,
    /// After how long it is tried again, in milliseconds; each time that fails, twice as long, up
    /// to 64 times. A trial fails as soon as so many requests are unanswered, without a silence. A
    /// reply brings it back at once. 0: it is not tried again.
    pub retry_ms: u64,
}

impl Default for FailureConfig {
    fn default() -> Self {
        Self {
            silence_ms: 500,
            requests: 3,
            retry_ms: 1000,
        }
    }
}

/// A request type: a port of the rack's address.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TypeConfig {
    /// Its name.
    pub name: String,
    /// The port of its requests.
    pub port: u16,
    /// The port where servers send its replies from, if that is another one.
    pub reply_port: Option<u16>,
    /// What its packets look like.
    pub format: Format,
    /// How a server is chosen.
    pub balancer: Balancer,
    /// What the choice is based on.
    #[serde(default = "default_load_info")]
    pub load_info: LoadInfo,
}

fn default_load_info() -> LoadInfo {
    LoadInfo::Counters
}

impl TypeConfig {
    /// The port where servers send its replies from.
    #[must_use]
    pub fn reply_port(&self) -> u16 {
        self.reply_port.unwrap_or(self.port)
    }
}

/// A server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Its name.
    pub name: String,
    /// Its address; its ports are the types'.
    pub address: Ipv4Addr,
    /// Its weight, 1 to 256.
    #[serde(default = "one")]
    pub workers: u16,
    /// The types that it serves, by name; all where this is left out.
    pub types: Option<Vec<String>>,
    /// Its Ethernet address; the kernel's ARP finds it where this is left out.
    pub mac: Option<Mac>,
    /// The interface that leads there; to be given together with `mac`.
    pub interface: Option<String>,
}

const fn one() -> u16 {
    1
}

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mac(pub [u8; 6]);

pub(crate) fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| part.len() == 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no Ethernet address as in 02:00:00:00:00:01");
        parse_mac(text).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl<'de> Deserialize<'de> for Mac {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl Serialize for Mac {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or is no configuration.
    pub fn from_file(path: &Path) -> Result<Self, RackError> {
        let text = std::fs::read_to_string(path).map_err(|cause| RackError::File {
            path: path.to_owned(),
            cause,
        })?;
        Self::from_toml(&text)
            .map_err(|error| RackError::Config(format!("{}: {error}", path.display())))
    }

    /// Reads a text.
    ///
    /// # Errors
    /// If it is no configuration; the words name the key.
    pub fn from_toml(text: &str) -> Result<Self, RackError> {
        let config: Self =
            toml::from_str(text).map_err(|error| RackError::Config(error.to_string()))?;
        config.check()?;
        Ok(config)
    }

    /// What is wrong with it, if anything is.
    ///
    /// # Errors
    /// If a value is out of its range, or names do not fit.
    pub fn check(&self) -> Result<(), RackError> {
        if self.interfaces.is_empty() {
            return Err(wrong("interfaces: there must be one at least"));
        }
        if !self.table.buckets.is_power_of_two() || self.table.buckets > 1 << 20 {
            let buckets = self.table.buckets;
            return Err(wrong(&format!(
                "table.buckets is {buckets}, but must be a power of two, 1 to 2^20"
            )));
        }
        in_range("table.age_ms", self.table.age_ms, 1, 3_600_000)?;
        in_range("failure.silence_ms", self.failure.silence_ms, 1, 3_600_000)?;
        in_range("failure.requests", self.failure.requests, 1, u64::MAX)?;
        in_range("failure.retry_ms", self.failure.retry_ms, 0, 3_600_000)?;
        in_range(
            "the number of types",
            self.types.len() as u64,
            1,
            TYPES as u64,
        )?;
        in_range(
            "the number of servers",
            self.servers.len() as u64,
            0,
            SERVERS as u64,
        )?;
        self.check_types()?;
        for (place, server) in self.servers.iter().enumerate() {
            self.check_server(server)?;
            let others = &self.servers[..place];
            if others.iter().any(|other| other.name == server.name) {
                return Err(wrong(&format!(
                    "server.name: {} is there twice",
                    server.name
                )));
            }
            if others.iter().any(|other| other.address == server.address) {
                return Err(wrong(&format!(
                    "server.address: {} is there twice",
                    server.address
                )));
            }
        }
        Ok(())
    }

    fn check_types(&self) -> Result<(), RackError> {
        for (place, one) in self.types.iter().enumerate() {
            if one.port == 0 || one.reply_port() == 0 {
                return Err(wrong(&format!("type.port of {}: 0 is no port", one.name)));
            }
            let is_blind = one.format == Format::Shinjuku && one.load_info != LoadInfo::Counters;
            if one.balancer.needs_load() && is_blind {
                return Err(wrong(&format!(
                    "type.load_info of {}: replies in Shinjuku's format carry no load; choose counters",
                    one.name
                )));
            }
            for other in &self.types[..place] {
                if other.name == one.name {
                    return Err(wrong(&format!("type.name: {} is there twice", one.name)));
                }
                if other.port == one.port || other.reply_port() == one.reply_port() {
                    return Err(wrong(&format!(
                        "type.port: {} and {} share one",
                        other.name, one.name
                    )));
                }
            }
        }
        Ok(())
    }

    /// What is wrong with a server for this rack, if anything is.
    ///
    /// # Errors
    /// If it serves a type that there is not, or a value is out of its range.
    pub fn check_server(&self, server: &ServerConfig) -> Result<(), RackError> {
        let name = &server.name;
        in_range(
            &format!("server.workers of {name}"),
            u64::from(server.workers),
            1,
            256,
        )?;
        if server.mac.is_some() != server.interface.is_some() {
            return Err(wrong(&format!(
                "server {name}: mac and interface are given together, or neither is"
            )));
        }
        for one in server.types.iter().flatten() {
            if !self.types.iter().any(|there| there.name == *one) {
                return Err(wrong(&format!(
                    "server.types of {name}: there is no type {one:?}"
                )));
            }
        }
        Ok(())
    }

    /// The program's settings.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let mut settings = Settings {
            address: network_order(self.address),
            age: (self.table.age_ms * 1_000_000 / TICK_NANOS).max(1) as u32,
            bucket_mask: self.table.buckets - 1,
            ..Settings::default()
        };
        for (slot, one) in settings.types.iter_mut().zip(&self.types) {
            let (balancer, draws) = one.balancer.number();
            *slot = TypeSettings {
                request_port: one.port.to_be_bytes(),
                reply_port: one.reply_port().to_be_bytes(),
                format: one.format.number(),
                balancer,
                draws,
                load_info: one.load_info.number(),
            };
        }
        settings
    }
}

fn wrong(what: &str) -> RackError {
    RackError::Config(what.to_owned())
}

fn in_range(key: &str, value: u64, least: u64, most: u64) -> Result<(), RackError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(wrong(&format!(
        "{key} is {value}, but must be between {least} and {most}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINE: &str = "
        address = '10.0.0.1'
        interfaces = ['eth0']
        [[type]]
        name = 'short'
        port = 1234
        format = 'racksched'
        balancer = 'power-of-2'
        load_info = 'int1'
        [[server]]
        name = 'a'
        address = '10.0.1.2'
    ";

    #[test]
    fn what_is_wrong_is_named() {
        Config::from_toml(FINE).unwrap();
        for (before, after, says) in [
            ("'10.0.0.1'", "'10.0.0'", "address"),
            ("interfaces = ['eth0']", "interfaces = []", "interfaces"),
            ("interfaces", "mod = 'auto'\ninterfaces", "mod"),
            ("interfaces", "mode = 'fast'\ninterfaces", "fast"),
            (
                "interfaces",
                "table.buckets = 3\ninterfaces",
                "table.buckets is 3",
            ),
            (
                "interfaces",
                "table.age_ms = 0\ninterfaces",
                "table.age_ms is 0",
            ),
            (
                "interfaces",
                "failure.requests = 0\ninterfaces",
                "failure.requests",
            ),
            (
                "interfaces",
                "registration = { listen = '10.0.0.1:7', from = ['10.0.0'] }\ninterfaces",
                "10.0.0",
            ),
            (
                "interfaces",
                "registration = { from = [] }\ninterfaces",
                "listen",
            ),
            ("interfaces", "metrics = '9188'\ninterfaces", "metrics"),
            ("interfaces", "failure.silence = 9\ninterfaces", "silence"),
            ("1234", "0", "type.port of short"),
            ("1234", "70000", "70000"),
            ("power-of-2", "power-of-9", "power-of-9"),
            ("'racksched'", "'shinjuku'", "type.load_info of short"),
            ("int1", "int4", "int4"),
            (
                "name = 'a'",
                "name = 'a'\nworkers = 0",
                "server.workers of a is 0",
            ),
            (
                "name = 'a'",
                "name = 'a'\ntypes = ['long']",
                "server.types of a",
            ),
            (
                "name = 'a'",
                "name = 'a'\nmac = '02:00:00:00:00:01'",
                "mac and interface",
            ),
            (
                "name = 'a'",
                "name = 'a'\nmac = '2:0:0:0:0:1'",
                "2:0:0:0:0:1",
            ),
            (
                "[[server]]",
                "[[server]]\nname='a'\naddress='10.0.1.3'\n[[server]]",
                "a is there twice",
            ),
            (
                "[[server]]",
                "[[server]]\nname='b'\naddress='10.0.1.2'\n[[server]]",
                "10.0.1.2 is there twice",
            ),
        ] {
            let text = FINE.replacen(before, after, 1);
            assert_ne!(text, FINE);
            let error = Config::from_toml(&text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}\n{error}");
        }
    }

    #[test]
    fn types_do_not_share_ports() {
        let second = FINE.to_owned()
            + "[[type]]\nname='long'\nport=1235\nreply_port=1234\nformat='shinjuku'\nbalancer='random'";
        let error = Config::from_toml(&second).unwrap_err().to_string();
        assert!(error.contains("short and long share"), "{error}");
        Config::from_toml(&second.replace("reply_port=1234", "reply_port=11235")).unwrap();
    }
}
