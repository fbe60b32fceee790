//! What `auto` says of the quanta that it changes.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shinjuku::policy::ClassId;
use shinjuku::{Config, Runtime, handler_fn};
use shinjuku_tests_support::PATIENCE;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps the messages of the runtime's events, each with the name of its thread.
#[derive(Clone, Default)]
struct Messages(Arc<Mutex<Vec<(String, String)>>>);

impl Messages {
    /// The first one that a thread of that name sent.
    fn of_thread(&self, thread: &str) -> Option<String> {
        let messages = self.0.lock().unwrap();
        let mut of_thread = messages.iter().filter(|(sender, _)| sender == thread);
        of_thread.next().map(|(_, message)| message.clone())
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

/// Requests of a millisecond each are not worth preempting after a few microseconds, which is what
/// `auto` starts with.
#[test]
fn a_change_of_the_quantum_is_described_and_logged_with_its_reason() {
    let messages = Messages::default();
    let _default = tracing::subscriber::set_default(messages.clone());
    let spin = handler_fn(|length: Duration| {
        let start = Instant::now();
        while start.elapsed() < length {
            std::hint::spin_loop();
        }
    });
    let runtime = Runtime::builder(spin)
        .config(Config::default().workers(1).contexts(4))
        .start()
        .unwrap();
    assert!(!runtime.description().contains("; now "));
    let handle = runtime.handle();
    let give_up = Instant::now() + PATIENCE;
    loop {
        let ticket = handle.submit(ClassId(0), Duration::from_millis(1)).unwrap();
        ticket.wait().unwrap();
        let description = runtime.description();
        if let Some((_, now)) = description.split_once("; now ") {
            assert!(now.starts_with("probe: no quantum below "), "{now}");
            break;
        }
        assert!(Instant::now() < give_up, "{description}");
    }
    // What was not logged by then is at the end.
    assert!(runtime.shutdown(PATIENCE).is_clean());
    let logged = messages.of_thread("shinjuku-auto");
    let logged = logged.expect("the change is logged");
    assert!(
        logged.starts_with("auto: probe: no quantum below "),
        "{logged}"
    );
}

#[test]
fn a_mechanism_by_name_has_nothing_to_say_later() {
    let messages = Messages::default();
    let _default = tracing::subscriber::set_default(messages.clone());
    let mut config = Config::default().workers(1).contexts(4);
    config.preemption.mechanism = shinjuku::MechanismKind::Probe;
    let runtime = (Runtime::builder(handler_fn(|()| ())).config(config))
        .start()
        .unwrap();
    let at_start = runtime.description();
    let ticket = runtime.handle().submit(ClassId(0), ()).unwrap();
    ticket.wait().unwrap();
    assert_eq!(runtime.description(), at_start);
    assert!(runtime.shutdown(PATIENCE).is_clean());
    assert_eq!(messages.of_thread("shinjuku-auto"), None);
}
