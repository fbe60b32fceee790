//! Which server of a rack gets a request.

use std::cmp::Ordering;

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::load::{LoadInfo, LoadView};
use crate::Request;
use crate::machine::spread;

/// Chooses a server for a request.
pub trait Balancer: Send {
    /// The server for `request`, one of `servers` (never empty, rising; one with more workers than
    /// others is there more often), by what is known of their load. `None`: the switch holds the
    /// request until a reply comes.
    fn choose(
        &mut self,
        request: &Request,
        servers: &[usize],
        loads: &LoadView,
        random: &mut Xoshiro256PlusPlus,
    ) -> Option<usize>;
}

/// A uniformly random server.
pub struct Random;

impl Balancer for Random {
    fn choose(
        &mut self,
        _request: &Request,
        servers: &[usize],
        _loads: &LoadView,
        random: &mut Xoshiro256PlusPlus,
    ) -> Option<usize> {
        Some(servers[random.random_range(0..servers.len())])
    }
}

/// The server that the request's flow hashes to, whatever the load, as a NIC or a stateless load
/// balancer chooses.
pub struct ByFlow;

impl Balancer for ByFlow {
    fn choose(
        &mut self,
        request: &Request,
        servers: &[usize],
        _loads: &LoadView,
        _random: &mut Xoshiro256PlusPlus,
    ) -> Option<usize> {
        Some(servers[spread(request.flow, servers.len())])
    }
}

/// One server after the other.
#[derive(Default)]
pub struct RoundRobin {
    turn: usize,
}

impl Balancer for RoundRobin {
    fn choose(
        &mut self,
        _request: &Request,
        servers: &[usize],
        _loads: &LoadView,
        _random: &mut Xoshiro256PlusPlus,
    ) -> Option<usize> {
        self.turn = self.turn.wrapping_add(1);
        Some(servers[self.turn % servers.len()])
    }
}

/// The server with the least known load (join the shortest queue); ties are broken at random. By
/// [`LoadInfo::Int2`] the one that is known, and any for one request in four.
pub struct Shortest;

impl Balancer for Shortest {
    fn choose(
        &mut self,
        request: &Request,
        servers: &[usize],
        loads: &LoadView,
        random: &mut Xoshiro256PlusPlus,
    ) -> Option<usize> {
        Some(match loads.info() {
            LoadInfo::Int2 => least_known(request.class, servers, loads, random),
            _ => shortest(request.class, servers, loads, random),
        })
    }
}

/// The one server that is known. Every fourth request goes to any: who gets none has no reply to
/// become known by.
///
/// Source: RackSched's published code, `switch_code/int2/int2.p4`.
fn least_known(
    class: u16,
    servers: &[usize],
    loads: &LoadView,
    random: &mut Xoshiro256PlusPlus,
) -> usize {
    match loads.least(class) {
        Some(known) if random.random_range(0..4_u32) > 0 => known,
        _ => servers[random.random_range(0..servers.len())],
    }
}

/// One pass over each server, however often it is there; the n-th of several equal ones replaces
/// its predecessor with probability 1/n, so that all are equally likely.
fn shortest(
    class: u16,
    servers: &[usize],
    loads: &LoadView,
    random: &mut Xoshiro256PlusPlus,
) -> usize {
    let (mut best, mut equals) = (servers[0], 1_u32);
    let others = servers.chunk_by(PartialEq::eq).skip(1);
    for server in others.map(|same| same[0]) {
        match loads.compare(server, best, class) {
            Ordering::Less => (best, equals) = (server, 1),
            Ordering::Equal => {
                equals += 1;
                if random.random_range(0..equals) == 0 {
                    best = server;
                }
            }
            Ordering::Greater => {}
        }
    }
    best
}

/// The least loaded of `k` servers drawn with replacement, ties to the first drawn. RackSched's
/// choice is k = 2.
pub struct PowerOf {
    /// How many are drawn.
    pub k: usize,
}

impl Balancer for PowerOf {
    fn choose(
        &mut self,
        request: &Request,
        servers: &[usize],
        loads: &LoadView,
        random: &mut Xoshiro256PlusPlus,
    ) -> Option<usize> {
        let drawn = (0..self.k.max(1)).map(|_| servers[random.random_range(0..servers.len())]);
        // `min_by` keeps the first of equal ones.
        drawn.min_by(|one, other| loads.compare(*one, *other, request.class))
    }
}

/// Join the bounded shortest queue: a server has at most `bound` requests that the switch knows of.
/// When every server has that many, the switch holds the request.
///
/// Source: Kogias et al., *R2P2: Making RPCs first-class datacenter citizens*, ATC 2019.
pub struct Jbsq {
    /// The most requests at a server.
    pub bound: u64,
}

impl Balancer for Jbsq {
    fn choose(
        &mut self,
        request: &Request,
        servers: &[usize],
        loads: &LoadView,
        random: &mut Xoshiro256PlusPlus,
    ) -> Option<usize> {
        let room = |server: &usize| loads.counter(*server) < self.bound;
        // Allocates nothing when every server has room, the usual case at low load.
        if servers.iter().all(room) {
            return Some(shortest(request.class, servers, loads, random));
        }
        let open: Vec<_> = servers.iter().copied().filter(|s| room(s)).collect();
        (!open.is_empty()).then(|| shortest(request.class, &open, loads, random))
    }
}

/// Racks of servers, as many in each: the less loaded of two racks, then the less loaded of two of
/// its servers, drawn with replacement. The switch before the racks knows of the load what theirs
/// know.
///
/// Source: the setting of two levels is that of Yassini et al., *Horus: Granular In-Network Task
/// Scheduler for Cloud Datacenters*, NSDI 2024; the rule is RackSched's on either level.
pub struct Racks {
    /// How many racks.
    pub racks: usize,
}

impl Balancer for Racks {
    fn choose(
        &mut self,
        request: &Request,
        servers: &[usize],
        loads: &LoadView,
        random: &mut Xoshiro256PlusPlus,
    ) -> Option<usize> {
        let size = loads.servers().div_ceil(self.racks);
        let mut draw = |servers: &[usize]| servers[random.random_range(0..servers.len())];
        let (first, second) = (draw(servers) / size, draw(servers) / size);
        let rack = |number: usize| {
            let from = servers.partition_point(|server| *server < number * size);
            let to = servers.partition_point(|server| *server < (number + 1) * size);
            &servers[from..to]
        };
        // The mean, as racks may have lost servers. A server is there as often as it weighs.
        let load = |servers: &[usize]| {
            let each = servers.chunk_by(PartialEq::eq);
            let of_each = each.map(|same| loads.load(same[0], request.class));
            of_each.sum::<u64>() as f64 / servers.len() as f64
        };
        let (first, second) = (rack(first), rack(second));
        let rack = if load(second) < load(first) {
            second
        } else {
            first
        };
        let (one, other) = (draw(rack), draw(rack));
        let is_less = loads.compare(other, one, request.class).is_lt();
        Some(if is_less { other } else { one })
    }
}
