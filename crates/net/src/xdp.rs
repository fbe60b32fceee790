//! A dataplane's device over AF_XDP: an interface of the kernel's, past its stack, without DPDK.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use shinjuku_net::dataplane::{Dataplane, DataplaneConfig, InterfaceConfig};
//! use shinjuku_net::xdp::{Program, SocketConfig, XdpDevice};
//!
//! let program = Arc::new(Program::attach("eth1", 1)?);
//! let device = XdpDevice::open(&program, 0, SocketConfig::default())?;
//! println!("{device}");
//! let interface = InterfaceConfig::new("02:00:00:00:00:01".parse()?, "10.0.0.1".parse()?, &[9000]);
//! let dataplane = Dataplane::new(device, DataplaneConfig::new(interface))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! All frames of a queue with a socket come here: the interface is the dataplane's, and the kernel's stack sees no more of
//! that queue. One [`Program`] serves all queues of an interface, one [`XdpDevice`] each; where the device spreads frames
//! over queues (RSS, `ethtool -L`, `-X`), every queue that it uses needs one.
//!
//! Nothing is offloaded: AF_XDP hands on no checksum that the device has verified, and computes none. A veth's other end
//! must send complete checksums: `ethtool -K NAME tx off`.
//!
//! [`XdpConfig`] is all of that as a table of a configuration file.

mod keys;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use shinjuku_xdp_sys::Socket;
pub use shinjuku_xdp_sys::{Attached, CopyMode, Frame, Program, Queues, SocketConfig, XdpError};

pub use keys::XdpConfig;

use crate::dataplane::{Buffer, Device, Offload, Outbound, Received, Verified};

impl Buffer for Frame {
    fn frame(&self) -> &[u8] {
        self.bytes()
    }

    fn frame_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }

    fn capacity(&self) -> usize {
        Frame::capacity(self)
    }

    fn set_length(&mut self, length: usize) {
        Frame::set_length(self, length);
    }
}

/// A queue of an interface. Displays as what it is: whether frames are copied, and who runs the program.
#[derive(Debug)]
pub struct XdpDevice {
    socket: Socket,
}

impl XdpDevice {
    /// Opens the queue and takes all memory.
    ///
    /// # Errors
    /// A setting out of range, a queue that is taken or that the interface does not have, or no permission.
    pub fn open(
        program: &Arc<Program>,
        queue: u32,
        config: SocketConfig,
    ) -> Result<Self, XdpError> {
        let socket = Socket::open(program, queue, config)?;
        Ok(Self { socket })
    }

    /// Whether frames go to and from the network device without being copied.
    #[must_use]
    pub fn is_zero_copy(&self) -> bool {
        self.socket.is_zero_copy()
    }

    /// Who runs the program that leads frames here.
    #[must_use]
    pub fn attached(&self) -> Attached {
        self.socket.program().attached()
    }

    /// What the kernel has dropped.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn queues(&self) -> std::io::Result<Queues> {
        self.socket.queues()
    }

    /// How many frames are here or with the kernel; the others are with requests.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.socket.free_frames() + self.socket.kernel_frames()
    }
}

impl fmt::Display for XdpDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let copy = if self.is_zero_copy() {
            "zero-copy"
        } else {
            "copy"
        };
        let program = match self.attached() {
            Attached::Driver => "the driver",
            Attached::Generic => "the kernel's generic hook",
        };
        write!(formatter, "AF_XDP, {copy} mode, program run by {program}")
    }
}

impl Device for XdpDevice {
    type Buffer = Frame;

    fn offload(&self) -> Offload {
        Offload::default()
    }

    fn receive(&mut self, most: usize, frames: &mut Vec<Received<Frame>>) {
        self.socket.receive(most, |buffer| {
            frames.push(Received {
                buffer,
                verified: Verified::default(),
            });
        });
    }

    fn transmit(&mut self, frames: &mut Vec<Outbound<Frame>>) {
        let room = self.socket.room().min(frames.len());
        for Outbound { buffer, .. } in frames.drain(..room) {
            // There is room; what is refused is no frame, or another device's.
            if let Err(buffer) = self.socket.transmit(buffer) {
                self.socket.free(buffer);
            }
        }
        self.socket.flush();
    }

    fn allocate(&mut self) -> Option<Frame> {
        self.socket.allocate()
    }

    fn free(&mut self, buffer: Frame) {
        self.socket.free(buffer);
    }

    fn wait(&mut self, patience: Duration) {
        let limit = Timespec::try_from(patience).ok();
        let mut sockets = [PollFd::new(&self.socket, PollFlags::IN)];
        // An error (a signal came) is an early return, which is allowed.
        let _ = rustix::event::poll(&mut sockets, limit.as_ref());
        let broken = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        if sockets[0].revents().intersects(broken) {
            // The interface has gone: what will not wait must not make a busy loop.
            std::thread::sleep(patience.min(Duration::from_millis(1)));
        }
    }
}
