//! Errors, each with a remedy.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::path::PathBuf;

use crate::{ffi, memif};

/// An error number of DPDK's; displayed as DPDK's own text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(c_int);

impl Errno {
    /// Checks a function that returns a negative number on failure.
    pub(crate) fn check(status: c_int) -> Result<(), Self> {
        if status < 0 {
            Err(Self(-status))
        } else {
            Ok(())
        }
    }

    /// The number, as `<errno.h>` or `rte_errno.h` has it.
    #[must_use]
    pub fn number(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: any number is allowed; the text is constant, or in a buffer of this thread's that
        // the next call on this thread writes to.
        let text = unsafe { CStr::from_ptr(ffi::dpdk_strerror(self.0)) };
        write!(formatter, "{} ({})", text.to_string_lossy(), self.0)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// Why an operation of DPDK's failed. DPDK writes details to standard error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum DpdkError {
    /// [`Eal::init`](crate::Eal::init) was called before.
    #[error(
        "DPDK: started already; a process can start it once: pass the Eal on, or take Eal::current()"
    )]
    Started,
    /// [`Eal::init`](crate::Eal::init) was called before, and failed.
    #[error(
        "DPDK: an earlier start failed, and a process can try once: correct the configuration and start the program anew"
    )]
    FailedBefore,
    /// An argument that cannot be passed on.
    #[error("DPDK: argument {argument:?}: {why}")]
    Argument {
        argument: String,
        /// What is wrong with it, and what to do.
        why: &'static str,
    },
    /// This crate's declarations differ from the library's.
    #[error(
        "DPDK {version}: {what} is {of_c} there and {of_rust} in shinjuku-dpdk-sys: use DPDK 22.11 as Debian builds it, \
         or correct ffi.rs"
    )]
    Layout {
        version: String,
        what: &'static str,
        of_rust: u64,
        of_c: u64,
    },
    /// DPDK did not start.
    #[error(
        "DPDK: cannot start with arguments {arguments:?}: {cause}; DPDK's own lines above say at what. Without huge \
         pages, add --no-huge and -m (as EalConfig::without_hardware does); for devices, check permissions and names"
    )]
    Start {
        /// The arguments it was given.
        arguments: Vec<String>,
        cause: Errno,
    },
    /// The thread that starts DPDK could not be created or pinned.
    #[error("DPDK: cannot {action}: {cause}")]
    Thread {
        action: &'static str,
        /// What the operating system said.
        cause: std::io::Error,
    },
    /// A pool could not be made.
    #[error(
        "DPDK: cannot make pool {name:?} of {mbufs} mbufs with {data_room} bytes each: {cause}; give DPDK more memory \
         (-m, or huge pages), use another name, or fewer mbufs"
    )]
    Pool {
        name: String,
        mbufs: u32,
        /// Bytes a packet may have.
        data_room: u16,
        cause: Errno,
    },
    /// A virtual device could not be made.
    #[error(
        "DPDK: cannot make device {device:?}: {cause}; {}",
        what_a_device_wants(device)
    )]
    Device { device: String, cause: Errno },
    /// The socket of a memif could not be prepared.
    #[error("DPDK: cannot {action} {}: {cause}", path.display())]
    Socket {
        action: &'static str,
        path: PathBuf,
        /// What the operating system said.
        cause: std::io::Error,
    },
    /// There is no such port.
    #[error(
        "DPDK: no port {name:?} ({cause}); name a device that DPDK was started with, or attach it"
    )]
    NoPort { name: String, cause: Errno },
    /// The port is in use.
    #[error("DPDK: port {name:?} is in use in this process")]
    PortTaken { name: String },
    /// A setting is out of the device's, or this crate's, range.
    #[error("DPDK: port {port:?}: {setting} is {value}, but must be between {least} and {most}")]
    Setting {
        port: String,
        setting: &'static str,
        /// What it was set to.
        value: usize,
        least: usize,
        most: usize,
    },
    /// Something asked of a port failed.
    #[error(
        "DPDK: port {port:?}: cannot {action}: {cause}{}",
        of_its_other_end(port, action)
    )]
    Port {
        port: String,
        action: &'static str,
        cause: Errno,
    },
    /// A reset needs all queues at rest, and some are not polled.
    #[error(
        "DPDK: port {port:?}: queue {queue} was not polled in time, so the device cannot be reset; poll or drop every queue"
    )]
    QueueBusy { port: String, queue: usize },
}

/// What to check when a virtual device cannot be made.
fn what_a_device_wants(device: &str) -> &'static str {
    if memif::is_one(device) {
        return "check its parameters, and that no other server is using this socket. (A socket that is a file, with \
                socket-abstract=no, must be in a directory that this user may write to.)";
    }
    "check driver, name and parameters, whether the interface is there, and whether this user may: packet sockets and taps \
     take root, or CAP_NET_RAW and CAP_NET_ADMIN. (Drivers say \"Operation not permitted\" of anything.)"
}

/// What to check when a port fails that needs another process.
fn of_its_other_end(port: &str, action: &str) -> &'static str {
    if memif::is_one(port) && action == "start" {
        return "; of a memif, start the server first, and give the client the server's socket";
    }
    ""
}
