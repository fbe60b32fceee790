//! Network interfaces: in which mode they run XDP programs, for the rack and for AF_XDP sockets.

use shinjuku_xdp_sys::{XdpError, XdpFeatures, xdp_features};

use super::finding::Finding;
use super::root::Root;

/// Looks at the interfaces of this network namespace.
pub fn examine(root: &Root) -> Vec<Finding> {
    let entries = std::fs::read_dir(root.path("/sys/class/net"));
    let names = entries.into_iter().flatten().flatten();
    let mut names: Vec<_> = names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    vec![modes(&names, xdp_features)]
}

fn modes(names: &[String], features: impl Fn(&str) -> Result<XdpFeatures, XdpError>) -> Finding {
    const WHAT: &str = "XDP";
    let mut modes = Vec::new();
    for name in names {
        match features(name) {
            Ok(features) => modes.push(format!("{name}: {features}")),
            // It has gone meanwhile, or is a file that is no interface.
            Err(XdpError::NoInterface { .. }) => {}
            Err(error) => {
                let advice = "Linux 6.3 and later tell; the rack's `mode = \"auto\"` tries the driver's mode by itself";
                return Finding::missing(WHAT, error.to_string(), advice);
            }
        }
    }
    match modes.is_empty() {
        true => Finding::missing(
            WHAT,
            "there is no network interface",
            "add one to this network namespace",
        ),
        false => Finding::found(WHAT, modes.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn every_interface_has_a_mode_or_there_is_advice() {
        let names = ["eth0", "gone"].map(str::to_owned);
        let gone = |interface: &str| XdpError::NoInterface {
            interface: interface.to_owned(),
            cause: io::ErrorKind::NotFound.into(),
        };
        let none = modes(&names, |name| Err(gone(name)));
        assert!(!none.found && none.advice.is_some());
        let untold = modes(&names, |_| {
            Err(XdpError::System {
                action: "ask",
                cause: io::ErrorKind::Unsupported.into(),
            })
        });
        assert!(
            !untold.found && untold.detail.contains("cannot ask"),
            "{untold}"
        );
    }
}
