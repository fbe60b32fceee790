//! Each balancer against the simulator's: in simulated runs, whenever the simulator chooses, the
//! program chooses, too, given the same knowledge of the load and the same random numbers.

use std::net::Ipv4Addr;

use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;
use shinjuku_net::wire::RackSchedMessage;
use shinjuku_rack::datapath::Program;
use shinjuku_rack::tables::{Injection, Loads};
use shinjuku_sim::rack::balancer::Balancer;
use shinjuku_sim::rack::{Action, BalancerSpec, Change, LoadInfo, LoadView, RackScenario};
use shinjuku_sim::{Request, Scheduler};
use shinjuku_workload::Mix;

use crate::frames::{destination, racksched_from};
use crate::{NOW, Switch, address, settings};

/// The simulator's servers have these numbers in the switch, with gaps.
const NUMBERS: [u8; 6] = [0, 1, 7, 20, 41, 63];

/// Chooses as the simulator does, and has the switch choose beside it.
struct Both {
    name: String,
    balancer: Box<dyn Balancer>,
    switch: Switch,
    load_info: LoadInfo,
    /// The servers that the switch has open.
    open: Vec<usize>,
    number: u32,
}

impl Both {
    /// What the switch knows is what the simulator knows.
    fn tell(&mut self, request: &Request, servers: &[usize], loads: &LoadView) {
        if self.open != servers {
            self.open = servers.to_vec();
            let open: Vec<_> = servers.iter().map(|server| NUMBERS[*server]).collect();
            self.switch.open(&open);
        }
        let is_counters = self.load_info == LoadInfo::Counters;
        let table = if is_counters { crate::TYPES } else { 0 };
        let known = self.switch.datapath.loads(table).unwrap();
        let mut told = Loads {
            load: [0; 64],
            least: 0,
            turn: known.turn,
        };
        for (server, number) in NUMBERS.into_iter().enumerate() {
            let load = loads.load(server, request.class);
            told.load[usize::from(number)] = load as u32;
            let others = (0..NUMBERS.len()).map(|other| loads.load(other, request.class));
            // Of the one that INT2 knows, the simulator tells only that it has less.
            if self.load_info == LoadInfo::Int2 && load == 0 && others.sum::<u64>() > 0 {
                told.least = u64::from(number + 1) << 32;
            }
        }
        self.switch.datapath.set_loads(table, &told).unwrap();
    }

    /// A request of the simulator's flow; its number is new each time.
    fn frame(&mut self, request: &Request) -> Vec<u8> {
        self.number += 1;
        // To the program a flow is the client's address and port, as they lie in memory.
        let flow = request.flow;
        let source = Ipv4Addr::from(((flow >> 16) as u32).to_ne_bytes());
        let port = u16::from_be_bytes((flow as u16).to_ne_bytes());
        let message = RackSchedMessage::request(3, self.number, 1000, 5);
        racksched_from((source, port), message)
    }
}

impl Balancer for Both {
    fn choose(
        &mut self,
        request: &Request,
        servers: &[usize],
        loads: &LoadView,
        random: &mut Xoshiro256PlusPlus,
    ) -> Option<usize> {
        // A client's address and port have 48 bits together.
        let request = &Request {
            flow: request.flow & 0xffff_ffff_ffff,
            ..*request
        };
        self.tell(request, servers, loads);
        let mut ahead = random.clone();
        let draws: Vec<_> = (0..16).map(|_| ahead.next_u32()).collect();
        let injection = Injection::new(NOW, &draws);
        self.switch.datapath.inject(&injection).unwrap();
        let frame = self.frame(request);
        let verdict = self.switch.datapath.run(Program::Rack, &frame, 1).unwrap();

        let mut before = random.clone();
        let chosen = self.balancer.choose(request, servers, loads, random)?;
        let what = (self.name.as_str(), self.load_info, self.number, servers);
        assert_eq!(
            destination(&verdict.frame),
            address(NUMBERS[chosen]),
            "{what:?}"
        );
        // Both have used as many random numbers.
        for _ in 0..self.switch.datapath.drawn().unwrap() {
            before.next_u32();
        }
        assert_eq!(before, *random);
        Some(chosen)
    }
}

#[test]
fn the_program_chooses_as_the_simulator_does() {
    let test = "the_program_chooses_as_the_simulator_does";
    for (balancer, load_info) in [
        ("random", LoadInfo::Int1),
        ("round-robin", LoadInfo::Int1),
        ("by-flow", LoadInfo::Int1),
        ("shortest", LoadInfo::Int1),
        ("shortest", LoadInfo::Int2),
        ("shortest", LoadInfo::Counters),
        ("power-of-1", LoadInfo::Int1),
        ("power-of-2", LoadInfo::Int1),
        ("power-of-2", LoadInfo::Int2),
        ("power-of-2", LoadInfo::Counters),
        ("power-of-3", LoadInfo::Int1),
        ("power-of-4", LoadInfo::Int3),
    ] {
        let name = format!("{load_info:?}").to_lowercase();
        // Room for all: each packet is a choice, and no counter goes down.
        let settings = shinjuku_rack::tables::Settings {
            bucket_mask: 0xffff,
            ..settings(balancer, &name)
        };
        let Some(mut switch) = Switch::with(test, &settings, &NUMBERS) else {
            return;
        };
        switch.open(&NUMBERS[..4]);
        // Nanoseconds of work exceed 32 bits only in the simulator's longest queues.
        let mix = Mix::named("hi").unwrap();
        let policy = Scheduler::sharing();
        let mut scenario = RackScenario::new(mix, 0.8, policy, 4, 2);
        scenario.load_info = load_info;
        scenario.balancer = balancer.parse::<BalancerSpec>().unwrap();
        scenario.network_ns = 2000;
        scenario.requests = 3000;
        scenario.flows = Some(64);
        let change = |at_ns, server, action| Change {
            at_ns,
            server,
            action,
        };
        scenario.changes = vec![
            change(200_000, 5, Action::Add),
            change(400_000, 1, Action::Remove),
            change(600_000, 4, Action::Add),
        ];
        let both = Both {
            name: balancer.to_owned(),
            balancer: scenario.balancer.build(),
            switch,
            load_info,
            open: (0..4).collect(),
            number: 0,
        };
        let run = scenario.run_with(Box::new(both), 7).unwrap();
        assert!(run.sent.iter().sum::<u64>() >= 3000, "{balancer}");
        let used = run.sent.iter().filter(|sent| **sent > 0).count();
        assert!(used > 2, "{balancer}: {:?}", run.sent);
    }
}
