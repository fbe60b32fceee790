//! Neither threads nor descriptors nor memory mappings grow with the number of runtimes started and
//! shut down, and every backing thread comes back.
//!
//! This is the only test of its program, since others would count, too.
#![allow(missing_docs)]

use std::cell::Cell;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shinjuku::net::udp::{Datagram, Udp, UdpConfig};
use shinjuku::policy::ClassId;
use shinjuku::policy::registry;
use shinjuku::{
    ClassConfig, Config, LayoutKind, MechanismKind, RequestContext, RequestHandler, Runtime,
    StartError, handler_fn, preempt_point,
};
use shinjuku_tests_support::runtime::{config, token};
use shinjuku_tests_support::{PATIENCE, Usage, wait_for};

/// Starts before the first reading: by then every kind of start has happened, and caches are full.
const FIRST: usize = 30;
const IN_ALL: usize = 150;

/// All differences between starts, in turn.
fn configuration(round: usize) -> Config {
    const MECHANISMS: [MechanismKind; 4] = [
        MechanismKind::None,
        MechanismKind::Probe,
        MechanismKind::Signal,
        MechanismKind::Escalation,
    ];
    let mut config = config(1 + round % 2, MECHANISMS[round % 4]);
    match round % 5 {
        0 | 1 => config = config.layout(LayoutKind::Inline).workers(None),
        2 => config.layout = LayoutKind::Symmetric,
        _ => {}
    }
    config.contexts = [2, 5, 12][round % 3];
    config.stack_kib = [64, 256][round % 2];
    config.depth = Some(1 + round % 3);
    config.spare_workers = Some(round % 3);
    config.queue = 64;
    config.policy.kind = registry::ALL[round % registry::ALL.len()].into();
    config.class = vec![ClassConfig::new("only").slo_us(100.0)];
    config
}

thread_local! {
    /// Every context that has served has one, and drops it when its backing thread ends.
    static LOCAL: Cell<Option<Counted>> = const { Cell::new(None) };
}
static MADE: AtomicU64 = AtomicU64::new(0);
static DROPPED: AtomicU64 = AtomicU64::new(0);

struct Counted(#[allow(dead_code)] Box<u64>);

impl Counted {
    fn new() -> Self {
        Self(Box::new(MADE.fetch_add(1, Ordering::Relaxed)))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

fn serve(number: u64) -> u64 {
    LOCAL.with(|local| local.set(Some(local.take().unwrap_or_else(Counted::new))));
    let start = Instant::now();
    while start.elapsed() < Duration::from_micros(150) {
        preempt_point();
    }
    number + 1
}

fn in_process(round: usize) {
    let config = configuration(round);
    let contexts = config.contexts;
    let runtime = Runtime::builder(handler_fn(serve))
        .config(config)
        .allow_hard_preemption(token())
        .start()
        .unwrap();
    let handle = runtime.handle();
    let tickets: Vec<_> = (0..8)
        .map(|number| handle.submit(ClassId(0), number).unwrap())
        .collect();
    if round.is_multiple_of(7) {
        // Dropped with requests in flight, which are drained anyway.
        drop(runtime);
        for ticket in tickets {
            let _ = ticket.wait();
        }
        return;
    }
    for (number, mut ticket) in (0..).zip(tickets) {
        let answer = ticket.wait_timeout(PATIENCE).expect("an answer in time");
        assert_eq!(answer, Ok(number + 1));
    }
    let report = runtime.shutdown(PATIENCE);
    assert!(report.is_clean(), "round {round}: {report}");
    assert_eq!(report.contexts_returned, contexts, "round {round}");
}

fn over_udp(round: usize) {
    let config = configuration(round);
    let contexts = config.contexts;
    let udp = Udp::bind(UdpConfig::new("127.0.0.1:0".parse().unwrap()).buffers(64)).unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(udp.local_addr()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let server = Runtime::builder(handler_fn(|request: Datagram| {
        serve(0);
        Some(request.echo())
    }))
    .config(config)
    .allow_hard_preemption(token())
    .serve(udp)
    .unwrap();
    for number in 0..4 {
        client.send(&[number]).unwrap();
    }
    let mut numbers = [9; 4];
    for number in &mut numbers {
        let length = client.recv(std::slice::from_mut(number));
        assert_eq!(length.expect("a reply in time"), 1);
    }
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2, 3]);
    let (report, udp) = server.shutdown(PATIENCE);
    assert!(
        report.is_clean() && udp.is_some(),
        "round {round}: {report}"
    );
    assert_eq!(report.contexts_returned, contexts, "round {round}");
}

/// A start that fails after its contexts and some of its threads were made.
fn in_vain(round: usize) {
    struct Broken;
    impl RequestHandler for Broken {
        type Request = ();
        type Reply = ();
        type PerCore = Arc<()>;

        fn init_per_core(&self, worker: usize) -> Arc<()> {
            if worker > 0 {
                std::panic::panic_any("on purpose");
            }
            Arc::default()
        }

        fn handle_request(&self, (): (), _: &RequestContext<'_, Arc<()>>) {}
    }
    let layouts = [LayoutKind::Threads, LayoutKind::Symmetric];
    let config = configuration(round)
        .layout(layouts[round % 2])
        .workers(2)
        .spare_workers(2);
    let error = Runtime::builder(Broken)
        .config(config)
        .allow_hard_preemption(token())
        .start()
        .unwrap_err();
    assert!(matches!(error, StartError::Panicked { .. }), "{error}");
}

#[test]
fn hundreds_of_starts_and_shutdowns_leave_nothing_behind() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some("on purpose") {
            report(panic);
        }
    }));
    let at_start = Usage::now();
    let mut first = at_start;
    for round in 0..IN_ALL {
        match round % 6 {
            5 => in_vain(round),
            3 | 4 => over_udp(round),
            _ => in_process(round),
        }
        // The kernel's list has a joined thread for a moment longer.
        wait_for("the end of every thread", || {
            Usage::now().threads == at_start.threads
        });
        assert_eq!(
            MADE.load(Ordering::Relaxed),
            DROPPED.load(Ordering::Relaxed),
            "round {round}: thread-locals of contexts are dropped"
        );
        if round == FIRST {
            first = Usage::now();
        }
    }
    let last = Usage::now();
    println!("{at_start:?}, then {first:?}, then {last:?}");
    assert!(
        MADE.load(Ordering::Relaxed) > IN_ALL as u64 / 2,
        "contexts served"
    );
    assert_eq!(last.descriptors, at_start.descriptors);
    // Adjacent mappings merge, so their size counts as well as their number. One leaked context a
    // start would be 120 mappings and as many stacks.
    assert!(
        last.mappings <= first.mappings + 40,
        "mappings: {first:?}, then {last:?}"
    );
    assert!(
        last.data_kib <= first.data_kib + 2048,
        "address space: {first:?}, then {last:?}"
    );
}
