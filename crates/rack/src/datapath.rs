//! The program in the kernel, and its tables.
//!
//! A [`Datapath`] ends with its value: the kernel detaches the program from the interfaces, and
//! all packets are the kernel's again.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use aya::maps::{Array, DevMapHash, HashMap, MapData, MapError, PerCpuArray};
use aya::programs::{ProgramError, TestRun, TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, EbpfError, EbpfLoader};
use rustix::net::netdevice::name_to_index;
use zerocopy::{FromBytes, IntoBytes};

use crate::RackError;
use crate::tables::{
    Activity, Cause, Correction, Injection, Loads, Members, ServerEntry, Settings, Station, TYPES,
    WAYS, network_order,
};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/rack.o"));

const MEMBERS: usize = size_of::<Members>();
const LOADS: usize = size_of::<Loads>();
const ACTIVITY: usize = size_of::<Activity>();
const SERVER: usize = size_of::<ServerEntry>();
const STATION: usize = size_of::<Station>();
const SETTINGS: usize = size_of::<Settings>();
const INJECTION: usize = size_of::<Injection>();
const BUCKET: usize = WAYS * size_of::<u64>();
/// Buckets that one run of the program sweeps: few, so that a run is short.
const SWEPT_AT_ONCE: u32 = 256;

/// How an interface runs the program.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// In its driver if that can, else as `Generic`.
    #[default]
    Auto,
    /// In its driver, before the kernel makes a packet of a frame.
    Driver,
    /// On packets, with any driver; slower.
    Generic,
}

/// Which of the object's programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    /// The switch.
    Rack,
    /// Corrects what is known of a server; the control runs it.
    Correct,
    /// Frees old entries of buckets of the request table: the frame has the first one's number, and
    /// how many there are. The control runs it.
    Sweep,
    /// Redirects each frame to the interface where it came from; the bench compares with it.
    BareRedirect,
}

impl Program {
    const ALL: [Self; 4] = [Self::Rack, Self::Correct, Self::Sweep, Self::BareRedirect];

    const fn name(self) -> &'static str {
        match self {
            Self::Rack => "rack",
            Self::Correct => "correct",
            Self::Sweep => "sweep",
            Self::BareRedirect => "bare_redirect",
        }
    }
}

/// What a program made of a frame, by a run without a network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// What it answered.
    pub action: Action,
    /// The frame as it left it.
    pub frame: Vec<u8>,
    /// How long a run took on average.
    pub duration: Duration,
}

/// A program's answer; include/uapi/linux/bpf.h, `enum xdp_action`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The program failed.
    Aborted,
    /// The frame is dropped.
    Drop,
    /// The kernel's stack gets it.
    Pass,
    /// It leaves by the interface where it came from.
    Transmit,
    /// It leaves by the interface that the program said.
    Redirect,
}

/// The loaded program.
#[derive(Debug)]
pub struct Datapath {
    ebpf: Ebpf,
    /// Which half of the members' table the program reads.
    half: u32,
    /// The bucket of the request table that is swept next.
    next_bucket: u32,
}

/// What is missing for loading a program, in words.
#[must_use]
pub fn missing() -> Option<&'static str> {
    OBJECT.is_empty().then_some(env!("RACK_PROGRAM_MISSING"))
}

impl Datapath {
    /// Loads the program, attached to no interface, for a table of `settings.bucket_mask + 1`
    /// buckets.
    ///
    /// # Errors
    /// If it was not compiled, or the kernel refuses it.
    pub fn load(settings: &Settings) -> Result<Self, RackError> {
        if let Some(missing) = missing() {
            return Err(RackError::NoProgram(missing));
        }
        let bytes: [u8; SETTINGS] = bytes_of(settings);
        let mut ebpf = EbpfLoader::new()
            .override_global("settings", &bytes, true)
            .map_max_entries("requests", settings.bucket_mask + 1)
            .load(OBJECT)
            .map_err(|error| loading(&error))?;
        for program in Program::ALL {
            let loaded = xdp(&mut ebpf, program).load();
            loaded.map_err(|error| refused("load the XDP program", &error))?;
        }
        Ok(Self {
            ebpf,
            half: 0,
            next_bucket: 0,
        })
    }

    /// How many instructions the kernel's verifier looked at, of a million that it would; `None`
    /// where it does not tell (Linux 5.16).
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn verified_instructions(&self) -> Result<Option<u32>, RackError> {
        let loaded = self.ebpf.program(Program::Rack.name()).expect(KNOWN);
        let loaded: &Xdp = loaded.try_into().expect(KNOWN);
        let info = loaded.info();
        let info = info.map_err(|error| refused("tell of the XDP program", &error))?;
        Ok(info.verified_instruction_count())
    }

    /// Attaches the program to these interfaces, until the datapath's end, and lets packets leave
    /// there. Returns the mode, `Driver` or `Generic`.
    ///
    /// All get the same mode: a driver that does not run the program does not send what another
    /// one redirects to it either, and such packets would be lost without a count.
    ///
    /// # Errors
    /// If there is no such interface, another program is on it, or it does not know the mode.
    pub fn attach(&mut self, interfaces: &[String], mode: Mode) -> Result<Mode, RackError> {
        for interface in interfaces {
            self.open_interface(interface_index(interface)?)?;
        }
        if mode != Mode::Generic {
            match self.attach_as(interfaces, XdpMode::Driver) {
                Ok(()) => return Ok(Mode::Driver),
                Err(error) if mode == Mode::Driver => return Err(error),
                Err(_) => {}
            }
        }
        self.attach_as(interfaces, XdpMode::Skb)?;
        Ok(Mode::Generic)
    }

    /// To all of them, or to none.
    fn attach_as(&mut self, interfaces: &[String], mode: XdpMode) -> Result<(), RackError> {
        let program = xdp(&mut self.ebpf, Program::Rack);
        let mut links = Vec::new();
        for interface in interfaces {
            match program.attach(interface, mode) {
                Ok(link) => links.push(link),
                Err(error) => {
                    for link in links {
                        // One that is no longer there need not be detached.
                        let _ = program.detach(link);
                    }
                    return Err(not_attached(interface, &error));
                }
            }
        }
        Ok(())
    }

    /// Lets packets leave by the interface with this index.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn open_interface(&mut self, index: u32) -> Result<(), RackError> {
        let map = self.ebpf.map_mut("interfaces").expect(KNOWN);
        let mut interfaces = DevMapHash::try_from(map).expect(KNOWN);
        let opened = interfaces.insert(index, index, None, 0);
        opened.map_err(|error| refused("make or change the program's tables", &error))
    }

    /// Sets the server with this number. One that takes the place of another must not be open for
    /// any type.
    ///
    /// # Errors
    /// If the kernel refuses.
    ///
    /// # Panics
    /// If the number is [`SERVERS`](crate::tables::SERVERS) or more.
    pub fn set_server(&mut self, number: u8, server: &ServerEntry) -> Result<(), RackError> {
        let before: ServerEntry = self.read::<ServerEntry, SERVER>("servers", u32::from(number))?;
        if before.address == server.address {
            // Its replies pass meanwhile.
            return self.write::<ServerEntry, SERVER>("servers", u32::from(number), server);
        }
        let map = self.ebpf.map_mut("server_at").expect(KNOWN);
        let mut at = HashMap::<_, [u8; 4], u32>::try_from(map).expect(KNOWN);
        if before.address != [0; 4]
            && at
                .get(&before.address, 0)
                .is_ok_and(|there| there == u32::from(number))
        {
            at.remove(&before.address).map_err(|error| table(&error))?;
        }
        if server.address != [0; 4] {
            let set = at.insert(server.address, u32::from(number), 0);
            set.map_err(|error| table(&error))?;
        }
        self.write::<ServerEntry, SERVER>("servers", u32::from(number), server)
    }

    /// Says which servers are open for each type. The change is at once for all types.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_members(&mut self, members: &[Members; TYPES]) -> Result<(), RackError> {
        let next = 1 - self.half;
        for (number, members) in (0..).zip(members) {
            let at = next * TYPES as u32 + number;
            self.write::<Members, MEMBERS>("members", at, members)?;
        }
        self.write::<u32, 4>("half", 0, &next)?;
        self.half = next;
        Ok(())
    }

    /// What is known of the servers' load for the type with this number; [`TYPES`]: what the
    /// program counts itself.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn loads(&self, number: usize) -> Result<Loads, RackError> {
        self.read::<Loads, LOADS>("loads", number as u32)
    }

    /// Replaces what is known. What the program learns meanwhile may be lost.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_loads(&mut self, number: usize, loads: &Loads) -> Result<(), RackError> {
        self.write::<Loads, LOADS>("loads", number as u32, loads)
    }

    /// Forgets what is known of a new server: its load is zero, and no request is out. What the
    /// program learns of other servers meanwhile stays.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn forget(&mut self, server: u8) -> Result<(), RackError> {
        self.correct(&Correction {
            server,
            last: TYPES as u8,
            loads: 1,
            ..Correction::default()
        })
    }

    /// The same of a server that is tried again for one type; what the program counts as
    /// outstanding stays.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn forget_type(&mut self, server: u8, number: usize) -> Result<(), RackError> {
        self.correct(&Correction {
            server,
            first: number as u8,
            last: number as u8,
            loads: 1,
            ..Correction::default()
        })
    }

    /// The server's silence so far counts no longer; its loads stay.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn excuse(&mut self, server: u8) -> Result<(), RackError> {
        self.correct(&Correction {
            server,
            last: TYPES as u8 - 1,
            ..Correction::default()
        })
    }

    /// So many requests of the server are outstanding no longer; they have been lost.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn write_off(&mut self, server: u8, lost: u32) -> Result<(), RackError> {
        self.correct(&Correction {
            server,
            // No type.
            first: 1,
            last: 0,
            lost,
            ..Correction::default()
        })
    }

    fn correct(&self, correction: &Correction) -> Result<(), RackError> {
        self.run(Program::Correct, correction.as_bytes(), 1)
            .map(drop)
    }

    /// Frees the old entries of the next so many buckets of the request table; after the last one
    /// comes the first again.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn sweep(&mut self, buckets: u32) -> Result<(), RackError> {
        let mut left = buckets;
        while left > 0 {
            // The program counts, not the kernel: to repeat a program the kernel patches its own
            // code, and waits tens of milliseconds for all cores.
            let some = left.min(SWEPT_AT_ONCE);
            let mut frame = [0; 14];
            frame[..4].copy_from_slice(&self.next_bucket.to_ne_bytes());
            frame[4..8].copy_from_slice(&some.to_ne_bytes());
            self.run(Program::Sweep, &frame, 1)?;
            self.next_bucket = self.next_bucket.wrapping_add(some);
            left -= some;
        }
        Ok(())
    }

    /// What a server has done, by type.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn activity(&self, server: u8) -> Result<[Activity; TYPES], RackError> {
        let mut activity = [Activity::default(); TYPES];
        for (at, of_type) in (u32::from(server) * TYPES as u32..).zip(&mut activity) {
            *of_type = self.read::<Activity, ACTIVITY>("activities", at)?;
        }
        Ok(activity)
    }

    /// What became of all packets, by [`Cause`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn causes(&self) -> Result<[u64; Cause::ALL.len()], RackError> {
        let map = self.ebpf.map("causes").expect(KNOWN);
        let causes = PerCpuArray::<_, u64>::try_from(map).expect(KNOWN);
        let mut sums = [0; Cause::ALL.len()];
        for (number, sum) in (0..).zip(&mut sums) {
            let counts = causes.get(&number, 0).map_err(|error| table(&error))?;
            *sum = counts.iter().sum();
        }
        Ok(sums)
    }

    /// The entries of a bucket of the request table; 0: free.
    ///
    /// # Errors
    /// If there is no such bucket.
    pub fn bucket(&self, number: u32) -> Result<[u64; WAYS], RackError> {
        self.read::<[u64; WAYS], BUCKET>("requests", number)
    }

    /// Replaces the entries of a bucket.
    ///
    /// # Errors
    /// If there is no such bucket.
    pub fn set_bucket(&mut self, number: u32, entries: &[u64; WAYS]) -> Result<(), RackError> {
        self.write::<[u64; WAYS], BUCKET>("requests", number, entries)
    }

    /// The way to a client. `None`: it has sent nothing so far.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn client(&self, address: Ipv4Addr) -> Result<Option<Station>, RackError> {
        let map = self.ebpf.map("clients").expect(KNOWN);
        let clients = HashMap::<_, [u8; 4], [u8; STATION]>::try_from(map).expect(KNOWN);
        match clients.get(&network_order(address), 0) {
            Ok(bytes) => Ok(Some(value_of(&bytes))),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(table(&error)),
        }
    }

    /// The random numbers and the time that the program sees, if its settings say so.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn inject(&mut self, injection: &Injection) -> Result<(), RackError> {
        self.write::<Injection, INJECTION>("injection", 0, injection)
    }

    /// How many injected random numbers have been used.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn drawn(&self) -> Result<u32, RackError> {
        Ok(self.read::<Injection, INJECTION>("injection", 0)?.drawn)
    }

    /// Runs a program `repeat` times on `frame`, as if it had come by the interface `lo`; each run
    /// sees the frame as the one before left it. Nothing is sent.
    ///
    /// # Errors
    /// If the kernel refuses: a frame has at least 14 bytes, and at most a page less what the
    /// kernel adds.
    pub fn run(&self, program: Program, frame: &[u8], repeat: u32) -> Result<Verdict, RackError> {
        let loaded = self.ebpf.program(program.name()).expect(KNOWN);
        let loaded: &Xdp = loaded.try_into().expect(KNOWN);
        let mut out = vec![0; frame.len() + 256];
        let run = loop {
            let run = loaded.test_run(TestRunOptions {
                data_in: Some(frame),
                data_out: Some(&mut out),
                repeat,
                ..TestRunOptions::default()
            });
            match run {
                // A signal ends repetitions early.
                Err(ProgramError::SyscallError(error))
                    if error.io_error.kind() == io::ErrorKind::Interrupted => {}
                run => break run,
            }
        };
        let run = run.map_err(|error| refused("run the XDP program", &error))?;
        out.truncate(run.data_size_out as usize);
        Ok(Verdict {
            action: match run.return_value {
                1 => Action::Drop,
                2 => Action::Pass,
                3 => Action::Transmit,
                4 => Action::Redirect,
                _ => Action::Aborted,
            },
            frame: out,
            duration: run.duration,
        })
    }

    fn read<T, const SIZE: usize>(&self, name: &str, at: u32) -> Result<T, RackError>
    where
        T: FromBytes,
    {
        let map = self.ebpf.map(name).expect(KNOWN);
        let array = Array::<&MapData, [u8; SIZE]>::try_from(map).expect(KNOWN);
        let bytes = array.get(&at, 0).map_err(|error| table(&error))?;
        Ok(value_of(&bytes))
    }

    fn write<T, const SIZE: usize>(
        &mut self,
        name: &str,
        at: u32,
        value: &T,
    ) -> Result<(), RackError>
    where
        T: IntoBytes + zerocopy::Immutable,
    {
        let map = self.ebpf.map_mut(name).expect(KNOWN);
        let mut array = Array::<&mut MapData, [u8; SIZE]>::try_from(map).expect(KNOWN);
        let written = array.set(at, bytes_of::<T, SIZE>(value), 0);
        written.map_err(|error| table(&error))
    }
}

/// Of the object's own parts, which it was compiled with.
const KNOWN: &str = "the object has it, with this type";

fn xdp(ebpf: &mut Ebpf, program: Program) -> &mut Xdp {
    let loaded = ebpf.program_mut(program.name()).expect(KNOWN);
    loaded.try_into().expect(KNOWN)
}

fn bytes_of<T: IntoBytes + zerocopy::Immutable, const SIZE: usize>(value: &T) -> [u8; SIZE] {
    value.as_bytes().try_into().expect("SIZE is its size")
}

fn value_of<T: FromBytes>(bytes: &[u8]) -> T {
    T::read_from_bytes(bytes).expect("SIZE is its size")
}

/// The interface's number in this thread's network namespace.
pub(crate) fn interface_index(name: &str) -> Result<u32, RackError> {
    let wrong = |cause: io::Error| RackError::Interface {
        interface: name.to_owned(),
        cause,
    };
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(wrong)?;
    name_to_index(&socket, name).map_err(|error| wrong(error.into()))
}

fn loading(error: &EbpfError) -> RackError {
    match error {
        EbpfError::MapError(error) => table(error),
        other => refused("load the XDP program", other),
    }
}

fn table(error: &MapError) -> RackError {
    refused("make or change the program's tables", error)
}

fn not_attached(interface: &str, error: &ProgramError) -> RackError {
    match refused("attach the XDP program", error) {
        RackError::Kernel { what, cause } => RackError::Kernel {
            what,
            cause: format!("{interface}: {cause}"),
        },
        other => other,
    }
}

/// The error that is behind all the others says whether it is a matter of permission.
fn refused(what: &'static str, error: &(dyn std::error::Error + 'static)) -> RackError {
    let mut chain = vec![error];
    while let Some(next) = chain.last().and_then(|last| last.source()) {
        chain.push(next);
    }
    let denied = chain.iter().any(|one| {
        let io = one.downcast_ref::<io::Error>();
        io.is_some_and(|io| matches!(io.raw_os_error(), Some(1 | 13)))
    });
    if denied
        && !matches!(error.downcast_ref(), Some(ProgramError::LoadError { verifier_log, .. }) if !verifier_log.to_string().is_empty())
    {
        return RackError::NotPermitted(what);
    }
    let words: Vec<_> = chain.iter().map(ToString::to_string).collect();
    RackError::Kernel {
        what,
        cause: words.join(": "),
    }
}
