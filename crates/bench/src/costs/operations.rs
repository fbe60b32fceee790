//! Operations that one thread can time by itself: mailboxes, policies, probes as `#[preemptible]`
//! puts them into loops, the simulator. The table of costs takes them in rounds; the criterion
//! bench `costs` takes the same ones by criterion's means.

use std::cell::RefCell;
use std::fmt;
use std::hint::black_box;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use shinjuku::policy::{
    ClassId, ClassParameters, FlowId, Nanos, Parameters, Policy, Task, TaskId, Verified, Want,
    WorkerId, registry, single_queue,
};
use shinjuku::timeline::measured::{MeasuredLane, ROOM};
use shinjuku_preempt::{
    Completion, Generation, Handles, Idle, Outcome, Pool, PoolConfig, Receiver, Runnable, Sender,
    Worker, mailbox,
};
use shinjuku_sim::{Scenario, Scheduler};
use shinjuku_workload::Mix;

pub struct Operation {
    /// Its row in the table, as `group/row`.
    pub name: String,
    /// What one of them is.
    pub note: &'static str,
    /// How many of them a call does.
    pub batch: u64,
    call: Box<dyn FnMut()>,
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Operation {
    fn new(
        name: impl Into<String>,
        note: &'static str,
        batch: u64,
        call: impl FnMut() + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            note,
            batch,
            call: Box::new(call),
        }
    }

    /// How long so many calls take.
    pub fn time(&mut self, calls: u64) -> Duration {
        let start = Instant::now();
        for _ in 0..calls {
            (self.call)();
        }
        start.elapsed()
    }
}

/// All of them, for the calling thread, which becomes a worker.
///
/// # Errors
/// If there are no contexts or no such mix.
pub fn all() -> Result<Vec<Operation>> {
    let mut all = mailboxes()?;
    all.extend(policies()?);
    all.extend(loops()?);
    all.extend(timeline());
    all.push(simulator()?);
    Ok(all)
}

/// A mailbox with both ends on one thread, and contexts to send through it, which are not run.
struct Mailbox {
    sender: Sender<u64, ()>,
    receiver: Receiver<u64, ()>,
    idle: Vec<Idle<u64, ()>>,
    handles: Option<Handles<u64, ()>>,
}

impl Mailbox {
    fn new(depth: usize) -> Result<Self> {
        let config = PoolConfig::default().contexts(depth).name("bench");
        let Pool { idle, handles } =
            Pool::new(config, |_: u64| ()).context("no contexts for a mailbox")?;
        let (sender, receiver) = mailbox(depth);
        Ok(Self {
            sender,
            receiver,
            idle,
            handles: Some(handles),
        })
    }

    fn send(&mut self) {
        let context = self.idle.pop().expect("it came back");
        let sent = self.sender.send(context.load(1).into());
        assert!(sent.is_ok(), "there is room");
    }

    /// The worker's part: takes a context, its job unserved, and answers.
    fn serve(&mut self) {
        let Some((Runnable::Ready(ready), _)) = self.receiver.poll() else {
            unreachable!("one was sent")
        };
        let (idle, job) = ready.unload();
        black_box(job);
        self.receiver.answer(Completion::Finished(idle));
    }

    fn take(&mut self) {
        match self.sender.poll() {
            Some((_, Completion::Finished(idle))) => self.idle.push(idle),
            other => unreachable!("one was answered, not {other:?}"),
        }
    }

    fn recall(&mut self) {
        match self.sender.recall() {
            Some(Runnable::Ready(ready)) => self.idle.push(ready.unload().0),
            other => unreachable!("the worker did not take it, but {other:?}"),
        }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        if let Some(handles) = self.handles.take() {
            handles.hand_back(std::mem::take(&mut self.idle), Duration::from_secs(1));
        }
    }
}

fn mailboxes() -> Result<Vec<Operation>> {
    let (mut empty, mut one) = (Mailbox::new(1)?, Mailbox::new(1)?);
    let (mut recalled, mut four) = (Mailbox::new(1)?, Mailbox::new(4)?);
    Ok(vec![
        Operation::new(
            "mailbox/empty-poll",
            "a worker's look at a mailbox without anything",
            1,
            move || {
                black_box(empty.receiver.poll().is_none());
            },
        ),
        Operation::new(
            "mailbox/there-and-back",
            "a context through a mailbox and its answer, both ends on one thread",
            1,
            move || {
                one.send();
                one.serve();
                one.take();
            },
        ),
        Operation::new(
            "mailbox/there-and-back-of-four",
            "the same with four at once, each",
            4,
            move || {
                (0..4).for_each(|_| four.send());
                (0..4).for_each(|_| four.serve());
                (0..4).for_each(|_| four.take());
            },
        ),
        Operation::new(
            "mailbox/send-and-recall",
            "a context sent and recalled before the worker takes it",
            1,
            move || {
                recalled.send();
                recalled.recall();
            },
        ),
    ])
}

const CAPACITY: usize = 1024;
const WAITING: u32 = 100;
const WORKERS: u16 = 4;

/// Requests one after another, each in the slot of one that is over, while a hundred others wait.
struct Requests {
    now: u64,
    free: TaskId,
}

impl Requests {
    fn new(mut arrive: impl FnMut(Task)) -> Self {
        let mut requests = Self {
            now: 0,
            free: TaskId(0),
        };
        for slot in 0..WAITING {
            requests.free = TaskId(slot);
            arrive(requests.next());
        }
        requests.free = TaskId(WAITING);
        requests
    }

    fn next(&mut self) -> Task {
        self.now += 1000;
        Task {
            id: self.free,
            class: ClassId((self.now / 1000 % 2) as u16),
            flow: FlowId(self.now / 1000),
            arrival: Nanos(self.now),
            started: false,
        }
    }

    /// The next request, for the first worker that has one, beginning with another one each time.
    fn hand_out(&self, mut ask: impl FnMut(WorkerId) -> Option<Task>) -> (Task, WorkerId) {
        (self.now / 1000..)
            .map(|worker| WorkerId((worker % u64::from(WORKERS)) as u16))
            .take(usize::from(WORKERS))
            .find_map(|worker| Some((ask(worker)?, worker)))
            .expect("some worker has one of a hundred")
    }
}

/// Every policy, bare, with one preemption a request, and under the core's watch.
fn policies() -> Result<Vec<Operation>> {
    let mut parameters = Parameters::new(CAPACITY, usize::from(WORKERS));
    let with_slo = |slo| ClassParameters::with_slo(Nanos::from_micros(slo));
    parameters.classes = [10, 1000].map(with_slo).to_vec();
    let mut all = Vec::new();
    for one in registry::ALL {
        let build = || one.build(&parameters);
        let name = one.name;
        all.push(bare(format!("policy/{name}"), build()?, false));
        all.push(bare(format!("policy/{name}/preempted"), build()?, true));
        let watched = Verified::new(build()?, CAPACITY)?;
        all.push(verified(format!("policy/{name}/watched"), watched));
    }
    Ok(all)
}

fn bare(name: String, mut policy: Box<dyn Policy>, preempt: bool) -> Operation {
    let mut requests = Requests::new(|task| policy.arrive(task).expect("there is room"));
    let note = match preempt {
        false => "a request's arrival, hand-out and end while a hundred wait",
        true => "the same with one preemption",
    };
    Operation::new(name, note, 1, move || {
        policy.arrive(requests.next()).expect("there is room");
        let now = Nanos(requests.now);
        let (mut task, mut worker) =
            requests.hand_out(|worker| policy.next(worker, now, Want::Any));
        if preempt {
            let started = Task {
                started: true,
                ..task
            };
            policy.preempted(started, worker, now);
            (task, worker) = requests.hand_out(|worker| policy.next(worker, now, Want::Any));
        }
        policy.finished(task, worker);
        requests.free = task.id;
    })
}

fn verified(name: String, mut policy: Verified) -> Operation {
    let mut requests = Requests::new(|task| policy.arrive(task).expect("there is room"));
    let note = "a request's arrival, hand-out and end with the watch over the policy's answers";
    Operation::new(name, note, 1, move || {
        policy.arrive(requests.next()).expect("there is room");
        let now = Nanos(requests.now);
        let (task, worker) = requests.hand_out(|worker| policy.next(worker, now, Want::Any));
        policy.finished(task.id, worker);
        requests.free = task.id;
    })
}

/// Defines loops in a module for each way of having probes.
macro_rules! ways {
    ($($(#[$attribute:meta])* mod $name:ident;)*) => {$(
        mod $name {
            ways!(@ ($(#[$attribute])*)
                fn sum(numbers: &[u64], _: &mut [u64]) -> u64 {
                    let mut sum = 0u64;
                    for number in numbers { sum = sum.wrapping_add(*number); }
                    sum
                }
                fn map(numbers: &[u64], output: &mut [u64]) -> u64 {
                    for (to, from) in output.iter_mut().zip(numbers) { *to = (*from << 1) ^ 5; }
                    output[0]
                }
                fn hash(numbers: &[u64], _: &mut [u64]) -> u64 {
                    let mut hash = 0xcbf2_9ce4_8422_2325u64;
                    for number in numbers { hash = (hash ^ number).wrapping_mul(0x100_0000_01b3); }
                    hash
                }
            );
        }
    )*};
    (@ $attributes:tt $(fn $name:ident($($argument:tt)*) -> u64 $body:block)*) => {$(
        ways!(@one $attributes #[inline(never)] pub fn $name($($argument)*) -> u64 $body);
    )*};
    (@one ($(#[$attribute:meta])*) $item:item) => { $(#[$attribute])* $item };
}

ways! {
    mod bare_loops;
    #[shinjuku::preemptible(crate = shinjuku_preempt)] mod probed;
    #[shinjuku::preemptible(crate = shinjuku_preempt, every = 64)] mod probed_each_64th;
}

/// A loop over numbers, which may write as many.
type Loop = fn(&[u64], &mut [u64]) -> u64;

const LOOPS: [(&str, [Loop; 3]); 3] = [
    ("sum", [bare_loops::sum, probed::sum, probed_each_64th::sum]),
    ("map", [bare_loops::map, probed::map, probed_each_64th::map]),
    (
        "hash",
        [bare_loops::hash, probed::hash, probed_each_64th::hash],
    ),
];

/// 16 KiB: both slices fit into the first-level cache, so that nothing hides the probe.
const NUMBERS: usize = 2048;

/// A worker on the calling thread, and a context for it. Outside of a context a probe has nothing
/// to look at, and the compiler takes it out of the loop.
struct Stage {
    worker: Worker,
    generation: u64,
    idle: Vec<Idle<Loop, ()>>,
    handles: Option<Handles<Loop, ()>>,
}

impl Stage {
    fn new() -> Result<Self> {
        let config = PoolConfig::default().contexts(1).name("bench");
        let numbers: Vec<u64> = (0..NUMBERS as u64).collect();
        let Pool { idle, handles } = Pool::new(config, move |body: Loop| {
            thread_local! {
                static OUTPUT: RefCell<Vec<u64>> = RefCell::new(vec![0; NUMBERS]);
            }
            OUTPUT.with_borrow_mut(|output| {
                black_box(body(black_box(&numbers), output));
            });
        })
        .context("no context for a loop")?;
        Ok(Self {
            worker: Worker::bind(0)?,
            generation: 0,
            idle,
            handles: Some(handles),
        })
    }

    fn run(&mut self, body: Loop) {
        let context = self.idle.pop().expect("it came back");
        self.generation += 1;
        let ready = context.load(body).into();
        match self.worker.run(ready, Generation(self.generation)) {
            Outcome::Finished(finished) => self.idle.push(finished.take().0),
            Outcome::Preempted(_) => unreachable!("it was not asked to give way"),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(handles) = self.handles.take() {
            handles.hand_back(std::mem::take(&mut self.idle), Duration::from_secs(1));
        }
    }
}

/// Loops in a context, with probes as `#[preemptible]` puts them, and without.
fn loops() -> Result<Vec<Operation>> {
    const WAYS: [(&str, &str); 3] = [
        ("bare", "an iteration of the loop without probes"),
        ("probed", "an iteration of a `#[preemptible]` function"),
        ("every-64", "the same with `every = 64`"),
    ];
    let stage = Rc::new(RefCell::new(Stage::new()?));
    let mut all = Vec::new();
    for (name, ways) in LOOPS {
        for (body, (way, note)) in ways.into_iter().zip(WAYS) {
            let stage = Rc::clone(&stage);
            let call = move || stage.borrow_mut().run(body);
            let name = format!("preemptible/{name}-{way}");
            all.push(Operation::new(name, note, NUMBERS as u64, call));
        }
    }
    Ok(all)
}

/// The rows for a timeline's event: while something is recorded, where a request ends and where it
/// is preempted, and while nothing is.
pub const TIMELINE: [&str; 3] = [
    "timeline/slice-on",
    "timeline/preempted-on",
    "timeline/slice-off",
];

/// What a worker writes of each time that a request runs.
fn timeline() -> [Operation; 3] {
    let [on, preempted_on, off] = TIMELINE;
    let [recorded, preempted, idle] = std::array::from_fn(|_| MeasuredLane::default());
    [
        Operation::new(
            on,
            "a slice of a timeline while something is recorded, its ring touched before",
            ROOM,
            move || {
                recorded.record();
                recorded.slices(ROOM);
            },
        ),
        Operation::new(
            preempted_on,
            "the same of a request that is preempted, which reads the worker's counters twice",
            ROOM,
            move || {
                preempted.record();
                preempted.preempted_slices(ROOM);
            },
        ),
        Operation::new(off, "the same while nothing is recorded", ROOM, move || {
            idle.slices(ROOM)
        }),
    ]
}

fn simulator() -> Result<Operation> {
    let policy = Scheduler::of(single_queue::REGISTERED).with_quantum(Nanos::from_micros(5));
    let scenario = Scenario::new(Mix::named("hi")?, 0.8, policy, 16).with_requests(5_000);
    let events = scenario.run(1)?.events;
    let call = move || {
        black_box(scenario.run(1)).expect("it ran before");
    };
    Ok(Operation::new(
        "simulator/event",
        "an event of the simulator: hi at 80 %, 16 workers, c-PRE-SQ with 5 us",
        events,
        call,
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_operation_runs_and_has_a_name_of_its_own() {
        let mut all = all().unwrap();
        for operation in &mut all {
            assert!(operation.batch > 0);
            assert!(operation.time(3) > Duration::ZERO, "{operation:?}");
        }
        let names: BTreeSet<_> = all.iter().map(|one| one.name.clone()).collect();
        assert_eq!(names.len(), all.len());
    }

    #[test]
    fn probes_change_no_result() {
        let numbers: Vec<u64> = (0..100).collect();
        for (name, ways) in LOOPS {
            let results = ways.map(|body| body(&numbers, &mut [0; 100]));
            assert_eq!(results, [results[0]; 3], "{name}");
        }
    }
}
