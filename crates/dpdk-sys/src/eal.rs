//! Starting DPDK: once in a process.

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use crate::error::{DpdkError, Errno};
use crate::pool::Mempool;
use crate::port::Port;
use crate::{ffi, memif};

/// The configuration of DPDK's environment abstraction layer (EAL).
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct EalConfig {
    arguments: Vec<String>,
    core: Option<usize>,
}

impl EalConfig {
    /// Takes the EAL's own command line, without the program's name: `["-a", "0000:01:00.0",
    /// "--in-memory"]`. It does not name cores; [`core`](Self::core) does.
    pub fn new<I: IntoIterator<Item = S>, S: Into<String>>(arguments: I) -> Self {
        Self {
            arguments: arguments.into_iter().map(Into::into).collect(),
            core: None,
        }
    }

    /// For virtual devices: `memory_mib` MiB of ordinary memory, no huge pages, no PCI, no files;
    /// of DPDK's messages only errors.
    pub fn without_hardware(memory_mib: u32) -> Self {
        Self::new([
            "--no-huge",
            "-m",
            &memory_mib.to_string(),
            "--no-pci",
            "--no-telemetry",
            "--no-shconf",
            "--log-level=error",
        ])
    }

    /// Adds a virtual device: driver and number, and its parameters after commas.
    pub fn device(mut self, device: &str) -> Self {
        self.arguments.push(format!("--vdev={device}"));
        self
    }

    /// Adds one more argument.
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Where DPDK's own threads run (interrupts, alarms, virtual devices' control): keep it off the
    /// cores that poll and work. By default they run on any core that this process may use.
    pub fn core(self, core: usize) -> Self {
        Self {
            core: Some(core),
            ..self
        }
    }

    fn check(&self) -> Result<(), DpdkError> {
        for argument in &self.arguments {
            let refused = |why| {
                Err(DpdkError::Argument {
                    argument: argument.clone(),
                    why,
                })
            };
            if argument.contains('\0') {
                return refused("holds a zero byte; take it out");
            }
            if let Some(why) = unfit(argument) {
                return refused(why);
            }
            // Any unique prefix stands for the whole option. No other option begins with a p, or
            // with mb.
            if argument.starts_with("--p") {
                return refused(
                    "other processes' pools cannot be shared; run one process, or connect two by memif",
                );
            }
            if argument.starts_with("--mb") {
                return refused("pools must bear several threads; leave their kind to DPDK");
            }
            let of_cores = ["-l", "-c", "-s", "-S", "--lc", "--ma"];
            if of_cores.iter().any(|start| argument.starts_with(start))
                && argument != "--match-allocations"
            {
                return refused("DPDK's cores are not the server's; set EalConfig::core");
            }
        }
        Ok(())
    }
}

/// Why a device cannot be made that way; `None` if it can.
fn unfit(device: &str) -> Option<&'static str> {
    if device.contains("internal=") {
        // net_ring itself passes the address of a structure here, and follows it.
        return Some("an address in the process is for DPDK alone; make rings by Eal::ring_pair");
    }
    // The other process of net_memif could write to packets that are in use here.
    device
        .contains("zero-copy=yes")
        .then_some("packets are not shared with another process; leave net_memif to copy them")
}

/// The proof that DPDK runs; pass it on and copy it freely. Everything else is made from it.
#[derive(Clone, Copy, Debug)]
pub struct Eal {
    _made_by_init: (),
}

enum State {
    Fresh,
    Running,
    Failed,
}

static STATE: Mutex<State> = Mutex::new(State::Fresh);

/// DPDK's functions that set up and take down may not run at the same time; each is called with
/// this lock held.
pub(crate) fn control() -> MutexGuard<'static, ()> {
    static CONTROL: Mutex<()> = Mutex::new(());
    CONTROL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Eal {
    /// Starts DPDK, which pins the thread that starts it. So a thread of its own, `dpdk-main`,
    /// starts it and sleeps from then on; the caller keeps its affinity. If DPDK itself fails, it
    /// is left half started, and there is no second try.
    ///
    /// # Errors
    /// A second call, arguments that cannot be passed on, or what DPDK says.
    pub fn init(config: &EalConfig) -> Result<Self, DpdkError> {
        config.check()?;
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        match *state {
            State::Fresh => {}
            State::Running => return Err(DpdkError::Started),
            State::Failed => return Err(DpdkError::FailedBefore),
        }
        check_layout()?;
        let (answer, answered) = mpsc::channel();
        let for_thread = config.clone();
        thread::Builder::new()
            .name("dpdk-main".to_owned())
            .spawn(move || {
                let started = start(&for_thread);
                let tried = tried(&started);
                let _ = answer.send(started);
                if tried {
                    // DPDK has recorded this thread as its main one.
                    loop {
                        thread::park();
                    }
                }
            })
            .map_err(|cause| DpdkError::Thread {
                action: "start its thread",
                cause,
            })?;
        let started = answered.recv().expect("it answers");
        *state = match tried(&started) {
            true if started.is_ok() => State::Running,
            true => State::Failed,
            false => State::Fresh,
        };
        started.map(|()| Self { _made_by_init: () })
    }

    /// DPDK, if it was started.
    #[must_use]
    pub fn current() -> Option<Self> {
        let state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(*state, State::Running).then_some(Self { _made_by_init: () })
    }

    /// DPDK's version, as it calls itself.
    #[must_use]
    pub fn version(self) -> String {
        version()
    }

    /// A pool of `mbufs` (best a power of two less one) with room for packets of `data_room` bytes.
    /// `name` has at most 26 bytes and is unique in this process.
    ///
    /// # Errors
    /// What DPDK says.
    pub fn pool(self, name: &str, mbufs: u32, data_room: u16) -> Result<Mempool, DpdkError> {
        Mempool::new(name, mbufs, data_room)
    }

    /// As [`pool`](Self::pool), but reuses a pool of the same size whose handle is gone and whose
    /// mbufs are all back. So a program that opens devices again and again takes no more memory
    /// each time.
    ///
    /// # Errors
    /// What DPDK says.
    pub fn pool_again(self, name: &str, mbufs: u32, data_room: u16) -> Result<Mempool, DpdkError> {
        match Mempool::again(mbufs, data_room) {
            Some(pool) => Ok(pool),
            None => self.pool(name, mbufs, data_room),
        }
    }

    /// The port of the device `name`: a PCI address, or a virtual device's driver and number.
    ///
    /// # Errors
    /// If there is none, or it is in use.
    pub fn port(self, name: &str) -> Result<Port, DpdkError> {
        Port::find(name)
    }

    /// Makes a virtual device, as [`EalConfig::device`] does at the start. In addition, a memif's
    /// `socket` that is a file (`socket-abstract=no`) may be relative; its directory is made, with
    /// permissions for this user alone; and a socket that a killed server left behind is removed.
    ///
    /// # Errors
    /// The error of DPDK, or of the operating system for the socket.
    pub fn attach(self, device: &str) -> Result<Port, DpdkError> {
        if let Some(why) = unfit(device) {
            let argument = device.to_owned();
            return Err(DpdkError::Argument { argument, why });
        }
        {
            let _control = control();
            let arguments = c_string(&memif::prepared(device)?)?;
            // SAFETY: a string that ends with a zero.
            Errno::check(unsafe { ffi::dpdk_probe(arguments.as_ptr()) }).map_err(|cause| {
                DpdkError::Device {
                    device: device.to_owned(),
                    cause,
                }
            })?;
        }
        self.port(device.split(',').next().unwrap_or(device))
    }

    /// Two ports in this process that are each other's peer, `name.a` and `name.b`: packets sent on
    /// one port's queue arrive at the other's queue of the same number. Each direction has `queues`
    /// queues of `slots` packets. When the ports are closed, the memory between them stays, with
    /// its packets and its name.
    ///
    /// # Errors
    /// DPDK's error; the ports are then gone again.
    pub fn ring_pair(self, name: &str, queues: u16, slots: u32) -> Result<[Port; 2], DpdkError> {
        let ends = [format!("{name}.a"), format!("{name}.b")];
        {
            let _control = control();
            let names = [c_string(&ends[0])?, c_string(&ends[1])?];
            let names = names.each_ref().map(|name| name.as_ptr());
            let mut ports = [0; 2];
            // SAFETY: two strings that end with a zero, and room for two numbers.
            let status =
                unsafe { ffi::dpdk_ring_pair(names.as_ptr(), queues, slots, ports.as_mut_ptr()) };
            Errno::check(status).map_err(|cause| DpdkError::Device {
                device: name.to_owned(),
                cause,
            })?;
        }
        let [a, b] = ends.map(|end| self.port(&format!("net_ring_{end}")));
        Ok([a?, b?])
    }
}

/// Whether DPDK's own part of starting was reached.
fn tried(started: &Result<(), DpdkError>) -> bool {
    matches!(started, Ok(()) | Err(DpdkError::Start { .. }))
}

/// Starts DPDK on the calling thread, which becomes DPDK's own.
fn start(config: &EalConfig) -> Result<(), DpdkError> {
    let allowed = allowed_cores(config.core)?;
    let mut arguments = vec!["shinjuku".to_owned()];
    // Lcore 0, the main one, floats over these cores. The EAL's other threads are given the same
    // cores, since none is left.
    let cores: Vec<_> = allowed.iter().map(usize::to_string).collect();
    arguments.push(format!("--lcores=0@({})", cores.join(",")));
    arguments.extend(config.arguments.iter().cloned());
    // Never freed: DPDK keeps pointers into its arguments.
    let mut argv = arguments
        .iter()
        .map(|argument| c_string(argument).map(CString::into_raw))
        .collect::<Result<Vec<*mut c_char>, _>>()?;
    let argc = argv.len() as c_int;
    argv.push(std::ptr::null_mut());
    let argv = Vec::leak(argv);
    // SAFETY: argc strings that end with a zero, a null after them, all writable and never freed.
    // `STATE` lets one thread come here once.
    Errno::check(unsafe { ffi::dpdk_eal_init(argc, argv.as_mut_ptr()) })
        .map_err(|cause| DpdkError::Start { arguments, cause })
}

/// Pins this thread to `core`, if given; returns the cores that the thread may run on.
fn allowed_cores(core: Option<usize>) -> Result<Vec<usize>, DpdkError> {
    let failed = |action| {
        move || DpdkError::Thread {
            action,
            cause: std::io::Error::last_os_error(),
        }
    };
    // SAFETY: a set of cores is plain bits, and all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let size = size_of_val(&set);
    if let Some(core) = core {
        if core >= 8 * size {
            return Err(DpdkError::Argument {
                argument: core.to_string(),
                why: "no such core; name one of this machine's",
            });
        }
        // SAFETY: the core's bit is within the set.
        unsafe { libc::CPU_SET(core, &mut set) };
        // SAFETY: the calling thread, and a set of the size given.
        if unsafe { libc::sched_setaffinity(0, size, &set) } != 0 {
            return Err(failed("run its thread on the core configured")());
        }
    }
    // SAFETY: the calling thread, and a set of the size given.
    if unsafe { libc::sched_getaffinity(0, size, &mut set) } != 0 {
        return Err(failed("ask for its thread's cores")());
    }
    // SAFETY: each core's bit is within the set.
    Ok((0..8 * size)
        .filter(|&core| unsafe { libc::CPU_ISSET(core, &set) })
        .collect())
}

fn check_layout() -> Result<(), DpdkError> {
    let mut values = std::ptr::null();
    // SAFETY: it writes a pointer to a constant array and returns the array's length.
    let of_c = unsafe {
        let count = ffi::dpdk_layout(&mut values);
        std::slice::from_raw_parts(values, count)
    };
    assert_eq!(
        of_c.len(),
        ffi::LAYOUT.len(),
        "shim.c and ffi.rs belong together"
    );
    for (&(what, of_rust), &of_c) in ffi::LAYOUT.iter().zip(of_c) {
        if of_rust != of_c {
            return Err(DpdkError::Layout {
                version: version(),
                what,
                of_rust,
                of_c,
            });
        }
    }
    Ok(())
}

fn version() -> String {
    // SAFETY: a constant string that ends with a zero.
    let version = unsafe { CStr::from_ptr(ffi::dpdk_version()) };
    version.to_string_lossy().into_owned()
}

pub(crate) fn c_string(text: &str) -> Result<CString, DpdkError> {
    CString::new(text).map_err(|_| DpdkError::Argument {
        argument: text.to_owned(),
        why: "holds a zero byte; take it out",
    })
}
