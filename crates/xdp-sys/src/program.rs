//! The program that leads an interface's frames to its sockets.
//!
//! It is written as instructions, so that neither building nor running needs a BPF compiler:
//!
//! ```text
//!     r2 = context->rx_queue_index
//!     r1 = the map of sockets
//!     r3 = XDP_PASS                     where the map has no socket for the queue, the kernel's stack gets the frame
//!     r0 = bpf_redirect_map(r1, r2, r3)
//!     return r0
//! ```
//!
//! The map is an array by queue. The kernel detaches the program from the interface when its
//! [`Program`] has gone.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::XdpError;

// Commands of bpf(2); include/uapi/linux/bpf.h.
const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;

const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;
const HELPER_REDIRECT_MAP: i32 = 51;
/// The offset of `rx_queue_index` in `struct xdp_md`.
const RX_QUEUE_INDEX: i16 = 16;
const XDP_PASS: i32 = 2;
/// `XDP_FLAGS_SKB_MODE`: the kernel runs the program after turning the frame into a packet.
const GENERIC: u32 = 1 << 1;
/// `XDP_FLAGS_DRV_MODE`: the device's driver runs the program.
const DRIVER: u32 = 1 << 2;

/// An instruction, `struct bpf_insn`.
#[repr(C)]
struct Instruction {
    code: u8,
    /// The destination in the low half, the source in the high one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn instruction(code: u8, registers: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction {
        code,
        registers,
        offset,
        immediate,
    }
}

/// The program for the map that is open as `map`.
fn instructions(map: RawFd) -> [Instruction; 6] {
    [
        instruction(0x61, 0x12, RX_QUEUE_INDEX, 0),
        // A 64-bit constant takes two; its source register 1 marks it as a map's descriptor.
        instruction(0x18, 0x11, 0, map),
        instruction(0, 0, 0, 0),
        instruction(0xb7, 0x03, 0, XDP_PASS),
        instruction(0x85, 0, 0, HELPER_REDIRECT_MAP),
        instruction(0x95, 0, 0, 0),
    ]
}

// Arguments of bpf(2), each as long as it is looked at; include/uapi/linux/bpf.h, `union bpf_attr`.

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

#[repr(C)]
struct MapUpdate {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramLoad {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach_type: u32,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// Calls bpf(2).
///
/// # Safety
/// `argument` is of the type that `command` takes, and the addresses in it point to memory that is
/// valid for the call.
unsafe fn bpf<T>(command: libc::c_long, argument: &T) -> io::Result<libc::c_long> {
    // SAFETY: the kernel reads as many bytes of the argument as it is told, and memory that the
    // addresses in it point to, which is valid by this function's contract.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(argument),
            size_of::<T>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// As [`bpf`], for commands that open a descriptor.
///
/// # Safety
/// As for [`bpf`], and `command` returns a file descriptor.
unsafe fn bpf_open<T>(command: libc::c_long, argument: &T) -> io::Result<OwnedFd> {
    // SAFETY: by this function's contract.
    let descriptor = unsafe { bpf(command, argument)? };
    // SAFETY: the kernel has just opened it, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) })
}

/// A descriptor as bpf(2) takes it.
fn number(descriptor: BorrowedFd<'_>) -> u32 {
    descriptor.as_raw_fd() as u32
}

/// What runs the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attached {
    /// The device's driver, before the kernel turns the frame into a packet.
    Driver,
    /// The kernel, after that, since the device's driver does not know XDP. Slower.
    Generic,
}

/// The program at an interface. Frames of queues with a socket go to the socket, all others to the
/// kernel's stack.
#[derive(Debug)]
pub struct Program {
    name: String,
    queues: u32,
    map: OwnedFd,
    program: OwnedFd,
    attachment: Mutex<Attachment>,
}

/// The interface that has the program.
#[derive(Debug)]
struct Attachment {
    interface: u32,
    attached: Attached,
    /// Keeps the program at the interface.
    _link: OwnedFd,
}

impl Attachment {
    fn new(program: BorrowedFd<'_>, interface: u32) -> Result<Self, XdpError> {
        let link = |mode| link(program, interface, mode);
        let (link, attached) = match link(DRIVER) {
            Ok(link) => (link, Attached::Driver),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                let link = link(GENERIC);
                (link.map_err(attach_failed())?, Attached::Generic)
            }
            Err(error) => return Err(attach_failed()(error)),
        };
        Ok(Self {
            interface,
            attached,
            _link: link,
        })
    }
}

impl Program {
    /// Attaches the program to the interface, for sockets at the queues 0 to `queues` - 1.
    ///
    /// # Errors
    /// No such interface, one that has a program already, or no permission.
    pub fn attach(interface: &str, queues: u32) -> Result<Self, XdpError> {
        if !(1..=1024).contains(&queues) {
            return Err(XdpError::Setting {
                setting: "the number of queues",
                value: queues.into(),
                allowed: "between 1 and 1024",
            });
        }
        let index = index(interface)?;
        let map = create_map(queues).map_err(XdpError::system("create a map of sockets"))?;
        let program = load(map.as_fd()).map_err(XdpError::system("load the XDP program"))?;
        let attachment = Mutex::new(Attachment::new(program.as_fd(), index)?);
        Ok(Self {
            name: interface.to_owned(),
            queues,
            map,
            program,
            attachment,
        })
    }

    /// If the interface was removed and another has its name, attaches the program to that one.
    pub(crate) fn reattach(&self) -> Result<(), XdpError> {
        let index = index(&self.name)?;
        let mut attachment = self.attachment();
        if attachment.interface != index {
            *attachment = Attachment::new(self.program.as_fd(), index)?;
        }
        Ok(())
    }

    fn attachment(&self) -> MutexGuard<'_, Attachment> {
        self.attachment
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The interface's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What runs the program.
    #[must_use]
    pub fn attached(&self) -> Attached {
        self.attachment().attached
    }

    /// The interface's number.
    pub(crate) fn interface(&self) -> u32 {
        self.attachment().interface
    }

    /// How many queues the program knows.
    pub(crate) fn queues(&self) -> u32 {
        self.queues
    }

    /// Leads the frames of `queue` to `socket`.
    pub(crate) fn lead(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), XdpError> {
        let socket = number(socket);
        let update = MapUpdate {
            map: number(self.map.as_fd()),
            padding: 0,
            key: std::ptr::from_ref(&queue) as u64,
            value: std::ptr::from_ref(&socket) as u64,
            flags: 0,
        };
        // SAFETY: key and value are the four bytes each that the map was created with, and outlive
        // the call.
        unsafe { bpf(MAP_UPDATE_ELEM, &update) }
            .map_err(XdpError::system("lead a queue to the socket"))?;
        Ok(())
    }
}

fn attach_failed() -> impl Fn(io::Error) -> XdpError {
    XdpError::system("put the XDP program at the interface")
}

fn index(interface: &str) -> Result<u32, XdpError> {
    let failed = XdpError::system("open a socket");
    let socket = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(failed)?;
    rustix::net::netdevice::name_to_index(&socket, interface).map_err(|cause| {
        XdpError::NoInterface {
            interface: interface.to_owned(),
            cause: cause.into(),
        }
    })
}

fn create_map(queues: u32) -> io::Result<OwnedFd> {
    let create = MapCreate {
        map_type: MAP_TYPE_XSKMAP,
        key_size: 4,
        value_size: 4,
        max_entries: queues,
        map_flags: 0,
    };
    // SAFETY: the argument has no addresses, and the command opens a map.
    unsafe { bpf_open(MAP_CREATE, &create) }
}

fn load(map: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let instructions = instructions(map.as_raw_fd());
    let mut name = [0; 16];
    name[..8].copy_from_slice(b"shinjuku");
    let load = ProgramLoad {
        program_type: PROG_TYPE_XDP,
        instruction_count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"MIT".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name,
        interface: 0,
        expected_attach_type: ATTACH_TYPE_XDP,
    };
    // SAFETY: the addresses point to the instructions, whose number is right, and to a string that
    // ends with zero; both outlive the call. The command opens a program.
    unsafe { bpf_open(PROG_LOAD, &load) }
}

fn link(program: BorrowedFd<'_>, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    let create = LinkCreate {
        program: number(program),
        interface,
        attach_type: ATTACH_TYPE_XDP,
        flags,
    };
    // SAFETY: the argument has no addresses, and the command opens a link.
    unsafe { bpf_open(LINK_CREATE, &create) }
}
