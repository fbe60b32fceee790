//! What is turned away, and that it is counted.

use super::*;

#[test]
fn full_is_a_counted_refusal() {
    let runtime = jobs(Config {
        queue: 3,
        contexts: 2,
        ..config(1, MechanismKind::None)
    });
    let handle = runtime.handle();
    let open = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&open);
    let first = handle.submit(
        ClassId(0),
        Box::new(move || {
            wait_for("the gate", || theirs.load(Ordering::Relaxed));
            1
        }),
    );
    wait_for("the start", || runtime.statistics().running == 1);
    let rest: Vec<_> = (0..10)
        .map(|n| handle.submit(ClassId(0), Box::new(move || n)).unwrap())
        .collect();
    wait_for("the refusals", || {
        runtime.statistics().refused.of(Refusal::QueueFull) == 7
    });
    open.store(true, Ordering::Relaxed);
    assert_eq!(first.unwrap().wait(), Ok(1));
    let answers: Vec<_> = rest.into_iter().map(|ticket| ticket.wait()).collect();
    assert_eq!(answers[..3], [Ok(0), Ok(1), Ok(2)]);
    assert!(
        answers[3..]
            .iter()
            .all(|answer| *answer == Err(TicketError::Refused(Refusal::QueueFull)))
    );
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn what_has_not_started_by_its_deadline_is_refused() {
    let mut config = config(1, MechanismKind::None);
    config.class = vec![
        ClassConfig::new("patient"),
        ClassConfig {
            deadline_us: Some(1_000.0),
            ..ClassConfig::new("hasty")
        },
    ];
    let runtime = jobs(config);
    let handle = runtime.handle();
    let long = handle.submit(
        ClassId(0),
        Box::new(|| {
            spin_for(Duration::from_millis(30));
            1
        }),
    );
    let patient = handle.submit(ClassId(0), Box::new(|| 2)).unwrap();
    let hasty = handle.submit(ClassId(1), Box::new(|| 3)).unwrap();
    let own = SubmitOptions::default().deadline(Duration::from_millis(2));
    let own = handle.submit_with(own, Box::new(|| 4u64) as Job).unwrap();
    let unknown = handle.submit(ClassId(9), Box::new(|| 5)).unwrap();
    assert_eq!(long.unwrap().wait(), Ok(1));
    assert_eq!(patient.wait(), Ok(2));
    assert_eq!(
        hasty.wait(),
        Err(TicketError::Refused(Refusal::DeadlinePassed))
    );
    assert_eq!(
        own.wait(),
        Err(TicketError::Refused(Refusal::DeadlinePassed))
    );
    assert_eq!(
        unknown.wait(),
        Err(TicketError::Refused(Refusal::UnknownClass))
    );
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn a_staged_request_does_not_outlive_its_deadline() {
    let mut config = config(1, MechanismKind::None);
    config.depth = 2;
    let runtime = jobs(config);
    let handle = runtime.handle();
    let stop = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&stop);
    let long = handle.submit(
        ClassId(0),
        Box::new(move || {
            wait_for("the end", || theirs.load(Ordering::Relaxed));
            1
        }),
    );
    wait_for("the start", || runtime.statistics().running == 1);
    let options = SubmitOptions::new(ClassId(0)).deadline(Duration::from_millis(5));
    let staged = handle
        .submit_with(options, Box::new(|| 2u64) as Job)
        .unwrap();
    std::thread::sleep(Duration::from_millis(60));
    stop.store(true, Ordering::Relaxed);
    assert_eq!(
        staged.wait(),
        Err(TicketError::Refused(Refusal::DeadlinePassed))
    );
    assert_eq!(long.unwrap().wait(), Ok(1));
    assert!(runtime.shutdown(PATIENCE).is_clean());
}
