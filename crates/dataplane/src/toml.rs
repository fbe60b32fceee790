//! Settings as a configuration file has them: what is wrong with one is told with its place.

use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};

use crate::packet::MacAddr;
use crate::{DataplaneConfig, InterfaceConfig, InterfaceError};

/// The table of an [`InterfaceConfig`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InterfaceKeys {
    address: HostAddress,
    ports: Vec<u16>,
    #[serde(default)]
    reply_ports: Vec<u16>,
    mac: Option<MacAddr>,
    gateway: Option<Ipv4Addr>,
    mtu: Option<usize>,
    neighbours: Option<usize>,
    #[serde(default)]
    neighbour: Vec<Neighbour>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Neighbour {
    ip: Ipv4Addr,
    mac: MacAddr,
}

impl TryFrom<InterfaceKeys> for InterfaceConfig {
    type Error = InterfaceError;

    fn try_from(keys: InterfaceKeys) -> Result<Self, InterfaceError> {
        let default = Self::at(keys.address, &keys.ports);
        let config = Self {
            mac: keys.mac,
            reply_ports: keys.reply_ports,
            gateway: keys.gateway,
            mtu: keys.mtu.unwrap_or(default.mtu),
            neighbours: keys.neighbours.unwrap_or(default.neighbours),
            given: (keys.neighbour.iter())
                .map(|one| (one.ip, one.mac))
                .collect(),
            ..default
        };
        config.check_all_but_missing()?;
        Ok(config)
    }
}

/// The table of a [`DataplaneConfig`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DataplaneKeys {
    interface: InterfaceConfig,
    buffers: Option<usize>,
    batch: Option<usize>,
}

impl TryFrom<DataplaneKeys> for DataplaneConfig {
    type Error = InterfaceError;

    fn try_from(keys: DataplaneKeys) -> Result<Self, InterfaceError> {
        let default = Self::new(keys.interface);
        let config = Self {
            buffers: keys.buffers.unwrap_or(default.buffers),
            batch: keys.batch.unwrap_or(default.batch),
            ..default
        };
        config.check()?;
        Ok(config)
    }
}

/// A host's address with how many bits of it name the net, as in `10.0.0.1/24`; 24 where that is
/// left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostAddress {
    /// The address.
    pub ip: Ipv4Addr,
    /// How many bits of it name the net, 0 to 32.
    pub prefix: u8,
}

impl HostAddress {
    /// The bits that name the net where nothing is said of them.
    pub const PREFIX: u8 = 24;
}

impl FromStr for HostAddress {
    type Err = HostAddressError;

    fn from_str(text: &str) -> Result<Self, HostAddressError> {
        let refused = || HostAddressError(text.to_owned());
        let (ip, prefix) = match text.split_once('/') {
            Some((ip, prefix)) => (ip, prefix.parse().map_err(|_| refused())?),
            None => (text, Self::PREFIX),
        };
        let ip = ip.parse().map_err(|_| refused())?;
        (prefix <= 32)
            .then_some(Self { ip, prefix })
            .ok_or_else(refused)
    }
}

impl<'de> Deserialize<'de> for HostAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// A text is not a host's address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not an IPv4 address with how many bits of it name the net, as in 10.0.0.1/24")]
pub struct HostAddressError(String);

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of a dataplane in a file.
    #[derive(Debug, Deserialize)]
    struct File {
        #[expect(dead_code, reason = "only errors are looked at")]
        dataplane: DataplaneConfig,
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        const INTERFACE: &str = "[dataplane.interface]\n";
        const FINE: &str = "address = \"10.0.0.1\"\nports = [1]\n";
        for (text, says) in [
            ("ports = [1]", ["line 1", "address"]),
            ("address = \"10.0.0.1\"", ["line 1", "ports"]),
            (
                "address = \"10.0.0/24\"\nports = [1]",
                ["line 2", "10.0.0/24"],
            ),
            ("ports = [1]\naddress = \"10.0.0.1/33\"", ["line 3", "/33"]),
            (
                "address = \"10.0.0.1\"\nports = [70000]",
                ["line 3", "70000"],
            ),
            ("address = \"10.0.0.1\"\nports = [0]", ["line 1", "port 0"]),
            (
                "address = \"10.0.0.1\"\nports = [7, 8, 7]",
                ["line 1", "port 7 is named twice"],
            ),
            (
                "address = \"10.0.0.0\"\nports = [1]",
                ["line 1", "10.0.0.0/24"],
            ),
        ] {
            refuses(&format!("{INTERFACE}{text}"), says);
        }
        for (text, says) in [
            ("mtu = 1", ["line 1", "mtu is 1"]),
            ("mac = \"1\"", ["line 4", "six pairs"]),
            ("macc = \"02:00:00:00:00:01\"", ["line 4", "macc"]),
            ("mac = \"01:00:00:00:00:00\"", ["line 1", "multicast"]),
            ("neighbour = [{ ip = \"10.0.0.2\" }]", ["line 4", "mac"]),
            ("gateway = \"10.0.1.1\"", ["line 1", "gateway 10.0.1.1"]),
            ("[dataplane]\nbatch = 0", ["line 4", "batch is 0"]),
            ("[dataplane]\nbuffer = 1", ["line 5", "buffer"]),
        ] {
            refuses(&format!("{INTERFACE}{FINE}{text}"), says);
        }
    }

    fn refuses(text: &str, says: [&str; 2]) {
        let error = toml::from_str::<File>(text).unwrap_err().to_string();
        let all = says.iter().all(|part| error.contains(part));
        assert!(all, "{text}\n{error}");
    }

    #[test]
    fn keys_mean_what_the_methods_do() {
        let text = "address = \"10.1.2.3/16\"\nports = [7, 8]\nmac = \"02:00:00:00:00:01\"\ngateway = \"10.1.0.1\"\n\
                    mtu = 9000\nneighbours = 5\nneighbour = [{ ip = \"10.1.0.9\", mac = \"02:00:00:00:00:09\" }]";
        let read: InterfaceConfig = toml::from_str(text).unwrap();
        let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
        let made = InterfaceConfig::new(mac(1), Ipv4Addr::new(10, 1, 2, 3), &[7, 8])
            .prefix(16)
            .gateway(Ipv4Addr::new(10, 1, 0, 1))
            .mtu(9000)
            .neighbours(5)
            .neighbour(Ipv4Addr::new(10, 1, 0, 9), mac(9));
        assert_eq!(format!("{read:?}"), format!("{made:?}"));
    }

    #[test]
    fn the_devices_address_is_taken_where_none_is_given() {
        let read: InterfaceConfig = toml::from_str("address = \"10.0.0.1\"\nports = [1]").unwrap();
        assert!(matches!(read.check(), Err(InterfaceError::NoMac)));
        let (own, device) = (MacAddr([2; 6]), MacAddr([4; 6]));
        let known = read.mac_or(own).mac_or(device);
        assert_eq!(known.check().unwrap(), own);
    }
}
