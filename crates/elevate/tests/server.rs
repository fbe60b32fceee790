//! The preemptive server: which requests pass which.
#![allow(missing_docs)]

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use shinjuku_elevate::ElevateError;
use shinjuku_elevate::server::{Server, ServerConfig, Source};
use shinjuku_tests_support::{need, test_name, wait_for};

/// The longest that a request keeps the core here.
const LONG: Duration = Duration::from_secs(5);
const SHORTS: usize = 50;

struct Requests<R>(Receiver<R>);

impl<R: Send> Source for Requests<R> {
    type Request = R;

    fn poll(&mut self) -> Option<R> {
        self.0.try_recv().ok()
    }

    fn wait(&mut self) -> Option<R> {
        self.0.recv_timeout(Duration::from_millis(10)).ok()
    }
}

/// A server on the last core, one at a time; the test is bound to the others.
fn serve<R: Send + 'static>(
    test: &str,
    config: impl FnOnce(ServerConfig) -> ServerConfig,
    handler: impl Fn(R) + Send + Sync + 'static,
) -> Option<(Server, mpsc::Sender<R>, MutexGuard<'static, ()>)> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut others = sched_getaffinity(None).unwrap();
    let core = (0..CpuSet::MAX_CPU).rev().find(|core| others.is_set(*core));
    others.unset(core.unwrap());
    if others.count() > 0 {
        sched_setaffinity(None, &others).unwrap();
    }
    let (sender, receiver) = mpsc::channel();
    let config = config(ServerConfig::new(core.unwrap()));
    match Server::start(config, Requests(receiver), handler) {
        Ok(server) => Some((server, sender, turn)),
        Err(error @ ElevateError::Refused(_)) => {
            println!("SKIPPED {test}: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// How many short requests had been served when the long one, sent first, ended. It waits for all
/// of them, as long as a request may.
fn shorts_before_the_long_one(test: &str, threshold: Option<Duration>) -> Option<usize> {
    let (shorts, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None)));
    let (of_handler, of_long) = (Arc::clone(&shorts), Arc::clone(&seen));
    let longest = match threshold {
        Some(_) => LONG,
        None => Duration::from_millis(50),
    };
    let handler = move |is_long: bool| {
        if !is_long {
            of_handler.fetch_add(1, SeqCst);
            return;
        }
        let begun = Instant::now();
        while of_handler.load(SeqCst) < SHORTS && begun.elapsed() < longest {
            std::hint::spin_loop();
        }
        *of_long.lock().unwrap() = Some(of_handler.load(SeqCst));
    };
    let config = |config: ServerConfig| config.threshold(threshold);
    let (server, sender, _turn) = serve(test, config, handler)?;
    sender.send(true).unwrap();
    for _ in 0..SHORTS {
        sender.send(false).unwrap();
    }
    wait_for("all requests", || {
        seen.lock().unwrap().is_some() && shorts.load(SeqCst) == SHORTS
    });
    let report = server.stop();
    assert_eq!(report.requests, SHORTS as u64 + 1);
    assert_eq!(report.preemptions > 0, threshold.is_some(), "{report:?}");
    Option::take(&mut seen.lock().unwrap())
}

#[test]
fn short_requests_pass_a_long_one_that_has_run_for_the_threshold() {
    let threshold = Some(Duration::from_millis(1));
    if let Some(before) = shorts_before_the_long_one(test_name!(), threshold) {
        assert_eq!(before, SHORTS);
    }
}

#[test]
fn without_a_threshold_they_wait_for_it() {
    if let Some(before) = shorts_before_the_long_one(test_name!(), None) {
        assert_eq!(before, 0);
    }
}

#[test]
fn with_all_workers_preempted_each_goes_on_in_turn() {
    let (done, of_handler) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, begun) = (Arc::clone(&done), Arc::clone(&of_handler));
    // None of the first two ends before both have begun.
    let handler = move |()| {
        begun.fetch_add(1, SeqCst);
        let since = Instant::now();
        while begun.load(SeqCst) < 2 && since.elapsed() < LONG {
            std::hint::spin_loop();
        }
        while since.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        count.fetch_add(1, SeqCst);
    };
    let config = |config: ServerConfig| config.workers(2).threshold(Duration::from_millis(1));
    let (server, sender, _turn) = need!(serve(test_name!(), config, handler));
    for _ in 0..4 {
        sender.send(()).unwrap();
    }
    wait_for("all requests", || done.load(SeqCst) == 4);
    let report = server.stop();
    assert!(report.resumed > 0, "{report:?}");
}

#[test]
fn a_request_that_sleeps_holds_no_other_and_a_panic_is_counted() {
    let others = Arc::new(AtomicUsize::new(0));
    let of_handler = Arc::clone(&others);
    let handler = move |number: u32| match number {
        0 => {
            // It sleeps until the others have been served.
            let deadline = Instant::now() + LONG;
            while of_handler.load(SeqCst) < SHORTS && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(of_handler.load(SeqCst) < SHORTS, "the panic to be counted");
        }
        _ => {
            of_handler.fetch_add(1, SeqCst);
        }
    };
    let (server, sender, _turn) = need!(serve(test_name!(), |config| config, handler));
    for number in 0..=SHORTS as u32 {
        sender.send(number).unwrap();
    }
    wait_for("the others", || others.load(SeqCst) == SHORTS);
    let report = server.stop();
    assert_eq!((report.requests, report.panics), (SHORTS as u64 + 1, 1));
}

#[test]
fn settings_out_of_range_are_refused_in_words() {
    struct Nothing;
    impl Source for Nothing {
        type Request = ();
        fn poll(&mut self) -> Option<()> {
            None
        }
        fn wait(&mut self) -> Option<()> {
            None
        }
    }
    let words = |config: ServerConfig| {
        let error = Server::start(config, Nothing, |()| ()).unwrap_err();
        error.to_string()
    };
    let good = ServerConfig::new(0);
    let bad = good.workers(0);
    assert!(words(bad).contains("0 workers"));
    let threshold = Some(Duration::ZERO);
    assert!(words(good.threshold(threshold)).contains("out of range"));
    let lowest_priority = 97;
    let bad = good.lowest_priority(lowest_priority);
    assert!(words(bad).contains("1 to 96"));
}
