//! An interface over AF_XDP as a configuration file has it.

use std::sync::Arc;

use serde::Deserialize;
use shinjuku_xdp_sys::ethernet_address;

use super::{CopyMode, Program, SocketConfig, XdpDevice, XdpError};
use crate::packet::MacAddr;

/// An interface of the kernel's and its queues: plain fields, in code and in TOML under the same
/// names; all but `interface` may be left out, an unknown key is an error. Values are checked by
/// [`open`](Self::open).
///
/// ```
/// # use shinjuku_dataplane::xdp::XdpConfig;
/// # let config: Result<XdpConfig, _> = toml::from_str(r#"
/// interface = "eth1"
/// queues = 2
/// copy = "zero-copy"
/// # "#);
/// # config.unwrap();
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct XdpConfig {
    /// The interface, by the kernel's name.
    pub interface: String,
    /// How many of its queues, 1 to 1024, from the first on: all that the device spreads frames
    /// over, one for each dispatcher. Default 1.
    pub queues: Option<u32>,
    /// Whether the kernel copies frames: `auto`, `copy` or `zero-copy`, which not every device can.
    /// Default `auto`.
    #[serde(default, with = "CopyWord")]
    pub copy: CopyMode,
    /// Frames of each queue, 2 to 2^20. Default 4096.
    pub frames: Option<u32>,
    /// Bytes of the memory of a frame, 2048 or 4096. Default 2048.
    pub chunk: Option<u32>,
    /// Entries of each ring, a power of two, 1 to 32768. Default 1024.
    pub ring: Option<u32>,
}

/// Its words in TOML. xdp-sys knows nothing of serde.
#[derive(Deserialize)]
#[serde(remote = "CopyMode", rename_all = "kebab-case")]
enum CopyWord {
    Auto,
    Copy,
    ZeroCopy,
}

impl XdpConfig {
    /// This interface, with the defaults of everything else.
    #[must_use]
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            ..Self::default()
        }
    }

    /// Opens all queues, a device each, and tells the interface's Ethernet address.
    ///
    /// # Errors
    /// A setting out of range, no such interface, a queue that is taken or that the interface does
    /// not have, or no permission.
    pub fn open(&self) -> Result<(MacAddr, Vec<XdpDevice>), XdpError> {
        let mac = MacAddr(ethernet_address(&self.interface)?);
        let queues = self.queues.unwrap_or(1);
        let program = Arc::new(Program::attach(&self.interface, queues)?);
        let default = SocketConfig::default();
        let config = SocketConfig {
            frames: self.frames.unwrap_or(default.frames),
            chunk: self.chunk.unwrap_or(default.chunk),
            ring: self.ring.unwrap_or(default.ring),
            copy: self.copy,
        };
        let devices = (0..queues).map(|queue| XdpDevice::open(&program, queue, config));
        Ok((mac, devices.collect::<Result<_, _>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (text, says) in [
            ("queues = 1", ["line 1", "interface"]),
            ("interface = \"a\"\nqueue = 1", ["line 2", "queue"]),
            (
                "interface = \"a\"\ncopy = \"zero\"",
                ["line 2", "zero-copy"],
            ),
            ("interface = \"a\"\nframes = -1", ["line 2", "-1"]),
        ] {
            let error = toml::from_str::<XdpConfig>(text).unwrap_err().to_string();
            let all = says.iter().all(|part| error.contains(part));
            assert!(all, "{text}\n{error}");
        }
        let nowhere: XdpConfig = toml::from_str("interface = \"shinjuku-none\"").unwrap();
        let error = nowhere.open().unwrap_err().to_string();
        assert!(error.contains("shinjuku-none"), "{error}");
    }
}
