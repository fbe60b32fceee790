//! The programs and packets that are measured.
//!
//! Each run sees the packet as the one before left it. So the servers have the rack's own address:
//! a packet that has been sent to one of them is to the rack again, and each run does all of the
//! work. They have the same Ethernet addresses, too, or the client would seem to move each time.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use shinjuku::net::wire::{RackSchedMessage, ShinjukuRequest};
use shinjuku_rack::Config;
use shinjuku_rack::datapath::{Action, Datapath, Program};
use shinjuku_rack::tables::{Members, ServerEntry, Settings, Station, TYPES};

use super::{
    AFFINE, BARE, BATCH, BY_K, CHOICE, LEAST_KNOWN, REPLY, REPLY_INT2, REPLY_INT3, SHORTEST,
    WITH_INT2, WITH_INT3, WITH_TABLE, WITHOUT_CHOICE,
};

/// Servers of a contender that says nothing of them.
pub const SERVERS: u8 = 4;
const MOST_SERVERS: u8 = 64;
const RACK: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 7);
/// Shinjuku's format: no table, so each packet is a choice.
const SHINJUKU_PORT: u16 = 1235;
const RACKSCHED_PORT: u16 = 1234;
/// The interface `lo`, by which packets come.
const LOOPBACK: u32 = 1;

/// The loads that replies tell, in the order of the contenders with the table.
const INT: [&str; 3] = ["int1", "int2", "int3"];

/// A program with its tables, and a packet for it.
#[derive(Debug)]
pub struct Contender {
    pub name: String,
    pub note: String,
    datapath: Datapath,
    program: Program,
    frame: Vec<u8>,
    action: Action,
}

/// What a contender is made of.
struct Plan<'a> {
    name: &'a str,
    note: &'a str,
    balancer: &'a str,
    load_info: &'a str,
    servers: u8,
    /// Entries of the request table age at once, so that the same request is a new one each time.
    forgetful: bool,
    frame: Vec<u8>,
    program: Program,
    action: Action,
}

impl Default for Plan<'_> {
    fn default() -> Self {
        Self {
            name: "",
            note: "",
            balancer: CHOICE,
            load_info: "counters",
            servers: SERVERS,
            forgetful: false,
            frame: shinjuku_request(),
            program: Program::Rack,
            action: Action::Redirect,
        }
    }
}

/// All of them.
pub fn all() -> Result<Vec<Contender>> {
    let mut plans = vec![
        Plan {
            name: BARE,
            note: "the shortest program that redirects a packet",
            program: Program::BareRedirect,
            ..Plan::default()
        },
        Plan {
            name: "not ours",
            note: "a packet to others: the kernel's",
            frame: frame((CLIENT, 9), (CLIENT, 9), &[0; 16]),
            action: Action::Pass,
            ..Plan::default()
        },
        Plan {
            name: WITHOUT_CHOICE,
            note: "a request in Shinjuku's format; a hash chooses",
            balancer: WITHOUT_CHOICE,
            ..Plan::default()
        },
    ];
    for balancer in BY_K {
        plans.push(Plan {
            name: balancer,
            note: "the same; this balancer chooses, by counters",
            balancer,
            ..Plan::default()
        });
    }
    for (name, servers, note) in [
        (SHORTEST, SERVERS, "the same; it looks at each server"),
        (
            "shortest of 64",
            MOST_SERVERS,
            "the same, among as many servers as there can be",
        ),
    ] {
        plans.push(Plan {
            name,
            note,
            balancer: "shortest",
            servers,
            ..Plan::default()
        });
    }
    for (name, load_info) in [WITH_TABLE, WITH_INT2, WITH_INT3].into_iter().zip(INT) {
        plans.push(Plan {
            name,
            note: "a request in RackSched's format: chosen by that, noted in the table, an old entry freed",
            load_info,
            forgetful: true,
            frame: racksched_request(),
            ..Plan::default()
        });
    }
    plans.extend([
        Plan {
            name: LEAST_KNOWN,
            note: "the same; the one server that is known is chosen, or any",
            balancer: "shortest",
            load_info: "int2",
            servers: MOST_SERVERS,
            forgetful: true,
            frame: racksched_request(),
            ..Plan::default()
        },
        Plan {
            name: AFFINE,
            note: "a request that the table knows",
            load_info: "int1",
            frame: racksched_request(),
            ..Plan::default()
        },
    ]);
    for (name, load_info) in [REPLY, REPLY_INT2, REPLY_INT3].into_iter().zip(INT) {
        plans.push(Plan {
            name,
            note: "a reply in RackSched's format, with its load",
            load_info,
            frame: racksched_reply(),
            ..Plan::default()
        });
    }
    plans.into_iter().map(Contender::new).collect()
}

impl Contender {
    fn new(plan: Plan<'_>) -> Result<Self> {
        let mut datapath = Datapath::load(&settings(&plan)?)?;
        datapath.open_interface(LOOPBACK)?;
        let server = ServerEntry {
            address: RACK.octets(),
            station: Station {
                to: [2, 0, 0, 0, 1, 1],
                from: [2, 0, 0, 0, 1, 2],
                interface: LOOPBACK,
            },
        };
        let mut open = Vec::new();
        for number in 0..plan.servers {
            datapath.set_server(number, &server)?;
            open.push((number, 1));
        }
        datapath.set_members(&[Members::new(&open); TYPES])?;
        // Replies go to a client that is known, and a server's load is known.
        datapath.run(Program::Rack, &racksched_request(), 1)?;
        datapath.run(Program::Rack, &racksched_reply(), 1)?;
        let contender = Self {
            name: plan.name.to_owned(),
            note: plan.note.to_owned(),
            datapath,
            program: plan.program,
            frame: plan.frame,
            action: plan.action,
        };
        contender.measure(Duration::ZERO)?;
        Ok(contender)
    }

    /// How long a packet takes on average, over about so long.
    ///
    /// # Errors
    /// The program did something else with it.
    pub fn measure(&self, length: Duration) -> Result<Duration> {
        // One run for all: around each the kernel does other things for tens of milliseconds.
        let about = self.repeat(BATCH)?.as_nanos().max(1);
        let times = length.as_nanos() / about;
        self.repeat(u32::try_from(times).unwrap_or(u32::MAX).max(BATCH))
    }

    /// Nanoseconds a packet, of so many.
    fn repeat(&self, times: u32) -> Result<Duration> {
        let verdict = self.datapath.run(self.program, &self.frame, times)?;
        ensure!(
            verdict.action == self.action,
            "{}: the program answers {:?}",
            self.name,
            verdict.action
        );
        Ok(verdict.duration)
    }
}

fn settings(plan: &Plan<'_>) -> Result<Settings> {
    let (balancer, load_info) = (plan.balancer, plan.load_info);
    let config = Config::from_toml(&format!(
        "address = '{RACK}'
        interfaces = ['lo']
        [[type]]
        name = 'racksched'
        port = {RACKSCHED_PORT}
        format = 'racksched'
        balancer = '{balancer}'
        load_info = '{load_info}'
        [[type]]
        name = 'shinjuku'
        port = {SHINJUKU_PORT}
        format = 'shinjuku'
        balancer = '{balancer}'
        load_info = 'counters'"
    ));
    let settings = config.context("a contender's configuration")?.settings();
    Ok(Settings {
        age: if plan.forgetful { 0 } else { settings.age },
        ..settings
    })
}

fn shinjuku_request() -> Vec<u8> {
    let request = ShinjukuRequest {
        run_nanos: 1000,
        generated_nanos: 77,
    };
    frame((CLIENT, 4321), (RACK, SHINJUKU_PORT), &request.to_bytes())
}

fn racksched_request() -> Vec<u8> {
    let message = RackSchedMessage::request(3, 1, 1000, 5);
    frame((CLIENT, 4321), (RACK, RACKSCHED_PORT), &message.to_bytes())
}

fn racksched_reply() -> Vec<u8> {
    let message = RackSchedMessage::request(3, 2, 1000, 5).reply(7);
    frame((RACK, RACKSCHED_PORT), (CLIENT, 4321), &message.to_bytes())
}

/// A datagram in a frame, with checksums that nothing verifies here.
fn frame(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), payload: &[u8]) -> Vec<u8> {
    let udp_length = 8 + payload.len() as u16;
    let mut frame = vec![2, 0, 0, 0, 9, 2, 2, 0, 0, 0, 9, 1, 8, 0];
    frame.extend([0x45, 0]);
    frame.extend((20 + udp_length).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0x12, 0x34]);
    frame.extend(from.0.octets());
    frame.extend(to.0.octets());
    frame.extend(from.1.to_be_bytes());
    frame.extend(to.1.to_be_bytes());
    frame.extend(udp_length.to_be_bytes());
    frame.extend([0x56, 0x78]);
    frame.extend(payload);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_contender_does_what_it_says() {
        if let Err(reason) = Datapath::load(&Settings::default()) {
            println!("SKIPPED each_contender_does_what_it_says: {reason}");
            return;
        }
        for contender in all().unwrap() {
            contender.measure(Duration::ZERO).unwrap();
        }
    }
}
