//! A schedule as transports of the runtime's: who injects what.

use std::collections::BTreeMap;
use std::sync::Arc;

use shinjuku_net::Transport;
use shinjuku_workload::Arrival;
use shinjuku_workload::injector::{Injector, Planned, Progress};

const REQUESTS: u32 = 500;
const FLOWS: u32 = 7;
/// Time enough for the lead-in and all arrivals, ns.
const LATER: u64 = 1_000_000_000;

fn arrivals() -> Arc<[Planned<()>]> {
    let arrival = |index: u32| Arrival {
        at_ns: 10 * u64::from(index),
        service_ns: 1,
        // Not in turn, and not equally often.
        flow: index * index % 11 % FLOWS,
        class: 0,
    };
    (0..REQUESTS).map(|index| (arrival(index), ())).collect()
}

/// What each injector delivers, index and flow, with so much room at each poll.
fn delivered(number: usize, room: usize) -> Vec<Vec<(u32, u64)>> {
    let progress = Arc::new(Progress::default());
    let mut injectors = Injector::several(number, &arrivals(), &progress);
    let mut all = vec![Vec::new(); number];
    // The first look only starts the clock.
    for now in [1].into_iter().chain((0..REQUESTS).map(|_| LATER)) {
        for (injector, own) in injectors.iter_mut().zip(&mut all) {
            let before = own.len();
            injector.poll(now, room, |one| own.push((one.route, one.flow)));
            assert!(own.len() - before <= room, "no more than there is room for");
        }
    }
    assert!(progress.is_exhausted(), "{number} injectors");
    all
}

#[test]
fn every_arrival_is_injected_once_and_a_flow_by_one_injector() {
    // Of nine, some have no flow.
    for (number, room) in [(1, 500), (2, 3), (3, 64), (9, 500)] {
        let parts = delivered(number, room);
        let mut indices: Vec<u32> = parts.iter().flatten().map(|(index, _)| *index).collect();
        indices.sort_unstable();
        assert!(indices.into_iter().eq(0..REQUESTS), "{number} injectors");
        let mut homes = BTreeMap::new();
        for (part, own) in parts.iter().enumerate() {
            assert!(own.is_sorted(), "in order of time");
            for (_, flow) in own {
                assert_eq!(*homes.entry(flow).or_insert(part), part, "flow {flow}");
            }
        }
    }
}

#[test]
fn a_flow_is_delivered_with_its_number() {
    let arrivals = arrivals();
    for (index, flow) in delivered(2, 64).into_iter().flatten() {
        assert_eq!(u64::from(arrivals[index as usize].0.flow), flow);
    }
}
