//! Opening `/dev/dune`, and finding out whether it is Dune.

use std::ffi::c_ulong;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use x86_64::VirtAddr;

use crate::config::{GPA_MAP_SIZE, GPA_STACK_SIZE, Layout};
use crate::ioctl::{GET_LAYOUT, GET_SYSCALL, MINOR};

/// Where the module puts its device.
pub const PATH: &str = "/dev/dune";

/// Major number of Linux's misc devices, to which Dune belongs.
const MISC_MAJOR: u32 = 10;

/// Why Dune cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum DeviceError {
    /// There is no such file.
    #[error(
        "there is no {}: Dune's kernel module is not loaded. It takes an Intel CPU with VT-x, Linux 6.2 to 6.11 and the \
         module of https://github.com/zxjcarrot/libdbos (older kernels: other forks); see the documentation of dune-sys",
        path.display()
    )]
    Absent {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The file may not be opened.
    #[error(
        "no permission to open {}: run as root, or let the program's user in (chown, chmod, or a udev rule)",
        path.display()
    )]
    NotPermitted { path: PathBuf },
    /// Opening failed otherwise.
    #[error("cannot open {}: {cause}", path.display())]
    Open { path: PathBuf, cause: io::Error },
    /// The file is not a device, or another device.
    #[error(
        "{} is {what}, not Dune's device (character device {MISC_MAJOR}:{MINOR}): look at what made it, and load the module \
         again",
        path.display()
    )]
    AnotherFile { path: PathBuf, what: String },
    /// The device refused an ioctl that every fork of Dune knows.
    #[error("{} refused {ioctl}: {cause}; it is not Dune, or its module is broken", path.display())]
    Refused {
        path: PathBuf,
        ioctl: &'static str,
        cause: io::Error,
    },
    /// The device gave an impossible answer to an ioctl.
    #[error("{} answered {ioctl} wrongly: {what}; its module is another version than dune-sys knows", path.display())]
    WrongAnswer {
        path: PathBuf,
        ioctl: &'static str,
        /// What is wrong with the answer.
        what: String,
    },
}

/// Dune's device, open; its answers have been checked.
#[derive(Debug)]
pub struct Device {
    file: File,
    layout: Layout,
    system_call_entry: VirtAddr,
}

impl Device {
    /// Opens `/dev/dune` and makes all the requests that are possible outside Dune mode.
    ///
    /// # Errors
    /// [`DeviceError`] says what is missing, and what to do about it.
    pub fn open() -> Result<Self, DeviceError> {
        Self::open_at(Path::new(PATH))
    }

    /// Like [`open`](Self::open), for a device at another path. No file but Dune's device gets a
    /// write or an ioctl, and no file makes the call wait.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_at(path: &Path) -> Result<Self, DeviceError> {
        let file = open(path)?;
        check_is_dune(&file, path)?;
        Self::probe(file, path)
    }

    fn probe(file: File, path: &Path) -> Result<Self, DeviceError> {
        let refused = |ioctl| {
            move |cause| DeviceError::Refused {
                path: path.to_owned(),
                ioctl,
                cause,
            }
        };
        let wrong = |ioctl| {
            move |what| DeviceError::WrongAnswer {
                path: path.to_owned(),
                ioctl,
                what,
            }
        };
        let mut layout = Layout::default();
        // SAFETY: the kernel writes a `Layout` there, as the ioctl's number says.
        unsafe { ioctl(&file, GET_LAYOUT, (&raw mut layout) as usize) }
            .map_err(refused("DUNE_GET_LAYOUT"))?;
        check_layout(layout).map_err(wrong("DUNE_GET_LAYOUT"))?;
        // SAFETY: takes no argument.
        let entry = unsafe { ioctl(&file, GET_SYSCALL, 0) }.map_err(refused("DUNE_GET_SYSCALL"))?;
        let system_call_entry = check_entry(entry).map_err(wrong("DUNE_GET_SYSCALL"))?;
        Ok(Self {
            file,
            layout,
            system_call_entry,
        })
    }

    /// Where the module will place the process's memory in guest-physical memory.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The kernel's system-call entry (MSR LSTAR): in Dune mode, the library must have its own
    /// entry at this address.
    #[must_use]
    pub fn system_call_entry(&self) -> VirtAddr {
        self.system_call_entry
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn open(path: &Path) -> Result<File, DeviceError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        // A FIFO or a terminal here must neither block nor become the program's controlling
        // terminal.
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC)
        .open(path)
        .map_err(|cause| {
            let path = path.to_owned();
            match cause.kind() {
                io::ErrorKind::NotFound => DeviceError::Absent { path },
                io::ErrorKind::PermissionDenied => DeviceError::NotPermitted { path },
                io::ErrorKind::IsADirectory => DeviceError::AnotherFile {
                    path,
                    what: "a directory".to_owned(),
                },
                _ => DeviceError::Open { path, cause },
            }
        })
}

fn check_is_dune(file: &File, path: &Path) -> Result<(), DeviceError> {
    let metadata = file.metadata().map_err(|cause| DeviceError::Open {
        path: path.to_owned(),
        cause,
    })?;
    let kind = metadata.file_type();
    let what = if kind.is_char_device() {
        let device = metadata.rdev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        if (major, minor) == (MISC_MAJOR, u32::from(MINOR)) {
            return Ok(());
        }
        format!("character device {major}:{minor}")
    } else if kind.is_block_device() {
        "a block device".to_owned()
    } else if kind.is_fifo() {
        "a FIFO".to_owned()
    } else if kind.is_file() {
        "a regular file".to_owned()
    } else {
        "a file of another kind".to_owned()
    };
    Err(DeviceError::AnotherFile {
        path: path.to_owned(),
        what,
    })
}

/// Returns the whole answer; libc's `ioctl` cuts it to 32 bits.
///
/// # Safety
/// `argument` must be what the ioctl `number` takes.
unsafe fn ioctl(file: &File, number: c_ulong, argument: usize) -> io::Result<u64> {
    // SAFETY: the descriptor is open, and the caller promises the rest.
    let answer = unsafe { libc::syscall(libc::SYS_ioctl, file.as_raw_fd(), number, argument) };
    if answer == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(answer as u64)
}

const GIB: u64 = 1 << 30;
/// The most that a CPU can address.
const LARGEST_PHYSICAL: u64 = 1 << 52;
/// End of the lower half of virtual memory.
const USER_END: u64 = 1 << 47;

fn check_layout(layout: Layout) -> Result<(), String> {
    let Layout {
        phys_limit,
        base_map,
        base_stack,
    } = layout;
    let smallest = GPA_MAP_SIZE + GPA_STACK_SIZE;
    if !phys_limit.is_power_of_two() || !(smallest..=LARGEST_PHYSICAL).contains(&phys_limit) {
        return Err(format!("phys_limit {phys_limit:#x} is no CPU's"));
    }
    for (name, base, size) in [
        ("base_map", base_map, GPA_MAP_SIZE),
        ("base_stack", base_stack, GPA_STACK_SIZE),
    ] {
        let inside = base
            .checked_add(size)
            .is_some_and(|end| base != 0 && end <= USER_END);
        if !inside || base % GIB != 0 {
            return Err(format!("{name} {base:#x} is no user area of whole GiB"));
        }
    }
    Ok(())
}

/// The kernel's text lies in the last 2 GiB.
fn check_entry(entry: u64) -> Result<VirtAddr, String> {
    VirtAddr::try_new(entry)
        .ok()
        .filter(|entry| entry.as_u64() >= u64::MAX - 2 * GIB)
        .ok_or_else(|| format!("{entry:#x} is no address in the kernel's text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Layout = Layout {
        phys_limit: 1 << 46,
        base_map: 0x7ff0_0000_0000 & !(GIB - 1),
        base_stack: 0x7fff_8000_0000,
    };

    #[test]
    fn layouts_of_dune_pass() {
        assert_eq!(check_layout(GOOD), Ok(()));
        let phys_limit = 1 << 39;
        assert_eq!(check_layout(Layout { phys_limit, ..GOOD }), Ok(()));
    }

    #[test]
    fn other_layouts_do_not() {
        let wrong = [
            Layout::default(),
            Layout {
                phys_limit: u64::MAX,
                ..GOOD
            },
            Layout {
                phys_limit: 3 << 40,
                ..GOOD
            },
            Layout {
                phys_limit: 1 << 35,
                ..GOOD
            },
            Layout {
                phys_limit: 1 << 53,
                ..GOOD
            },
            Layout {
                base_map: 0,
                ..GOOD
            },
            Layout {
                base_map: GOOD.base_map + 4096,
                ..GOOD
            },
            Layout {
                base_map: u64::MAX - GIB + 1,
                ..GOOD
            },
            Layout {
                base_stack: USER_END,
                ..GOOD
            },
        ];
        for layout in wrong {
            assert!(check_layout(layout).is_err(), "{layout:?}");
        }
    }

    #[test]
    fn the_system_call_entry_is_in_the_kernel() {
        assert!(check_entry(0xffff_ffff_81e0_0080).is_ok());
        for wrong in [
            0,
            1,
            0x7fff_0000_0000,
            0xffff_8880_0000_0000,
            0x0000_8000_0000_0000,
        ] {
            assert!(check_entry(wrong).is_err(), "{wrong:#x}");
        }
    }

    #[test]
    fn a_device_that_knows_none_of_it_has_refused() {
        let path = Path::new("/dev/null");
        let error = Device::probe(open(path).unwrap(), path).unwrap_err();
        let DeviceError::Refused { ioctl, cause, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(ioctl, "DUNE_GET_LAYOUT");
        assert_eq!(cause.raw_os_error(), Some(libc::ENOTTY));
    }
}
