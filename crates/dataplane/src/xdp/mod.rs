//! A dataplane's device over AF_XDP: an interface of the kernel's, past its stack, without DPDK.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use shinjuku_dataplane::{Dataplane, DataplaneConfig, InterfaceConfig};
//! use shinjuku_dataplane::xdp::{Program, SocketConfig, XdpDevice};
//!
//! let program = Arc::new(Program::attach("eth1", 1)?);
//! let device = XdpDevice::open(&program, 0, SocketConfig::default())?;
//! println!("{device}");
//! let interface = InterfaceConfig::new("02:00:00:00:00:01".parse()?, "10.0.0.1".parse()?, &[9000]);
//! let dataplane = Dataplane::new(device, DataplaneConfig::new(interface))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! All frames of a queue with a socket come here: the interface is the dataplane's, and the
//! kernel's stack sees no more of that queue. One [`Program`] serves all queues of an interface,
//! one [`XdpDevice`] each; where the device spreads frames over queues (RSS, `ethtool -L`, `-X`),
//! every queue that it uses needs one.
//!
//! If the kernel removes the interface, the device waits for another of the same name, looks for it
//! every second, and goes on there; what was to be sent meanwhile is dropped, and all of it counted
//! ([`XdpCounters`]). It should have the same hardware address, which is the
//! [`InterfaceConfig`](crate::InterfaceConfig)'s to say.
//!
//! Nothing is offloaded: AF_XDP hands on no checksum that the device has verified, and computes
//! none. A veth's other end must send complete checksums: `ethtool -K NAME tx off`. Nor does the
//! kernel hand on a VLAN tag that the device has stripped, or that was never in a frame:
//! `ethtool -K NAME rxvlan off`, and `txvlan off` at a veth's other end.
//!
//! [`XdpConfig`] is all of that as a table of a configuration file.

mod counters;
mod supervisor;
mod toml;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use shinjuku_xdp_sys::Socket;
pub use shinjuku_xdp_sys::{Attached, CopyMode, Frame, Program, Queues, SocketConfig, XdpError};

use counters::Shared;
pub use counters::{XdpCounters, XdpCounts};
use supervisor::PortSupervisor;
pub use toml::XdpConfig;

use crate::{Buffer, Device, Offload, Outbound, Received, Room, VerifiedChecksums};

/// What the kernel keeps free before a frame that it received (XDP_PACKET_HEADROOM), in bytes.
const HEADROOM: usize = 256;
/// How many times frames are received between two looks whether the interface is there still.
const LOOK_EVERY: u32 = 1024;

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

/// A queue of an interface. Displays as what it is: whether frames are copied, and whether driver
/// or kernel runs the program.
#[derive(Debug)]
pub struct XdpDevice {
    /// `None`: the interface has gone, and the supervisor looks for another.
    socket: Option<Socket>,
    /// Frames that come back meanwhile.
    spare: Vec<Frame>,
    supervisor: PortSupervisor,
    program: Arc<Program>,
    /// Receipts until the next look.
    until_look: u32,
    room: Room,
    shared: Arc<Shared>,
}

impl XdpDevice {
    /// Opens the queue and takes all memory.
    ///
    /// # Errors
    /// A setting out of range, a queue that is taken or that the interface does not have, or no
    /// permission.
    pub fn open(
        program: &Arc<Program>,
        queue: u32,
        config: SocketConfig,
    ) -> Result<Self, XdpError> {
        let socket = Socket::open(program, queue, config)?;
        let shared = Arc::default();
        Ok(Self {
            supervisor: PortSupervisor::start(program.name(), Arc::clone(&shared))?,
            spare: Vec::with_capacity(config.frames as usize),
            socket: Some(socket),
            room: Room {
                frame: (config.chunk as usize).saturating_sub(HEADROOM),
                buffers: config.frames as usize,
            },
            program: Arc::clone(program),
            until_look: LOOK_EVERY,
            shared,
        })
    }

    /// Whether frames go to and from the network device without being copied.
    #[must_use]
    pub fn is_zero_copy(&self) -> bool {
        self.socket.as_ref().is_some_and(Socket::is_zero_copy)
    }

    /// Whether the driver or the kernel runs the program that leads frames here.
    #[must_use]
    pub fn attached(&self) -> Attached {
        self.program.attached()
    }

    /// What the kernel has dropped.
    ///
    /// # Errors
    /// What the operating system says; or if the interface has gone.
    pub fn queues(&self) -> std::io::Result<Queues> {
        let socket = self.socket.as_ref();
        socket.map_or(Err(std::io::ErrorKind::NotConnected.into()), Socket::queues)
    }

    /// How many frames are here or with the kernel; the others are with requests, and, if the
    /// interface has gone, the supervisor's.
    #[must_use]
    pub fn frames(&self) -> usize {
        let of = |socket: &Socket| socket.free_frames() + socket.kernel_frames();
        self.spare.len() + self.socket.as_ref().map_or(0, of)
    }

    /// A view of what it counts, to be kept when it goes to a dataplane.
    #[must_use]
    pub fn counters(&self) -> XdpCounters {
        XdpCounters(Arc::clone(&self.shared))
    }

    /// Notes it if the interface has gone, or another has come.
    fn look(&mut self) {
        self.until_look = LOOK_EVERY;
        if self.socket.is_none() {
            self.socket = self.supervisor.take_back();
            if let Some(socket) = &mut self.socket {
                self.shared.counters.returns.count();
                self.spare.drain(..).for_each(|frame| socket.free(frame));
            }
        } else if let Some(socket) = self.socket.take_if(Socket::is_gone) {
            self.shared.counters.losses.count();
            self.supervisor.hand_over(socket);
        }
    }
}

impl fmt::Display for XdpDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.socket.is_none() {
            return write!(formatter, "AF_XDP, without an interface");
        }
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

    fn room(&self) -> Room {
        self.room
    }

    fn receive(&mut self, most: usize, frames: &mut Vec<Received<Frame>>) {
        self.until_look -= 1;
        if self.until_look == 0 || self.socket.is_none() {
            self.look();
        }
        let Some(socket) = &mut self.socket else {
            return;
        };
        socket.receive(most, |buffer| {
            frames.push(Received {
                buffer,
                verified: VerifiedChecksums::default(),
            });
        });
    }

    fn transmit(&mut self, frames: &mut Vec<Outbound<Frame>>) {
        let Some(socket) = &mut self.socket else {
            // They would come late, and to another wire perhaps.
            self.shared.counters.unsent.add(frames.len() as u64);
            return self
                .spare
                .extend(frames.drain(..).map(|outbound| outbound.buffer));
        };
        let room = socket.room().min(frames.len());
        for Outbound { buffer, .. } in frames.drain(..room) {
            // There is room; what is refused is no frame, or another device's.
            if let Err(buffer) = socket.transmit(buffer) {
                self.shared.counters.unsent.count();
                socket.free(buffer);
            }
        }
        socket.flush();
        if !frames.is_empty() {
            self.shared.counters.send_queue_full.count();
        }
    }

    fn allocate(&mut self) -> Option<Frame> {
        let frame = self.socket.as_mut().and_then(Socket::allocate);
        if frame.is_none() {
            self.shared.counters.no_buffer.count();
        }
        frame
    }

    fn free(&mut self, buffer: Frame) {
        match &mut self.socket {
            Some(socket) => socket.free(buffer),
            None => self.spare.push(buffer),
        }
    }

    fn wait(&mut self, patience: Duration) {
        self.look();
        let Some(socket) = &self.socket else {
            return std::thread::sleep(patience.min(Duration::from_millis(1)));
        };
        let limit = Timespec::try_from(patience).ok();
        let mut sockets = [PollFd::new(socket, PollFlags::IN)];
        // An error (a signal came) is an early return, which is allowed.
        let _ = rustix::event::poll(&mut sockets, limit.as_ref());
        let broken = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        if sockets[0].revents().intersects(broken) {
            // What will not wait must not make a busy loop.
            std::thread::sleep(patience.min(Duration::from_millis(1)));
        }
    }
}
