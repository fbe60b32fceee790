//! What `auto` logs about the quanta that it changes, and about what it learns.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shinjuku::policy::{ClassId, Requeue};
use shinjuku::{
    ClassConfig, Config, CoresConfig, LayoutKind, MechanismKind, PolicyConfig, PreemptionConfig,
    QuantaKind, Runtime, handler_fn, preempt_point,
};
use shinjuku_tests_support::PATIENCE;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps the messages of the runtime's events, each with the name of its thread.
#[derive(Clone, Default)]
struct Messages(Arc<Mutex<Vec<(String, String)>>>);

impl Messages {
    /// Those that a thread of that name sent.
    fn of_thread(&self, thread: &str) -> Vec<String> {
        let messages = self.0.lock().unwrap();
        let of_thread = messages.iter().filter(|(sender, _)| sender == thread);
        of_thread.map(|(_, message)| message.clone()).collect()
    }
}

impl Subscriber for Messages {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "shinjuku"
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
        let thread = std::thread::current().name().unwrap_or("").to_owned();
        self.0.lock().unwrap().push((thread, message.0));
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn spin(length: Duration) {
    let start = Instant::now();
    while start.elapsed() < length {
        std::hint::spin_loop();
    }
}

/// Runs requests of a millisecond until the quanta differ from those at the start; gives the
/// description then.
fn until_quanta_change(runtime: &Runtime<Duration, ()>) -> String {
    assert!(!runtime.description().contains("; now "));
    let handle = runtime.handle();
    let give_up = Instant::now() + PATIENCE;
    loop {
        let ticket = handle.submit(ClassId(0), Duration::from_millis(1)).unwrap();
        ticket.wait().unwrap();
        let description = runtime.description();
        if let Some((_, now)) = description.split_once("; now ") {
            return now.to_owned();
        }
        assert!(Instant::now() < give_up, "{description}");
    }
}

/// Requests of a millisecond each are not worth preempting after a few microseconds, which is what
/// `auto` starts with.
#[test]
fn a_change_of_the_quantum_is_described_and_logged_with_its_reason() {
    let messages = Messages::default();
    let _default = tracing::subscriber::set_default(messages.clone());
    let runtime = Runtime::builder(handler_fn(spin))
        .config(Config::default().workers(1).contexts(4))
        .start()
        .unwrap();
    let now = until_quanta_change(&runtime);
    assert!(now.starts_with("probe: no quantum below "), "{now}");
    // A change that is not logged by then is logged at the end.
    assert!(runtime.shutdown(PATIENCE).is_clean());
    // On a slow machine something may be learnt before.
    let logged = messages.of_thread("shinjuku-auto");
    let is_told = |one: &String| one.starts_with("auto: probe: no quantum below ");
    assert!(logged.iter().any(is_told), "{logged:?}");
}

#[test]
fn a_mechanism_by_name_has_nothing_to_say_later() {
    let messages = Messages::default();
    let _default = tracing::subscriber::set_default(messages.clone());
    let mut config = Config::default().workers(1).contexts(4);
    config.preemption.mechanism = MechanismKind::Probe;
    let runtime = (Runtime::builder(handler_fn(|()| ())).config(config))
        .start()
        .unwrap();
    let at_start = runtime.description();
    let ticket = runtime.handle().submit(ClassId(0), ()).unwrap();
    ticket.wait().unwrap();
    assert_eq!(runtime.description(), at_start);
    assert!(runtime.shutdown(PATIENCE).is_clean());
    assert!(messages.of_thread("shinjuku-auto").is_empty());
}

#[test]
fn the_layout_that_auto_chose_is_described_with_its_reason() {
    let description = |config: Config| {
        let builder = Runtime::builder(handler_fn(|()| ())).config(config.contexts(8));
        builder.start().unwrap().description()
    };
    let chosen = description(Config::default());
    let (layout, reason) = chosen.split_once(" (auto: ").expect(&chosen);
    let expected = match std::thread::available_parallelism().unwrap().get() {
        1 => ["inline", "there is one core"],
        2..8 => ["symmetric", "none is spared"],
        _ => ["workers", "one core of many"],
    };
    assert!(layout.contains(expected[0]), "{chosen}");
    assert!(reason.contains(expected[1]), "{chosen}");
    let given = description(Config::default().layout(LayoutKind::Inline));
    assert!(!given.contains("(auto:"), "{given}");
}

/// Each of layout, depth, mechanism and quanta can be given while the rest is left to `auto`.
#[test]
fn what_is_given_is_kept_key_by_key_and_the_rest_is_automatic() {
    let start = |config: Config| {
        let builder = Runtime::builder(handler_fn(spin)).config(config.contexts(8));
        builder.start().unwrap()
    };
    let one = || Config::default().workers(1);
    let quanta = |mechanism, quanta| PreemptionConfig::new(mechanism).quanta(quanta);

    let description = start(one().layout(LayoutKind::Threads)).description();
    for said in [
        "1 workers (as configured) at depth 2 (auto), ",
        "preemption auto: probe",
        "; quanta auto",
    ] {
        assert!(description.contains(said), "{said}: {description}");
    }
    let description = start(one().depth(1)).description();
    assert!(
        description.starts_with("1 workers (auto: ")
            && description.contains(") at depth 1 (as configured), ")
            && description.ends_with("; quanta auto"),
        "{description}"
    );
    let fixed = quanta(MechanismKind::Auto, QuantaKind::Configured);
    let description = start(one().preemption(fixed)).description();
    assert!(
        description.contains("preemption auto: probe")
            && !description.contains("no quantum below")
            && description.ends_with("; quanta as configured"),
        "{description}"
    );
    for layout in [LayoutKind::Threads, LayoutKind::Symmetric] {
        let raised = quanta(MechanismKind::Probe, QuantaKind::Raised);
        let runtime = start(one().layout(layout).preemption(raised));
        let description = runtime.description();
        assert!(
            description.contains("preemption probe, as configured; no quantum below ")
                && description.ends_with("; quanta auto"),
            "{description}"
        );
        let now = until_quanta_change(&runtime);
        assert!(now.starts_with("probe: no quantum below "), "{now}");
        assert!(runtime.shutdown(PATIENCE).is_clean());
    }
}

/// Three classes under a policy that goes by SLOs: one has its SLO from the user, one its place.
fn some_slos_given() -> Config {
    let class = [
        ClassConfig::new("given")
            .slo_us(70.0)
            .requeue(Requeue::Tail),
        ClassConfig::new("short").requeue(Requeue::Head),
        ClassConfig::new("long"),
    ];
    let policy = PolicyConfig::new("c-pre-mq");
    let config = Config::default().workers(1).contexts(8);
    let cores = CoresConfig::default().share(true);
    config.class(class).policy(policy).cores(cores)
}

/// The SLO in force of a class by the description, in microseconds.
fn slo_us(description: &str, class: &str) -> Option<f64> {
    let (_, now) = description.split_once(&format!("{class}: SLO "))?;
    now.split_once(" us")?.0.parse().ok()
}

/// At first the SLOs are the one given. A service time is never measured as shorter than it is, so
/// each learnt SLO has a lower bound.
#[test]
fn slos_that_are_not_given_are_learnt_described_and_logged() {
    for layout in [
        LayoutKind::Threads,
        LayoutKind::Inline,
        LayoutKind::Symmetric,
    ] {
        let messages = Messages::default();
        let _default = tracing::subscriber::set_default(messages.clone());
        let builder = Runtime::builder(handler_fn(spin)).config(some_slos_given().layout(layout));
        let runtime = builder.start().unwrap();
        let at_start = runtime.description();
        let says = ", which learns SLO (short, long), tail or head (long); preemption ";
        assert!(at_start.contains(says), "{at_start}");
        let give_up = Instant::now() + PATIENCE;
        let lengths = [(0, 100), (1, 100), (2, 3_000)];
        let said = loop {
            for (class, micros) in lengths {
                let request = Duration::from_micros(micros);
                let ticket = runtime.handle().submit(ClassId(class), request).unwrap();
                ticket.wait().unwrap();
            }
            let description = runtime.description();
            let learnt = |class, at_least| slo_us(&description, class) >= Some(at_least);
            if learnt("short", 100.0) && learnt("long", 3_000.0) {
                break description;
            }
            assert!(Instant::now() < give_up, "{layout:?}: {description}");
        };
        assert!(
            !said.contains("given: ") && !said.contains("preempted to the head"),
            "{said}"
        );
        assert!(runtime.shutdown(PATIENCE).is_clean());
        let logged = messages.of_thread("shinjuku-auto");
        let is_told =
            |one: &String| one.starts_with("auto: short: SLO ") && one.contains("; long: SLO ");
        assert!(logged.iter().any(is_told), "{logged:?}");
    }
}

/// Waits until the SLO of the class `long` is so long at least, and gives it.
fn until_slo_is<Request: Send + 'static>(runtime: &Runtime<Request, ()>, at_least_us: f64) -> f64 {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let description = runtime.description();
        match slo_us(&description, "long") {
            Some(slo) if slo >= at_least_us => return slo,
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(Instant::now() < give_up, "{description}");
    }
}

/// Otherwise a class whose requests do not end would count as one of short requests.
#[test]
fn a_request_that_runs_on_teaches_before_it_has_finished() {
    for layout in [
        LayoutKind::Threads,
        LayoutKind::Inline,
        LayoutKind::Symmetric,
    ] {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let run = move |length: Option<Duration>| match length {
            Some(length) => spin(length),
            None => {
                while !ends.load(Relaxed) {
                    preempt_point();
                }
            }
        };
        let builder = Runtime::builder(handler_fn(run)).config(some_slos_given().layout(layout));
        let runtime = builder.start().unwrap();
        let submit = |length| runtime.handle().submit(ClassId(2), length).unwrap();
        for _ in 0..20 {
            submit(Some(Duration::from_micros(100))).wait().unwrap();
        }
        let of_short = until_slo_is(&runtime, 100.0);
        let endless = [None, None].map(submit);
        until_slo_is(&runtime, 4.0 * of_short);
        is_over.store(true, Relaxed);
        for ticket in endless {
            ticket.wait().unwrap();
        }
        assert!(runtime.shutdown(PATIENCE).is_clean());
    }
}

#[test]
fn what_is_given_or_by_a_mechanism_with_a_name_is_not_learnt() {
    let description = |config: Config| {
        let builder = Runtime::builder(handler_fn(spin)).config(config.workers(1).contexts(8));
        builder.start().unwrap().description()
    };
    let automatic = description(Config::default());
    assert!(
        automatic.contains(", which learns tail or head; "),
        "{automatic}"
    );
    let place = PolicyConfig::default().requeue(Requeue::Tail);
    let by_name = PreemptionConfig::new(MechanismKind::Probe);
    for fixed in [
        Config::default().policy(place),
        Config::default().preemption(by_name),
    ] {
        let said = description(fixed);
        assert!(!said.contains("learns"), "{said}");
    }
}

/// For how long two requests run at a time in the mean, beside each other, until they were
/// preempted 300 times under these quanta.
fn mean_turn(layout: LayoutKind, quanta: QuantaKind) -> Duration {
    let by_probe = PreemptionConfig::new(MechanismKind::Probe).quanta(quanta);
    let config = Config::default().workers(1).contexts(4).layout(layout);
    let config = config.preemption(by_probe);
    let config = config.policy(PolicyConfig::default().quantum_us(200.0));
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_over);
    let probing = move |()| {
        while !ends.load(Relaxed) {
            preempt_point();
        }
    };
    let runtime = (Runtime::builder(handler_fn(probing)).config(config))
        .start()
        .unwrap();
    let tickets = [(); 2].map(|()| runtime.handle().submit(ClassId(0), ()).unwrap());
    let give_up = Instant::now() + PATIENCE;
    let preemptions = || runtime.statistics().classes[0].preemptions;
    while preemptions() < 300 {
        assert!(Instant::now() < give_up, "{}", runtime.statistics());
        std::thread::sleep(Duration::from_millis(1));
    }
    is_over.store(true, Relaxed);
    for ticket in tickets {
        ticket.wait().unwrap();
    }
    // A request is counted after its reply has gone.
    let observer = runtime.observer();
    assert!(runtime.shutdown(PATIENCE).is_clean());
    let class = &observer.statistics().classes[0];
    Duration::from_nanos(class.service_nanos / class.preemptions)
}

/// Of 150 turns of each request, the last 134 are four times as long. In these layouts a turn is of
/// time on the CPU. A hypervisor that has the core counts all the same, so one comparison may fail.
#[test]
fn a_request_that_is_preempted_often_runs_for_longer_where_auto_has_the_quanta() {
    for layout in [LayoutKind::Inline, LayoutKind::Symmetric] {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let configured = mean_turn(layout, QuantaKind::Configured);
            let raised = mean_turn(layout, QuantaKind::Raised);
            if raised > 2 * configured {
                break;
            }
            assert!(
                Instant::now() < give_up,
                "{layout:?}: {raised:?} and {configured:?}"
            );
        }
    }
}
