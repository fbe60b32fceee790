//! `bench-dataplane rates`: requests a second, client and server on one thread; or on several, a
//! pair each.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, ValueEnum};
use shinjuku_bench_dataplane::{LONGEST_PAYLOAD, Rates, SHORTEST_PAYLOAD};
use shinjuku_dataplane::Device;

use crate::bursts::Phase;
use crate::reflector::{Reflector, WINDOW};
use crate::stages::{Running, Stage};

/// Before anything is measured.
const WARM_UP: Duration = Duration::from_millis(50);
/// What the last replies may take, on a machine that does something else as well.
const DRAIN: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub struct Options {
    /// The wire between client and server.
    #[arg(long)]
    pub wire: Wire,
    /// How much of a server there is.
    #[arg(long)]
    stage: Stage,
    /// Bytes of a reply's UDP payload; a request has 18.
    #[arg(long, default_value_t = SHORTEST_PAYLOAD, value_parser = clap::value_parser!(u16)
        .range(i64::from(SHORTEST_PAYLOAD)..=i64::from(LONGEST_PAYLOAD)))]
    reply: u16,
    /// For how long.
    #[arg(long, value_parser = crate::seconds)]
    seconds: f64,
    /// Dispatchers, a thread each.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub dispatchers: u16,
    /// A core for each dispatcher; any by default.
    #[arg(long, value_parser = crate::core)]
    core: Vec<usize>,
    /// Flows of each dispatcher's client.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    flows: u16,
    /// Whether a hash in software spreads the flows over the dispatchers, and not the client.
    #[arg(long)]
    pub software: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Wire {
    /// In this process's memory, without DPDK.
    Memory,
    /// DPDK's net_ring.
    #[value(name = "net_ring")]
    NetRing,
}

/// Measures over these wires: a server's and a client's device for each dispatcher.
pub fn measure<D: Device>(wires: Vec<[D; 2]>, options: &Options) -> Result<Rates> {
    measure_and_drain(wires, options, DRAIN)
}

fn measure_and_drain<D: Device>(
    wires: Vec<[D; 2]>,
    options: &Options,
    drain: Duration,
) -> Result<Rates> {
    let phase = Phase::default();
    let requests = (wires.len() * WINDOW) as u64;
    let raw = options.stage == Stage::Raw;
    let mut running = Vec::new();
    for (number, wire) in wires.into_iter().enumerate() {
        let device = Reflector::new(wire, options.flows, options.reply, raw, phase.clone())?;
        let core = options.core.get(number).copied();
        running.push(Running::start(options.stage, device, core)?);
    }
    let description = running.first().and_then(Running::description);
    std::thread::sleep(WARM_UP);
    let start = Instant::now();
    phase.measure();
    std::thread::sleep(Duration::from_secs_f64(options.seconds));
    phase.end();
    let end = Instant::now();
    // Each reply that came made a request, so that until the end a window of them was under way,
    // less those that got lost.
    while phase.late() < requests
        && end.elapsed() < drain
        && !running.iter().any(Running::has_failed)
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    phase.done();
    let dispatchers: Result<_> = running.into_iter().map(Running::finish).collect();
    Ok(Rates {
        description,
        dispatchers: dispatchers?,
        seconds: (end - start).as_secs_f64(),
        unanswered: requests.saturating_sub(phase.late()),
    })
}

#[cfg(test)]
mod tests {
    use clap::{Parser, ValueEnum};
    use shinjuku_dataplane::memory::{self, MemoryDevice, MemoryFrame};
    use shinjuku_dataplane::{Buffer, Offload, Outbound, Received};

    use super::*;
    use crate::bursts::NOTHING;
    use crate::frames::ROOM;

    /// Spoils some of what it sends first.
    struct Bad {
        device: MemoryDevice,
        to_lose: u64,
        to_change: u64,
    }

    impl Device for Bad {
        type Buffer = MemoryFrame;

        fn offload(&self) -> Offload {
            self.device.offload()
        }

        fn receive(&mut self, most: usize, frames: &mut Vec<Received<MemoryFrame>>) {
            self.device.receive(most, frames);
        }

        fn transmit(&mut self, frames: &mut Vec<Outbound<MemoryFrame>>) {
            while self.to_lose > 0 && !frames.is_empty() {
                self.to_lose -= 1;
                self.device.free(frames.remove(0).buffer);
            }
            for one in frames.iter_mut().take(self.to_change as usize) {
                self.to_change -= 1;
                let last = one.buffer.frame_mut().last_mut();
                *last.unwrap() ^= 1;
            }
            self.device.transmit(frames);
        }

        fn allocate(&mut self) -> Option<MemoryFrame> {
            self.device.allocate()
        }

        fn free(&mut self, buffer: MemoryFrame) {
            self.device.free(buffer);
        }
    }

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn faults(stage: Stage, to_lose: u64, to_change: u64) -> [u64; 2] {
        let mut seconds = 0.05;
        let drain = if to_lose == 0 { DRAIN } else { DRAIN / 40 };
        loop {
            let value = stage.to_possible_value().unwrap();
            let stage = value.get_name();
            let line = format!("rates --wire memory --stage {stage} --seconds {seconds}");
            let options = Line::parse_from(line.split(' ')).options;
            let (server, client) = memory::wire(1024, 1024, ROOM);
            let wire = [(server, to_lose, to_change), (client, 0, 0)];
            let wire = wire.map(|(device, to_lose, to_change)| Bad {
                device,
                to_lose,
                to_change,
            });
            match measure_and_drain(vec![wire], &options, drain) {
                Ok(rates) => return rates.faults(),
                // Others had the core.
                Err(error) => assert!(error.to_string().contains(NOTHING) && seconds < 10.0),
            }
            seconds *= 4.0;
        }
    }

    #[test]
    fn replies_that_the_device_loses_or_changes_are_told() {
        const ALL_BUT_ONE: u64 = WINDOW as u64 - 1;
        for stage in [Stage::Raw, Stage::Stack, Stage::Transport, Stage::Runtime] {
            assert_eq!(faults(stage, 0, 0), [0, 0], "{stage:?}");
            let [changed, lost] = faults(stage, ALL_BUT_ONE, 3);
            // The last one may be too late.
            assert!(
                changed == 3 && lost >= ALL_BUT_ONE,
                "{stage:?}: {changed}, {lost}"
            );
        }
    }
}
