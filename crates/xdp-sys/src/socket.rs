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

/// An Ethernet header.
const SHORTEST: u32 = 14;

/// Settings of a [`Socket`]; checked by [`Socket::open`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketConfig {
    /// How many frames there are in all, 2 to 2^20. Should exceed twice the entries of a ring by as
    /// many as are with requests: as many wait for frames to come, and as many, but no more than
    /// half, are kept to send what is no reply.
    pub frames: u32,
    /// How long a chunk is, in bytes: 2048 or 4096. A frame that comes in begins 256 bytes into it.
    pub chunk: u32,
    /// Entries of each ring: a power of two, 1 to 32,768. As many free frames wait for the device's
    /// to come.
    pub ring: u32,
    /// Whether frames are copied.
    pub copy: CopyMode,
}

impl Default for SocketConfig {
    /// 4096 frames of 2048 bytes, rings of 1024, without copying where that can be.
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
    /// Not if the driver can do without.
    #[default]
    Auto,
    /// It does.
    Copy,
    /// It does not; devices that cannot do without are refused.
    ZeroCopy,
}

/// What a socket's queues have refused so far; the kernel's counts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Queues {
    /// Frames dropped for want of a free one, or other reasons of the kernel's.
    pub receive_dropped: u64,
    /// Frames dropped since the receive ring was full.
    pub receive_ring_full: u64,
    /// Entries of ours that the kernel found invalid; none, if all is well.
    pub invalid: u64,
}

/// A socket that is not open: its frames, but those with others, and where it belongs.
pub struct Closed {
    program: Arc<Program>,
    queue: u32,
    config: SocketConfig,
    area: Arc<Area>,
    free: Vec<Frame>,
}

/// A socket, and all frames that are not with others.
pub struct Socket {
    // The rings first: they are unmapped before the socket closes, and that before the ledger's
    // frames go.
    fill: Giving<u64>,
    completion: Taking<u64>,
    receive: Taking<XdpDesc>,
    transmit: Giving<XdpDesc>,
    socket: OwnedFd,
    /// Keeps the queue's frames coming.
    program: Arc<Program>,
    area: Arc<Area>,
    /// By chunk: the frames of those that the kernel has.
    ledger: Box<[Option<Frame>]>,
    free: Vec<Frame>,
    zero_copy: bool,
    /// What the kernel's rings said and the ledger does not bear out.
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
    /// Why not; for another try.
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

    /// How many frames there are, but those with others.
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
    /// A setting out of range, a queue that is taken or that the interface does not have, or no
    /// permission.
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

    /// Whether the interface has gone: the kernel has removed it, and this socket from it, for
    /// good. One system call.
    pub fn is_gone(&mut self) -> bool {
        // The kernel says it once.
        if let Ok(Err(Errno::NETDOWN)) = sockopt::socket_error(&self.socket) {
            self.gone = true;
        }
        self.gone
    }

    /// Closes the socket, and keeps its frames for another. If the interface has not
    /// [gone](Self::is_gone), the kernel may not be done with those that it has; then these are
    /// given up.
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
            // No interface brings frames to a socket that never had one, or that was taken off it
            // when it went: the kernel stops an interface before it says so, and closing waits for
            // the end of that. All else a copy of the descriptor in another process could have go
            // on.
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

    /// The program that leads frames here.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// How many frames are neither with the kernel nor with others.
    #[must_use]
    pub fn free_frames(&self) -> usize {
        self.free.len()
    }

    /// How many frames the kernel has: to fill, or to send.
    #[must_use]
    pub fn kernel_frames(&self) -> usize {
        self.ledger.iter().flatten().count()
    }

    /// How often a ring of the kernel's named a frame that the kernel did not have: never, if all
    /// is well.
    #[must_use]
    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// What the kernel has counted.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn queues(&self) -> std::io::Result<Queues> {
        let counts = sockopt::xdp_statistics(&self.socket)?;
        Ok(Queues {
            receive_dropped: counts.rx_dropped + counts.rx_fill_ring_empty_descs.unwrap_or(0),
            receive_ring_full: counts.rx_ring_full.unwrap_or(0),
            invalid: counts.rx_invalid_descs + counts.tx_invalid_descs,
        })
    }

    /// Hands at most `most` frames that have come to `take`.
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
        // What the kernel did not send at once (it takes some 32 at a time), or has no frames left
        // for.
        if self.transmit.is_pending() {
            self.kick();
        }
        if self.fill.needs_wakeup() {
            let _ = rustix::net::recv(&self.socket, &mut [0; 0], RecvFlags::DONTWAIT);
        }
    }

    /// How many frames can be given to be sent.
    #[must_use]
    pub fn room(&self) -> usize {
        self.transmit.room()
    }

    /// Gives a frame to be sent with the next [`flush`](Self::flush); gives it back if there is no
    /// room, it is shorter than an Ethernet header, or another socket's.
    ///
    /// # Errors
    /// The frame.
    pub fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        // The kernel would keep one without bytes, as invalid.
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

    /// Has the kernel send what was given, and takes back what was sent.
    pub fn flush(&mut self) {
        self.transmit.publish();
        if self.transmit.is_pending() {
            self.kick();
        }
        self.take_sent();
    }

    /// An empty frame, to be written and sent. `None`: there is none left.
    pub fn allocate(&mut self) -> Option<Frame> {
        self.take_sent();
        self.free.pop()
    }

    /// Takes back a frame that is not to be sent. One of another socket is dropped.
    pub fn free(&mut self, mut frame: Frame) {
        if frame.is_of(&self.area) {
            frame.clear();
            self.free.push(frame);
        }
    }

    /// Whether nothing has come.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.receive.is_empty()
    }

    /// One system call; the kernel sends some frames of the ring.
    fn kick(&mut self) {
        if self.transmit.needs_wakeup() {
            // EAGAIN, EBUSY, ENOBUFS: some are still in the ring, and the next call goes on. Others
            // (the interface is down) go by, or are for the statistics.
            let _: Result<usize, Errno> = rustix::net::send(&self.socket, &[], SendFlags::DONTWAIT);
        }
    }

    /// Gives free frames to the kernel to fill, until its ring is full or only those for sending
    /// are left.
    fn refill(&mut self) {
        // The rest is for sending.
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

    /// Takes back what was sent.
    fn take_sent(&mut self) {
        while let Some(address) = self.completion.read() {
            match self.back_from_kernel(address, 0) {
                Some(frame) => self.free(frame),
                None => self.strays += 1,
            }
        }
        self.completion.publish();
    }

    /// The kernel gets a frame, by a ring's entry that was just written.
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
    /// Of a socket that shares `area` with the kernel.
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

/// Binds; waits a little for a queue that is taken, since the kernel takes a closed socket off its
/// queue only some time later.
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

/// To wait for frames: readable when some have come.
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
