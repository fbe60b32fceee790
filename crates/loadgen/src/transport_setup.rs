//! How datagrams travel: through sockets, or a device without the kernel.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Deserializer};
use shinjuku_dataplane::{HostAddress, MacAddr};

use crate::dataplane::{Line, Place};
use crate::error::LoadError;
use crate::settings::Settings;

/// How datagrams travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// The kernel's sockets.
    #[default]
    Sockets,
    /// A device of DPDK's.
    Dpdk,
    /// AF_XDP on an interface of the kernel's.
    Xdp,
}

/// Whether AF_XDP copies frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Copying {
    /// It does not if the device can do without.
    #[default]
    Auto,
    /// It does.
    Copy,
    /// It does not; devices that need copying are refused.
    ZeroCopy,
}

/// A list of words: in a plan a list, or (as on the command line) one text, split at its spaces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Words(pub Vec<String>);

impl FromStr for Words {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.split_whitespace().map(str::to_owned).collect()))
    }
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a list of texts, or one text")]
        enum Written {
            Text(String),
            List(Vec<String>),
        }
        Ok(match Written::deserialize(deserializer)? {
            Written::Text(text) => text.parse().unwrap_or_else(|never| match never {}),
            Written::List(list) => Self(list),
        })
    }
}

/// A transport without the kernel, as the settings describe it.
pub(crate) struct TransportSetup {
    address: HostAddress,
    mac: Option<MacAddr>,
    gateway: Option<Ipv4Addr>,
    maker: OpenDevice,
}

type OpenDevice = Box<dyn FnOnce(Place) -> Line>;

impl TransportSetup {
    /// Reads the settings; `None`: sockets.
    ///
    /// # Errors
    /// The transport does not have a given setting, lacks a needed one, or was not built in.
    pub(crate) fn of(settings: &Settings) -> Result<Option<Self>, LoadError> {
        const EITHER: &str = "dpdk or xdp";
        let transport = settings.transport.unwrap_or_default();
        let (dpdk, xdp) = (transport == Transport::Dpdk, transport == Transport::Xdp);
        let either = dpdk || xdp;
        for (key, given, allowed, of) in [
            ("address", settings.address.is_some(), either, EITHER),
            ("mac", settings.mac.is_some(), either, EITHER),
            ("gateway", settings.gateway.is_some(), either, EITHER),
            ("device", settings.device.is_some(), dpdk, "dpdk"),
            ("eal", settings.eal.is_some(), dpdk, "dpdk"),
            ("interface", settings.interface.is_some(), xdp, "xdp"),
            ("copying", settings.copying.is_some(), xdp, "xdp"),
        ] {
            if given && !allowed {
                return refuse(key, format!("it goes with transport {of}"));
            }
        }
        let maker = match transport {
            Transport::Sockets => return Ok(None),
            Transport::Dpdk => by_dpdk(settings)?,
            Transport::Xdp => by_xdp(settings)?,
        };
        let Some(address) = settings.address else {
            let what = "say which is the client's own, such as 10.0.0.2/24";
            return refuse("address", what.to_owned());
        };
        let (mac, gateway) = (settings.mac, settings.gateway);
        Ok(Some(Self {
            address,
            mac,
            gateway,
            maker,
        }))
    }

    /// The line to this server; it is opened when it is needed.
    pub(crate) fn line(self, server: SocketAddrV4) -> Line {
        (self.maker)(Place {
            address: self.address,
            mac: self.mac,
            gateway: self.gateway,
            server,
        })
    }
}

#[cfg(feature = "dpdk")]
fn by_dpdk(settings: &Settings) -> Result<OpenDevice, LoadError> {
    use shinjuku_dataplane::dpdk::DpdkConfig;

    let Some(device) = settings.device.clone() else {
        let what = "name DPDK's, such as net_memif0,socket=/run/memif.sock, or a PCI address";
        return refuse("device", what.to_owned());
    };
    let mut config = DpdkConfig::new(device);
    config.eal = settings.eal.clone().map(|words| words.0);
    Ok(Box::new(|place| crate::dataplane::dpdk(config, place)))
}

#[cfg(feature = "xdp")]
fn by_xdp(settings: &Settings) -> Result<OpenDevice, LoadError> {
    use shinjuku_dataplane::xdp::{CopyMode, XdpConfig};

    let Some(interface) = settings.interface.clone() else {
        return refuse("interface", "name one, such as eth1".to_owned());
    };
    let mut config = XdpConfig::new(interface);
    config.copy = match settings.copying.unwrap_or_default() {
        Copying::Auto => CopyMode::Auto,
        Copying::Copy => CopyMode::Copy,
        Copying::ZeroCopy => CopyMode::ZeroCopy,
    };
    Ok(Box::new(|place| crate::dataplane::xdp(config, place)))
}

#[cfg(not(feature = "dpdk"))]
fn by_dpdk(_: &Settings) -> Result<OpenDevice, LoadError> {
    let takes =
        "; that takes libdpdk 22.11 or later (Debian: apt-get install libdpdk-dev pkg-config)";
    not_built("dpdk", takes)
}

#[cfg(not(feature = "xdp"))]
fn by_xdp(_: &Settings) -> Result<OpenDevice, LoadError> {
    not_built("xdp", "")
}

#[cfg(not(all(feature = "dpdk", feature = "xdp")))]
fn not_built(feature: &str, takes: &str) -> Result<OpenDevice, LoadError> {
    let what = format!(
        "{feature} was not built in; build with its feature, cargo build --release -p shinjuku-loadgen --features {feature}{takes}"
    );
    refuse("transport", what)
}

fn refuse<T>(key: &'static str, what: String) -> Result<T, LoadError> {
    Err(LoadError::Setting { key, what })
}
