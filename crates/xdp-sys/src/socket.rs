//! One queue of an interface.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpDescOptions,
    XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use crate::XdpError;
use crate::area::{Area, Frame};
use crate::program::Program;
use crate::ring::{Giving, Taking};

/// The length of an Ethernet header.
const SHORTEST: u32 = 14;

/// Settings of a [`Socket`]; checked by [`Socket::open`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketConfig {
    /// How many frames there are in all, 2 to 2^20. It should exceed twice a ring's entries by the
    /// number of frames that requests hold. A ring's entries of frames wait to be filled; as many,
    /// but no more than half, are reserved for sending frames that are no replies.
    pub frames: u32,
    /// A chunk's length, in bytes: 2048 or 4096. A received frame begins 256 bytes into it.
    pub chunk: u32,
    /// Entries of each ring: a power of two, 1 to 32,768. As many free frames wait to receive.
    pub ring: u32,
    /// Whether frames are copied.
    pub copy: CopyMode,
}

impl Default for SocketConfig {
    /// 4096 frames of 2048 bytes, rings of 1024, without copying if possible.
    fn default() -> Self {
        Self {
            frames: 4096,
            chunk: 2048,
            ring: 1024,
            copy: CopyMode::Auto,
        }
    }
}

/// Whether the kernel copies frames between the device's memory and ours.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum CopyMode {
    /// It does not if the driver can do without.
    #[default]
    Auto,
    /// It does.
    Copy,
    /// It does not; devices that cannot do without are refused.
    ZeroCopy,
}

/// The frames that a socket's queues have refused so far, as the kernel counts them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Queues {
    /// Frames dropped because no free frame was left, or for other reasons of the kernel's.
    pub receive_dropped: u64,
    /// Frames dropped because the receive ring was full.
    pub receive_ring_full: u64,
    /// Entries of ours that the kernel found invalid; zero, if all is well.
    pub invalid: u64,
}

/// A socket that is not open: its frames, except those held elsewhere, and its program and queue.
pub struct Closed {
    program: Arc<Program>,
    queue: u32,
    config: SocketConfig,
    area: Arc<Area>,
    free: Vec<Frame>,
}

/// A socket, and all frames that are not held elsewhere.
pub struct Socket {
    // The rings come first: they are unmapped before the socket closes, and the socket closes
    // before the ledger's frames go.
    fill: Giving<u64>,
    completion: Taking<u64>,
    receive: Taking<XdpDesc>,
    transmit: Giving<XdpDesc>,
    socket: OwnedFd,
    /// Keeps the program at the interface, and so the queue's frames coming.
    program: Arc<Program>,
    area: Arc<Area>,
    /// By chunk: the frames of chunks that the kernel has.
    ledger: Box<[Option<Frame>]>,
    free: Vec<Frame>,
    zero_copy: bool,
    /// Ring entries of the kernel's that contradict the ledger.
    strays: u64,
    queue: u32,
    config: SocketConfig,
    bound: bool,
    gone: bool,
}

impl Closed {
    /// Opens the socket again, at an interface of the same name. Frames come from now on.
    ///
    /// # Errors
    /// The reason, and the closed socket for another try.
    pub fn open(self) -> Result<Socket, (Self, XdpError)> {
        match self.program.reattach() {
            Ok(()) => self.connect(),
            Err(error) => Err((self, error)),
        }
    }

    fn connect(self) -> Result<Socket, (Self, XdpError)> {
        let mut socket = Socket::unbound(self)?;
        match socket.bind() {
            Ok(()) => Ok(socket),
            Err(error) => Err((socket.close(), error)),
        }
    }

    /// How many frames there are, except those held elsewhere.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.free.len()
    }
}

impl Socket {
    /// Opens a socket at `queue` of the program's interface and takes all memory. Frames come from
    /// now on.
    ///
    /// # Errors
    /// A setting out of range, a queue that is taken or that the interface does not have, or
    /// missing permission.
    pub fn open(
        program: &Arc<Program>,
        queue: u32,
        config: SocketConfig,
    ) -> Result<Self, XdpError> {
        config.check()?;
        if queue >= program.queues() {
            return Err(XdpError::Setting {
                setting: "the queue",
                value: queue.into(),
                allowed: "below the program's number of queues",
            });
        }
        let (area, free) = Area::new(config.frames, config.chunk)?;
        let closed = Closed {
            program: Arc::clone(program),
            queue,
            config,
            area,
            free,
        };
        closed.connect().map_err(|(_, error)| error)
    }

    /// A socket with its memory and rings, at no interface yet.
    fn unbound(closed: Closed) -> Result<Self, (Closed, XdpError)> {
        let rings = match Rings::create(&closed.area, closed.config) {
            Ok(rings) => rings,
            Err(error) => return Err((closed, error)),
        };
        let Closed {
            program,
            queue,
            config,
            area,
            free,
        } = closed;
        Ok(Self {
            fill: rings.fill,
            completion: rings.completion,
            receive: rings.receive,
            transmit: rings.transmit,
            socket: rings.socket,
            program,
            ledger: (0..config.frames).map(|_| None).collect(),
            area,
            free,
            zero_copy: false,
            strays: 0,
            queue,
            config,
            bound: false,
            gone: false,
        })
    }

    fn bind(&mut self) -> Result<(), XdpError> {
        self.refill();
        let copy = match self.config.copy {
            CopyMode::Auto => SocketAddrXdpFlags::empty(),
            CopyMode::Copy => SocketAddrXdpFlags::XDP_COPY,
            CopyMode::ZeroCopy => SocketAddrXdpFlags::XDP_ZEROCOPY,
        };
        let flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP | copy;
        let address = SocketAddrXdp::new(flags, self.program.interface(), self.queue);
        bind(self.socket.as_fd(), &address).map_err(|error| {
            if self.config.copy == CopyMode::ZeroCopy && error == Errno::OPNOTSUPP {
                return XdpError::MustCopy;
            }
            XdpError::system("bind the AF_XDP socket to the queue")(error)
        })?;
        self.bound = true;
        let options = sockopt::xdp_options(&self.socket)
            .map_err(XdpError::system("learn whether frames are copied"))?;
        self.zero_copy = options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
        self.program.lead(self.queue, self.socket.as_fd())
    }

    /// Whether the interface has gone: the kernel has removed it, and taken this socket off it for
    /// good. Takes one system call.
    pub fn is_gone(&mut self) -> bool {
        // The kernel reports it only once.
        if let Ok(Err(Errno::NETDOWN)) = sockopt::socket_error(&self.socket) {
            self.gone = true;
        }
        self.gone
    }

    /// Closes the socket, and keeps its frames for another. If the interface has not
    /// [gone](Self::is_gone), the kernel may still use the frames that it has; these are given up.
    #[must_use]
    pub fn close(self) -> Closed {
        let Self {
            fill,
            completion,
            receive,
            transmit,
            socket,
            program,
            area,
            ledger,
            mut free,
            queue,
            config,
            bound,
            gone,
            ..
        } = self;
        drop((fill, completion, receive, transmit, socket));
        for mut frame in ledger.into_iter().flatten() {
            // No interface brings frames to a socket that was never bound, or that was taken off
            // when its interface went: the kernel stops an interface before it reports that, and
            // closing waits for the end of that. In all other cases, a copy of the descriptor in
            // another process could keep the socket going.
            if gone || !bound {
                frame.clear();
                free.push(frame);
            } else {
                std::mem::forget(frame);
            }
        }
        Closed {
            program,
            queue,
            config,
            area,
            free,
        }
    }

    /// Whether frames go to and from the device without being copied.
    #[must_use]
    pub fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// The program that passes frames to this socket.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// How many frames neither the kernel nor other code holds.
    #[must_use]
    pub fn free_frames(&self) -> usize {
        self.free.len()
    }

    /// How many frames the kernel has, to fill or to send.
    #[must_use]
    pub fn kernel_frames(&self) -> usize {
        self.ledger.iter().flatten().count()
    }

    /// How often one of the kernel's rings named a frame that the kernel did not have; zero, if all
    /// is well.
    #[must_use]
    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// The kernel's counts of refused frames.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn queues(&self) -> std::io::Result<Queues> {
        let counts = sockopt::xdp_statistics(&self.socket)?;
        Ok(Queues {
            receive_dropped: counts.rx_dropped + counts.rx_fill_ring_empty_descs.unwrap_or(0),
            receive_ring_full: counts.rx_ring_full.unwrap_or(0),
            invalid: counts.rx_invalid_descs + counts.tx_invalid_descs,
        })
    }

    /// Hands at most `most` received frames to `take`.
    pub fn receive(&mut self, most: usize, mut take: impl FnMut(Frame)) {
        self.take_sent();
        for _ in 0..most {
            let Some(XdpDesc { addr, len, .. }) = self.receive.read() else {
                break;
            };
            match self.back_from_kernel(addr, len) {
                Some(frame) => take(frame),
                None => self.strays += 1,
            }
        }
        self.receive.publish();
        self.refill();
        // Wakes the kernel for frames that it did not send at once (it takes some 32 at a time),
        // and for free frames after it had run out of them.
        if self.transmit.is_pending() {
            self.kick();
        }
        if self.fill.needs_wakeup() {
            let _ = rustix::net::recv(&self.socket, &mut [0; 0], RecvFlags::DONTWAIT);
        }
    }

    /// How many frames can be transmitted.
    #[must_use]
    pub fn room(&self) -> usize {
        self.transmit.room()
    }

    /// Takes a frame to be sent with the next [`flush`](Self::flush). Returns the frame if there is
    /// no room, or if it is shorter than an Ethernet header or another socket's.
    ///
    /// # Errors
    /// The frame, unsent.
    pub fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        // The kernel would keep a frame without bytes, as invalid.
        if !frame.is_of(&self.area) || frame.length() < SHORTEST {
            return Err(frame);
        }
        let entry = XdpDesc {
            addr: frame.address(),
            len: frame.length(),
            options: XdpDescOptions::empty(),
        };
        if !self.transmit.write(entry) {
            return Err(frame);
        }
        self.lend_to_kernel(frame);
        Ok(())
    }

    /// Has the kernel send the frames given to it, and takes back the sent ones.
    pub fn flush(&mut self) {
        self.transmit.publish();
        if self.transmit.is_pending() {
            self.kick();
        }
        self.take_sent();
    }

    /// An empty frame, to be written and sent; `None` if none is left.
    pub fn allocate(&mut self) -> Option<Frame> {
        self.take_sent();
        self.free.pop()
    }

    /// Takes back a frame that will not be sent. Another socket's frame is dropped.
    pub fn free(&mut self, mut frame: Frame) {
        if frame.is_of(&self.area) {
            frame.clear();
            self.free.push(frame);
        }
    }

    /// Whether no frame has come.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.receive.is_empty()
    }

    /// One system call; the kernel sends some frames of the ring.
    fn kick(&mut self) {
        if self.transmit.needs_wakeup() {
            // After EAGAIN, EBUSY and ENOBUFS some frames are still in the ring, and the next call
            // goes on. Other errors (the interface is down) pass, or show in the statistics.
            let _: Result<usize, Errno> = rustix::net::send(&self.socket, &[], SendFlags::DONTWAIT);
        }
    }

    /// Gives free frames to the kernel to fill, until its ring is full or only the reserve for
    /// sending is left.
    fn refill(&mut self) {
        // The reserve is for sending.
        let reserve = (self.ledger.len() / 2).min(self.config.ring as usize);
        while self.free.len() > reserve
            && self.fill.room() > 0
            && let Some(frame) = self.free.pop()
        {
            let written = self.fill.write(frame.address());
            debug_assert!(written, "there is room");
            self.lend_to_kernel(frame);
        }
        self.fill.publish();
    }

    /// Takes back sent frames.
    fn take_sent(&mut self) {
        while let Some(address) = self.completion.read() {
            match self.back_from_kernel(address, 0) {
                Some(frame) => self.free(frame),
                None => self.strays += 1,
            }
        }
        self.completion.publish();
    }

    /// Lends a frame to the kernel, through a ring entry that was just written.
    fn lend_to_kernel(&mut self, frame: Frame) {
        let number = frame.number() as usize;
        if let Some(place) = self.ledger.get_mut(number) {
            debug_assert!(place.is_none(), "there is one frame a chunk");
            *place = Some(frame);
        }
    }

    /// The kernel gave a frame back: `length` bytes at `address` from the area's start.
    fn back_from_kernel(&mut self, address: u64, length: u32) -> Option<Frame> {
        let (number, offset) = self.area.place(address)?;
        let place = self.ledger.get_mut(number as usize)?;
        let mut frame = place.take()?;
        if !frame.set_place(offset, length) {
            *place = Some(frame);
            return None;
        }
        Some(frame)
    }
}

/// A socket of the kernel's and its rings.
struct Rings {
    fill: Giving<u64>,
    completion: Taking<u64>,
    receive: Taking<XdpDesc>,
    transmit: Giving<XdpDesc>,
    socket: OwnedFd,
}

impl Rings {
    /// The rings of a new socket that shares `area` with the kernel.
    fn create(area: &Area, config: SocketConfig) -> Result<Self, XdpError> {
        let socket = rustix::net::socket_with(
            AddressFamily::XDP,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(XdpError::system("open an AF_XDP socket"))?;
        let registration = XdpUmemReg {
            addr: area.address(),
            len: area.length() as u64,
            chunk_size: config.chunk,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&socket, registration)
            .map_err(XdpError::system("register the memory for frames"))?;
        let size = config.ring;
        sockopt::set_xdp_umem_fill_ring_size(&socket, size)
            .and_then(|()| sockopt::set_xdp_umem_completion_ring_size(&socket, size))
            .and_then(|()| sockopt::set_xdp_rx_ring_size(&socket, size))
            .and_then(|()| sockopt::set_xdp_tx_ring_size(&socket, size))
            .map_err(XdpError::system("create the rings"))?;
        let offsets = sockopt::xdp_mmap_offsets(&socket)
            .map_err(XdpError::system("learn where the rings are"))?;
        let at = socket.as_fd();
        Ok(Self {
            fill: Giving::map(at, XDP_UMEM_PGOFF_FILL_RING, offsets.fr, size)?,
            completion: Taking::map(at, XDP_UMEM_PGOFF_COMPLETION_RING, offsets.cr, size)?,
            receive: Taking::map(at, XDP_PGOFF_RX_RING, offsets.rx, size)?,
            transmit: Giving::map(at, XDP_PGOFF_TX_RING, offsets.tx, size)?,
            socket,
        })
    }
}

/// Binds the socket. Retries for a short time if the queue is taken, since the kernel takes a
/// closed socket off its queue only some time later.
fn bind(socket: BorrowedFd<'_>, address: &SocketAddrXdp) -> rustix::io::Result<()> {
    const TRIES: u32 = 40;
    for _ in 1..TRIES {
        match rustix::net::bind(socket, address) {
            Err(Errno::BUSY) => std::thread::sleep(Duration::from_millis(5)),
            bound => return bound,
        }
    }
    rustix::net::bind(socket, address)
}

/// The descriptor to wait for frames on: readable when some have come.
impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Socket")
            .field("free", &self.free_frames())
            .field("with_kernel", &self.kernel_frames())
            .field("zero_copy", &self.zero_copy)
            .finish_non_exhaustive()
    }
}

impl SocketConfig {
    fn check(&self) -> Result<(), XdpError> {
        let fits = |setting, value: u32, fits: bool, allowed| {
            if fits {
                return Ok(());
            }
            let value = value.into();
            Err(XdpError::Setting {
                setting,
                value,
                allowed,
            })
        };
        let frames = (2..=1 << 20).contains(&self.frames);
        fits("frames", self.frames, frames, "between 2 and 1048576")?;
        let chunk = [2048, 4096].contains(&self.chunk);
        fits("chunk", self.chunk, chunk, "2048 or 4096")?;
        let ring = self.ring.is_power_of_two() && self.ring <= 32_768;
        fits("ring", self.ring, ring, "a power of two, at most 32768")
    }
}
