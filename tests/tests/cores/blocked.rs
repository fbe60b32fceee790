//! Workers that sleep, and workers whose core another thread has: requests sent to them are served.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};
use shinjuku::net::{Arrival, Failure, Refusal, Replier, Transport};
use shinjuku::policy::ClassId;
use shinjuku::{Handle, LayoutKind, MechanismKind, Runtime, handler_fn, preempt_point};
use shinjuku_preempt::Realtime;
use shinjuku_tests_support::runtime::config;
use shinjuku_tests_support::{PATIENCE, need, test_name, turn, wait_for};

/// The kernel's report on a thread of this process: `state`, and how often the thread has given up
/// its core.
fn thread_status(thread: i32) -> Option<(String, String)> {
    let status = fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?;
    let value = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.map(|value| value.trim().to_owned())
    };
    Some((value("State:")?, value("voluntary_ctxt_switches:")?))
}

/// Whether a thread is parked, and does not only sleep between two polls.
fn is_parked(thread: i32) -> bool {
    let before = thread_status(thread);
    std::thread::sleep(Duration::from_millis(20));
    let now = thread_status(thread);
    before == now && now.is_some_and(|(state, _)| state.starts_with('S'))
}

// --- a worker that has answered, and sleeps before the dispatcher knows --------------------------

/// Delivers the first request, and then the second once the worker has served the first and sleeps.
/// Both come within one `poll`, so the dispatcher sends the second before it takes the answer to
/// the first.
struct BehindTheTimes {
    served: Arc<AtomicU64>,
    /// The worker's thread, as its handler reports it.
    worker: Arc<AtomicI32>,
    delivered: u64,
}

struct Counts(Arc<AtomicU64>);

impl Replier for Counts {
    type Outgoing = ();
    fn send(&mut self, (): ()) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Transport for BehindTheTimes {
    type Request = ();
    type Reply = ();
    type Route = ();
    type Outgoing = ();
    type Replier = Counts;

    fn poll(&mut self, now_nanos: u64, _: usize, mut deliver: impl FnMut(Arrival<(), ()>)) {
        if self.delivered == 2 {
            return;
        }
        if self.delivered == 1 {
            wait_for("the sleep of the worker", || {
                self.served.load(Ordering::Relaxed) == 1
                    && is_parked(self.worker.load(Ordering::Relaxed))
            });
        }
        self.delivered += 1;
        deliver(Arrival::new((), (), now_nanos));
    }

    fn refuse(&mut self, (): (), (): (), cause: Refusal) {
        unreachable!("{cause}, though there is room");
    }
    fn conclude((): (), _: Result<(), Failure>) {}
    fn replier(&mut self) -> std::io::Result<Counts> {
        Ok(Counts(Arc::clone(&self.served)))
    }
    fn wait(&mut self, patience: Duration) {
        std::thread::sleep(patience);
    }
    fn close(&mut self) {}
}

/// A worker that no thread wakes polls by itself after 10 s.
const UNWOKEN: Duration = Duration::from_secs(8);

#[test]
fn a_worker_does_not_sleep_over_what_is_sent_before_its_answer_is_taken() {
    let _turn = turn();
    let (served, worker) = <(Arc<AtomicU64>, Arc<AtomicI32>)>::default();
    let transport = BehindTheTimes {
        served: Arc::clone(&served),
        worker: Arc::clone(&worker),
        delivered: 0,
    };
    let config = config(1, MechanismKind::Probe).depth(2);
    let tell = move |()| {
        let thread = gettid().as_raw_nonzero().get();
        worker.store(thread, Ordering::Relaxed);
    };
    let server = Runtime::builder(handler_fn(tell))
        .config(config)
        .serve(transport)
        .unwrap();
    wait_for("the first reply", || served.load(Ordering::Relaxed) >= 1);
    let start = Instant::now();
    wait_for("the second reply", || served.load(Ordering::Relaxed) == 2);
    assert!(start.elapsed() < UNWOKEN, "no thread has woken the worker");
    assert!(server.shutdown(PATIENCE).0.is_clean());
}

// --- under SCHED_FIFO, where a thread keeps its core ---------------------------------------------

type Job = Box<dyn FnOnce() -> u64 + Send>;

/// Tests that need both cores run one at a time.
static CORES: Mutex<()> = Mutex::new(());

/// Two cores for threads under SCHED_FIFO; `None`, with the reason printed, if there are none.
fn two_cores(test: &str) -> Option<Vec<usize>> {
    if let Err(error) = Realtime::enter(1) {
        eprintln!("SKIPPED {test}: {error}");
        return None;
    }
    let allowed = sched_getaffinity(None).unwrap();
    let cores: Vec<_> = (0..CpuSet::MAX_CPU)
        .filter(|&core| allowed.is_set(core))
        .take(2)
        .collect();
    if cores.len() < 2 {
        eprintln!("SKIPPED {test}: this process may use one core only");
        return None;
    }
    Some(cores)
}

/// Two workers under SCHED_FIFO on cores of their own; `None`, with the reason printed, if that is
/// impossible.
fn on_two_cores(test: &str) -> Option<(Runtime<Job, u64>, Vec<usize>)> {
    let cores = two_cores(test)?;
    let mut config = config(2, MechanismKind::Probe).realtime_priority(1);
    config.cores.workers = cores.clone();
    let runtime = Runtime::builder(handler_fn(|job: Job| job()))
        .config(config)
        .start()
        .unwrap();
    Some((runtime, cores))
}

/// Long against `rescue_after_ms`, and short against the time that the kernel grants to real-time
/// threads in a row.
const LONG: Duration = Duration::from_millis(50);

/// The longest time that a real-time thread of a failing test keeps a core.
const AT_MOST: Duration = Duration::from_secs(4);

/// Works until `go`, with probes, and yields the core to the dispatcher now and then.
fn works_until(go: &Arc<AtomicBool>) -> Job {
    let go = Arc::clone(go);
    Box::new(move || {
        let start = Instant::now();
        while !go.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
            preempt_point();
            std::thread::sleep(Duration::from_micros(50));
        }
        preempt_point();
        u64::from(go.load(Ordering::Relaxed))
    })
}

/// Two requests share two workers with a third that computes without probes, so one of the two is
/// always suspended. No spare gets it, since the spare would never have the core; the other worker
/// runs both to their ends.
#[test]
fn suspended_requests_are_not_sent_where_a_handler_computes() {
    let _turn = turn();
    let _cores = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let (runtime, _) = need!(on_two_cores(test_name!()));
    let handle = runtime.handle();
    let (go, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let submit = |job: Job| handle.submit(ClassId(0), job).unwrap();
    // This thread runs beside the workers, however many others want the remaining core.
    let _realtime = Realtime::enter(1).unwrap();
    let mut others = [submit(works_until(&go)), submit(works_until(&go))];
    wait_for("both", || runtime.statistics().running == 2);
    let (their_go, theirs) = (Arc::clone(&go), Arc::clone(&done));
    let computes = submit(Box::new(move || {
        let start = Instant::now();
        while !theirs.load(Ordering::Relaxed) && start.elapsed() < AT_MOST {
            if start.elapsed() > LONG {
                their_go.store(true, Ordering::Relaxed);
            }
            std::hint::spin_loop();
        }
        u64::from(theirs.load(Ordering::Relaxed))
    }));
    for other in &mut others {
        assert_eq!(other.wait_timeout(PATIENCE), Some(Ok(1)));
    }
    done.store(true, Ordering::Relaxed);
    assert_eq!(computes.wait(), Ok(1), "they waited for its end");
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// Computes on `core` above the workers' priority until `done`; returns whether that came in time.
fn occupy(
    core: usize,
    has_core: &Arc<AtomicBool>,
    done: &Arc<AtomicBool>,
) -> std::thread::JoinHandle<bool> {
    let (has_core, done) = (Arc::clone(has_core), Arc::clone(done));
    std::thread::spawn(move || {
        let mut only = CpuSet::new();
        only.set(core);
        sched_setaffinity(None, &only).unwrap();
        let _realtime = Realtime::enter(2).unwrap();
        has_core.store(true, Ordering::Relaxed);
        let start = Instant::now();
        while !done.load(Ordering::Relaxed) && start.elapsed() < AT_MOST {
            std::hint::spin_loop();
        }
        done.load(Ordering::Relaxed)
    })
}

#[test]
fn what_a_spare_does_not_begin_goes_elsewhere() {
    let _turn = turn();
    a_spare_does_not_get_its_core(test_name!(), 4);
}

/// The worker runs one of the two and the spare gets the other, so none waits.
#[test]
fn what_a_spare_does_not_begin_goes_elsewhere_though_nothing_waits() {
    let _turn = turn();
    a_spare_does_not_get_its_core(test_name!(), 2);
}

/// A worker is blocked, and its core belongs to a thread of higher priority, so a spare does not
/// get the core. Requests sent to the spare go to the other worker when that is free. There are
/// `others` requests for the two.
fn a_spare_does_not_get_its_core(test: &str, others: usize) {
    let _cores = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let (runtime, cores) = need!(on_two_cores(test));
    let handle = runtime.handle();
    let submit = |job: Job| handle.submit(ClassId(0), job).unwrap();
    let (let_go, blocked) = std::sync::mpsc::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel();
    let blocks = submit(Box::new(move || {
        tell.send((sched_getcpu(), gettid())).unwrap();
        u64::from(blocked.recv().is_err())
    }));
    let (core, thread) = told.recv_timeout(PATIENCE).expect("it runs");
    assert!(cores.contains(&core));
    wait_for("the worker to be blocked", || {
        let stat = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
        fs::read_to_string(stat).is_ok_and(|stat| stat.contains(") S "))
    });
    let (has_core, done) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let occupies = occupy(core, &has_core, &done);
    wait_for("the core's loss", || has_core.load(Ordering::Relaxed));
    // This thread runs beside the workers, however many others want the remaining core.
    let _realtime = Realtime::enter(1).unwrap();
    let go = Arc::new(AtomicBool::new(false));
    let others: Vec<_> = (0..others).map(|_| submit(works_until(&go))).collect();
    wait_for("a spare", || runtime.statistics().rescued > 0);
    go.store(true, Ordering::Relaxed);
    for mut other in others {
        assert_eq!(other.wait_timeout(PATIENCE), Some(Ok(1)));
    }
    done.store(true, Ordering::Relaxed);
    assert!(occupies.join().unwrap(), "they waited for the core");
    drop(let_go);
    assert_eq!(blocks.wait(), Ok(1));
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// Submits itself anew until `over`, so that one of it always waits or runs.
fn follows_itself(handle: Handle<Job, u64>, over: Arc<AtomicBool>) -> Job {
    Box::new(move || {
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(100) {
            preempt_point();
        }
        if over.load(Ordering::Relaxed) {
            return 1;
        }
        let next = follows_itself(handle.clone(), over);
        handle.submit(ClassId(0), next).is_ok().into()
    })
}

/// In the inline layout, the thread that took over shares the core with the blocked one, and always
/// has work.
#[test]
fn inline_a_handler_that_is_back_from_the_kernel_gets_on_under_load() {
    let _turn = turn();
    let _cores = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let cores = need!(two_cores(test_name!()));
    let mut config = config(1, MechanismKind::Probe)
        .layout(LayoutKind::Inline)
        .workers(None)
        .realtime_priority(1);
    config.cores.share = false;
    config.cores.workers = cores[1..].to_vec();
    let runtime = Runtime::builder(handler_fn(|job: Job| job()))
        .config(config)
        .start()
        .unwrap();
    let handle = runtime.handle();
    let submit = |job: Job| handle.submit(ClassId(0), job).unwrap();
    // This thread runs beside the runtime, however many others want the remaining core.
    let _realtime = Realtime::enter(1).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let (let_go, blocked) = std::sync::mpsc::channel();
    let mut is_back = submit(Box::new(move || blocked.recv().is_ok().into()));
    // These run when another thread has taken over, and from then on there is always one more.
    let mut others: Vec<_> = (0..4)
        .map(|_| submit(follows_itself(handle.clone(), Arc::clone(&over))))
        .collect();
    others.push(submit(Box::new(move || let_go.send(()).is_ok().into())));
    let answer = is_back.wait_timeout(AT_MOST);
    over.store(true, Ordering::Relaxed);
    assert_eq!(answer, Some(Ok(1)), "it waits for the others to end");
    for other in others {
        assert_eq!(other.wait(), Ok(1));
    }
    let report = runtime.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
    assert!(report.statistics.unwrap().rescued > 0);
}
