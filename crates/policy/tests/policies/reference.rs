//! Each policy a second time: slow, and simple enough to read its rules off.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use shinjuku_policy::{
    ClassRule, DFcfs, FlowId, Nanos, Policy, Requeue, Task, TaskId, Want, WorkerId,
};

/// What a policy should do.
pub trait Reference {
    /// Whether an arrival must be refused.
    fn full(&self, task: &Task) -> bool;
    fn arrive(&mut self, task: Task);
    fn preempted(&mut self, task: Task);
    fn returned(&mut self, task: Task);
    fn finished(&mut self, task: Task);
    /// Takes a waiting task.
    fn take(&mut self, id: TaskId);
    /// All answers that the rules allow; none: it must answer nothing.
    fn allowed(&self, worker: WorkerId, now: Nanos, want: Want) -> Vec<TaskId>;
    fn waiting(&self, worker: WorkerId, want: Want) -> usize;
}

/// A queue as a list of places. A request that leaves keeps its place, empty, to be put back there.
#[derive(Default)]
pub struct Line(Vec<(TaskId, Option<Task>)>);

impl Line {
    pub fn push_back(&mut self, task: Task) {
        self.forget(task.id);
        self.0.push((task.id, Some(task)));
    }

    pub fn push_front(&mut self, task: Task) {
        self.forget(task.id);
        self.0.insert(0, (task.id, Some(task)));
    }

    pub fn put_back(&mut self, task: Task) {
        match self.0.iter_mut().find(|place| place.0 == task.id) {
            Some(place) => place.1 = Some(task),
            // It was taken from behind its flow and has no place here, so any place will do.
            None => self.push_front(task),
        }
    }

    pub fn forget(&mut self, id: TaskId) {
        self.0.retain(|place| place.0 != id);
    }

    pub fn take(&mut self, id: TaskId) -> bool {
        self.0
            .iter_mut()
            .any(|place| place.0 == id && place.1.take().is_some())
    }

    pub fn first(&self, want: Want) -> Option<Task> {
        self.wanted(want).next()
    }

    pub fn len(&self, want: Want) -> usize {
        self.wanted(want).count()
    }

    fn wanted(&self, want: Want) -> impl Iterator<Item = Task> {
        let tasks = self.0.iter().filter_map(|place| place.1);
        tasks.filter(move |task| task.started || want == Want::Any)
    }
}

/// c-FCFS and c-PRE-SQ.
pub struct OneLine {
    pub line: Line,
    pub requeue: Requeue,
}

impl Reference for OneLine {
    fn full(&self, _task: &Task) -> bool {
        false
    }
    fn arrive(&mut self, task: Task) {
        self.line.push_back(task);
    }
    fn preempted(&mut self, task: Task) {
        match self.requeue {
            Requeue::Tail => self.line.push_back(task),
            Requeue::Head => self.line.push_front(task),
            other => unreachable!("the reference does not know {other:?}"),
        }
    }
    fn returned(&mut self, task: Task) {
        self.line.put_back(task);
    }
    fn finished(&mut self, task: Task) {
        self.line.forget(task.id);
    }
    fn take(&mut self, id: TaskId) {
        assert!(self.line.take(id));
    }
    fn allowed(&self, _worker: WorkerId, _now: Nanos, want: Want) -> Vec<TaskId> {
        self.line
            .first(want)
            .map(|task| task.id)
            .into_iter()
            .collect()
    }
    fn waiting(&self, _worker: WorkerId, want: Want) -> usize {
        self.line.len(want)
    }
}

/// c-PRE-MQ.
pub struct LinePerClass {
    pub lines: Vec<Line>,
    pub rules: Vec<ClassRule>,
    pub bound: usize,
}

impl LinePerClass {
    pub fn class_of(&self, task: &Task) -> usize {
        usize::from(task.class.0).min(self.rules.len() - 1)
    }
}

impl Reference for LinePerClass {
    fn full(&self, task: &Task) -> bool {
        self.lines[self.class_of(task)].len(Want::Any) >= self.bound
    }
    fn arrive(&mut self, task: Task) {
        let class = self.class_of(&task);
        self.lines[class].push_back(task);
    }
    fn preempted(&mut self, task: Task) {
        let class = self.class_of(&task);
        match self.rules[class].requeue {
            Requeue::Tail => self.lines[class].push_back(task),
            Requeue::Head => self.lines[class].push_front(task),
            other => unreachable!("the reference does not know {other:?}"),
        }
    }
    fn returned(&mut self, task: Task) {
        let class = self.class_of(&task);
        self.lines[class].put_back(task);
    }
    fn finished(&mut self, task: Task) {
        let class = self.class_of(&task);
        self.lines[class].forget(task.id);
    }
    fn take(&mut self, id: TaskId) {
        assert!(self.lines.iter_mut().any(|line| line.take(id)));
    }
    fn allowed(&self, _worker: WorkerId, now: Nanos, want: Want) -> Vec<TaskId> {
        // Waiting times over SLOs, brought to a common denominator.
        let common: u128 = self
            .rules
            .iter()
            .map(|rule| u128::from(rule.slo.0))
            .product();
        let urgency = |class: usize, head: Task| {
            u128::from(now.since(head.arrival).0) * (common / u128::from(self.rules[class].slo.0))
        };
        let heads = self.lines.iter().enumerate().filter_map(|(class, line)| {
            line.first(want)
                .map(|head| (urgency(class, head), std::cmp::Reverse(class), head.id))
        });
        heads.max().map(|(.., id)| id).into_iter().collect()
    }
    fn waiting(&self, _worker: WorkerId, want: Want) -> usize {
        self.lines.iter().map(|line| line.len(want)).sum()
    }
}

/// The worker a flow hashes to, as d-FCFS shows it.
pub fn home(flow: FlowId, workers: usize) -> usize {
    let mut policy = DFcfs::new(1, workers).expect("valid");
    let task = Task {
        id: TaskId(0),
        class: Default::default(),
        flow,
        arrival: Nanos(0),
        started: false,
    };
    policy.arrive(task).expect("empty");
    let homes: Vec<_> = (0..workers)
        .filter(|&worker| policy.waiting(WorkerId(worker as u16), Want::Any) > 0)
        .collect();
    assert_eq!(homes.len(), 1);
    homes[0]
}

/// d-FCFS.
pub struct LinePerWorker {
    pub lines: Vec<Line>,
    pub bound: usize,
}

impl LinePerWorker {
    fn line(&mut self, task: &Task) -> &mut Line {
        let home = home(task.flow, self.lines.len());
        &mut self.lines[home]
    }
}

impl Reference for LinePerWorker {
    fn full(&self, task: &Task) -> bool {
        self.lines[home(task.flow, self.lines.len())].len(Want::Any) >= self.bound
    }
    fn arrive(&mut self, task: Task) {
        self.line(&task).push_back(task);
    }
    fn preempted(&mut self, task: Task) {
        self.line(&task).push_back(task);
    }
    fn returned(&mut self, task: Task) {
        self.line(&task).put_back(task);
    }
    fn finished(&mut self, task: Task) {
        self.line(&task).forget(task.id);
    }
    fn take(&mut self, id: TaskId) {
        assert!(self.lines.iter_mut().any(|line| line.take(id)));
    }
    fn allowed(&self, worker: WorkerId, _now: Nanos, want: Want) -> Vec<TaskId> {
        let first = self.lines[usize::from(worker.0)].first(want);
        first.map(|task| task.id).into_iter().collect()
    }
    fn waiting(&self, worker: WorkerId, want: Want) -> usize {
        self.lines[usize::from(worker.0)].len(want)
    }
}

/// ZygOS: lines of flows, each by its first request.
pub struct FlowLines {
    pub lines: Vec<Line>,
    pub behind: BTreeMap<FlowId, VecDeque<Task>>,
    /// Requests of a flow that are in a line or at a worker.
    pub ahead: BTreeMap<FlowId, usize>,
}

impl FlowLines {
    fn line(&mut self, task: &Task) -> &mut Line {
        let home = home(task.flow, self.lines.len());
        &mut self.lines[home]
    }
}

impl Reference for FlowLines {
    fn full(&self, _task: &Task) -> bool {
        false
    }
    fn arrive(&mut self, task: Task) {
        let ahead = self.ahead.entry(task.flow).or_default();
        if *ahead > 0 {
            self.behind.entry(task.flow).or_default().push_back(task);
        } else {
            *ahead = 1;
            self.line(&task).push_back(task);
        }
    }
    fn preempted(&mut self, task: Task) {
        self.line(&task).push_back(task);
    }
    fn returned(&mut self, task: Task) {
        self.line(&task).put_back(task);
    }
    fn finished(&mut self, task: Task) {
        self.line(&task).forget(task.id);
        let ahead = self.ahead.get_mut(&task.flow).expect("present");
        *ahead -= 1;
        if *ahead == 0
            && let Some(next) = self
                .behind
                .get_mut(&task.flow)
                .and_then(VecDeque::pop_front)
        {
            *ahead = 1;
            self.line(&next).push_back(next);
        }
    }
    fn take(&mut self, id: TaskId) {
        if self.lines.iter_mut().any(|line| line.take(id)) {
            return;
        }
        for (flow, tasks) in &mut self.behind {
            if let Some(at) = tasks.iter().position(|task| task.id == id) {
                tasks.remove(at);
                *self.ahead.get_mut(flow).expect("present") += 1;
                return;
            }
        }
        panic!("{id:?} does not wait");
    }
    fn allowed(&self, worker: WorkerId, _now: Nanos, want: Want) -> Vec<TaskId> {
        if let Some(own) = self.lines[usize::from(worker.0)].first(want) {
            return vec![own.id];
        }
        let firsts = self.lines.iter().filter_map(|line| line.first(want));
        firsts.map(|task| task.id).collect()
    }
    fn waiting(&self, _worker: WorkerId, want: Want) -> usize {
        self.lines.iter().map(|line| line.len(want)).sum()
    }
}

/// EDF and strict priority: a list, searched each time for the lowest rank, then the earliest
/// arrival.
pub struct ByRank<R> {
    rank: R,
    /// In order of arrival, those out at workers included.
    arrived: Vec<TaskId>,
    waiting: Vec<Task>,
}

impl<R: Fn(&Task) -> i128> ByRank<R> {
    pub fn new(rank: R) -> Self {
        Self {
            rank,
            arrived: Vec::new(),
            waiting: Vec::new(),
        }
    }

    fn wanted(&self, want: Want) -> impl Iterator<Item = &Task> {
        let tasks = self.waiting.iter();
        tasks.filter(move |task| task.started || want == Want::Any)
    }
}

impl<R: Fn(&Task) -> i128> Reference for ByRank<R> {
    fn full(&self, _task: &Task) -> bool {
        false
    }
    fn arrive(&mut self, task: Task) {
        self.arrived.push(task.id);
        self.waiting.push(task);
    }
    fn preempted(&mut self, task: Task) {
        self.waiting.push(task);
    }
    fn returned(&mut self, task: Task) {
        self.waiting.push(task);
    }
    fn finished(&mut self, task: Task) {
        self.arrived.retain(|&id| id != task.id);
    }
    fn take(&mut self, id: TaskId) {
        let at = self.waiting.iter().position(|task| task.id == id);
        self.waiting.remove(at.expect("it waits"));
    }
    fn allowed(&self, _worker: WorkerId, _now: Nanos, want: Want) -> Vec<TaskId> {
        let arrived = |task: &Task| self.arrived.iter().position(|&id| id == task.id);
        let first = self
            .wanted(want)
            .min_by_key(|task| ((self.rank)(task), arrived(task)));
        first.map(|task| task.id).into_iter().collect()
    }
    fn waiting(&self, _worker: WorkerId, want: Want) -> usize {
        self.wanted(want).count()
    }
}

/// DARC with workers reserved: lines by class, and the workers that each class may use.
pub struct ReservedLines {
    pub lines: Vec<Line>,
    /// Classes in the order in which a worker looks at them, each with its workers.
    pub order: Vec<(usize, Vec<u16>)>,
}

impl ReservedLines {
    fn line(&mut self, task: &Task) -> &mut Line {
        let last = self.lines.len() - 1;
        &mut self.lines[usize::from(task.class.0).min(last)]
    }

    fn open_to(&self, worker: WorkerId) -> impl Iterator<Item = &Line> {
        let order = self.order.iter();
        let open = order.filter(move |(_, workers)| workers.contains(&worker.0));
        open.map(|(class, _)| &self.lines[*class])
    }
}

impl Reference for ReservedLines {
    fn full(&self, _task: &Task) -> bool {
        false
    }
    fn arrive(&mut self, task: Task) {
        self.line(&task).push_back(task);
    }
    fn preempted(&mut self, task: Task) {
        self.line(&task).push_back(task);
    }
    fn returned(&mut self, task: Task) {
        self.line(&task).put_back(task);
    }
    fn finished(&mut self, task: Task) {
        self.line(&task).forget(task.id);
    }
    fn take(&mut self, id: TaskId) {
        assert!(self.lines.iter_mut().any(|line| line.take(id)));
    }
    fn allowed(&self, worker: WorkerId, _now: Nanos, want: Want) -> Vec<TaskId> {
        let first = self.open_to(worker).find_map(|line| line.first(want));
        first.map(|task| task.id).into_iter().collect()
    }
    fn waiting(&self, worker: WorkerId, want: Want) -> usize {
        self.open_to(worker).map(|line| line.len(want)).sum()
    }
}

/// Another reference, and a line for the classes that run in what it leaves idle.
pub struct BehindAnother<R> {
    pub inner: R,
    pub line: Line,
    /// By class number.
    pub is_behind: [bool; 4],
    pub bound: usize,
    pub most_started: usize,
    /// Those of the line that have started, or are about to.
    pub started: BTreeSet<TaskId>,
}

impl<R> BehindAnother<R> {
    fn is_behind(&self, task: &Task) -> bool {
        self.is_behind[usize::from(task.class.0)]
    }

    fn open(&self, want: Want) -> Want {
        match self.started.len() < self.most_started {
            true => want,
            false => Want::StartedOnly,
        }
    }
}

impl<R: Reference> Reference for BehindAnother<R> {
    fn full(&self, task: &Task) -> bool {
        let fresh = self.line.wanted(Want::Any).filter(|task| !task.started);
        match self.is_behind(task) {
            true => fresh.count() >= self.bound,
            false => self.inner.full(task),
        }
    }
    fn arrive(&mut self, task: Task) {
        match self.is_behind(&task) {
            true => self.line.push_back(task),
            false => self.inner.arrive(task),
        }
    }
    fn preempted(&mut self, task: Task) {
        match self.is_behind(&task) {
            true => self.line.push_back(task),
            false => self.inner.preempted(task),
        }
    }
    fn returned(&mut self, task: Task) {
        if !self.is_behind(&task) {
            return self.inner.returned(task);
        }
        if !task.started {
            self.started.remove(&task.id);
        }
        self.line.put_back(task);
    }
    fn finished(&mut self, task: Task) {
        if !self.is_behind(&task) {
            return self.inner.finished(task);
        }
        self.started.remove(&task.id);
        self.line.forget(task.id);
    }
    fn take(&mut self, id: TaskId) {
        if self.line.take(id) {
            self.started.insert(id);
        } else {
            self.inner.take(id);
        }
    }
    fn allowed(&self, worker: WorkerId, now: Nanos, want: Want) -> Vec<TaskId> {
        let others = self.inner.allowed(worker, now, want);
        if !others.is_empty() {
            return others;
        }
        let started = self.line.first(Want::StartedOnly);
        let first = started.or_else(|| self.line.first(self.open(want)));
        first.map(|task| task.id).into_iter().collect()
    }
    fn waiting(&self, worker: WorkerId, want: Want) -> usize {
        self.inner.waiting(worker, want) + self.line.len(self.open(want))
    }
}
