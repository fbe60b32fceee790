//! Handlers that panic or wait, policies with wrong answers, configurations that are not allowed.

use super::*;

#[test]
fn a_panic_fails_one_request_and_the_context_serves_on() {
    let runtime = jobs(config(1, MechanismKind::Probe).contexts(1));
    let handle = runtime.handle();
    for round in 0..20 {
        let ticket = handle.submit(
            ClassId(0),
            Box::new(move || {
                if round % 2 == 0 {
                    panic!("on purpose")
                } else {
                    round
                }
            }),
        );
        let expected = if round % 2 == 0 {
            Err(TicketError::Failed(Failure::Panicked))
        } else {
            Ok(round)
        };
        assert_eq!(ticket.unwrap().wait(), expected);
    }
    wait_for("the count", || {
        runtime.statistics().failed() == 10 && runtime.statistics().finished() == 10
    });
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn waiting_on_a_ticket_inside_a_handler_is_an_error() {
    let handle_cell: Arc<Mutex<Option<shinjuku::Handle<Job, u64>>>> = Arc::default();
    let runtime = jobs(config(1, MechanismKind::Probe));
    *handle_cell.lock().unwrap() = Some(runtime.handle());
    let theirs = Arc::clone(&handle_cell);
    let outer = runtime.handle().submit(
        ClassId(0),
        Box::new(move || {
            assert!(in_context());
            let handle = theirs.lock().unwrap().take().unwrap();
            let inner = handle.submit(ClassId(0), Box::new(|| 1)).unwrap();
            u64::from(inner.wait() == Err(TicketError::InsideHandler))
        }),
    );
    assert_eq!(outer.unwrap().wait(), Ok(1));
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn a_wrong_policy_is_reported_and_nothing_is_lost() {
    /// Answers tasks it was never given, now and then.
    struct Liar(CFcfs, u32);
    impl Policy for Liar {
        fn arrive(&mut self, task: Task) -> Result<(), Full> {
            self.0.arrive(task)
        }
        fn preempted(&mut self, task: Task, worker: WorkerId, now: Nanos) {
            self.0.preempted(task, worker, now);
        }
        fn returned(&mut self, task: Task, worker: WorkerId) {
            self.0.returned(task, worker);
        }
        fn finished(&mut self, task: Task, worker: WorkerId) {
            self.0.finished(task, worker);
        }
        fn next(&mut self, worker: WorkerId, now: Nanos, want: Want) -> Option<Task> {
            self.1 += 1;
            let honest = self.0.next(worker, now, want)?;
            Some(if self.1 > 20 {
                Task {
                    id: TaskId(honest.id.0 + 1),
                    ..honest
                }
            } else {
                honest
            })
        }
        fn remove(&mut self, id: TaskId, worker: WorkerId) -> Option<Task> {
            self.0.remove(id, worker)
        }
        fn quantum(&self, task: &Task) -> Option<Nanos> {
            self.0.quantum(task)
        }
        fn waiting(&self, worker: WorkerId, want: Want) -> usize {
            self.0.waiting(worker, want)
        }
        fn len(&self) -> usize {
            self.0.len()
        }
        fn name(&self) -> String {
            "liar".into()
        }
    }
    let mut config = config(1, MechanismKind::Probe);
    config.policy.kind = "liar".into();
    let runtime = Runtime::builder(handler_fn(|n: u64| n))
        .config(config)
        .policy_with("liar", |parameters| {
            Ok(Box::new(Liar(CFcfs::new(parameters.capacity)?, 0)))
        })
        .start()
        .unwrap();
    let handle = runtime.handle();
    let tickets: Vec<_> = (0..200)
        .map(|n| handle.submit(ClassId(0), n).unwrap())
        .collect();
    for (n, ticket) in tickets.into_iter().enumerate() {
        assert_eq!(ticket.wait(), Ok(n as u64));
    }
    let report = runtime.shutdown(PATIENCE);
    assert!(
        report.is_clean() && report.policy_error.is_some(),
        "{report}"
    );
}

#[test]
fn a_policy_of_ones_own_is_known_by_its_name_alone() {
    let start = |kind: &'static str, name: &'static str| {
        let mut config = config(1, MechanismKind::Probe);
        config.policy.kind = kind.into();
        let builder = Runtime::builder(handler_fn(|n: u64| n)).config(config);
        let build = |parameters: &Parameters| -> Result<Box<dyn Policy>, ParameterError> {
            assert!(parameters.capacity > 0 && parameters.workers == 1);
            Ok(Box::new(CFcfs::new(parameters.capacity)?))
        };
        builder.policy_with(name, build).start()
    };
    let runtime = start("mine", "mine").unwrap();
    assert!(runtime.description().contains("policy c-FCFS"));
    let runtime = start("c-pre-sq", "mine").unwrap();
    assert!(runtime.description().contains("policy c-PRE-SQ"));

    let unknown = start("yours", "mine").unwrap_err().to_string();
    let expected = "`policy.kind` is \"yours\", but must be one of c-pre-sq,";
    assert!(
        unknown.contains(expected) && unknown.contains(", mine:"),
        "{unknown}"
    );
    let taken = start("edf", "edf").unwrap_err().to_string();
    assert!(
        taken.contains("`policy_with` is \"edf\", but must be a name that no other policy has"),
        "{taken}"
    );
}

#[test]
fn signals_without_the_token_are_an_error_or_replaced_or_need_none() {
    let start = |config| {
        Runtime::builder(handler_fn(|n: u64| n))
            .config(config)
            .start()
    };
    let lenient = config(1, MechanismKind::Signal);
    let strict = start(lenient.clone().strict(true));
    let said = start(lenient).unwrap().description();
    if on_kernel_threads() {
        assert!(strict.is_ok());
        assert!(said.contains("signal, as configured"), "{said}");
        return;
    }
    let error = strict.unwrap_err().to_string();
    assert!(error.contains("allow_hard_preemption"), "{error}");
    assert!(said.contains("probe, because"), "{said}");
}

#[test]
fn start_errors_say_what_to_do() {
    struct Broken;
    impl RequestHandler for Broken {
        type Request = ();
        type Reply = ();
        type PerCore = ();
        fn init(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            Err("the data file is missing".into())
        }
        fn init_per_core(&self, _: usize) {}
        fn handle_request(&self, (): (), _: &RequestContext<'_, ()>) {}
    }
    let error = Runtime::builder(Broken)
        .config(config(1, MechanismKind::Probe))
        .start()
        .unwrap_err()
        .to_string();
    assert!(error.contains("the data file is missing"), "{error}");
}
