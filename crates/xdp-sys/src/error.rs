//! Errors of an AF_XDP socket.

use std::io;

/// Why a program or a socket could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum XdpError {
    /// A setting is out of its range.
    #[error("AF_XDP: {setting} is {value}, but must be {allowed}")]
    Setting {
        setting: &'static str,
        /// What it was set to.
        value: u64,
        allowed: &'static str,
    },
    /// The machine has no such interface, in this network namespace.
    #[error("AF_XDP: there is no network interface {interface} in this network namespace: {cause}")]
    NoInterface {
        interface: String,
        /// What the operating system said.
        cause: io::Error,
    },
    /// The interface is not an Ethernet one.
    #[error("AF_XDP: {interface} is no Ethernet interface; choose another")]
    NotEthernet { interface: String },
    /// This user has no permission.
    #[error(
        "AF_XDP: cannot {action}: permission denied; it takes CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, or root"
    )]
    Permission { action: &'static str },
    /// Frames were not to be copied, but the interface's driver can only copy.
    #[error("AF_XDP: the interface's driver cannot do without copying frames: let it (copy mode)")]
    MustCopy,
    /// Another program or socket has it.
    #[error(
        "AF_XDP: cannot {action}: busy; another XDP program or socket has the interface's queue. `ip link show` names \
         the program, `ip link set dev NAME xdp off` takes it away"
    )]
    Busy { action: &'static str },
    /// The operating system refused for another reason.
    #[error("AF_XDP: cannot {action}: {cause}")]
    System {
        action: &'static str,
        /// What the operating system said.
        cause: io::Error,
    },
}

impl XdpError {
    /// For `map_err`: the operating system refused `action`.
    pub(crate) fn system<E: Into<io::Error>>(action: &'static str) -> impl Fn(E) -> Self {
        move |cause| {
            let cause = cause.into();
            match cause.kind() {
                io::ErrorKind::PermissionDenied => Self::Permission { action },
                io::ErrorKind::ResourceBusy => Self::Busy { action },
                _ => Self::System { action, cause },
            }
        }
    }
}
