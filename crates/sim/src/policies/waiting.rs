//! Waiting requests in the order of a rank that is fixed when they arrive.

use std::collections::BTreeMap;

use shinjuku_policy::{Task, TaskId, Want};

/// Requests by (rank, number of arrival); the rank of a request stays with its slot while it is away.
#[derive(Default)]
pub(super) struct Ranked {
    fresh: BTreeMap<(i128, u64), Task>,
    started: BTreeMap<(i128, u64), Task>,
    /// Of each slot: the key of the request that used it last.
    keys: Vec<(i128, u64)>,
    arrivals: u64,
}

impl Ranked {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            keys: vec![(0, 0); capacity],
            ..Self::default()
        }
    }

    /// A request arrives. `false`: its slot is out of range.
    pub(super) fn arrive(&mut self, task: Task, rank: i128) -> bool {
        let Some(key) = self.keys.get_mut(task.id.0 as usize) else {
            return false;
        };
        *key = (rank, self.arrivals);
        self.arrivals += 1;
        self.insert(task);
        true
    }

    /// A request comes back to its place.
    pub(super) fn insert(&mut self, task: Task) {
        let key = self.keys[task.id.0 as usize];
        let list = if task.started {
            &mut self.started
        } else {
            &mut self.fresh
        };
        list.insert(key, task);
    }

    /// The first in rank leaves.
    pub(super) fn pop(&mut self, want: Want) -> Option<Task> {
        let fresh = self.fresh.first_key_value().map(|(key, _)| *key);
        let started = self.started.first_key_value().map(|(key, _)| *key);
        let of_started = match (want, fresh, started) {
            (Want::StartedOnly, ..) | (_, None, _) => true,
            (_, Some(fresh), Some(started)) => started < fresh,
            (_, Some(_), None) => false,
        };
        let list = if of_started {
            &mut self.started
        } else {
            &mut self.fresh
        };
        list.pop_first().map(|(_, task)| task)
    }

    /// A request leaves by name.
    pub(super) fn remove(&mut self, id: TaskId) -> Option<Task> {
        let key = *self.keys.get(id.0 as usize)?;
        let is_it = |list: &BTreeMap<_, Task>| list.get(&key).is_some_and(|task| task.id == id);
        if is_it(&self.fresh) {
            self.fresh.remove(&key)
        } else if is_it(&self.started) {
            self.started.remove(&key)
        } else {
            None
        }
    }

    pub(super) fn len(&self, want: Want) -> usize {
        match want {
            Want::Any => self.fresh.len() + self.started.len(),
            Want::StartedOnly => self.started.len(),
        }
    }
}
