//! By what datagrams travel: sockets, or a device without the kernel.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Deserializer};
use shinjuku_net::dataplane::HostAddress;
#[cfg(feature = "dpdk")]
use shinjuku_net::dpdk::DpdkConfig;
use shinjuku_net::packet::MacAddr;
#[cfg(feature = "xdp")]
use shinjuku_net::xdp::{CopyMode, XdpConfig};

#[cfg(any(feature = "dpdk", feature = "xdp"))]
use crate::dataplane;
use crate::dataplane::{Line, Place};
use crate::error::LoadError;
use crate::settings::Settings;

/// By what datagrams travel.
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
    /// Not if the device can do without.
    #[default]
    Auto,
    /// It does.
    Copy,
    /// It does not; devices that cannot do without are refused.
    ZeroCopy,
}

/// A list of words: in a plan a list, or as on the command line one text, split at its spaces.
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

/// A way without the kernel, as the settings describe it.
#[derive(Debug)]
pub(crate) struct Way {
    device: Device,
    address: HostAddress,
    mac: Option<MacAddr>,
    gateway: Option<Ipv4Addr>,
}

#[derive(Debug)]
enum Device {
    #[cfg(feature = "dpdk")]
    Dpdk(DpdkConfig),
    #[cfg(feature = "xdp")]
    Xdp(XdpConfig),
}

impl Way {
    /// `None`: by sockets.
    ///
    /// # Errors
    /// Settings that the transport does not have, or that it lacks, or a transport that was not built in.
    pub(crate) fn of(settings: &Settings) -> Result<Option<Self>, LoadError> {
        let transport = settings.transport.unwrap_or_default();
        let (dpdk, xdp) = (transport == Transport::Dpdk, transport == Transport::Xdp);
        for (key, given, allowed, of) in [
            (
                "address",
                settings.address.is_some(),
                dpdk || xdp,
                "dpdk or xdp",
            ),
            ("mac", settings.mac.is_some(), dpdk || xdp, "dpdk or xdp"),
            (
                "gateway",
                settings.gateway.is_some(),
                dpdk || xdp,
                "dpdk or xdp",
            ),
            ("device", settings.device.is_some(), dpdk, "dpdk"),
            ("eal", settings.eal.is_some(), dpdk, "dpdk"),
            ("interface", settings.interface.is_some(), xdp, "xdp"),
            ("copying", settings.copying.is_some(), xdp, "xdp"),
        ] {
            if given && !allowed {
                return refuse(key, format!("it goes with transport {of}"));
            }
        }
        let device = match transport {
            Transport::Sockets => return Ok(None),
            Transport::Dpdk => dpdk_device(settings)?,
            Transport::Xdp => xdp_device(settings)?,
        };
        let Some(address) = settings.address else {
            let what = "say which is the client's own, such as 10.0.0.2/24";
            return refuse("address", what.to_owned());
        };
        let (mac, gateway) = (settings.mac, settings.gateway);
        Ok(Some(Self {
            device,
            address,
            mac,
            gateway,
        }))
    }

    /// To this server; opened when it is needed.
    pub(crate) fn line(self, server: SocketAddrV4) -> Line {
        let _place = Place {
            address: self.address,
            mac: self.mac,
            gateway: self.gateway,
            server,
        };
        match self.device {
            #[cfg(feature = "dpdk")]
            Device::Dpdk(config) => dataplane::dpdk(config, _place),
            #[cfg(feature = "xdp")]
            Device::Xdp(config) => dataplane::xdp(config, _place),
        }
    }
}

#[cfg(feature = "dpdk")]
fn dpdk_device(settings: &Settings) -> Result<Device, LoadError> {
    let Some(device) = settings.device.clone() else {
        let what = "name DPDK's, such as net_memif0,socket=/run/memif.sock, or a PCI address";
        return refuse("device", what.to_owned());
    };
    Ok(Device::Dpdk(DpdkConfig {
        device,
        eal: settings.eal.clone().map(|words| words.0),
        ..DpdkConfig::default()
    }))
}

#[cfg(feature = "xdp")]
fn xdp_device(settings: &Settings) -> Result<Device, LoadError> {
    let Some(interface) = settings.interface.clone() else {
        return refuse("interface", "name one, such as eth1".to_owned());
    };
    Ok(Device::Xdp(XdpConfig {
        interface,
        copy: match settings.copying.unwrap_or_default() {
            Copying::Auto => CopyMode::Auto,
            Copying::Copy => CopyMode::Copy,
            Copying::ZeroCopy => CopyMode::ZeroCopy,
        },
        ..XdpConfig::default()
    }))
}

#[cfg(not(feature = "dpdk"))]
fn dpdk_device(_: &Settings) -> Result<Device, LoadError> {
    not_built(
        "dpdk",
        "; that takes libdpdk 22.11 or later (Debian: apt-get install libdpdk-dev pkg-config)",
    )
}

#[cfg(not(feature = "xdp"))]
fn xdp_device(_: &Settings) -> Result<Device, LoadError> {
    not_built("xdp", "")
}

#[cfg(not(all(feature = "dpdk", feature = "xdp")))]
fn not_built(feature: &str, takes: &str) -> Result<Device, LoadError> {
    let what = format!(
        "{feature} was not built in; build with its feature, cargo build --release -p shinjuku-loadgen --features {feature}{takes}"
    );
    refuse("transport", what)
}

fn refuse<T>(key: &'static str, what: String) -> Result<T, LoadError> {
    Err(LoadError::Setting { key, what })
}
