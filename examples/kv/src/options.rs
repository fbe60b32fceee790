//! The command line and the configuration file.
//!
//! The file is TOML: the runtime's keys (see `shinjuku::Config`), and the tables `[kv]` and
//! `[tcp]`, below. Options of the command line take precedence.
//!
//! ```toml
//! layout = "inline"
//! policy = { kind = "c-pre-mq", quantum_us = 5 }
//!
//! [[class]]
//! name = "get"
//! slo_us = 50
//!
//! [[class]]
//! name = "scan"
//! slo_us = 5000
//!
//! [kv]
//! listen = "127.0.0.1:6380"
//! engine = "memory"
//!
//! [tcp]
//! connections = 1000
//! ```

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde::Deserialize;
use serde::de::value::Error;
use serde::de::{DeserializeOwned, IntoDeserializer};
use shinjuku::net::tcp::TcpConfig;
use shinjuku::policy::Registered;
use shinjuku::{ClassConfig, Config, LayoutKind, MechanismKind};

use crate::commands::Class;

/// Objectives in microseconds, by class: c-pre-mq's default.
const SLO_US: [f64; Class::NAMES.len()] = [50.0, 5000.0];

/// A key-value server that speaks Redis's protocol.
#[derive(clap::Parser, Clone, Debug, Default)]
#[command(version)]
pub struct Options {
    /// The configuration in TOML; the options below take precedence.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where to listen; port 0: one that the kernel picks [default: 127.0.0.1:6380].
    #[arg(long)]
    pub listen: Option<SocketAddr>,
    /// Which request runs next: a policy by its name, such as c-pre-mq or c-fcfs [default:
    /// c-pre-sq].
    #[arg(long)]
    pub policy: Option<Registered>,
    /// Objectives on latency by class, for c-pre-mq [default: get=50us,scan=5ms].
    #[arg(long, value_parser = slo, value_delimiter = ',', value_name = "CLASS=TIME")]
    pub slo: Vec<(Class, f64)>,
    /// Worker threads [default: one for each core, but for the dispatcher's if that has one].
    #[arg(long)]
    pub workers: Option<usize>,
    /// Which loops share a thread: auto, threads, inline or symmetric [default: auto: inline on one
    /// core, symmetric on few].
    #[arg(long, value_parser = named::<LayoutKind>)]
    pub layout: Option<LayoutKind>,
    /// How requests are preempted: auto, none, probe, compiled-probe, signal, escalation, guest or
    /// dune; the last two with threads alone, and `guest` takes the feature `kvm` [default: auto].
    #[arg(long, value_parser = named::<MechanismKind>)]
    pub preemption: Option<MechanismKind>,
    /// How long a request may run while others wait [default: 5us].
    #[arg(long, value_parser = micros, value_name = "TIME")]
    pub quantum: Option<f64>,
    /// Where keys and values are stored [default: memory].
    #[arg(long)]
    pub engine: Option<EngineKind>,
    /// Directory of an engine that stores them in files.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Runs all of the server on this core.
    #[arg(long, value_name = "N")]
    pub core: Option<usize>,
    /// Before serving, sets this many keys: key:000000000000 and so on.
    #[arg(long, value_name = "KEYS")]
    pub load: Option<u64>,
    /// The length of their values, in bytes [default: 100].
    #[arg(long, value_name = "BYTES")]
    pub value_size: Option<usize>,
}

/// The engines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineKind {
    /// A hash map and a tree in memory, lost at the end.
    #[default]
    Memory,
    /// RocksDB, in files.
    Rocksdb,
    /// RocksDB, in plain tables that are mapped into memory: for a file system in memory.
    RocksdbPlain,
}

/// All settings of a start.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    /// The runtime's settings.
    pub runtime: Config,
    /// The server's own settings.
    pub kv: KvTable,
    /// The transport's settings.
    pub tcp: TcpTable,
}

/// The table `[kv]`. The keys are the options of the same names.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "they stand with the options")]
pub struct KvTable {
    pub listen: SocketAddr,
    pub engine: EngineKind,
    pub data: Option<PathBuf>,
    pub core: Option<usize>,
    pub load: u64,
    pub value_size: usize,
}

impl Default for KvTable {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 6380)),
            engine: EngineKind::default(),
            data: None,
            core: None,
            load: 0,
            value_size: 100,
        }
    }
}

/// The table `[tcp]`: settings of [`TcpConfig`] under their names there, times in seconds.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "they stand with TcpConfig")]
pub struct TcpTable {
    pub connections: Option<usize>,
    pub max_request: usize,
    pub large_buffers: usize,
    pub max_reply: usize,
    pub reply_memory: usize,
    pub write_timeout_s: f64,
    pub request_timeout_s: f64,
    pub idle_timeout_s: Option<f64>,
}

impl Default for TcpTable {
    fn default() -> Self {
        Self {
            connections: None,
            max_request: 8 << 20,
            large_buffers: 16,
            max_reply: 64 << 20,
            reply_memory: 256 << 20,
            write_timeout_s: 10.0,
            request_timeout_s: 30.0,
            idle_timeout_s: None,
        }
    }
}

impl TcpTable {
    /// The configuration of the transport that listens at `listen`.
    ///
    /// # Errors
    /// If a time is impossible.
    pub fn config(&self, listen: SocketAddr) -> Result<TcpConfig> {
        let time = |name, seconds| {
            Duration::try_from_secs_f64(seconds)
                .with_context(|| format!("[tcp] {name} is {seconds}, not a time in seconds"))
        };
        let mut config = TcpConfig::new(listen)
            .max_request(self.max_request)
            .large_buffers(self.large_buffers)
            .max_reply(self.max_reply)
            .reply_memory(self.reply_memory)
            .write_timeout(time("write_timeout_s", self.write_timeout_s)?)
            .request_timeout(time("request_timeout_s", self.request_timeout_s)?);
        if let Some(connections) = self.connections {
            config = config.connections(connections);
        }
        if let Some(seconds) = self.idle_timeout_s {
            config = config.idle_timeout(Some(time("idle_timeout_s", seconds)?));
        }
        Ok(config)
    }
}

/// The file, table by table.
#[derive(Default)]
struct File {
    runtime: Config,
    has_classes: bool,
    kv: KvTable,
    tcp: TcpTable,
}

impl File {
    fn read(path: &PathBuf) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("in {}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut table: toml::Table = text.parse()?;
        let mut own = |name| table.remove(name).unwrap_or(toml::Table::new().into());
        let kv = own("kv").try_into().context("table [kv]")?;
        let tcp = own("tcp").try_into().context("table [tcp]")?;
        Ok(Self {
            has_classes: table.contains_key("class"),
            kv,
            tcp,
            runtime: table.try_into()?,
        })
    }
}

impl Options {
    /// The file's configuration, changed by the options. Each part checks its values when it
    /// starts.
    ///
    /// # Errors
    /// A file that cannot be read or is not a configuration; classes other than this server's.
    pub fn configuration(&self) -> Result<Configuration> {
        let file = match &self.config {
            Some(path) => File::read(path)?,
            None => File::default(),
        };
        let File {
            mut runtime,
            mut kv,
            tcp,
            has_classes,
        } = file;
        if !has_classes {
            runtime.class = Class::NAMES.map(ClassConfig::new).into();
        }
        let names: Vec<&str> = runtime.class.iter().map(|class| &class.name[..]).collect();
        ensure!(
            names == Class::NAMES,
            "the classes are {}, in this order, not {}",
            Class::NAMES.join(" and "),
            names.join(", ")
        );
        for (class, slo) in runtime.class.iter_mut().zip(SLO_US) {
            class.slo_us = class.slo_us.or(Some(slo));
        }
        for (class, slo) in &self.slo {
            runtime.class[usize::from(class.id().0)].slo_us = Some(*slo);
        }
        if let Some(policy) = self.policy {
            runtime.policy.kind = policy.into();
        }
        runtime.workers = self.workers.or(runtime.workers);
        runtime.layout = self.layout.unwrap_or(runtime.layout);
        runtime.preemption.mechanism = self.preemption.unwrap_or(runtime.preemption.mechanism);
        runtime.policy.quantum_us = self.quantum.unwrap_or(runtime.policy.quantum_us);

        kv.listen = self.listen.unwrap_or(kv.listen);
        kv.engine = self.engine.unwrap_or(kv.engine);
        kv.data = self.data.clone().or(kv.data);
        kv.core = self.core.or(kv.core);
        kv.load = self.load.unwrap_or(kv.load);
        kv.value_size = self.value_size.unwrap_or(kv.value_size);
        if kv.engine == EngineKind::Memory && kv.data.is_some() {
            bail!("--data is for engines that keep their data in files: add --engine rocksdb");
        }
        Ok(Configuration { runtime, kv, tcp })
    }
}

/// Reads one of the names that the configuration file uses.
fn named<T: DeserializeOwned>(name: &str) -> Result<T, Error> {
    T::deserialize(name.into_deserializer())
}

/// `get=50us`
fn slo(text: &str) -> Result<(Class, f64), String> {
    let (class, time) = text.split_once('=').ok_or("a class, =, a time: get=50us")?;
    let class = match class {
        "get" => Class::Get,
        "scan" => Class::Scan,
        _ => return Err(format!("the classes are {}", Class::NAMES.join(" and "))),
    };
    Ok((class, micros(time)?))
}

/// `50us`, `5ms`, `1s`, in microseconds.
fn micros(text: &str) -> Result<f64, String> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
    units
        .into_iter()
        .find_map(|(unit, factor)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * factor))
        .filter(|time| time.is_finite() && *time > 0.0)
        .ok_or_else(|| "a time, such as 50us, 5ms or 1s".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn configuration(arguments: &[&str]) -> Result<Configuration> {
        Options::try_parse_from([&["kv"], arguments].concat())?.configuration()
    }

    #[test]
    fn options_go_before_the_file_and_the_file_before_the_default() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "workers = 3\ncores = { share = true }\n[policy]\nquantum_us = 7\n[kv]\nload = 9\ncore = 1\n[tcp]\nconnections = 12\n";
        std::fs::write(&file, text).unwrap();
        let path = file.path().to_str().unwrap();
        let options = [
            "--config",
            path,
            "--quantum",
            "9.5us",
            "--policy",
            "c-pre-mq",
            "--slo",
            "scan=2ms",
            "--load",
            "5",
        ];
        let read = configuration(&options).unwrap();
        assert_eq!(read.runtime.workers, Some(3));
        assert_eq!(read.runtime.policy.quantum_us, 9.5);
        assert_eq!(read.runtime.policy.kind, "c-pre-mq".into());
        let slo: Vec<_> = read
            .runtime
            .class
            .iter()
            .map(|class| class.slo_us)
            .collect();
        assert_eq!(slo, [Some(50.0), Some(2000.0)]);
        assert_eq!(
            (read.kv.load, read.kv.core, read.tcp.connections),
            (5, Some(1), Some(12))
        );
        read.runtime.validate().unwrap();

        let read = configuration(&["--preemption", "none", "--layout", "inline"]).unwrap();
        assert_eq!(read.runtime.preemption.mechanism, MechanismKind::None);
        assert_eq!(read.runtime.layout, LayoutKind::Inline);
        assert_eq!(
            (read.kv, read.tcp),
            (KvTable::default(), TcpTable::default())
        );
    }

    #[test]
    fn mistakes_are_named() {
        let said = |arguments: &[&str]| format!("{:#}", configuration(arguments).unwrap_err());
        assert!(said(&["--slo", "set=1us"]).contains("get and scan"));
        assert!(said(&["--slo", "get=1"]).contains("such as 50us"));
        assert!(said(&["--quantum=-1us"]).contains("such as 50us"));
        assert!(said(&["--preemption", "hope"]).contains("escalation"));
        assert!(said(&["--data", "/tmp"]).contains("--engine rocksdb"));
        assert!(said(&["--config", "/no/such/file.toml"]).contains("/no/such/file.toml"));
        let parsed = |text: &str| format!("{:#}", File::parse(text).err().unwrap());
        assert!(parsed("[kv]\nport = 1\n").contains("port"));
        assert!(parsed("[tcp]\nport = 1\n").contains("[tcp]"));
        assert!(parsed("wokers = 1\n").contains("wokers"));
    }
}
