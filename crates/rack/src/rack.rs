//! The control of a rack: which servers are open, and what they have done.

use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::net::Ipv4Addr;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::datapath::Datapath;
use crate::member::{End, Member, State};
use crate::neighbour;
use crate::port::{Change, Port};
use crate::tables::{Cause, Members, SERVERS, ServerEntry, Station, TYPES, network_order};
use crate::{Config, Format, Mac, Mode, RackError, ServerConfig, TableConfig};

/// How often the control asks the kernel where a server is. The kernel itself forgets only slowly.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Buckets of the request table that are looked through for old entries at a time: some 0.1 ms.
const SWEEP: u32 = 4096;
/// How often [`Rack::tick`] is to be called.
pub const TICK: Duration = Duration::from_millis(20);

/// A rack at work. It ends with its value: the interfaces' packets are all the kernel's again.
#[derive(Debug)]
pub struct Rack {
    config: Config,
    datapath: Datapath,
    /// The members, each at the number that the program has for it.
    members: Vec<Option<Member>>,
    /// What ticks have found and not returned so far, as the kernel refused something after it.
    events: Vec<String>,
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
            events: Vec::new(),
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
    /// renewal opens no server that was drained or has failed, but it may change its workers and
    /// types. Returns what happened, in words.
    ///
    /// # Errors
    /// As [`add`](Self::add). A server whose Ethernet address the kernel does not know yet is
    /// refused at once, and the kernel asks for the address.
    pub(crate) fn register(
        &mut self,
        server: ServerConfig,
        lease: Duration,
    ) -> Result<Vec<String>, RackError> {
        let is_it = |member: &Member| {
            member.config.name == server.name && member.config.address == server.address
        };
        let is_there = |member: &Option<Member>| {
            let there = member.as_ref().filter(|member| !member.is_leaving());
            there.is_some_and(is_it)
        };
        if let Some(number) = self.members.iter().position(is_there) {
            return self.renew(number, server, lease);
        }
        if lease.is_zero() {
            return Ok(Vec::new());
        }
        let event = format!("server {} has registered", server.name);
        self.place(server, Duration::ZERO)?.lease = Some(now() + lease);
        Ok(vec![event])
    }

    /// The server with this number says once more what it is.
    fn renew(
        &mut self,
        number: usize,
        server: ServerConfig,
        lease: Duration,
    ) -> Result<Vec<String>, RackError> {
        let mut events = Vec::new();
        let member = self.members[number].as_mut().expect("it is there");
        let known = (member.config.workers, &member.config.types);
        let is_other = known != (server.workers, &server.types) && !lease.is_zero();
        // One of the configuration's, or of a command's, stays without a lease, and as it is.
        if member.lease.is_none() {
            let refused = format!(
                "server {} has not registered: `add` changes it",
                server.name
            );
            return match is_other {
                true => Err(RackError::Server(refused)),
                false => Ok(events),
            };
        }
        if is_other {
            self.config.check_server(&server)?;
            events.push(format!("server {} has registered anew", server.name));
            (member.config.workers, member.config.types) = (server.workers, server.types);
        }
        member.lease = Some(now() + lease);
        let has_failed = member.ports.iter().any(Port::has_failed);
        if has_failed {
            events.extend(self.look_again(number)?);
        }
        if !events.is_empty() {
            self.open_members()?;
        }
        Ok(events)
    }

    /// Asks the kernel where a server is. One that is elsewhere is tried at once where it had
    /// failed. Returns that in words, if it is so; then the members are to be opened.
    fn look_again(&mut self, number: usize) -> Result<Option<String>, RackError> {
        let Some(member) = &mut self.members[number] else {
            return Ok(None);
        };
        member.looked = now();
        // While nobody answers ARP it stays where it was.
        let found = neighbour::station(&member.config, Duration::ZERO);
        let Some(station) = found.ok().filter(|station| *station != member.station) else {
            return Ok(None);
        };
        let entry = entry(member.config.address, station);
        self.datapath.set_server(number as u8, &entry)?;
        member.station = station;
        for (of_type, port) in member.ports.iter_mut().enumerate() {
            if port.has_failed() {
                self.datapath.forget_type(number as u8, of_type)?;
                port.open();
            }
        }
        let event = format!("server {} has another station", member.config.name);
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
        let entry = entry(server.address, station);
        self.datapath.set_server(number as u8, &entry)?;
        match &mut self.members[number] {
            Some(member) => {
                // What is known of its load is as true as before.
                if member.is_closed() {
                    self.datapath.excuse(number as u8)?;
                }
                for (of_type, port) in member.ports.iter().enumerate() {
                    if port.has_failed() {
                        self.datapath.forget_type(number as u8, of_type)?;
                    }
                }
                (member.config, member.station) = (server, station);
                member.open();
            }
            none => {
                self.datapath.forget(number as u8)?;
                let activity = self.datapath.activity(number as u8)?;
                *none = Some(Member::new(server, station, now(), &activity));
            }
        }
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
    /// must have aged and been freed.
    ///
    /// # Errors
    /// If there is no such server.
    pub fn remove(&mut self, name: &str) -> Result<(), RackError> {
        let until = now() + longest_entry(&self.config.table);
        self.member(name)?.remove(until);
        self.open_members()
    }

    /// Looks for servers that fail, return or are gone, and for requests that have been lost; to be
    /// called every [`TICK`]. Returns what happened, in words.
    ///
    /// # Errors
    /// If the kernel refuses. The next tick makes up for it, and returns what this one found.
    pub fn tick(&mut self) -> Result<Vec<String>, RackError> {
        for number in 0..SERVERS {
            if self.members[number].is_some() {
                self.look_after(number)?;
            }
        }
        self.datapath.sweep(self.config.table.buckets.min(SWEEP))?;
        if !self.events.is_empty() {
            self.open_members()?;
        }
        Ok(mem::take(&mut self.events))
    }

    /// The same of the server with this number. An event is noted before the kernel could refuse
    /// what comes of it.
    fn look_after(&mut self, number: usize) -> Result<(), RackError> {
        // A pause after it is no silence of the server's.
        let asked = now();
        let activity = self.datapath.activity(number as u8)?;
        let (now, age) = (now(), self.age());
        let Some(member) = &mut self.members[number] else {
            return Ok(());
        };
        let name = member.config.name.clone();
        match member.end(now) {
            Some(End::Expired) => {
                member.remove(now + longest_entry(&self.config.table));
                self.events
                    .push(format!("server {name} has let its lease expire"));
            }
            Some(End::Gone) => {
                let none = ServerEntry::default();
                self.datapath.set_server(number as u8, &none)?;
                self.members[number] = None;
                self.events.push(format!("server {name} is gone"));
                return Ok(());
            }
            None => {}
        }
        let mut is_due = now.saturating_sub(member.looked) >= LOOK_AGAIN;
        for (of_type, config) in self.config.types.iter().enumerate() {
            let activity = &activity[of_type];
            if config.format == Format::Shinjuku {
                let lost = member.losses[of_type].observe(activity, now, age);
                if lost > 0 {
                    self.datapath.write_off(number as u8, lost)?;
                }
            }
            if member.is_closed() {
                continue;
            }
            let change = member.ports[of_type].observe(activity, asked, &self.config.failure);
            let Some(change) = change else { continue };
            let words = match change {
                Change::Failed => "has failed",
                Change::Returned => "replies again",
                Change::Retried => "is tried again",
            };
            let event = format!("server {name} {words} for {}", config.name);
            self.events.push(event);
            if change == Change::Retried {
                is_due = true;
                self.datapath.forget_type(number as u8, of_type)?;
            }
        }
        if is_due {
            let event = self.look_again(number)?;
            self.events.extend(event);
        }
        Ok(())
    }

    /// How long a request without a reply is outstanding.
    fn age(&self) -> Duration {
        Duration::from_millis(self.config.table.age_ms)
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
                mac: Mac(member.station.to),
                state: member.state(&self.config.types),
                failed: member.failed(&self.config.types),
                workers: member.config.workers,
                sent: activity.iter().map(|of_type| of_type.sent).sum(),
                replies: activity.iter().map(|of_type| of_type.replies).sum(),
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
        for (of_type, config) in self.config.types.iter().enumerate() {
            let mut open = Vec::new();
            for (number, member) in self.members.iter().enumerate() {
                let Some(member) = member else { continue };
                if member.is_open_for(of_type, config) {
                    open.push((number as u8, member.config.workers));
                }
            }
            tables[of_type] = Members::new(&open);
        }
        self.datapath.set_members(&tables)
    }
}

fn entry(address: Ipv4Addr, station: Station) -> ServerEntry {
    ServerEntry {
        address: network_order(address),
        station,
    }
}

/// How long an entry that gets no reply can stay in the request table: it ages, and then waits for
/// the sweep. Two rounds of that, as ticks come late. Before that the server's number must not be
/// another's, whose count would be one less for each entry that is freed.
fn longest_entry(table: &TableConfig) -> Duration {
    let round = TICK * table.buckets.div_ceil(SWEEP);
    Duration::from_millis(table.age_ms) + 2 * round
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
    /// The Ethernet address that its requests go to.
    pub mac: Mac,
    /// Whether it gets requests.
    pub state: State,
    /// The types whose requests it does not answer, and of which it gets no others.
    #[serde(default)]
    pub failed: Vec<String>,
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
            let failed = match server.failed.join(", ") {
                none if none.is_empty() => none,
                types => format!("  failed: {types}"),
            };
            writeln!(
                f,
                "{:width$}  {:15}  {:8}  {:>7}  {:>12}  {:>12}  {:>11}{failed}",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_stays_for_its_age_and_two_rounds_of_the_sweep() {
        let longest = |buckets, age_ms| longest_entry(&TableConfig { buckets, age_ms }).as_millis();
        assert_eq!(longest(1, 50), 50 + 2 * 20);
        assert_eq!(longest(4096, 50), 50 + 2 * 20);
        assert_eq!(longest(8192, 1000), 1000 + 2 * 40);
        assert_eq!(longest(1 << 20, 1000), 1000 + 2 * 256 * 20);
    }
}
