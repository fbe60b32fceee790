//! Which requests are turned away, and that they are counted. Short, since most causes have their
//! tests where they arise: `in_process/tests.rs`, and the transports'.

use super::*;

#[test]
fn what_has_not_started_by_its_deadline_is_refused() {
    let mut config = config(1, MechanismKind::None);
    config.class = vec![
        ClassConfig::new("patient"),
        ClassConfig::new("hasty").deadline_us(1_000.0),
    ];
    let runtime = jobs(config);
    let handle = runtime.handle();
    // The request computes until the gate opens. If it slept, a spare worker would serve the
    // others.
    let open = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&open);
    let long = handle.submit(
        ClassId(0),
        Box::new(move || {
            let start = Instant::now();
            while !gate.load(Ordering::Relaxed) {
                assert!(start.elapsed() < PATIENCE, "the gate never opened");
                preempt_point();
            }
            1
        }),
    );
    let patient = handle.submit(ClassId(0), Box::new(|| 2)).unwrap();
    let hasty = handle.submit(ClassId(1), Box::new(|| 3)).unwrap();
    let own = SubmitOptions::default().deadline(Duration::from_millis(2));
    let own = handle.submit_with(own, Box::new(|| 4u64) as Job).unwrap();
    let unknown = handle.submit(ClassId(9), Box::new(|| 5)).unwrap();
    // After this pause their deadlines are over.
    std::thread::sleep(Duration::from_millis(3));
    open.store(true, Ordering::Relaxed);
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
