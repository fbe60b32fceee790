//! Requests that hold their worker for too long are counted, and reported with their place.
#![allow(missing_docs)]

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use shinjuku::{
    Config, LayoutKind, MechanismKind, Pool, PreemptionConfig, Stalls, StallsConfig, preempt_point,
};
use shinjuku_tests_support::{PATIENCE, wait_for};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

const LAYOUTS: [LayoutKind; 3] = [
    LayoutKind::Threads,
    LayoutKind::Inline,
    LayoutKind::Symmetric,
];

/// A subscriber that keeps the warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    fn of_stalls(&self) -> Vec<String> {
        let all = self.0.lock().unwrap();
        all.iter()
            .filter(|one| one.starts_with("stall:"))
            .cloned()
            .collect()
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "shinjuku" && *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn start(layout: LayoutKind) -> Pool {
    let stalls = StallsConfig::default().report_after_ms(20.0);
    let mut config = Config::default()
        .layout(layout)
        .workers((layout != LayoutKind::Inline).then_some(1))
        .contexts(8)
        .rescue_after_ms(60_000.0)
        .preemption(PreemptionConfig::new(MechanismKind::Probe))
        .stalls(stalls);
    config.cores.share = true;
    Pool::builder(["short", "long"])
        .config(config)
        .start()
        .unwrap()
}

/// Runs `long` until such stalls are counted, with another closure waiting behind it.
fn stall_until(pool: &Pool, long: fn(), is_counted: impl Fn(&Stalls) -> bool) {
    let start = Instant::now();
    while !is_counted(&pool.statistics().stalls) {
        assert!(start.elapsed() < PATIENCE, "{}", pool.statistics());
        let holds = pool.run("long", long);
        let waits = pool.run("short", || ());
        holds.wait().unwrap();
        waits.wait().unwrap();
    }
}

#[inline(never)]
fn computes_without_a_probe() {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(150) {
        std::hint::black_box(&start);
    }
}

#[inline(never)]
fn sleeps_for_long() {
    thread::sleep(Duration::from_millis(150));
    std::hint::black_box(());
}

#[test]
fn what_holds_up_others_is_counted_and_reported_once_for_a_place() {
    for layout in LAYOUTS {
        let warnings = Warnings::default();
        let _default = tracing::subscriber::set_default(warnings.clone());
        let pool = start(layout);
        stall_until(&pool, computes_without_a_probe, |stalls| {
            stalls.computing >= 3
        });
        stall_until(&pool, sleeps_for_long, |stalls| stalls.blocked >= 3);
        assert!(pool.shutdown(PATIENCE).is_clean());
        let told = warnings.of_stalls();
        let of = |part: &str| told.iter().filter(|one| one.contains(part)).count();
        let computed = of("a request of class `long` has computed without giving way for ");
        let blocked = of("a request of class `long` has blocked its worker for ");
        assert!(computed > 0 && blocked > 0, "{layout:?}: {told:#?}");
        if cfg!(feature = "backtraces") {
            // The signal may come at any instruction, and most instructions are the loop's.
            assert!(
                of("stalls::computes_without_a_probe") > 0,
                "{layout:?}: {told:#?}"
            );
            assert!(of("stalls::sleeps_for_long") > 0, "{layout:?}: {told:#?}");
            assert!(of("system call") > 0, "{layout:?}: {told:#?}");
            assert_eq!(of("shinjuku::threads::entry"), 0, "{told:#?}");
        } else {
            assert_eq!((computed, blocked), (1, 1), "{layout:?}: {told:#?}");
        }
    }
}

/// A request is no stall where no other waits, or where it gives way.
#[test]
fn what_gives_way_holds_up_nobody() {
    // Without a subscriber, `tracing` would cache that no subscriber wants the event.
    let _default = tracing::subscriber::set_default(Warnings::default());
    // A busy machine can take the core from the request, which is one stall, not ten.
    wait_for("a request that gives way", || {
        let pool = start(LayoutKind::Symmetric);
        let job = pool.run("long", || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(200) {
                preempt_point();
            }
        });
        job.wait().unwrap();
        let stalls = pool.statistics().stalls;
        stalls.computing + stalls.blocked < 5
    });
    let pool = start(LayoutKind::Threads);
    pool.run("long", computes_without_a_probe).wait().unwrap();
    assert_eq!(pool.statistics().stalls, Stalls::default());
}

#[test]
fn the_oldest_requests_are_told_with_where_they_run() {
    let _default = tracing::subscriber::set_default(Warnings::default());
    let pool = Arc::new(start(LayoutKind::Symmetric));
    let observer = pool.observer();
    let inner = observer.clone();
    let told = pool
        .run("long", move || inner.oldest_requests(5))
        .wait()
        .unwrap();
    let [only] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(only.class, "long");
    assert!(
        only.thread.is_some() && only.age >= only.runs_for,
        "{only:?}"
    );
    assert!(observer.oldest_requests(0).is_empty());
}
