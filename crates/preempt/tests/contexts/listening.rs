//! Probes that ask whether their worker is wanted elsewhere: one dispatch of a loop that lies on
//! the test's thread, with a moment that never comes.

use std::cell::Cell;
use std::time::{Duration, Instant};

use shinjuku_preempt::{
    Completion, ContextKind, Cycles, Dispatched, Finished, Handles, Idle, LastAnswer, Outcome,
    Pool, PoolConfig, Receiver, Sender, Service, Step, Suspended, Worker, mailbox, preempt_point,
    without_preemption,
};

type Job = fn() -> u64;

const PATIENCE: Duration = Duration::from_secs(20);

/// Serves a mailbox, and notes what panicked.
struct Serving {
    receiver: Receiver<Job, u64>,
    results: Vec<Option<u64>>,
}

impl Service<Job, u64> for Serving {
    fn next(&mut self) -> Step<Job, u64> {
        match self.receiver.poll() {
            Some((runnable, generation)) => Step::Run(runnable, generation),
            None => Step::Nothing,
        }
    }

    fn finished(&mut self, finished: Finished<Job, u64>) {
        let (idle, result) = finished.take();
        self.results.push(result.ok());
        self.receiver.answer(Completion::Finished(idle));
    }

    fn preempted(&mut self, suspended: Suspended<Job, u64>) {
        self.receiver.answer(Completion::Preempted(suspended));
    }

    fn sleep(&mut self) {}
}

struct Stage {
    worker: Worker,
    sender: Sender<Job, u64>,
    serving: Serving,
    idle: Vec<Idle<Job, u64>>,
    handles: Handles<Job, u64>,
}

impl Stage {
    fn new(kind: ContextKind) -> Self {
        let config = PoolConfig::default().contexts(2).kind(kind);
        let pool = Pool::new(config, |job: Job| job()).unwrap();
        let (sender, receiver) = mailbox(2);
        Self {
            worker: Worker::bind(0).unwrap(),
            sender,
            serving: Serving {
                receiver,
                results: Vec::new(),
            },
            idle: pool.idle,
            handles: pool.handles,
        }
    }

    fn send(&mut self, job: Job) -> Dispatched {
        let idle = self.idle.pop().unwrap();
        self.sender.send(idle.load(job).into()).unwrap()
    }

    /// Runs what was sent, with that moment, or none.
    fn serve(
        &mut self,
        dispatched: &Dispatched,
        has_moment: bool,
        mut asked: impl FnMut() -> bool,
    ) {
        if has_moment {
            dispatched.request_at(Cycles(u64::MAX / 2));
        }
        self.worker.serve_once(&mut self.serving, &mut asked);
    }

    fn result(&mut self) -> Option<u64> {
        let Some((_, Completion::Finished(idle))) = self.sender.poll() else {
            panic!("it has not finished");
        };
        self.idle.push(idle);
        self.serving.results.pop().unwrap()
    }

    fn suspended(&mut self) -> Suspended<Job, u64> {
        match self.sender.poll() {
            Some((_, Completion::Preempted(suspended))) => suspended,
            other => panic!("it has not given way: {other:?}"),
        }
    }

    fn end(self) {
        self.handles.hand_back(self.idle, PATIENCE);
    }
}

thread_local! {
    static OWNER: Cell<u64> = const { Cell::new(0) };
}

fn probe_for(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        preempt_point();
    }
}

#[test]
fn a_worker_that_is_wanted_has_its_thread_back_before_the_moment() {
    let mut stage = Stage::new(ContextKind::Stack);
    OWNER.set(1);
    let dispatched = stage.send(|| {
        OWNER.set(2);
        probe_for(PATIENCE);
        3
    });
    let (mut looks, mut owner) = (0, 0);
    stage.serve(&dispatched, true, || {
        looks += 1;
        owner = OWNER.get();
        looks == 100
    });
    assert_eq!((looks, owner), (100, 2), "on the context's own terms");
    assert_eq!(OWNER.get(), 1);
    assert_eq!(stage.worker.counters().taken_by_probe, 1);
    // It probes on for as long as it is let: it is not resumed, and its context not handed back.
    let _ = stage.suspended();
}

#[test]
fn nobody_asks_without_a_moment_or_without_a_listener_or_under_the_guard() {
    let mut stage = Stage::new(ContextKind::Stack);
    let job: Job = || {
        probe_for(Duration::from_millis(2));
        1
    };
    let dispatched = stage.send(job);
    stage.serve(&dispatched, false, || panic!("it has no moment"));
    assert_eq!(stage.result(), Some(1));

    let dispatched = stage.send(|| {
        without_preemption(|| probe_for(Duration::from_millis(2)));
        2
    });
    stage.serve(&dispatched, true, || panic!("preemption is held off"));
    assert_eq!(stage.result(), Some(2));

    let dispatched = stage.send(job);
    stage.serve(&dispatched, true, || false);
    assert_eq!(stage.result(), Some(1));

    // The last listener is gone.
    let dispatched = stage.send(job);
    dispatched.request_at(Cycles(u64::MAX / 2));
    let (runnable, generation) = stage.serving.receiver.poll().unwrap();
    let Outcome::Finished(finished) = stage.worker.run(runnable, generation) else {
        panic!("nobody wanted it to give way");
    };
    stage.serving.finished(finished);
    assert_eq!(stage.result(), Some(1));
    assert_eq!(stage.worker.counters().taken(), 0);
    stage.end();
}

#[test]
fn a_listener_may_probe_itself() {
    let mut stage = Stage::new(ContextKind::Stack);
    let dispatched = stage.send(|| {
        probe_for(Duration::from_millis(2));
        4
    });
    let (mut depth, mut deepest) = (0, 0);
    stage.serve(&dispatched, true, || {
        depth += 1;
        deepest = deepest.max(depth);
        probe_for(Duration::from_micros(20));
        depth -= 1;
        false
    });
    assert_eq!((stage.result(), deepest), (Some(4), 1));
    stage.end();
}

#[test]
fn a_listener_that_panics_is_a_job_that_panics() {
    let mut stage = Stage::new(ContextKind::Stack);
    let dispatched = stage.send(|| {
        probe_for(PATIENCE);
        1
    });
    stage.serve(&dispatched, true, || panic!("meant"));
    assert_eq!(stage.result(), None);
    // The guard is down again.
    let dispatched = stage.send(|| {
        probe_for(PATIENCE);
        1
    });
    stage.serve(&dispatched, true, || true);
    let _ = stage.suspended();
}

#[test]
#[should_panic(expected = "a kernel thread goes on with a loop")]
fn a_kernel_thread_is_not_served_once() {
    let mut stage = Stage::new(ContextKind::KernelThread);
    let dispatched = stage.send(|| 1);
    stage.serve(&dispatched, true, || false);
}

/// In every lap of the mailbox, with one and two contexts out.
#[test]
fn the_last_answer_is_there_when_everything_was_answered() {
    let mut stage = Stage::new(ContextKind::Stack);
    let mut last: LastAnswer = stage.sender.last_answer();
    assert!(last.is_there(), "nothing is out");
    for round in 0..20 {
        let both = round % 3 > 0;
        let sent = if both { 2 } else { 1 };
        for _ in 0..sent {
            let _ = stage.send(|| 1);
        }
        stage.sender.expect(&mut last);
        for _ in 0..sent {
            assert!(!last.is_there(), "round {round}");
            stage.worker.serve_once(&mut stage.serving, &mut || false);
        }
        assert!(last.is_there(), "round {round}");
        for _ in 0..sent {
            assert_eq!(stage.result(), Some(1));
        }
    }
    stage.sender.expect(&mut last);
    assert!(last.is_there());
    stage.end();
}
