//! Each balancer against the simulator's: in simulated runs, whenever the simulator chooses, the
//! program chooses, too, with the same random numbers. What it knows of the load it has learnt
//! itself, from the replies that the simulator has seen; that must be what the simulator knows.
//! With the kernel's own random numbers it chooses otherwise, and as often.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;
use shinjuku_net::wire::RackSchedMessage;
use shinjuku_rack::datapath::Action as Verdict;
use shinjuku_rack::tables::{Cause, Injection, Loads, Members};
use shinjuku_sim::rack::balancer::Balancer;
use shinjuku_sim::rack::{Action, BalancerSpec, Change, LoadInfo, LoadView, RackRun, RackScenario};
use shinjuku_sim::{Request, Scheduler};
use shinjuku_workload::Mix;

use crate::frames::{datagram, destination};
use crate::{NOW, OTHER_PORT, RACK, RACKSCHED_PORT, Switch, TYPES, address, settings};

/// The simulator's servers have these numbers in the switch, with gaps.
const NUMBERS: [u8; 6] = [0, 1, 7, 20, 41, 63];
/// Each class is a type: its number in the switch, and its port.
const CLASSES: [(usize, u16); 2] = [(0, RACKSCHED_PORT), (2, OTHER_PORT)];
/// The workers of servers of different size.
const SIZES: [usize; 6] = [2, 4, 6, 2, 10, 14];

/// A request without a reply.
struct Out {
    class: u16,
    number: u32,
    client: (Ipv4Addr, u16),
}

/// Chooses as the simulator does, and has the switch choose beside it.
struct Both {
    name: String,
    balancer: Box<dyn Balancer>,
    switch: Switch,
    load_info: LoadInfo,
    /// All classes are the first one's type.
    one_type: bool,
    /// The servers that the switch has open, as the simulator lists them.
    open: Vec<usize>,
    /// By server.
    out: [VecDeque<Out>; 6],
    number: u32,
}

impl Both {
    /// The type of a class.
    fn of(&self, class: u16) -> (usize, u16) {
        CLASSES[if self.one_type { 0 } else { usize::from(class) }]
    }

    /// Opens the simulator's servers; returns them in the order of the switch's slots, in which a
    /// server with several lies apart from itself.
    fn open(&mut self, servers: &[usize]) -> Vec<usize> {
        let mut weights: Vec<(u8, u16)> = Vec::new();
        for &server in servers {
            match weights.last_mut() {
                Some((number, weight)) if *number == NUMBERS[server] => *weight += 1,
                _ => weights.push((NUMBERS[server], 1)),
            }
        }
        let members = Members::new(&weights);
        if self.open != servers {
            for server in servers.iter().filter(|server| !self.open.contains(server)) {
                self.switch.datapath.forget(NUMBERS[*server]).unwrap();
                self.out[*server].clear();
            }
            self.open = servers.to_vec();
            self.switch.datapath.set_members(&[members; TYPES]).unwrap();
        }
        let at = |number| NUMBERS.iter().position(|one| *one == number).unwrap();
        members.slots().iter().map(|number| at(*number)).collect()
    }

    /// A reply to the server's oldest request, of this class if one is named.
    fn reply(&mut self, server: usize, class: Option<u16>, load: u32) {
        let out = &mut self.out[server];
        let place = out
            .iter()
            .position(|one| class.is_none_or(|class| one.class == class));
        let one = out.remove(place.expect("it has such a request")).unwrap();
        let (_, port) = self.of(one.class);
        let message = RackSchedMessage::request(3, one.number, 1000, 5).reply(load);
        let from = (address(NUMBERS[server]), port);
        let frame = datagram(from, one.client, &[], 0, &message.to_bytes());
        let (action, _, causes) = self.switch.run(&frame);
        assert_eq!((action, &*causes), (Verdict::Redirect, &[Cause::Reply][..]));
    }

    /// The switch sees the replies that the simulator has seen, as far as they tell anything.
    fn learn(&mut self, loads: &LoadView) {
        for server in self.open.clone() {
            let number = NUMBERS[server];
            if self.load_info == LoadInfo::Counters {
                while u64::from(self.switch.outstanding(number)) > loads.counter(server) {
                    self.reply(server, None, 0);
                }
                let counted = u64::from(self.switch.outstanding(number));
                assert_eq!(counted, loads.counter(server));
                continue;
            }
            for class in 0..CLASSES.len() as u16 {
                let (table, _) = self.of(class);
                let told = loads.load(server, class) as u32;
                let known = |switch: &Switch| {
                    let loads = switch.datapath.loads(table).unwrap();
                    loads.load[usize::from(number)]
                };
                if known(&self.switch) != told {
                    self.reply(server, (!self.one_type).then_some(class), told);
                    assert_eq!(known(&self.switch), told);
                }
            }
        }
    }

    /// The server that INT2 knows; the simulator does not tell its load.
    fn tell_least(&mut self, request: &Request, loads: &LoadView) {
        let (table, _) = self.of(request.class);
        let mut told = Loads {
            turn: self.switch.datapath.loads(table).unwrap().turn,
            load: [0; 64],
            least: 0,
        };
        if let Some(least) = loads.least(request.class) {
            told.least = u64::from(NUMBERS[least] + 1) << 32;
        }
        self.switch.datapath.set_loads(table, &told).unwrap();
    }

    /// A request of the simulator's flow; its number is new each time.
    fn request(&mut self, request: &Request) -> (Out, Vec<u8>) {
        self.number += 1;
        // To the program a flow is the client's address and port, as they lie in memory.
        let flow = request.flow;
        let source = Ipv4Addr::from(((flow >> 16) as u32).to_ne_bytes());
        let client = (source, u16::from_be_bytes((flow as u16).to_ne_bytes()));
        let message = RackSchedMessage::request(3, self.number, 1000, 5);
        let (_, port) = self.of(request.class);
        let frame = datagram(client, (RACK, port), &[], 0, &message.to_bytes());
        let out = Out {
            class: request.class,
            number: self.number,
            client,
        };
        (out, frame)
    }

    /// Has the switch, which knows what the simulator knows, choose for a request. Returns its
    /// slots, the request, and where it went.
    fn sent(
        &mut self,
        request: &Request,
        servers: &[usize],
        loads: &LoadView,
    ) -> (Vec<usize>, Out, Ipv4Addr) {
        let request = &of_a_client(request);
        let slots = self.open(servers);
        match self.load_info {
            LoadInfo::Int2 => self.tell_least(request, loads),
            _ => self.learn(loads),
        }
        let (out, frame) = self.request(request);
        let (_, sent, _) = self.switch.run(&frame);
        (slots, out, destination(&sent))
    }
}

/// A client's address and port have 48 bits together.
fn of_a_client(request: &Request) -> Request {
    Request {
        flow: request.flow & 0xffff_ffff_ffff,
        ..*request
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
        let mut ahead = random.clone();
        let draws: Vec<_> = (0..16).map(|_| ahead.next_u32()).collect();
        let injection = Injection::new(NOW, &draws);
        self.switch.datapath.inject(&injection).unwrap();
        let (slots, out, sent) = self.sent(request, servers, loads);

        let mut before = random.clone();
        let request = &of_a_client(request);
        // `shortest` looks at each server once, in the order of their numbers.
        let looks_at_all = self.name == "shortest" && self.load_info != LoadInfo::Int2;
        let listed = if looks_at_all { servers } else { &slots };
        let chosen = self.balancer.choose(request, listed, loads, random)?;
        let what = (self.name.as_str(), self.load_info, self.number, servers);
        assert_eq!(sent, address(NUMBERS[chosen]), "{what:?}");
        self.out[chosen].push_back(out);
        // Both have used as many random numbers.
        for _ in 0..self.switch.datapath.drawn().unwrap() {
            before.next_u32();
        }
        assert_eq!(before, *random);
        Some(chosen)
    }
}

/// A rack of 3000 requests.
fn scenario(balancer: &str, load_info: LoadInfo, sizes: &[usize]) -> RackScenario {
    // Nanoseconds of work exceed 32 bits only in the simulator's longest queues.
    let mix = Mix::named("hi").unwrap();
    let mut scenario = RackScenario::new(mix, 0.8, Scheduler::sharing(), 4, 2);
    scenario.workers = sizes.to_vec();
    scenario.load_info = load_info;
    scenario.balancer = balancer.parse::<BalancerSpec>().unwrap();
    // The simulator has one turn for all classes, the switch one for each type.
    scenario.one_type = balancer == "round-robin";
    scenario.network_ns = 2000;
    scenario.requests = 3000;
    scenario.flows = Some(64);
    scenario
}

/// The switch beside the simulator. `None`, having said so, if this machine cannot.
fn both(test: &str, balancer: &str, scenario: &RackScenario, injected: bool) -> Option<Both> {
    let load_info = scenario.load_info;
    let name = format!("{load_info:?}").to_lowercase();
    let mut settings = shinjuku_rack::tables::Settings {
        // Room for all: no request without a reply is in the way of another.
        bucket_mask: 0xffff,
        ..settings(balancer, &name)
    };
    if !injected {
        settings.injected = 0;
        // By the clock, which the simulator's does not follow.
        settings.age = 1 << 20;
    }
    Some(Both {
        name: balancer.to_owned(),
        balancer: scenario.balancer.build(),
        switch: Switch::with(test, &settings, &NUMBERS)?,
        load_info,
        one_type: scenario.one_type,
        open: Vec::new(),
        out: Default::default(),
        number: 0,
    })
}

/// A simulated run, with servers that come and go.
fn choose_alike(test: &str, balancer: &str, load_info: LoadInfo, sizes: &[usize]) {
    let mut scenario = scenario(balancer, load_info, sizes);
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
    let Some(both) = both(test, balancer, &scenario, true) else {
        return;
    };
    let run = scenario.run_with(Box::new(both), 7).unwrap();
    assert!(run.sent.iter().sum::<u64>() >= 3000, "{balancer}");
    let used = run.sent.iter().filter(|sent| **sent > 0).count();
    assert!(used > 2, "{balancer}: {:?}", run.sent);
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
        choose_alike(test, balancer, load_info, &[]);
    }
}

#[test]
fn the_program_weighs_as_the_simulator_does() {
    let test = "the_program_weighs_as_the_simulator_does";
    for (balancer, load_info) in [
        ("random", LoadInfo::Int1),
        ("round-robin", LoadInfo::Int1),
        ("by-flow", LoadInfo::Int1),
        ("shortest", LoadInfo::Int1),
        ("shortest", LoadInfo::Int2),
        ("shortest", LoadInfo::Counters),
        ("power-of-2", LoadInfo::Int1),
        ("power-of-2", LoadInfo::Int2),
        ("power-of-2", LoadInfo::Counters),
        ("power-of-4", LoadInfo::Int3),
    ] {
        choose_alike(test, balancer, load_info, &SIZES);
    }
}

/// Has the switch alone choose, by the kernel's random numbers.
struct Alone(Both);

impl Balancer for Alone {
    fn choose(
        &mut self,
        request: &Request,
        servers: &[usize],
        loads: &LoadView,
        _: &mut Xoshiro256PlusPlus,
    ) -> Option<usize> {
        let (_, out, sent) = self.0.sent(request, servers, loads);
        let chosen = NUMBERS.iter().position(|number| address(*number) == sent)?;
        self.0.out[chosen].push_back(out);
        Some(chosen)
    }
}

/// For the same arrivals: each server's share of the requests, and how long they took, are no
/// further from the simulator's than its own runs are from each other.
#[test]
fn choices_and_loads_are_distributed_as_the_simulators() {
    let test = "choices_and_loads_are_distributed_as_the_simulators";
    let figures = |run: &RackRun| {
        let all = run.sent.iter().sum::<u64>() as f64;
        let mut figures: Vec<_> = run.sent.iter().map(|sent| *sent as f64 / all).collect();
        figures.push(run.tally.all().mean_ns);
        figures
    };
    for (balancer, load_info) in [
        ("random", LoadInfo::Int1),
        ("shortest", LoadInfo::Int1),
        ("power-of-2", LoadInfo::Int1),
        ("power-of-2", LoadInfo::Counters),
    ] {
        let scenario = scenario(balancer, load_info, &[]);
        let simulated: Vec<_> = (0..24)
            .map(|seed| figures(&scenario.run(seed).unwrap()))
            .collect();
        for seed in 0..2 {
            let Some(both) = both(test, balancer, &scenario, false) else {
                return;
            };
            let run = scenario.run_with(Box::new(Alone(both)), seed).unwrap();
            for (at, figure) in figures(&run).into_iter().enumerate() {
                let all = || simulated.iter().map(|figures| figures[at]);
                let lowest = all().fold(f64::INFINITY, f64::min);
                let highest = all().fold(0.0, f64::max);
                // Once more their range on either side: chance seldom leads there.
                let range = highest - lowest;
                let is_like = (lowest - range..=highest + range).contains(&figure);
                assert!(is_like, "{balancer}, {at}: {figure}, {lowest}..{highest}");
            }
        }
    }
}
