//! The control of a rack: which servers are open, and what they have done.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::datapath::Datapath;
use crate::member::{Change, Member, State};
use crate::neighbour;
use crate::tables::{Cause, Members, SERVERS, ServerEntry, TYPES, network_order};
use crate::{Config, Mode, RackError, ServerConfig};

/// A rack at work. It ends with its value: the interfaces' packets are all the kernel's again.
#[derive(Debug)]
pub struct Rack {
    config: Config,
    datapath: Datapath,
    /// The members, each at the number that the program has for it.
    members: Vec<Option<Member>>,
    /// How the interfaces run the program.
    mode: Mode,
}

impl Rack {
    /// Loads the program, adds the servers, and attaches the program to the interfaces. A server
    /// that does not answer ARP is left out, and told to `warn`.
    ///
    /// # Errors
    /// If the configuration is wrong, or the kernel refuses.
    pub fn start(config: Config, mut warn: impl FnMut(&str)) -> Result<Self, RackError> {
        config.check()?;
        let mut rack = Self {
            datapath: Datapath::load(&config.settings())?,
            members: (0..SERVERS).map(|_| None).collect(),
            mode: Mode::Auto,
            config,
        };
        for server in rack.config.servers.clone() {
            match rack.add(server) {
                Err(error @ RackError::NoNeighbour(_)) => warn(&error.to_string()),
                added => added?,
            }
        }
        let interfaces = &rack.config.interfaces;
        rack.mode = rack.datapath.attach(interfaces, rack.config.mode)?;
        Ok(rack)
    }

    /// Adds a server, or opens one of the same name and address again.
    ///
    /// # Errors
    /// If it does not fit the rack, does not answer ARP, or there is no room for it.
    pub fn add(&mut self, server: ServerConfig) -> Result<(), RackError> {
        self.place(server, neighbour::PATIENCE).map(drop)
    }

    /// The same, of a server whose Ethernet address the kernel knows; if it does not, it asks.
    ///
    /// # Errors
    /// As [`add`](Self::add), but at once.
    pub(crate) fn add_if_known(&mut self, server: ServerConfig) -> Result<(), RackError> {
        self.place(server, Duration::ZERO).map(drop)
    }

    /// A server has registered for so long, or renews that; with no time at all it leaves. A
    /// renewal opens no server that was drained or has failed. Returns what happened, in words, if
    /// that is anything.
    ///
    /// # Errors
    /// As [`add`](Self::add). A server whose Ethernet address the kernel does not know yet is
    /// refused at once, and the kernel asks for the address.
    pub(crate) fn register(
        &mut self,
        server: ServerConfig,
        lease: Duration,
    ) -> Result<Option<String>, RackError> {
        let is_it = |member: &&mut Member| {
            member.config.name == server.name && member.config.address == server.address
        };
        let until = now() + lease;
        let mut members = self.members.iter_mut().flatten();
        if let Some(member) = members
            .find(is_it)
            .filter(|one| one.state != State::Leaving)
        {
            // One of the configuration's stays without a lease.
            if member.lease.is_some() {
                member.lease = Some(until);
            }
            return Ok(None);
        }
        if lease.is_zero() {
            return Ok(None);
        }
        let event = format!("server {} has registered", server.name);
        self.place(server, Duration::ZERO)?.lease = Some(until);
        Ok(Some(event))
    }

    /// Puts a server in its place, open.
    fn place(
        &mut self,
        server: ServerConfig,
        patience: Duration,
    ) -> Result<&mut Member, RackError> {
        self.config.check_server(&server)?;
        for other in self.members.iter().flatten() {
            let [is_name, is_address] = [
                other.config.name == server.name,
                other.config.address == server.address,
            ];
            if is_name != is_address {
                let Member { config, .. } = other;
                let (name, address) = (&config.name, config.address);
                let refused = format!("there is server {name} at {address} already");
                return Err(RackError::Server(refused));
            }
        }
        let station = neighbour::station(&server, patience)?;
        let there = self.find(&server.name).ok();
        let free = || self.members.iter().position(Option::is_none);
        let Some(number) = there.or_else(free) else {
            let refused = format!("there are {SERVERS} servers already");
            return Err(RackError::Server(refused));
        };
        let entry = ServerEntry {
            address: network_order(server.address),
            station,
        };
        self.datapath.set_server(number as u8, &entry)?;
        self.datapath.forget(number as u8)?;
        self.members[number] = Some(Member::new(server));
        self.open_members()?;
        Ok(self.members[number].as_mut().expect("it was put there"))
    }

    /// The server gets no further requests, and answers those that it has.
    ///
    /// # Errors
    /// If there is no such server.
    pub fn drain(&mut self, name: &str) -> Result<(), RackError> {
        self.member(name)?.drain();
        self.open_members()
    }

    /// The server gets no further requests, and is forgotten when the entries of those that it has
    /// must have aged.
    ///
    /// # Errors
    /// If there is no such server.
    pub fn remove(&mut self, name: &str) -> Result<(), RackError> {
        let until = now() + Duration::from_millis(self.config.table.age_ms);
        self.member(name)?.remove(until);
        self.open_members()
    }

    /// Looks for servers that fail, return or are gone; to be called several times within
    /// `failure.silence_ms`. Returns what happened, in words.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn tick(&mut self) -> Result<Vec<String>, RackError> {
        let mut events = Vec::new();
        for number in 0..SERVERS {
            let activity = match &self.members[number] {
                None => continue,
                Some(_) => self.datapath.activity(number as u8)?,
            };
            let Some(member) = &mut self.members[number] else {
                continue;
            };
            let Some(change) = member.observe(&activity, now(), &self.config.failure) else {
                continue;
            };
            let name = member.config.name.clone();
            let words = match change {
                Change::Failed => "has failed",
                Change::Returned => "replies again",
                Change::Retried => "is tried again",
                Change::Expired => "has let its lease expire",
                Change::Gone => "is gone",
            };
            events.push(format!("server {name} {words}"));
            match change {
                Change::Expired => {
                    member.remove(now() + Duration::from_millis(self.config.table.age_ms));
                }
                Change::Gone => {
                    self.members[number] = None;
                    let none = ServerEntry::default();
                    self.datapath.set_server(number as u8, &none)?;
                }
                Change::Retried => self.datapath.forget(number as u8)?,
                Change::Failed | Change::Returned => {}
            }
        }
        if !events.is_empty() {
            self.open_members()?;
        }
        Ok(events)
    }

    /// What there is and what it has done.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn status(&self) -> Result<Status, RackError> {
        let counters = self.datapath.loads(TYPES)?;
        let mut servers = Vec::new();
        for (number, member) in self.members.iter().enumerate() {
            let Some(member) = member else { continue };
            let activity = self.datapath.activity(number as u8)?;
            servers.push(ServerStatus {
                name: member.config.name.clone(),
                address: member.config.address,
                state: member.state,
                workers: member.config.workers,
                sent: activity.sent,
                replies: activity.replies,
                outstanding: counters.load[number].cast_signed().max(0).cast_unsigned(),
            });
        }
        let counts = self.datapath.causes()?;
        let causes = Cause::ALL.iter().zip(counts);
        Ok(Status {
            address: self.config.address,
            interfaces: self.config.interfaces.clone(),
            mode: self.mode,
            servers,
            causes: causes
                .map(|(cause, count)| (cause.name().to_owned(), count))
                .collect(),
        })
    }

    fn find(&self, name: &str) -> Result<usize, RackError> {
        let is_it = |member: &Option<Member>| {
            let config = member.as_ref().map(|member| &member.config);
            config.is_some_and(|config| config.name == name)
        };
        let unknown = || RackError::Server(format!("there is no server {name:?}"));
        self.members.iter().position(is_it).ok_or_else(unknown)
    }

    fn member(&mut self, name: &str) -> Result<&mut Member, RackError> {
        let number = self.find(name)?;
        Ok(self.members[number].as_mut().expect("it was found"))
    }

    /// Tells the program which servers are open.
    fn open_members(&mut self) -> Result<(), RackError> {
        let mut tables = [Members::default(); TYPES];
        for (table, of_type) in tables.iter_mut().zip(&self.config.types) {
            let mut open = Vec::new();
            for (number, member) in self.members.iter().enumerate() {
                let Some(member) = member else { continue };
                if member.state == State::Open && member.serves(&of_type.name) {
                    open.push((number as u8, member.config.workers));
                }
            }
            *table = Members::new(&open);
        }
        self.datapath.set_members(&tables)
    }
}

/// The time on the clock that the program reads.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
}

/// A rack at a moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Where clients send requests.
    pub address: Ipv4Addr,
    /// The interfaces of clients and servers.
    pub interfaces: Vec<String>,
    /// How they run the program.
    pub mode: Mode,
    /// The servers.
    pub servers: Vec<ServerStatus>,
    /// Packets, by what became of them.
    pub causes: BTreeMap<String, u64>,
}

/// A server at a moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// Whether it gets requests.
    pub state: State,
    /// Its weight.
    pub workers: u16,
    /// Requests sent to this number's servers since the start.
    pub sent: u64,
    /// Replies from them.
    pub replies: u64,
    /// Requests that the switch waits for.
    pub outstanding: u32,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Mode::Driver => "driver",
            Mode::Generic => "generic",
            Mode::Auto => "auto",
        };
        let interfaces = self.interfaces.join(", ");
        writeln!(f, "rack {} on {interfaces} ({mode} mode)", self.address)?;
        let width = self.servers.iter().map(|server| server.name.len());
        let width = width.max().unwrap_or(0).max("server".len());
        writeln!(
            f,
            "{:width$}  {:15}  {:8}  {:>7}  {:>12}  {:>12}  {:>11}",
            "server", "address", "state", "workers", "sent", "replies", "outstanding"
        )?;
        for server in &self.servers {
            writeln!(
                f,
                "{:width$}  {:15}  {:8}  {:>7}  {:>12}  {:>12}  {:>11}",
                server.name,
                server.address.to_string(),
                format!("{:?}", server.state).to_lowercase(),
                server.workers,
                server.sent,
                server.replies,
                server.outstanding,
            )?;
        }
        let causes = self.causes.iter().filter(|(_, count)| **count > 0);
        let causes: Vec<_> = causes
            .map(|(cause, count)| format!("{count} {cause}"))
            .collect();
        write!(f, "packets: {}", causes.join(", "))
    }
}
