//! The transport driven by a toy dispatcher, which serves requests where a worker would.

use std::pin::pin;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);
const BOUNDS: InProcessBounds = InProcessBounds {
    intake: 64,
    outstanding: 64,
};

/// A handle and a transport for one dispatcher.
pub(crate) fn in_process<Request: Send + 'static, Reply: Send + 'static>(
    bounds: InProcessBounds,
) -> std::io::Result<(Handle<Request, Reply>, InProcess<Request, Reply>)> {
    let (handle, mut transports) = super::in_process(bounds, 1)?;
    Ok((handle, transports.remove(0)))
}

/// Runs a test that might hang: after twice the patience the test fails.
pub(crate) fn bounded(test: impl FnOnce() + Send + 'static) {
    advancing(|_| test());
}

/// The same of a test that counts its steps: it fails after so long without one.
pub(crate) fn advancing(test: impl FnOnce(&AtomicUsize) + Send + 'static) {
    let (done, result) = mpsc::channel();
    let steps = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&steps);
    let thread = thread::spawn(move || {
        test(&counted);
        let _ = done.send(());
    });
    let mut seen = 0;
    loop {
        match result.recv_timeout(PATIENCE * 2) {
            Ok(()) => return thread.join().unwrap(),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let before = std::mem::replace(&mut seen, steps.load(Ordering::Relaxed));
                assert!(seen > before, "it hangs after {seen} steps");
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                std::panic::resume_unwind(thread.join().unwrap_err())
            }
        }
    }
}

/// Serves until told to stop or everything is handed out; gives the transport back.
fn serve<Request: Send + 'static, Reply: Send + 'static>(
    mut transport: InProcess<Request, Reply>,
    stop: Arc<AtomicBool>,
    handler: impl Fn(Request) -> Result<Result<Reply, Failure>, (Request, Refusal)> + Send + 'static,
) -> JoinHandle<InProcess<Request, Reply>> {
    thread::spawn(move || {
        while !stop.load(Ordering::Acquire) {
            let mut arrivals = Vec::new();
            transport.poll(0, 16, |arrival| arrivals.push(arrival));
            if arrivals.is_empty() {
                transport.wait(PATIENCE);
            }
            for Arrival { request, route, .. } in arrivals {
                match handler(request) {
                    Ok(result) => InProcess::<Request, Reply>::conclude(route, result),
                    Err((request, cause)) => transport.refuse(request, route, cause),
                }
            }
        }
        transport
    })
}

fn end<Request: Send + 'static, Reply: Send + 'static>(
    handle: &Handle<Request, Reply>,
    stop: &AtomicBool,
    thread: JoinHandle<InProcess<Request, Reply>>,
) {
    stop.store(true, Ordering::Release);
    handle.0.intakes[0].wake();
    assert!(finish(vec![thread.join().unwrap()], PATIENCE));
}

/// A waker that unparks a thread, and tells on which thread it was called.
struct Unpark {
    thread: Thread,
    called_on: mpsc::Sender<Option<String>>,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        let name = thread::current().name().map(str::to_owned);
        let _ = self.called_on.send(name);
        self.thread.unpark();
    }
}

/// Runs a future on this thread; gives its output and the threads on which its waker was called.
fn block_on<F: Future>(future: F) -> (F::Output, Vec<Option<String>>) {
    let start = Instant::now();
    let (called_on, names) = mpsc::channel();
    let waker = Waker::from(Arc::new(Unpark {
        thread: thread::current(),
        called_on,
    }));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            drop(waker);
            return (output, names.try_iter().collect());
        }
        thread::park_timeout(PATIENCE);
        assert!(start.elapsed() < PATIENCE, "a wake-up was lost");
    }
}

#[test]
fn everything_submitted_from_many_threads_is_answered() {
    bounded(|| {
        const EACH: u64 = 1_000;
        let (handle, transport) = in_process::<u64, u64>(BOUNDS).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = serve(transport, stop.clone(), |n| Ok(Ok(n * 2)));
        thread::scope(|scope| {
            for who in 0..4 {
                let handle = handle.clone();
                scope.spawn(move || {
                    for n in 0..EACH {
                        let ticket = handle.submit(ClassId(0), who * EACH + n).unwrap();
                        let reply = if n % 2 == 0 {
                            ticket.wait()
                        } else {
                            block_on(ticket).0
                        };
                        assert_eq!(reply, Ok((who * EACH + n) * 2));
                    }
                });
            }
        });
        assert_eq!(handle.refusals().total(), 0);
        end(&handle, &stop, thread);
    });
}

/// The dispatcher goes to sleep between any two requests, with a patience of twice as long as an
/// answer may take.
#[test]
fn no_submission_is_slept_through() {
    advancing(|answers| {
        let (handle, transport) = in_process::<u32, u32>(BOUNDS).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = serve(transport, stop.clone(), |n| Ok(Ok(n)));
        for n in 0..2_000 {
            let start = Instant::now();
            assert_eq!(handle.submit(ClassId(0), n).unwrap().wait(), Ok(n));
            assert!(start.elapsed() < PATIENCE / 2, "a wake-up was lost");
            (0..n % 40 * 10).for_each(|_| std::hint::spin_loop());
            answers.fetch_add(1, Ordering::Relaxed);
        }
        end(&handle, &stop, thread);
    });
}

#[test]
fn futures_are_woken_by_the_completion_thread_alone() {
    bounded(|| {
        let (handle, transport) = in_process::<(), ()>(BOUNDS).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = serve(transport, stop.clone(), |()| {
            thread::sleep(Duration::from_millis(2));
            Ok(Ok(()))
        });
        let mut woken = 0;
        for _ in 0..20 {
            let (reply, names) = block_on(handle.submit(ClassId(0), ()).unwrap());
            assert_eq!(reply, Ok(()));
            for name in names {
                assert_eq!(name.as_deref(), Some("shinjuku-completion"));
                woken += 1;
            }
        }
        assert!(woken > 0);
        end(&handle, &stop, thread);
    });
}

#[test]
fn what_is_said_at_submission_arrives() {
    let (handle, mut transport) = in_process::<u8, u8>(BOUNDS).unwrap();
    let before = Clock::get().now_nanos();
    let mut tickets = vec![
        handle.submit(ClassId(3), 1).unwrap(),
        handle.submit(ClassId(0), 2).unwrap(),
        thread::scope(|scope| {
            let other = scope.spawn(|| handle.submit(ClassId(0), 3).unwrap());
            other.join().unwrap()
        }),
    ];
    let options = SubmitOptions::new(ClassId(1)).flow(FlowId(77));
    let options = options.deadline(Duration::from_micros(5));
    tickets.push(handle.submit_with(options, 4).unwrap());
    let endless = options.deadline(Duration::MAX);
    tickets.push(handle.submit_with(endless, 5).unwrap());
    let after = Clock::get().now_nanos();

    let mut arrivals = Vec::new();
    transport.poll(after, 2, |arrival| arrivals.push(arrival));
    assert_eq!(arrivals.len(), 2, "no more than there is room for");
    transport.poll(after, 16, |arrival| arrivals.push(arrival));
    let [first, second, elsewhere, last, endless] = &arrivals[..] else {
        panic!("five arrivals")
    };
    assert_eq!((first.request, first.class, second.class), (1, 3, 0));
    assert_eq!(first.flow, second.flow, "a thread is a flow");
    assert_ne!(first.flow, elsewhere.flow);
    assert_eq!((first.deadline_nanos, last.flow), (None, 77));
    assert_eq!(last.deadline_nanos, Some(last.arrived_nanos + 5_000));
    assert_eq!(endless.deadline_nanos, Some(u64::MAX));
    assert!(arrivals.is_sorted_by_key(|arrival| arrival.arrived_nanos));
    assert!(before <= first.arrived_nanos && last.arrived_nanos <= after);
}

#[test]
fn a_full_intake_gives_the_request_back() {
    let bounds = InProcessBounds {
        intake: 4,
        outstanding: 4,
    };
    let (handle, mut transport) = in_process::<String, ()>(bounds).unwrap();
    let submit = |n: u32| handle.submit(ClassId(0), n.to_string());
    let tickets: Vec<_> = (0..4).map(|n| submit(n).unwrap()).collect();
    let error = submit(4).unwrap_err();
    assert_eq!(error.cause(), Refusal::QueueFull);
    assert!(error.to_string().contains("queue is full"));
    assert_eq!(error.into_request(), "4");
    assert_eq!(handle.refusals().of(Refusal::QueueFull), 1);

    transport.close();
    let error = submit(5).unwrap_err();
    assert_eq!(error.cause(), Refusal::ShuttingDown);
    assert_eq!(error.into_request(), "5");
    drop(tickets);
}

#[test]
fn refusals_reach_the_ticket_and_requests_are_dropped_by_the_completion_thread() {
    bounded(|| {
        /// A request that tells on which thread it is dropped.
        struct Request(Refusal, mpsc::Sender<Option<String>>);
        impl Drop for Request {
            fn drop(&mut self) {
                let name = thread::current().name().map(str::to_owned);
                self.1.send(name).unwrap();
                panic!("on purpose: a request's drop");
            }
        }
        let (handle, transport) = in_process::<Request, ()>(BOUNDS).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = serve(transport, stop.clone(), |request| {
            let cause = request.0;
            Err((request, cause))
        });
        let (send, dropped_on) = mpsc::channel();
        for cause in Refusal::ALL.repeat(5) {
            let request = Request(cause, send.clone());
            let ticket = handle.submit(ClassId(0), request).unwrap();
            assert_eq!(ticket.wait(), Err(TicketError::Refused(cause)));
            let name = dropped_on.recv_timeout(PATIENCE).unwrap();
            assert_eq!(name.as_deref(), Some("shinjuku-completion"));
        }
        end(&handle, &stop, thread);
    });
}

#[test]
fn failures_reach_the_ticket() {
    bounded(|| {
        let (handle, transport) = in_process::<(), ()>(BOUNDS).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = serve(transport, stop.clone(), |()| Ok(Err(Failure::Panicked)));
        let ticket = handle.submit(ClassId(0), ()).unwrap();
        assert_eq!(ticket.wait(), Err(TicketError::Failed(Failure::Panicked)));
        end(&handle, &stop, thread);
    });
}

#[test]
fn what_was_accepted_before_closing_is_delivered_or_answered() {
    bounded(|| {
        for polls in [true, false] {
            let (handle, mut transport) = in_process::<u32, u32>(BOUNDS).unwrap();
            let tickets: Vec<_> = (0..50)
                .map(|n| handle.submit(ClassId(0), n).unwrap())
                .collect();
            let mut taken = Vec::new();
            transport.poll(0, 10, |arrival| taken.push(arrival));
            transport.close();
            if polls {
                transport.poll(0, 16, |arrival| taken.push(arrival));
            }
            let delivered = taken.len() as u32;
            assert_eq!(delivered, if polls { 26 } else { 10 });
            // Some requests finish, some are turned away, the others are still in the intake.
            for Arrival { request, route, .. } in taken {
                if request % 2 == 0 {
                    InProcess::<u32, u32>::conclude(route, Ok(request));
                } else {
                    transport.refuse(request, route, Refusal::DeadlinePassed);
                }
            }
            assert!(finish(vec![transport], PATIENCE));
            for (n, ticket) in (0..).zip(tickets) {
                let expected = match n {
                    _ if n >= delivered => Err(TicketError::Refused(Refusal::ShuttingDown)),
                    _ if n % 2 == 0 => Ok(n),
                    _ => Err(TicketError::Refused(Refusal::DeadlinePassed)),
                };
                assert_eq!(ticket.wait(), expected, "request {n}, polls: {polls}");
            }
            let refused = handle.refusals().of(Refusal::ShuttingDown);
            assert_eq!(refused, u64::from(50 - delivered));
            assert!(handle.submit(ClassId(0), 0).is_err());
        }
    });
}

#[test]
fn submitters_that_race_with_the_end_are_all_answered() {
    bounded(|| {
        for _ in 0..50 {
            let (handle, mut transport) = in_process::<u32, u32>(BOUNDS).unwrap();
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        while let Ok(mut ticket) = handle.submit(ClassId(0), 0) {
                            let outcome = ticket.wait_timeout(PATIENCE).expect("answered");
                            let ended = matches!(
                                outcome,
                                Err(TicketError::RuntimeEnded
                                    | TicketError::Refused(Refusal::ShuttingDown))
                            );
                            assert!(ended || outcome == Ok(0), "{outcome:?}");
                        }
                    });
                }
                for _ in 0..20 {
                    let mut arrivals = Vec::new();
                    transport.poll(0, 16, |arrival| arrivals.push(arrival));
                    for Arrival { request, route, .. } in arrivals {
                        InProcess::<u32, u32>::conclude(route, Ok(request));
                    }
                }
                drop(transport);
            });
        }
    });
}

/// A request whose drop waits, and so holds up the completion thread.
struct Slow(Arc<(AtomicBool, AtomicUsize)>);

impl Drop for Slow {
    fn drop(&mut self) {
        let start = Instant::now();
        while !self.0.0.load(Ordering::Acquire) && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_micros(100));
        }
        self.0.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn while_the_completion_thread_is_slow_no_more_is_taken_in_than_could_be_refused() {
    bounded(|| {
        let bounds = InProcessBounds {
            intake: 8,
            outstanding: 8,
        };
        let gate = Arc::new((AtomicBool::new(false), AtomicUsize::new(0)));
        let (handle, mut transport) = in_process::<Slow, ()>(bounds).unwrap();
        let (mut tickets, mut given_back, mut refused) = (Vec::new(), Vec::new(), 0);
        for _ in 0..100 {
            match handle.submit(ClassId(0), Slow(gate.clone())) {
                Ok(ticket) => tickets.push(ticket),
                // The request is kept, since its drop waits.
                Err(error) => given_back.push(error.into_request()),
            }
            let mut arrivals = Vec::new();
            transport.poll(0, 16, |arrival| arrivals.push(arrival));
            for Arrival { request, route, .. } in arrivals {
                // This would panic if there were no room.
                transport.refuse(request, route, Refusal::QueueFull);
                refused += 1;
            }
        }
        // The completion thread has one more.
        assert!((8..=17).contains(&refused), "{refused} refused");
        assert_eq!(tickets.len() + given_back.len(), 100);
        assert!(handle.refusals().of(Refusal::QueueFull) >= 70);
        gate.0.store(true, Ordering::Release);
        assert!(finish(vec![transport], PATIENCE));
        for ticket in tickets {
            assert!(matches!(ticket.wait(), Err(TicketError::Refused(_))));
        }
        drop(given_back);
        assert_eq!(gate.1.load(Ordering::Relaxed), 100);
    });
}

#[test]
fn all_that_is_held_can_still_be_refused() {
    bounded(|| {
        let bounds = InProcessBounds {
            intake: 8,
            outstanding: 8,
        };
        let gate = Arc::new((AtomicBool::new(false), AtomicUsize::new(0)));
        let (handle, mut transport) = in_process::<Slow, ()>(bounds).unwrap();
        let (mut tickets, mut given_back, mut held) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..60 {
            match handle.submit(ClassId(0), Slow(gate.clone())) {
                Ok(ticket) => tickets.push(ticket),
                Err(error) => given_back.push(error.into_request()),
            }
            let mut turned_away = Vec::new();
            transport.poll(0, 16, |arrival| {
                let full = held.len() == bounds.outstanding;
                if full { &mut turned_away } else { &mut held }.push(arrival);
            });
            for Arrival { request, route, .. } in turned_away {
                transport.refuse(request, route, Refusal::QueueFull);
            }
        }
        assert_eq!(held.len(), bounds.outstanding);
        // This would panic if there were no room.
        for Arrival { request, route, .. } in held {
            transport.refuse(request, route, Refusal::DeadlinePassed);
        }
        gate.0.store(true, Ordering::Release);
        assert!(finish(vec![transport], PATIENCE));
        for ticket in tickets {
            assert!(matches!(ticket.wait(), Err(TicketError::Refused(_))));
        }
    });
}

#[test]
fn refusals_are_delivered_whatever_the_dispatcher_does_next() {
    let (handle, mut transport) = in_process::<(), ()>(BOUNDS).unwrap();
    for _ in 0..50 {
        let mut ticket = handle.submit(ClassId(0), ()).unwrap();
        let mut arrivals = Vec::new();
        transport.poll(0, 1, |arrival| arrivals.push(arrival));
        for Arrival { request, route, .. } in arrivals {
            // Time for the completion thread to fall asleep.
            thread::sleep(Duration::from_micros(200));
            transport.refuse(request, route, Refusal::UnknownClass);
        }
        let refused = Err(TicketError::Refused(Refusal::UnknownClass));
        assert_eq!(ticket.wait_timeout(PATIENCE), Some(refused));
    }
}

#[test]
fn a_completion_thread_that_is_stuck_keeps_nobody_waiting() {
    bounded(|| {
        let gate = Arc::new((AtomicBool::new(false), AtomicUsize::new(0)));
        let (handle, mut transport) = in_process::<Slow, ()>(BOUNDS).unwrap();
        let submit = || handle.submit(ClassId(0), Slow(gate.clone())).unwrap();
        let (refused, running, queued) = (submit(), submit(), submit());
        let mut arrivals = Vec::new();
        transport.poll(0, 2, |arrival| arrivals.push(arrival));
        let leaked = arrivals.pop().unwrap();
        let Arrival { request, route, .. } = arrivals.pop().unwrap();
        transport.refuse(request, route, Refusal::QueueFull);
        // From here on the completion thread is stuck in the drop of this request.
        let refusal = Err(TicketError::Refused(Refusal::QueueFull));
        assert_eq!(refused.wait(), refusal);
        thread::scope(|scope| {
            let running = scope.spawn(|| running.wait());
            assert!(!finish(vec![transport], Duration::from_millis(20)));
            assert_eq!(running.join().unwrap(), Err(TicketError::RuntimeEnded));
        });
        assert_eq!(queued.wait(), Err(TicketError::RuntimeEnded));
        gate.0.store(true, Ordering::Release);
        // A context that ends after all does no harm.
        InProcess::<Slow, ()>::conclude(leaked.route, Ok(()));
    });
}

#[test]
fn a_lost_context_keeps_nobody_waiting() {
    bounded(|| {
        let (handle, mut transport) = in_process::<(), ()>(BOUNDS).unwrap();
        let tickets: Vec<_> = (0..3)
            .map(|_| handle.submit(ClassId(0), ()).unwrap())
            .collect();
        let mut leaked = Vec::new();
        transport.poll(0, 16, |arrival| leaked.push(arrival.route));
        thread::scope(|scope| {
            let waiting: Vec<_> = tickets
                .into_iter()
                .enumerate()
                .map(|(n, ticket)| {
                    scope.spawn(move || {
                        if n == 0 {
                            block_on(ticket).0
                        } else {
                            ticket.wait()
                        }
                    })
                })
                .collect();
            thread::sleep(Duration::from_millis(5));
            drop(transport);
            for waiting in waiting {
                assert_eq!(waiting.join().unwrap(), Err(TicketError::RuntimeEnded));
            }
        });
        leaked.into_iter().for_each(std::mem::forget);
    });
}

#[test]
fn contexts_submit_too() {
    bounded(|| {
        use shinjuku_preempt::{Generation, Outcome, Pool, PoolConfig, Worker};
        let (handle, transport) = in_process::<u32, u32>(BOUNDS).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = serve(transport, stop.clone(), |n| Ok(Ok(n + 1)));
        let config = PoolConfig::default().contexts(1);
        let inside = handle.clone();
        let pool = Pool::new(config, move |n| inside.submit(ClassId(0), n).unwrap()).unwrap();
        let mut idle = pool.idle;
        let ready = idle.pop().unwrap().load(6);
        let outcome = Worker::bind(0).unwrap().run(ready.into(), Generation(1));
        let Outcome::Finished(finished) = outcome else {
            unreachable!("no one preempts it")
        };
        let (context, ticket) = finished.take();
        assert_eq!(ticket.unwrap().wait(), Ok(7));
        assert_eq!(pool.handles.hand_back(vec![context], PATIENCE).leaked, 0);
        end(&handle, &stop, thread);
    });
}

/// With several dispatchers, each request comes to the dispatcher of its flow, or to the next one
/// with room.
#[test]
fn a_flow_comes_to_one_dispatcher_while_that_has_room() {
    bounded(|| {
        let bounds = InProcessBounds {
            intake: 4,
            outstanding: 64,
        };
        let (handle, mut transports) = super::in_process::<u64, ()>(bounds, 3).unwrap();
        let submit = |flow| {
            let options = SubmitOptions::new(ClassId(0)).flow(FlowId(flow));
            handle.submit_with(options, flow)
        };
        let mut poll = |number: usize| {
            let mut flows = Vec::new();
            let transport: &mut InProcess<u64, ()> = &mut transports[number];
            transport.poll(0, 64, |Arrival { request, route, .. }| {
                InProcess::<u64, ()>::conclude(route, Ok(()));
                flows.push(request);
            });
            flows
        };
        let tickets: Vec<_> = [4, 2, 1, 7, 5].map(|flow| submit(flow).unwrap()).into();
        assert_eq!(
            [poll(0), poll(1), poll(2)],
            [vec![], vec![4, 1, 7], vec![2, 5]]
        );
        let more: Vec<_> = (0..12).map(|_| submit(1).unwrap()).collect();
        let full = submit(1).unwrap_err();
        assert_eq!(full.cause(), Refusal::QueueFull);
        assert_eq!([poll(1).len(), poll(2).len(), poll(0).len()], [4, 4, 4]);
        for ticket in tickets.into_iter().chain(more) {
            assert_eq!(ticket.wait(), Ok(()));
        }
        assert!(finish(transports, PATIENCE));
    });
}

/// A submission calls the wake-up that the serving thread left, and the transport's glance tells
/// other threads that a request is there.
#[test]
fn an_attended_transport_calls_and_tells() {
    bounded(|| {
        let (handle, mut transports) = super::in_process::<u8, ()>(BOUNDS, 2).unwrap();
        let calls: Arc<[AtomicUsize; 2]> = Arc::default();
        let glances: Vec<_> = (transports.iter_mut().enumerate())
            .map(|(number, transport)| {
                let calls = Arc::clone(&calls);
                let wake = move || {
                    calls[number].fetch_add(1, Ordering::Relaxed);
                };
                transport.attend(Box::new(wake)).expect("it tells")
            })
            .collect();
        let called = || calls.each_ref().map(|calls| calls.load(Ordering::Relaxed));
        let told = || [glances[0](), glances[1]()];
        assert_eq!(told(), [false, false]);
        let options = SubmitOptions::new(ClassId(0)).flow(FlowId(1));
        let ticket = handle.submit_with(options, 7).unwrap();
        assert_eq!((called(), told()), ([0, 1], [false, true]));
        transports[1].poll(0, 64, |arrival| {
            InProcess::<u8, ()>::conclude(arrival.route, Ok(()));
        });
        assert_eq!((ticket.wait(), told()), (Ok(()), [false, false]));
        assert!(finish(transports, PATIENCE));
    });
}
