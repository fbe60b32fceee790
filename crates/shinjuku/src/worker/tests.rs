//! The time that a request is served for, where requests follow each other on one context.

use shinjuku_net::{Arrival, Failure, Refusal};
use shinjuku_policy::{ClassId, Nanos};
use shinjuku_preempt::{
    Dispatched, Handles, Idle, Pool, PoolConfig, Sender, mailbox, preempt_point,
};

use super::*;
use crate::request::Meta;
use crate::statistics::{ClassStatistics, DispatcherStatistics, Statistics};
use crate::timeline::Recorder;

const PATIENCE: Duration = Duration::from_secs(20);

const FIRST: ClassId = ClassId(0);
const SECOND: ClassId = ClassId(1);

/// A transport that brings no requests and drops replies.
struct Nothing;

impl Transport for Nothing {
    type Request = bool;
    type Reply = ();
    type Route = ();
    type Outgoing = ();
    type Replier = Nothing;

    fn poll(&mut self, _: u64, _: usize, _: impl FnMut(Arrival<bool, ()>)) {}
    fn refuse(&mut self, _: bool, (): (), _: Refusal) {}
    fn conclude((): (), _: Result<(), Failure>) {}
    fn replier(&mut self) -> std::io::Result<Nothing> {
        Ok(Nothing)
    }
    fn wait(&mut self, _: Duration) {}
    fn close(&mut self) {}
}

impl Replier for Nothing {
    type Outgoing = ();

    fn send(&mut self, (): ()) {}
}

/// A worker's loop on this thread, with the dispatcher's end of its mailbox. A request's value says
/// whether the request has a probe.
struct Stage {
    worker: Worker,
    its_loop: WorkerLoop<Nothing>,
    sender: Sender<Job<Nothing>, Done<Nothing>>,
    idle: Vec<Idle<Job<Nothing>, Done<Nothing>>>,
    handles: Option<Handles<Job<Nothing>, Done<Nothing>>>,
}

impl Stage {
    fn new() -> Self {
        let config = PoolConfig::default().contexts(1);
        let serve = |job: Job<Nothing>| {
            if job.request {
                preempt_point();
            }
            Done {
                meta: job.meta,
                outgoing: (),
                failed: false,
            }
        };
        let Pool { idle, handles } = Pool::new(config, serve).unwrap();
        let (sender, receiver) = mailbox(1);
        let worker = Worker::bind(1).unwrap();
        let its_loop = WorkerLoop {
            link: worker.link(),
            port: Port {
                receiver,
                replier: Nothing,
            },
            statistics: Arc::new(WorkerStatistics::new(2)),
            lane: Recorder::new(1, [String::new()]).lane(0),
            parker: Arc::new(Parker::new()),
            orders: Arc::new(Orders::new(1)),
            clock: Clock::get(),
            idle_backoff: None,
            shares_core: true,
            idle_since: Cycles::now(),
            idle_turns: 0,
            running: None,
        };
        Self {
            worker,
            its_loop,
            sender,
            idle,
            handles: Some(handles),
        }
    }

    /// Serves a request of the class [`FIRST`] that is said to have begun at `start`, and then one
    /// of [`SECOND`], which begins when the first ends. `before_second` may ask the second to give
    /// way.
    fn serve_two(
        &mut self,
        start: Cycles,
        before_second: impl Fn(&Dispatched),
    ) -> Completion<Job<Nothing>, Done<Nothing>> {
        let context = self.idle.pop().unwrap();
        let sent = self.sender.send(context.load(job(FIRST)).into());
        let mut dispatched = sent.unwrap_or_else(|_| panic!("there is room"));
        let mut second = Some(job(SECOND));
        let sender = &mut self.sender;
        let worker = &mut self.worker;
        let on_cpu = OnCpu::new(worker.processor_time());
        let WorkerLoop {
            port,
            statistics,
            lane,
            clock,
            ..
        } = &mut self.its_loop;
        let told = (&**statistics, &*lane);
        port.step_inline(worker, told, (*clock, &on_cpu), start, |end, _| {
            let second = second.take()?;
            let generation = sender.renew(&mut dispatched);
            before_second(&dispatched);
            Some((second, generation, end))
        });
        self.sender.poll().expect("it has answered").1
    }

    /// Goes on with what was preempted, until its end.
    fn resume(&mut self, completion: Completion<Job<Nothing>, Done<Nothing>>) {
        let Completion::Preempted(suspended) = completion else {
            panic!("the second was asked to give way");
        };
        let sent = self.sender.send(suspended.into());
        assert!(sent.is_ok(), "there is room");
        let worker = &mut self.worker;
        let on_cpu = OnCpu::new(worker.processor_time());
        let WorkerLoop {
            port,
            statistics,
            lane,
            clock,
            ..
        } = &mut self.its_loop;
        let (told, times) = ((&**statistics, &*lane), (*clock, &on_cpu));
        port.step_inline(worker, told, times, Cycles::now(), |_, _| None);
        let Some((_, Completion::Finished(idle))) = self.sender.poll() else {
            panic!("it was asked once");
        };
        self.idle.push(idle);
    }

    /// The statistics of each class, which has had one request.
    fn classes(&self) -> [ClassStatistics; 2] {
        let workers = [Arc::clone(&self.its_loop.statistics)];
        let dispatcher = DispatcherStatistics::new(2);
        let statistics = Statistics::gather(&workers, &dispatcher, [], &["first", "second"]);
        let classes: Result<[_; 2], _> = statistics.classes.try_into();
        let classes = classes.expect("there are two");
        assert!(
            classes.iter().all(|class| class.finished == 1),
            "{classes:?}"
        );
        classes
    }

    /// The slowdown of each class's one request.
    fn slowdowns(&self) -> [f64; 2] {
        self.classes().map(|class| class.slowdown(1.0))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let idle = std::mem::take(&mut self.idle);
        if let Some(handles) = self.handles.take() {
            handles.hand_back(idle, PATIENCE);
        }
    }
}

/// A request that arrives now; that of the second class has a probe.
fn job(class: ClassId) -> Job<Nothing> {
    let arrival = Nanos(Clock::get().now_nanos());
    Job {
        meta: Meta { class, arrival },
        request: class == SECOND,
        route: (),
    }
}

/// The machine's start: no request has run for as long, but one may be said to have begun then.
const AN_AGE_AGO: Cycles = Cycles(0);

/// The first request was served for far longer than its sojourn time, since its start is made up.
/// The second, as any request, was not.
#[track_caller]
fn is_counted_apart([first, second]: [f64; 2]) {
    assert!(first < 0.5, "the first ran for an age: slowdown {first}");
    assert!(second > 0.9, "it is the first's time: slowdown {second}");
}

#[test]
fn whoever_follows_is_served_from_its_own_start() {
    let mut stage = Stage::new();
    let Completion::Finished(idle) = stage.serve_two(AN_AGE_AGO, |_| ()) else {
        panic!("neither was asked to give way");
    };
    stage.idle.push(idle);
    is_counted_apart(stage.slowdowns());
}

#[test]
fn whoever_follows_and_is_preempted_is_served_from_its_own_start() {
    let mut stage = Stage::new();
    let completion = stage.serve_two(AN_AGE_AGO, Dispatched::request);
    stage.resume(completion);
    is_counted_apart(stage.slowdowns());
}

#[test]
fn a_queue_time_ends_where_a_request_runs_for_the_first_time() {
    const PAUSE: Duration = Duration::from_millis(20);
    let mut stage = Stage::new();
    let completion = stage.serve_two(Cycles::now(), Dispatched::request);
    std::thread::sleep(PAUSE);
    stage.resume(completion);
    let [_, second] = stage.classes();
    let since_start = second.latency(1.0) - second.queue_time(1.0);
    // Either is known to within 1 %.
    assert!(since_start >= PAUSE * 9 / 10, "{since_start:?}: {second:?}");
    assert_eq!(second.queue_nanos.count(), 1);
}
