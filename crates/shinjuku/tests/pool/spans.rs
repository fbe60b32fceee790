//! The closure's tracing span.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use shinjuku::{RunOptions, preempt_point};
use tracing::field::{Empty, Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;

/// Notes what is recorded on spans, and in which span events are.
#[derive(Default)]
struct Notes {
    spans: AtomicU64,
    recorded: Mutex<HashMap<&'static str, u64>>,
    entered: Mutex<Vec<(String, i64)>>,
}

struct Shared(Arc<Notes>);

impl Subscriber for Shared {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("pool")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.0.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        struct Values<'a>(&'a Notes);
        impl Visit for Values<'_> {
            fn record_u64(&mut self, field: &Field, value: u64) {
                self.0.recorded.lock().unwrap().insert(field.name(), value);
            }
            fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
        }
        values.record(&mut Values(&self.0));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {
        let thread = thread::current().name().unwrap_or("").to_owned();
        self.0.entered.lock().unwrap().push((thread, 1));
    }

    fn exit(&self, _: &Id) {
        let thread = thread::current().name().unwrap_or("").to_owned();
        self.0.entered.lock().unwrap().push((thread, -1));
    }
}

#[test]
fn the_span_is_entered_in_the_closure_and_has_its_times() {
    in_each_layout(|layout| {
        let notes = Arc::new(Notes::default());
        let _default = tracing::subscriber::set_default(Shared(notes.clone()));
        let pool = without_rescue(layout).start().unwrap();
        let span =
            tracing::info_span!(target: "pool", "work", queue_us = Empty, preemptions = Empty);
        let (gate, held) = Gate::close(&pool);
        let stop = Arc::new(AtomicBool::new(false));
        let until = stop.clone();
        let job = pool.run(RunOptions::new("batch").span(span), move || {
            while !until.load(Ordering::Acquire) {
                preempt_point();
            }
        });
        thread::sleep(Duration::from_millis(2));
        gate.open();
        held.wait().unwrap();
        // Short ones preempt it.
        for _ in 0..50 {
            pool.run("interactive", || ()).wait().unwrap();
        }
        stop.store(true, Ordering::Release);
        job.wait().unwrap();
        let recorded = notes.recorded.lock().unwrap();
        assert!(recorded["queue_us"] >= 1_000, "{recorded:?}");
        assert!(recorded["preemptions"] >= 1, "{layout:?}: {recorded:?}");
        let entered = notes.entered.lock().unwrap();
        let [(on, 1), (off, -1)] = &entered[..] else {
            panic!("entered once: {entered:?}")
        };
        assert!(
            on == off && on.starts_with("shinjuku-context"),
            "{entered:?}"
        );
    });
}

/// A span and a timeline that were taken at the same time know a closure by the same number.
#[test]
fn a_timeline_knows_a_closure_by_what_its_span_says() {
    in_each_layout(|layout| {
        let notes = Arc::new(Notes::default());
        let _default = tracing::subscriber::set_default(Shared(notes.clone()));
        let pool = builder(layout).start().unwrap();
        let start = Instant::now();
        // The recording is repeated if it began or ended while the closure was not there.
        loop {
            let trace = thread::scope(|scope| {
                let recording = scope.spawn(|| pool.record(Duration::from_millis(50)).unwrap());
                thread::sleep(Duration::from_millis(10));
                let span = tracing::info_span!(target: "pool", "work", arrived_ns = Empty);
                let job = pool.run(RunOptions::new("batch").span(span), || ());
                job.wait().unwrap();
                recording.join().unwrap()
            });
            let arrived_nanos = notes.recorded.lock().unwrap()["arrived_ns"];
            let mut arrivals = trace.slices().iter().map(|slice| slice.arrived_nanos);
            if arrivals.any(|one| one == Some(arrived_nanos)) {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{layout:?}: {trace:?}");
        }
    });
}

/// How often it was preempted is told of a closure that panics, too.
#[test]
fn a_closure_that_panics_tells_its_preemptions() {
    let notes = Arc::new(Notes::default());
    let _default = tracing::subscriber::set_default(Shared(notes.clone()));
    let pool = builder(LayoutKind::Threads).start().unwrap();
    let span = tracing::info_span!(target: "pool", "work", queue_us = Empty, preemptions = Empty);
    let options = RunOptions::new("batch").span(span);
    let job = pool.run(options, || panic!("on purpose: a closure"));
    job.wait().unwrap_err();
    let recorded = notes.recorded.lock().unwrap();
    assert!(recorded.contains_key("preemptions"), "{recorded:?}");
}
