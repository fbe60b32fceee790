//! A port of DPDK's as a configuration file has it.

use serde::Deserialize;
use shinjuku_dpdk_sys::{DpdkError, Eal, EalConfig, PortConfig};

use super::{DpdkDevice, Nic, NicConfig, Spread};

/// Memory for virtual devices, in MiB, if nothing is said of it.
const MEMORY_MIB: u32 = 256;
/// What `memory_mib` may be: up to 1 TiB.
const MEMORY_RANGE: std::ops::RangeInclusive<u32> = 16..=1 << 20;

/// DPDK and one of its ports: plain fields, in code and in TOML under the same names; all but
/// `device` may be left out, an unknown key is an error. Values are checked by
/// [`open`](Self::open).
///
/// ```
/// # use shinjuku_dataplane::dpdk::DpdkConfig;
/// # let virtual_device: Result<DpdkConfig, _> = toml::from_str(r#"
/// device = "net_memif0,role=server,socket=/run/shinjuku.sock,socket-abstract=no"
/// # "#);
/// # virtual_device.unwrap();
/// # let card: Result<DpdkConfig, _> = toml::from_str(r#"
/// device = "0000:01:00.0"
/// eal = ["-a", "0000:01:00.0", "--in-memory"]
/// memory_mib = 1024
/// dispatchers = 2
/// # "#);
/// # card.unwrap();
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct DpdkConfig {
    /// The device: a virtual one's driver, number and parameters, as after `--vdev=`; or a PCI
    /// address.
    ///
    /// A memif's socket is best a file (`socket-abstract=no`) in a directory that is this user's
    /// alone, which is made if there is none; its path may be relative. Any process that can
    /// connect to it can end this one, server or client: DPDK's driver aborts at messages that it
    /// does not expect, which no code above can catch. Any local process can connect to an abstract
    /// socket, the driver's default.
    pub device: String,
    /// What DPDK's environment abstraction layer is told, its command line. Default: what suits
    /// virtual devices, ordinary memory, no huge pages and no PCI; of messages only errors. For a
    /// PCI device it must be given.
    pub eal: Option<Vec<String>>,
    /// The memory that DPDK takes at its start, in MiB, 16 to 1048576: room for all dispatchers'
    /// mbufs, of some 2.5 KiB each. Default 256; with `eal`, what that says, or as DPDK has it.
    pub memory_mib: Option<u32>,
    /// The core of DPDK's own threads: off those that poll and work. Default: any that the process
    /// may use.
    pub core: Option<usize>,
    /// Dispatchers, 1 to 64, each with a device. Default 1.
    pub dispatchers: Option<usize>,
    /// The most of the device's queues to use, 1 to 64. Default: as many as there are dispatchers;
    /// of a memif 1, both of whose ends must use as many.
    pub queues: Option<usize>,
    /// What spreads requests over them: `auto`, `device` or `software`. Default `auto`.
    #[serde(default)]
    pub spread: Spread,
    /// Mbufs for each dispatcher, best a power of two less one: more than both queues' descriptors
    /// and what the runtime admits. Default 4095.
    pub mbufs: Option<u32>,
    /// Packets that a receive queue holds. Default 512.
    pub rx_descriptors: Option<u16>,
    /// Packets that a send queue holds. Default 512.
    pub tx_descriptors: Option<u16>,
    /// Whether the device computes checksums, where it can. Default true.
    pub checksums: Option<bool>,
}

impl DpdkConfig {
    /// This device, with the defaults of everything else.
    #[must_use]
    pub fn new(device: impl Into<String>) -> Self {
        Self {
            device: device.into(),
            ..Self::default()
        }
    }

    /// Starts DPDK, if it does not run yet, makes the device, if there is none of this name, and
    /// opens its port for packets of up to `mtu` bytes.
    ///
    /// # Errors
    /// A setting out of range, a device that cannot be had, or what DPDK says.
    pub fn open(&self, mtu: usize) -> Result<(Nic, Vec<DpdkDevice>), DpdkError> {
        if let Some(memory) = self.memory_mib
            && !MEMORY_RANGE.contains(&memory)
        {
            return Err(DpdkError::Argument {
                argument: format!("memory_mib = {memory}"),
                why: "it must be between 16 and 1048576",
            });
        }
        let eal = match Eal::current() {
            Some(eal) => eal,
            None if self.eal.is_none() && is_pci_address(&self.device) => {
                return Err(DpdkError::Argument {
                    argument: self.device.clone(),
                    why: "a PCI device, and without `eal` there is no PCI; set eal = [\"-a\", ADDRESS], and what memory DPDK is to \
                          take",
                });
            }
            None => Eal::init(&self.eal())?,
        };
        let name = self.device.split(',').next().unwrap_or_default();
        let port = match eal.port(name) {
            Err(DpdkError::NoPort { .. }) => eal.attach(&self.device)?,
            found => found?,
        };
        Nic::open(port, self.nic(mtu))
    }

    fn eal(&self) -> EalConfig {
        let config = match (&self.eal, self.memory_mib) {
            (None, memory) => EalConfig::without_hardware(memory.unwrap_or(MEMORY_MIB)),
            (Some(arguments), None) => EalConfig::new(arguments),
            (Some(arguments), Some(memory)) => EalConfig::new(arguments)
                .argument("-m")
                .argument(&memory.to_string()),
        };
        match self.core {
            Some(core) => config.core(core),
            None => config,
        }
    }

    fn nic(&self, mtu: usize) -> NicConfig {
        let default = PortConfig::default();
        let port = PortConfig {
            rx_descriptors: self.rx_descriptors.unwrap_or(default.rx_descriptors),
            tx_descriptors: self.tx_descriptors.unwrap_or(default.tx_descriptors),
            // No device has one longer, and then says so.
            mtu: mtu.try_into().unwrap_or(u16::MAX),
            checksums: self.checksums.unwrap_or(default.checksums),
        };
        let config = NicConfig::new().spread(self.spread).port(port);
        let config = match self.dispatchers {
            Some(dispatchers) => config.dispatchers(dispatchers),
            None => config,
        };
        let config = match self.queues {
            Some(queues) => config.queues(queues),
            None => config,
        };
        match self.mbufs {
            Some(mbufs) => config.mbufs(mbufs),
            None => config,
        }
    }
}

/// Whether it is one, with or without a domain and parameters, as in `0000:01:00.0`.
fn is_pci_address(device: &str) -> bool {
    let address = device.split(',').next().unwrap_or_default();
    let hexadecimal =
        |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    address.split_once(':').is_some() && address.split([':', '.']).all(hexadecimal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (text, says) in [
            ("mbufs = 1", ["line 1", "device"]),
            ("device = \"a\"\nmbuf = 1", ["line 2", "mbuf"]),
            ("device = \"a\"\nspread = \"best\"", ["line 2", "software"]),
            (
                "device = \"a\"\nrx_descriptors = 70000",
                ["line 2", "70000"],
            ),
            ("device = \"a\"\neal = \"-a b\"", ["line 2", "sequence"]),
            ("device = \"a\"\nmemory_mib = -1", ["line 2", "-1"]),
        ] {
            let error = toml::from_str::<DpdkConfig>(text).unwrap_err().to_string();
            let all = says.iter().all(|part| error.contains(part));
            assert!(all, "{text}\n{error}");
        }
    }

    #[test]
    fn pci_addresses_are_told_from_virtual_devices() {
        for address in ["0000:01:00.0", "3b:00.1", "0000:01:00.0,mac=1"] {
            assert!(is_pci_address(address), "{address}");
        }
        for device in [
            "net_memif0",
            "net_tap0,mac=02:00:00:00:00:01",
            "",
            ":",
            "add",
        ] {
            assert!(!is_pci_address(device), "{device}");
        }
    }

    #[test]
    fn memory_is_as_the_key_has_it() {
        let eal = |text: &str| {
            let config: DpdkConfig = toml::from_str(text).unwrap();
            format!("{:?}", config.eal())
        };
        let virtual_device = eal("device = \"net_null0\"\nmemory_mib = 64");
        let without_hardware = format!("{:?}", EalConfig::without_hardware(64));
        assert_eq!(virtual_device, without_hardware);
        let card = eal("device = \"0000:01:00.0\"\neal = [\"--in-memory\"]\nmemory_mib = 64");
        let arguments = EalConfig::new(["--in-memory", "-m", "64"]);
        assert_eq!(card, format!("{arguments:?}"));
    }

    #[test]
    fn a_port_is_opened_by_its_settings() {
        // One test for all: DPDK starts once in a process.
        let read = |more: &str| -> DpdkConfig {
            let text = format!("device = \"net_null0,size=60\"\neal = EAL\n{more}");
            let eal = r#"["--no-huge", "--no-pci", "--no-telemetry", "--no-shconf"]
                memory_mib = 64"#;
            toml::from_str(&text.replace("EAL", eal)).unwrap()
        };
        let refuses = |config: &DpdkConfig, mtu, says: [&str; 2]| {
            let error = config.open(mtu).unwrap_err().to_string();
            assert!(says.iter().all(|part| error.contains(part)), "{error}");
        };
        let card = DpdkConfig::new("0000:01:00.0");
        refuses(&card, 1500, ["0000:01:00.0", "eal = [\"-a\""]);
        let little = DpdkConfig {
            memory_mib: Some(15),
            ..read("")
        };
        refuses(&little, 1500, ["memory_mib = 15", "between 16"]);
        refuses(&read("mbufs = 1"), 1500, ["mbufs is 1", "between"]);
        refuses(&read("queues = 0"), 1500, ["queues is 0", "between 1"]);
        let device = "dispatchers = 2\nqueues = 1\nspread = \"device\"";
        refuses(&read(device), 1500, ["dispatchers is 2", "between 1 and 1"]);
        refuses(&read("dispatchers = 65"), 1500, ["dispatchers is 65", "64"]);
        refuses(&read(""), 1_000_000, ["mtu is 65535", "between 68 and"]);
        let nowhere = DpdkConfig::new("net_nothing7,x=1");
        refuses(&nowhere, 1500, ["net_nothing7", "cannot make device"]);
        let two = read("dispatchers = 2\nmbufs = 2047\nspread = \"software\"");
        let (nic, devices) = two.open(1500).unwrap();
        assert_eq!((nic.driver(), devices.len()), ("net_null", 2));
        assert_eq!(nic.pools().len(), 2);
        refuses(&two, 1500, ["net_null0", "in use"]);
    }
}
