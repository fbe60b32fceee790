//! DARC: cores reserved for short classes, as many as their measured demand asks for.
//!
//! - A queue per class, each in order of arrival. Every request runs to completion: short requests
//!   are kept from waiting behind long ones by idle cores, not by preemption.
//! - The demand of a class is the share of the worker time that its requests took. Classes are
//!   grouped by mean service time, shortest first; a class joins the group before it if its mean is
//!   at most twice the least of that group.
//! - A group has as many workers of its own as its demand asks for, rounded, and one at least while
//!   there are workers left; the last worker is open to every group. A group may use its own
//!   workers and those of longer groups, never those of shorter ones.
//!
//! ```text
//!   workers      0   1 | 2   3   4   5 | 6   7        group  demand x 8
//!   short        x   x   x   x   x   x   x   x          1.9  -> from 0
//!   middle               x   x   x   x   x   x          4.2  -> from 2
//!   long                                 x   x          1.9  -> from 6
//! ```
//!
//! - A worker gets the first request of the shortest group that may use it.
//! - Demand is measured over windows of [`WINDOW`] requests; at the end of each window all counts
//!   are halved. Until the first window is full, the class whose head arrived first goes first.
//! - With [`Want::StartedOnly`], the first of the class that has run already. A request that comes
//!   back although it has no quantum (its handler yielded) goes to the tail of its queue.
//! - A class number beyond the last class counts as the last class.
//!
//! Not work conserving, which is its point. The policy must be able to tell workers apart. Where
//! all of them are one worker to the policy (layouts `inline` and `symmetric`), the class that is
//! shortest by measurement goes first.
//!
//! Source: Demoulin, Fried, Pedisich, Kogias, Loo, Phan and Zhang, *When Idling is Ideal:
//! Optimizing Tail-Latency for Heavy-Tailed Datacenter Workloads with Perséphone*, SOSP 2021. The
//! factor of two and the window are ours. The paper's server takes a new profile only when
//! latencies suffer; here every window counts.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec;

use crate::queue::Queues;
use crate::registry::Registered;
use crate::{Full, Nanos, ParameterError, Policy, Task, TaskId, Want, WorkerId};

/// Requests after which workers are reserved anew.
pub const WINDOW: u32 = 4096;
/// Classes whose means differ by no more than this factor share their workers.
const ALIKE: u64 = 2;

/// How much worker time one class took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Demand {
    /// How many of its requests have finished.
    pub requests: u64,
    /// How long they ran, in all.
    pub time: Nanos,
}

impl Demand {
    /// The mean service time in ns; the largest value for a class that was never seen.
    fn mean(&self) -> u64 {
        self.time.0.checked_div(self.requests).unwrap_or(u64::MAX)
    }
}

/// A queue per class, and cores reserved for short classes (DARC). Not work conserving.
pub struct Darc {
    queues: Queues,
    workers: usize,
    demands: Box<[Demand]>,
    /// How many requests have finished in this window.
    seen: u32,
    /// Classes, the shortest first, each with the first worker that it may use. Until demand is
    /// known, they are in the order of their numbers and may use all workers.
    order: Box<[(usize, usize)]>,
    is_reserved: bool,
}

/// This policy in the registry.
pub const REGISTERED: Registered = Registered {
    name: "darc",
    label: "DARC",
    rule: "a queue per class; cores reserved for short classes by measured demand, run to completion",
    after: "Perséphone",
    preempts: false,
    needs_slo: false,
    requeues: false,
    by_class: true,
    by_flow: false,
    by_worker: true,
    build: |parameters| {
        Ok(Box::new(Darc::new(
            parameters.capacity,
            parameters.workers,
            parameters.classes.len(),
        )?))
    },
};

impl Darc {
    /// Queues for `capacity` requests in all, with task slots below `capacity`, of so many classes,
    /// over workers `0..workers`.
    ///
    /// # Errors
    /// [`ParameterError::Capacity`], [`ParameterError::Workers`], [`ParameterError::Classes`].
    pub fn new(capacity: usize, workers: usize, classes: usize) -> Result<Self, ParameterError> {
        ParameterError::check_capacity(capacity)?;
        ParameterError::check_workers(workers)?;
        ParameterError::check_classes(classes)?;
        Ok(Self {
            queues: Queues::new(capacity, classes),
            workers,
            demands: vec![Demand::default(); classes].into_boxed_slice(),
            seen: 0,
            order: (0..classes).map(|class| (class, 0)).collect(),
            is_reserved: false,
        })
    }

    /// Reserves workers by this demand of each class, until a window shows another. Classes that
    /// are missing have no demand.
    #[must_use]
    pub fn with_demand(mut self, demands: &[Demand]) -> Self {
        for (own, given) in self.demands.iter_mut().zip(demands) {
            *own = *given;
        }
        self.reserve();
        self
    }

    /// The first worker that requests of each class may use. A class may use all later ones, too.
    pub fn reserved(&self) -> impl Iterator<Item = (usize, WorkerId)> {
        let order = self.order.iter();
        order.map(|(class, from)| (*class, WorkerId(*from as u16)))
    }

    fn queue_of(&self, task: &Task) -> usize {
        usize::from(task.class.0).min(self.demands.len() - 1)
    }

    /// Divides the workers among the groups.
    fn reserve(&mut self) {
        let Self { order, demands, .. } = self;
        let time: u128 = demands.iter().map(|demand| u128::from(demand.time.0)).sum();
        if time == 0 {
            return;
        }
        order.sort_unstable_by_key(|(class, _)| (demands[*class].mean(), *class));
        let last = self.workers - 1;
        let (mut from, mut at) = (0, 0);
        while at < order.len() {
            let least = demands[order[at].0].mean();
            let is_alike = |(class, _): &&(usize, usize)| {
                demands[*class].mean() <= least.saturating_mul(ALIKE)
            };
            let count = order[at..].iter().take_while(is_alike).count();
            let group = &mut order[at..at + count];
            let its_time = group.iter().map(|(class, _)| demands[*class].time.0);
            let share = its_time.map(u128::from).sum::<u128>() * self.workers as u128;
            for (_, first) in &mut *group {
                *first = from;
            }
            // Rounded to the nearest.
            let workers = ((2 * share + time) / (2 * time)).max(1) as usize;
            from = last.min(from + workers);
            at += count;
        }
        self.is_reserved = true;
    }

    /// The class whose turn it is at `worker`.
    fn class_for(&self, worker: WorkerId, want: Want) -> Option<usize> {
        let worker = usize::from(worker.0);
        let head = |class: usize| self.queues.first(class, want);
        if self.is_reserved {
            let mut open = self.order.iter().filter(|(_, from)| *from <= worker);
            return open
                .find(|(class, _)| head(*class).is_some())
                .map(|(class, _)| *class);
        }
        let classes = 0..self.demands.len();
        let heads = classes.filter_map(|class| Some((head(class)?.arrival, class)));
        heads.min().map(|(_, class)| class)
    }
}

impl Policy for Darc {
    fn arrive(&mut self, task: Task) -> Result<(), Full> {
        if !self.queues.is_free(task.id) {
            return Err(Full);
        }
        self.queues.push_back(self.queue_of(&task), task);
        Ok(())
    }

    fn preempted(&mut self, task: Task, _worker: WorkerId, _now: Nanos) {
        self.queues.push_back(self.queue_of(&task), task);
    }

    fn returned(&mut self, task: Task, _worker: WorkerId) {
        self.queues.put_back(self.queue_of(&task), task);
    }

    fn finished_after(&mut self, task: Task, _worker: WorkerId, ran: Nanos) {
        let class = self.queue_of(&task);
        let demand = &mut self.demands[class];
        demand.requests += 1;
        demand.time.0 = demand.time.0.saturating_add(ran.0);
        self.seen += 1;
        if self.seen == WINDOW {
            self.seen = 0;
            self.reserve();
            for demand in &mut self.demands {
                // A class that is seldom seen keeps its mean.
                if demand.requests > 1 {
                    demand.requests /= 2;
                    demand.time.0 /= 2;
                }
            }
        }
    }

    fn next(&mut self, worker: WorkerId, _now: Nanos, want: Want) -> Option<Task> {
        let class = self.class_for(worker, want)?;
        self.queues.pop(class, want)
    }

    fn remove(&mut self, id: TaskId, _worker: WorkerId) -> Option<Task> {
        self.queues.remove(id)
    }

    fn waiting(&self, worker: WorkerId, want: Want) -> usize {
        if !self.is_reserved {
            return self.queues.total(want);
        }
        let worker = usize::from(worker.0);
        let open = self.order.iter().filter(|(_, from)| *from <= worker);
        open.map(|(class, _)| self.queues.len(*class, want)).sum()
    }

    fn len(&self) -> usize {
        self.queues.total(Want::Any)
    }

    fn name(&self) -> String {
        format!("DARC({} workers)", self.workers)
    }
}
