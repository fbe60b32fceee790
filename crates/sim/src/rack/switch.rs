//! The rack at run time: packets go to servers, replies come back, servers come and go.

use std::collections::{HashMap, VecDeque};

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::affinity::RequestTable;
use super::balancer::Balancer;
use super::load::{LoadView, Report};
use super::{Action, Change, LoadInfo, MOST_INTERVALS, Outage, RackRun, RackScenario};
use crate::calendar::{Calendar, NEVER};
use crate::machine::{Machine, spread};
use crate::scenario::Drive;
use crate::tally::Tally;
use crate::{Outcome, Request, SimError};

fn gcd(one: usize, other: usize) -> usize {
    if other == 0 {
        one
    } else {
        gcd(other, one % other)
    }
}

/// A packet on its way to a server.
struct Packet {
    at_ns: u64,
    server: usize,
    request: Request,
}

/// A reply on its way to the switch.
#[derive(Clone, Copy)]
struct Reply {
    at_ns: u64,
    server: usize,
    request: Request,
    report: Report,
}

/// A server as the switch sees it.
struct Host {
    machine: Machine,
    /// The server exists and answers.
    alive: bool,
    /// Unfinished requests per class.
    unfinished: Vec<Report>,
    /// The counted ones among them.
    counted: u64,
}

/// A request of several packets, of which some have reached a server.
struct Partial {
    server: usize,
    packets: u32,
    /// The request is broken or lost already.
    over: bool,
}

pub(super) struct Rack {
    hosts: Vec<Host>,
    calendar: Calendar,
    /// Servers that the balancer may choose, rising; each as often as it is to be drawn.
    open: Vec<usize>,
    /// How often each server is among them.
    slots: Vec<usize>,
    balancer: Box<dyn Balancer>,
    /// What each chooser knows of the load: the switch, or the clients.
    views: Vec<LoadView>,
    table: Option<RequestTable>,
    /// Later packets on their way to the switch: one queue for the second of each request, one for
    /// the third, ...
    later: Vec<VecDeque<(u64, Request)>>,
    forward: VecDeque<Packet>,
    backward: VecDeque<Reply>,
    /// Replies that have passed the switch, whose load is not known yet.
    reports: VecDeque<Reply>,
    held: VecDeque<Request>,
    partials: HashMap<u64, Partial>,
    /// By time, the first last.
    changes: Vec<(Change, bool)>,
    /// The outage that is to come or is not over.
    outage: Option<Outage>,
    random: Xoshiro256PlusPlus,
    run: RackRun,
    events: u64,
}

impl Rack {
    pub(super) fn new(
        scenario: &RackScenario,
        balancer: Box<dyn Balancer>,
        seed: u64,
    ) -> Result<Self, SimError> {
        let most = scenario.hosts();
        let classes = scenario.mix.classes().len();
        let types = if scenario.one_type { 1 } else { classes };
        let host = |server| {
            Ok(Host {
                machine: Machine::new(
                    &scenario.policy,
                    scenario.shape_of(server),
                    seed ^ server as u64,
                )?,
                alive: server < scenario.servers,
                unfinished: vec![Report::default(); classes],
                counted: 0,
            })
        };
        let workers: Vec<_> = (0..most)
            .map(|server| scenario.workers_of(server))
            .collect();
        let weights = match scenario.equal_weights {
            true => vec![1; most],
            false => workers,
        };
        let unit = weights.iter().copied().fold(0, gcd);
        let slots: Vec<_> = weights.iter().map(|weight| weight / unit).collect();
        // All know the truth.
        let views = match scenario.load_info {
            LoadInfo::Exact => 1,
            _ => scenario.views,
        };
        let mut changes = Vec::new();
        for change in &scenario.changes {
            changes.push((*change, change.action != Action::Fail));
            if change.action == Action::Fail {
                let at_ns = change.at_ns + scenario.detection_ns;
                changes.push((Change { at_ns, ..*change }, true));
            }
        }
        changes.sort_by_key(|(change, known)| std::cmp::Reverse((change.at_ns, *known)));
        Ok(Self {
            hosts: (0..most).map(host).collect::<Result<_, SimError>>()?,
            calendar: Calendar::new(most),
            open: (0..scenario.servers)
                .flat_map(|server| std::iter::repeat_n(server, slots[server]))
                .collect(),
            slots,
            balancer,
            views: (0..views)
                .map(|_| LoadView::new(scenario.load_info, &weights, types))
                .collect(),
            table: scenario
                .request_table
                .filter(|_| scenario.packets > 1)
                .map(|(stages, slots)| RequestTable::new(stages, slots)),
            later: (1..scenario.packets).map(|_| VecDeque::new()).collect(),
            forward: VecDeque::new(),
            backward: VecDeque::new(),
            reports: VecDeque::new(),
            held: VecDeque::new(),
            partials: HashMap::new(),
            changes,
            outage: scenario.outage,
            random: Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x5851_F42D_4C95_7F2D),
            run: RackRun {
                tally: Tally::new(classes),
                events: 0,
                preemptions: 0,
                lost: 0,
                broken: 0,
                table_overflows: 0,
                sent: vec![0; most],
                answered: Vec::new(),
            },
            events: 0,
        })
    }

    pub(super) fn run(mut self, scenario: &RackScenario, seed: u64) -> Result<RackRun, SimError> {
        let workers = (0..scenario.servers)
            .map(|server| scenario.workers_of(server))
            .sum();
        let mut drive = Drive::new(
            &scenario.mix,
            &scenario.arrivals,
            scenario.load,
            workers,
            scenario.flows,
            scenario.requests,
            seed,
        )?;
        loop {
            let change = self
                .changes
                .last()
                .map_or(NEVER, |(change, _)| change.at_ns);
            let forward = self.forward.front().map_or(NEVER, |packet| packet.at_ns);
            let backward = self.backward.front().map_or(NEVER, |reply| reply.at_ns);
            let server = self.calendar.first_ns();
            let later = self.later.iter().enumerate();
            let (later, number) = later
                .filter_map(|(number, queue)| Some((queue.front()?.0, number)))
                .min()
                .unwrap_or((NEVER, 0));
            let report = self.reports.front().map_or(NEVER, |reply| reply.at_ns);
            let first = change
                .min(forward)
                .min(backward)
                .min(server)
                .min(later)
                .min(report);
            if let Some(request) = drive.due(first) {
                self.send(request.sent_ns, request, scenario, &mut drive);
                for (number, queue) in (1..).zip(&mut self.later) {
                    queue.push_back((request.sent_ns + number * scenario.packet_gap_ns, request));
                }
            } else if first == NEVER || (first == change && drive.next_ns() == NEVER && self.idle())
            {
                break;
            } else if first == change {
                if let Some((change, known)) = self.changes.pop() {
                    self.change(change, known, scenario, &mut drive);
                }
            } else if first == server {
                self.step(scenario, &mut drive);
            } else if first == forward {
                if let Some(packet) = self.forward.pop_front() {
                    self.receive(packet, scenario, &mut drive);
                }
            } else if first == backward {
                if let Some(reply) = self.backward.pop_front() {
                    self.reply(reply, scenario, &mut drive);
                }
            } else if first == report {
                if let Some(reply) = self.reports.pop_front() {
                    self.learn(&reply);
                }
            } else if let Some((at_ns, request)) = self.later[number].pop_front() {
                self.follow(at_ns, request, scenario, &mut drive);
            }
        }
        for request in std::mem::take(&mut self.held) {
            self.lose(&request, &mut drive);
        }
        for host in &self.hosts {
            host.machine.check()?;
            self.run.preemptions += host.machine.preemptions();
        }
        self.run.events = self.events
            + self
                .hosts
                .iter()
                .map(|host| host.machine.events())
                .sum::<u64>();
        Ok(self.run)
    }

    /// Whether nothing is under way, so that changes to come have no effect.
    fn idle(&self) -> bool {
        self.forward.is_empty() && self.backward.is_empty() && self.calendar.first_ns() == NEVER
    }

    fn lose(&mut self, request: &Request, drive: &mut Drive<'_>) {
        if drive.counts(request) {
            drive.settle();
            self.run.lost += 1;
        }
    }

    /// Whether the switch is out. What reaches it first after that finds it empty.
    fn is_out(&mut self, now: u64, scenario: &RackScenario, drive: &mut Drive<'_>) -> bool {
        let Some(Outage { at_ns, for_ns }) = self.outage.filter(|outage| now >= outage.at_ns)
        else {
            return false;
        };
        if now - at_ns < for_ns {
            return true;
        }
        self.outage = None;
        if let Some(table) = &mut self.table {
            table.empty();
        }
        if scenario.load_info != LoadInfo::Exact {
            (0..self.hosts.len()).for_each(|server| self.forget(server));
            self.reports.clear();
        }
        for request in std::mem::take(&mut self.held) {
            self.lose(&request, drive);
        }
        false
    }

    /// A request's first packet is at the switch.
    fn send(&mut self, now: u64, request: Request, scenario: &RackScenario, drive: &mut Drive<'_>) {
        self.events += 1;
        if self.is_out(now, scenario, drive) || self.open.is_empty() {
            if self.later.is_empty() {
                self.lose(&request, drive);
            } else {
                self.lose_partial(request, 0, false, drive);
            }
            return;
        }
        let choice = if self.held.is_empty() {
            self.choose(&request)
        } else {
            None
        };
        let Some(mut server) = choice else {
            self.held.push_back(request);
            return;
        };
        if let Some(table) = &mut self.table
            && !table.insert(request.tag, server)
        {
            self.run.table_overflows += 1;
            server = self.open[spread(request.tag, self.open.len())];
        }
        self.view(&request).sent(server, request.class);
        self.run.sent[server] += 1;
        self.forward(now, server, request, scenario, drive);
    }

    /// A later packet of a request is at the switch.
    fn follow(
        &mut self,
        now: u64,
        request: Request,
        scenario: &RackScenario,
        drive: &mut Drive<'_>,
    ) {
        self.events += 1;
        let is_out = self.is_out(now, scenario, drive);
        let server = match &self.table {
            _ if is_out || self.open.is_empty() => None,
            Some(table) => table
                .find(request.tag)
                .or_else(|| Some(self.open[spread(request.tag, self.open.len())])),
            None => self.choose(&request),
        };
        match server {
            Some(server) => self.forward(now, server, request, scenario, drive),
            None => self.lose_partial(request, 0, false, drive),
        }
    }

    fn forward(
        &mut self,
        now: u64,
        server: usize,
        request: Request,
        scenario: &RackScenario,
        drive: &mut Drive<'_>,
    ) {
        if scenario.loss > 0.0 && self.random.random::<f64>() < scenario.loss {
            self.lose_packet(request, server, drive);
            return;
        }
        self.forward.push_back(Packet {
            at_ns: now + scenario.network_ns,
            server,
            request,
        });
    }

    fn lose_packet(&mut self, request: Request, server: usize, drive: &mut Drive<'_>) {
        self.view(&request).left(server, request.class);
        if self.later.is_empty() {
            self.lose(&request, drive);
        } else {
            self.lose_partial(request, server, false, drive);
        }
    }

    /// A request of several packets cannot be put together: some of them are lost, or at another
    /// server.
    fn lose_partial(
        &mut self,
        request: Request,
        server: usize,
        broken: bool,
        drive: &mut Drive<'_>,
    ) {
        let partial = self.partials.entry(request.tag).or_insert(Partial {
            server,
            packets: 0,
            over: false,
        });
        partial.packets += 1;
        let last = partial.packets > self.later.len() as u32;
        if !std::mem::replace(&mut partial.over, true) && drive.counts(&request) {
            drive.settle();
            if broken {
                self.run.broken += 1;
            } else {
                self.run.lost += 1;
            }
        }
        if last {
            self.partials.remove(&request.tag);
            if let Some(table) = &mut self.table {
                table.clear(request.tag);
            }
        }
    }

    /// A packet reaches its server.
    fn receive(&mut self, packet: Packet, scenario: &RackScenario, drive: &mut Drive<'_>) {
        self.events += 1;
        let Packet {
            at_ns,
            server,
            request,
        } = packet;
        if !self.hosts[server].alive {
            self.lose_packet(request, server, drive);
            return;
        }
        if !self.later.is_empty() {
            let partial = self.partials.entry(request.tag).or_insert(Partial {
                server,
                packets: 0,
                over: false,
            });
            if partial.over || partial.server != server {
                self.lose_partial(request, server, true, drive);
                return;
            }
            partial.packets += 1;
            if partial.packets <= self.later.len() as u32 {
                return;
            }
            self.partials.remove(&request.tag);
        }
        let host = &mut self.hosts[server];
        let unfinished = &mut host.unfinished[usize::from(request.class)];
        unfinished.requests += 1;
        unfinished.work_ns += request.service_ns;
        host.counted += u64::from(drive.counts(&request));
        let outcome = host.machine.arrive(at_ns, request);
        self.calendar.set(server, host.machine.next_ns());
        self.finish(server, at_ns, outcome, scenario, drive);
    }

    /// A server's next event.
    fn step(&mut self, scenario: &RackScenario, drive: &mut Drive<'_>) {
        let server = self.calendar.first_slot();
        let now = self.calendar.first_ns();
        let host = &mut self.hosts[server];
        let outcome = host.machine.step();
        self.calendar.set(server, host.machine.next_ns());
        self.finish(server, now, outcome, scenario, drive);
    }

    /// A server is done with a request: a reply leaves, or it is refused.
    fn finish(
        &mut self,
        server: usize,
        now: u64,
        outcome: Option<Outcome>,
        scenario: &RackScenario,
        drive: &mut Drive<'_>,
    ) {
        let (request, refused) = match outcome {
            None => return,
            Some(Outcome::Finished { request, .. }) => (request, false),
            Some(Outcome::Refused { request }) => (request, true),
        };
        let host = &mut self.hosts[server];
        host.counted -= u64::from(drive.counts(&request));
        let unfinished = &mut host.unfinished[usize::from(request.class)];
        unfinished.requests -= 1;
        unfinished.work_ns -= request.service_ns;
        let report = match scenario.one_type {
            true => host.unfinished.iter().copied().sum(),
            false => *unfinished,
        };
        self.view(&request).left(server, request.class);
        if refused {
            self.run.tally.refuse();
            if drive.counts(&request) {
                drive.settle();
            }
            return;
        }
        if scenario.loss > 0.0 && self.random.random::<f64>() < scenario.loss {
            self.lose(&request, drive);
            return;
        }
        self.backward.push_back(Reply {
            at_ns: now + scenario.network_ns,
            server,
            request,
            report,
        });
    }

    /// A reply is at the switch.
    fn reply(&mut self, reply: Reply, scenario: &RackScenario, drive: &mut Drive<'_>) {
        self.events += 1;
        let Reply { at_ns, request, .. } = reply;
        if self.is_out(at_ns, scenario, drive) {
            self.lose(&request, drive);
            return;
        }
        let is_lost =
            scenario.report_loss > 0.0 && self.random.random::<f64>() < scenario.report_loss;
        if !is_lost && scenario.report_delay_ns == 0 {
            self.learn(&reply);
        } else if !is_lost {
            let at_ns = at_ns.saturating_add(scenario.report_delay_ns);
            self.reports.push_back(Reply { at_ns, ..reply });
        }
        if let Some(table) = &mut self.table {
            table.clear(request.tag);
        }
        if let Some(interval) = at_ns.checked_div(scenario.interval_ns) {
            let interval = (interval as usize).min(MOST_INTERVALS - 1);
            let intervals = self.run.answered.len().max(interval + 1);
            self.run.answered.resize(intervals, 0);
            self.run.answered[interval] += 1;
        }
        if drive.counts(&request) {
            drive.settle();
            let latency_ns = at_ns - request.sent_ns;
            self.run
                .tally
                .record(request.class, latency_ns, request.service_ns);
        }
        self.send_held(at_ns, scenario, drive);
    }

    /// The load that a reply carried is known from now on.
    fn learn(&mut self, reply: &Reply) {
        let Reply {
            server,
            request,
            report,
            ..
        } = reply;
        let is_open = self.open.binary_search(server).is_ok();
        let report = is_open.then_some(*report);
        self.view(request).replied(*server, request.class, report);
    }

    /// What the chooser of this request knows.
    fn view(&mut self, request: &Request) -> &mut LoadView {
        let view = spread(request.flow, self.views.len());
        &mut self.views[view]
    }

    fn choose(&mut self, request: &Request) -> Option<usize> {
        let view = &self.views[spread(request.flow, self.views.len())];
        self.balancer
            .choose(request, &self.open, view, &mut self.random)
    }

    fn send_held(&mut self, now: u64, scenario: &RackScenario, drive: &mut Drive<'_>) {
        while let Some(request) = self.held.pop_front() {
            let choice = if self.open.is_empty() {
                None
            } else {
                self.choose(&request)
            };
            let Some(server) = choice else {
                self.held.push_front(request);
                return;
            };
            self.view(&request).sent(server, request.class);
            self.run.sent[server] += 1;
            self.forward(now, server, request, scenario, drive);
        }
    }

    /// A server comes, goes or fails; `known`: the switch hears of it.
    fn change(
        &mut self,
        change: Change,
        known: bool,
        scenario: &RackScenario,
        drive: &mut Drive<'_>,
    ) {
        let Change {
            at_ns,
            server,
            action,
        } = change;
        self.events += 1;
        match action {
            Action::Add => {
                self.hosts[server].alive = true;
                self.forget(server);
                let at = self.open.partition_point(|open| *open < server);
                if self.open.get(at) != Some(&server) {
                    let slots = std::iter::repeat_n(server, self.slots[server]);
                    self.open.splice(at..at, slots);
                }
                self.send_held(at_ns, scenario, drive);
            }
            Action::Remove => {
                self.open.retain(|open| *open != server);
                self.forget_least(server);
            }
            // The server was added again before its failure was noticed: the news is out of date.
            Action::Fail if known && self.hosts[server].alive => {}
            Action::Fail if known => {
                self.open.retain(|open| *open != server);
                self.forget(server);
            }
            Action::Fail => self.fail(server, scenario, drive),
        }
    }

    fn forget(&mut self, server: usize) {
        for view in &mut self.views {
            view.forget(server);
        }
    }

    /// It has requests, which still count.
    fn forget_least(&mut self, server: usize) {
        for view in &mut self.views {
            view.forget_least(server);
        }
    }

    /// Every request of the server is lost; the server comes back empty if it is added again.
    fn fail(&mut self, server: usize, scenario: &RackScenario, drive: &mut Drive<'_>) {
        let host = &mut self.hosts[server];
        host.alive = false;
        for _ in 0..std::mem::take(&mut host.counted) {
            drive.settle();
            self.run.lost += 1;
        }
        host.unfinished.fill(Report::default());
        // Building the same server a second time cannot fail.
        if let Ok(fresh) = Machine::new(&scenario.policy, scenario.shape_of(server), server as u64)
        {
            self.events += host.machine.events();
            self.run.preemptions += host.machine.preemptions();
            host.machine = fresh;
        }
        self.calendar.set(server, NEVER);
    }
}
