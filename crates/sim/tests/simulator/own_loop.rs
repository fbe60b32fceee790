//! What loops that help each other owe to the requests of their own: the same arrivals at the same
//! loops, with help (`symmetric`) and without (`ix`), request by request.
//!
//! Ours, of the layout `symmetric`: a loop serves its home first, and elsewhere it gives way after
//! a quantum. So nobody should wait for longer than if the loop alone served what comes to it. That
//! holds of each request up to a guest's quantum, where the loop's own requests are not preempted.
//! Where they are, they rotate, and with help they stand in another order. Then it holds of every
//! quantile, and of single requests up to the rotation's rounding, which shrinks with the quantum.
//! To completion it does not hold: the guest may be a long request.

use shinjuku_policy::{Nanos, cfcfs, single_queue};
use shinjuku_sim::{Layout, Loops, Outcome, Overheads, Request, Scheduler, Shape};
use shinjuku_workload::{Class, Length, Mix, Schedule, ScheduleConfig, ServiceTime};

const QUANTUM_NS: u64 = 5_000;
const REQUESTS: usize = 40_000;

/// About what this project's loops take on a machine where a cache line takes 0.1 us.
const COSTS: Overheads = Overheads {
    network_ns: 30,
    dispatch_ns: 50,
    switch_ns: 20,
    preempt_receive_ns: 40,
    steal_ns: 400,
    ..Overheads::IDEAL
};

fn rotating(quantum_ns: u64) -> Scheduler {
    Scheduler::of(single_queue::REGISTERED).with_quantum(Nanos(quantum_ns))
}

/// Requests in their order, each with its flow and when it comes (`sent_ns`).
fn arrivals(mix: &Mix, load: f64, loops: usize, flows: u32) -> Vec<Request> {
    let config = ScheduleConfig::at_load(load, loops, Length::Requests(REQUESTS));
    let config = config.with_seed(3).with_flows(flows);
    let schedule = Schedule::generate(mix, &config).unwrap();
    let drawn = (0..).zip(schedule.arrivals());
    let request = |(tag, one): (u64, &shinjuku_workload::Arrival)| Request {
        sent_ns: one.at_ns,
        service_ns: one.service_ns,
        flow: u64::from(one.flow),
        class: one.class,
        tag,
    };
    drawn.map(request).collect()
}

/// How long each is in the server, ns.
fn sojourns(server: &mut Loops, arrivals: &[Request]) -> Vec<u64> {
    let mut sojourns = vec![0; arrivals.len()];
    let mut note = |outcome: Option<Outcome>| match outcome {
        Some(Outcome::Finished { request, at_ns }) => {
            sojourns[request.tag as usize] = at_ns - request.sent_ns;
        }
        Some(refused) => panic!("{refused:?}"),
        None => {}
    };
    for request in arrivals {
        while server.next_ns() <= request.sent_ns {
            note(server.step());
        }
        note(server.arrive(request.sent_ns, *request));
    }
    while server.next_ns() != u64::MAX {
        note(server.step());
    }
    server.check().unwrap();
    sojourns
}

/// A request, and how long it is there without help and with it.
struct Twice {
    request: Request,
    alone_ns: u64,
    helped_ns: u64,
}

impl Twice {
    fn late_ns(&self) -> u64 {
        self.helped_ns.saturating_sub(self.alone_ns)
    }
}

fn both(policy: &Scheduler, loops: usize, costs: Overheads, arrivals: &[Request]) -> Vec<Twice> {
    let [alone, helped] = [Layout::Ix, Layout::Symmetric].map(|layout| {
        let shape = Shape {
            layout,
            overheads: costs,
            capacity: loops * arrivals.len(),
            ..Shape::ideal(loops)
        };
        let mut server = Loops::new(policy, shape, 1).unwrap();
        let sojourns = sojourns(&mut server, arrivals);
        assert_eq!(server.helps() > 0, layout == Layout::Symmetric);
        sojourns
    });
    let each = arrivals.iter().zip(alone).zip(helped);
    let twice = |((request, alone_ns), helped_ns): ((&Request, u64), u64)| Twice {
        request: *request,
        alone_ns,
        helped_ns,
    };
    each.map(twice).collect()
}

fn late_most(all: &[Twice]) -> u64 {
    all.iter().map(Twice::late_ns).max().unwrap()
}

/// The share that is late by more than so long.
fn late_share(all: &[Twice], by_ns: u64) -> f64 {
    let late = all.iter().filter(|one| one.late_ns() > by_ns);
    late.count() as f64 / all.len() as f64
}

/// Fails unless with help each class has lower quantiles, but for `slack_ns`.
#[track_caller]
fn quantiles_are_lower(what: &str, all: &[Twice], slack_ns: u64) {
    let classes = all.iter().map(|one| one.request.class).max().unwrap() + 1;
    for class in 0..classes {
        let of_class = || all.iter().filter(|one| one.request.class == class);
        let sorted = |value: fn(&Twice) -> u64| {
            let mut values: Vec<u64> = of_class().map(value).collect();
            values.sort_unstable();
            values
        };
        let alone = sorted(|one| one.alone_ns);
        let helped = sorted(|one| one.helped_ns);
        for permille in [100, 250, 500, 750, 900, 950, 990, 999] {
            let at = permille * (alone.len() - 1) / 1000;
            assert!(
                helped[at] <= alone[at] + slack_ns,
                "{what}, class {class}, {permille} of 1000: {} with help, {} without",
                helped[at],
                alone[at]
            );
        }
    }
}

/// One loop has more than it can do, all of it long. What comes to the other takes less than a
/// quantum, so it runs in its order.
#[test]
fn a_loop_that_helps_is_late_for_its_own_by_one_guests_quantum() {
    // By the hash of flows, the first is at home at the first of two loops, the second at the
    // other.
    let of_flow = |service_us: f64, load: f64, flow: u64| {
        let class = Class::new("all", 1.0, ServiceTime::fixed(service_us).unwrap());
        let mix = Mix::new("fixed", vec![class]).unwrap();
        let mut arrivals = arrivals(&mix, load, 1, 1);
        arrivals.iter_mut().for_each(|one| one.flow = flow);
        arrivals
    };
    let own = of_flow(2.0, 0.5, 1);
    let until_ns = own.last().unwrap().sent_ns;
    let mut swamp = of_flow(500.0, 1.7, 0);
    swamp.retain(|one| one.sent_ns < until_ns);
    let mut all: Vec<Request> = own.into_iter().chain(swamp).collect();
    all.sort_by_key(|one| one.sent_ns);
    (0..).zip(&mut all).for_each(|(tag, one)| one.tag = tag);
    for costs in [Overheads::IDEAL, COSTS] {
        let all = both(&rotating(QUANTUM_NS), 2, costs, &all);
        let (own, swamp): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| one.request.flow == 1);
        // A guest's turn, and polling what has come home meanwhile, some few.
        let guest_ns = QUANTUM_NS
            + costs.steal_ns
            + costs.dispatch_ns
            + costs.switch_ns
            + costs.preempt_receive_ns
            + 10 * costs.network_ns;
        let most = late_most(&own);
        assert!(
            (QUANTUM_NS / 2..=guest_ns).contains(&most),
            "{most} ns late"
        );
        // The loop has half of its time for them.
        quantiles_are_lower("the swamp", &swamp, 0);
        let total = |value: fn(&Twice) -> u64| swamp.iter().map(value).sum::<u64>();
        assert!(3 * total(|one| one.helped_ns) < 2 * total(|one| one.alone_ns));
    }
}

/// Mixes, loads, loops and flows: many, or so few that some loops have more than they can do.
const SERVERS: [(&str, f64, usize, u32); 6] = [
    ("hi", 0.5, 2, 64),
    ("hi", 0.8, 2, 64),
    ("mid", 0.5, 2, 64),
    ("mid", 0.8, 8, 64),
    ("lognormal", 0.7, 4, 64),
    ("mid", 0.6, 4, 5),
];

#[test]
fn with_help_every_quantile_is_lower() {
    for (name, load, loops, flows) in SERVERS {
        let arrivals = arrivals(&Mix::named(name).unwrap(), load, loops, flows);
        for (costs, most) in [(Overheads::IDEAL, 0.01), (COSTS, 0.03)] {
            let all = both(&rotating(QUANTUM_NS), loops, costs, &arrivals);
            let what = format!("{name} at {load} on {loops}, {flows} flows, {costs:?}");
            // Short requests that hardly wait pay for a steal.
            quantiles_are_lower(&what, &all, costs.steal_ns);
            let share = late_share(&all, QUANTUM_NS);
            assert!(share < most, "{what}: {share} are late by a quantum");
        }
    }
}

#[test]
fn what_is_later_with_help_is_so_by_the_rotations_rounding() {
    let arrivals = arrivals(&Mix::named("mid").unwrap(), 0.5, 2, 64);
    let most = |quantum_ns| late_most(&both(&rotating(quantum_ns), 2, Overheads::IDEAL, &arrivals));
    let (coarse, fine) = (most(QUANTUM_NS), most(QUANTUM_NS / 10));
    assert!(
        coarse > 2 * QUANTUM_NS && 3 * fine < coarse,
        "{coarse} ns, {fine} ns"
    );
}

#[test]
fn to_completion_a_loops_own_wait_for_a_whole_guest() {
    let arrivals = arrivals(&Mix::named("hi").unwrap(), 0.5, 2, 64);
    let fcfs = Scheduler::of(cfcfs::REGISTERED);
    let all = both(&fcfs, 2, Overheads::IDEAL, &arrivals);
    // Of a hundred requests some are late by more than ten quanta, by a long request at most.
    let share = late_share(&all, 10 * QUANTUM_NS);
    assert!(share > 0.03, "{share}");
    assert!(late_most(&all) <= 500_000, "longer than a long request");
}
