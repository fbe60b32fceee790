//! Earliest deadline first, and TailGuard's way to a task's deadline.
//!
//! - Each class has a *budget*: a request's deadline is its arrival plus its class's budget (which may be negative: the
//!   request was late when it came). Next is the earliest deadline; ties in order of arrival.
//! - Every request runs to completion.
//! - Plain EDF sets the budget to the class's SLO. TailGuard knows that a query of `k` tasks ends with its last task,
//!   and so sets it to the SLO less what such a query takes in an empty system: [`tail_guard_budget_ns`].
//!
//! Source: Wang et al., *TailGuard: Tail Latency SLO Guaranteed Task Scheduling for Data-Intensive User-Facing
//! Applications*, ICDCS 2023: its policy TF-EDFQ, and T-EDFQ with SLOs alone.

use shinjuku_policy::{Full, Nanos, Policy, Task, TaskId, Want, WorkerId};
use shinjuku_workload::Mix;

use super::waiting::Ranked;
use crate::SimError;

/// Earliest deadline first, run to completion.
pub struct Edf {
    waiting: Ranked,
    budgets_ns: Vec<i64>,
}

impl Edf {
    /// Room for `capacity` requests, with task slots below it, and a budget a class, in ns. A class number beyond the
    /// last counts as the last.
    ///
    /// # Errors
    /// [`SimError::Parameter`] without a class.
    pub fn new(capacity: usize, budgets_ns: &[i64]) -> Result<Self, SimError> {
        if budgets_ns.is_empty() {
            let expected = "give one deadline budget a class";
            return Err(SimError::parameter("number of budgets", 0, expected));
        }
        Ok(Self {
            waiting: Ranked::new(capacity),
            budgets_ns: budgets_ns.to_vec(),
        })
    }
}

impl Policy for Edf {
    fn arrive(&mut self, task: Task) -> Result<(), Full> {
        let class = usize::from(task.class.0).min(self.budgets_ns.len() - 1);
        let deadline = i128::from(task.arrival.0) + i128::from(self.budgets_ns[class]);
        if self.waiting.arrive(task, deadline) {
            Ok(())
        } else {
            Err(Full)
        }
    }

    fn preempted(&mut self, task: Task, _worker: WorkerId, _now: Nanos) {
        self.waiting.insert(task);
    }

    fn returned(&mut self, task: Task, _worker: WorkerId) {
        self.waiting.insert(task);
    }

    fn finished(&mut self, _task: Task, _worker: WorkerId) {}

    fn next(&mut self, _worker: WorkerId, _now: Nanos, want: Want) -> Option<Task> {
        self.waiting.pop(want)
    }

    fn remove(&mut self, id: TaskId, _worker: WorkerId) -> Option<Task> {
        self.waiting.remove(id)
    }

    fn quantum(&self, _task: &Task) -> Option<Nanos> {
        None
    }

    fn waiting(&self, _worker: WorkerId, want: Want) -> usize {
        self.waiting.len(want)
    }

    fn len(&self) -> usize {
        self.waiting.len(Want::Any)
    }

    fn name(&self) -> String {
        String::from("EDF")
    }
}

/// TailGuard's budget, in ns, for the tasks of a query that fans out to `fanout` servers and must end within `slo_ns`
/// with probability `percentile`: the SLO less the query's latency at that percentile in an empty system. There the
/// query takes as long as the longest of its tasks, so that is the tasks' own service time at the quantile
/// `percentile^(1 / fanout)`.
///
/// `unloaded_ns` are service times of tasks, sorted upwards.
///
/// # Panics
/// If `unloaded_ns` is empty.
#[must_use]
pub fn tail_guard_budget_ns(
    unloaded_ns: &[u64],
    slo_ns: u64,
    fanout: usize,
    percentile: f64,
) -> i64 {
    let quantile = percentile.powf(1.0 / fanout.max(1) as f64);
    let rank = (quantile * unloaded_ns.len() as f64).ceil() as usize;
    let unloaded = unloaded_ns[rank.clamp(1, unloaded_ns.len()) - 1];
    slo_ns as i64 - unloaded as i64
}

/// `count` service times of the mix, sorted upwards: what [`tail_guard_budget_ns`] takes its quantiles from. For a
/// `fanout` of k at the 99th percentile, take well over 100 k.
#[must_use]
pub fn unloaded_service_ns(mix: &Mix, count: usize, seed: u64) -> Vec<u64> {
    let mut draws = crate::source::Draws::new(seed);
    let mut times: Vec<_> = (0..count).map(|_| draws.service(mix).1).collect();
    times.sort_unstable();
    times
}

#[cfg(test)]
mod tests {
    use shinjuku_policy::{ClassId, FlowId};

    use super::*;

    #[test]
    fn the_earliest_deadline_goes_first_whatever_the_order_of_arrival() {
        let mut policy = Edf::new(8, &[100, 10, -50]).unwrap();
        for (id, class, arrival) in [(0, 0, 0), (1, 0, 5), (2, 1, 95), (3, 2, 150)] {
            let task = Task {
                id: TaskId(id),
                class: ClassId(class),
                flow: FlowId(0),
                arrival: Nanos(arrival),
                started: false,
            };
            policy.arrive(task).unwrap();
        }
        // Deadlines 100, 105, 105, 100; ties in order of arrival.
        let order: Vec<_> = std::iter::from_fn(|| policy.next(WorkerId(0), Nanos(0), Want::Any))
            .map(|task| task.id.0)
            .collect();
        assert_eq!(order, [0, 3, 1, 2]);
        assert_eq!(policy.len(), 0);
    }

    #[test]
    fn a_wider_query_has_less_time_left_for_waiting() {
        let times: Vec<u64> = (1..=100_000).collect();
        let budget = |fanout| tail_guard_budget_ns(&times, 150_000, fanout, 0.99);
        assert_eq!(budget(1), 150_000 - 99_000);
        // 0.99^(1/100) = 0.9998995: the 99,990th of 100,000.
        assert_eq!(budget(100), 150_000 - 99_990);
    }
}
