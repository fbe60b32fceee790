//! Why a rack cannot do what it is told: one type for the whole crate, so a file of its own.

use std::io;
use std::path::PathBuf;

/// An error of a rack.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RackError {
    /// The program was not compiled.
    #[error("built without the XDP program: {0}; install it and build again")]
    NoProgram(&'static str),
    /// The kernel does not let this user do it.
    #[error(
        "the kernel refuses to {0}: this takes root, or CAP_BPF and CAP_NET_ADMIN \
         (setcap cap_bpf,cap_net_admin+ep FILE)"
    )]
    NotPermitted(&'static str),
    /// The kernel does not load the program, or does not attach it.
    #[error("the kernel refuses to {what}: {cause}")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// What it says, its verifier's words included.
        cause: String,
    },
    /// There is no such interface.
    #[error("interface {interface}: {cause}")]
    Interface {
        /// Its name.
        interface: String,
        /// What is wrong.
        cause: io::Error,
    },
    /// An interface has no Ethernet address.
    #[error(transparent)]
    NotEthernet(#[from] shinjuku_xdp_sys::XdpError),
    /// A server's Ethernet address is not known.
    #[error(
        "server {0} does not answer the kernel's ARP: give its mac and interface, or see whether it is there"
    )]
    NoNeighbour(String),
    /// The configuration is wrong.
    #[error("{0}")]
    Config(String),
    /// A file cannot be read.
    #[error("{}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        cause: io::Error,
    },
    /// There is no such server, or one too many.
    #[error("{0}")]
    Server(String),
}
