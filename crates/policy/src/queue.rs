//! Queues of waiting requests: intrusive linked lists over one array with a slot per [`TaskId`].
//!
//! A queue is two lists, fresh requests and started ones, so that "the first started request" needs
//! no scan. Every entry carries its *position*, a number that orders the two lists as one: it grows
//! at the back and falls at the front. The queue's first request is the list head with the smaller
//! position.
//!
//! ```text
//!   fresh    head -> [pos 3] <-> [pos 7] <-> [pos 8]
//!   started  head -> [pos -1] <-> [pos 5]                as one queue: -1, 3, 5, 7, 8
//! ```
//!
//! Every operation takes constant time, except [`Queues::put_back`], which walks past the few
//! requests that overtook. The memory is boxed slices, which cannot grow.

use alloc::boxed::Box;
use alloc::vec;

use crate::{ClassId, FlowId, Nanos, Task, TaskId, Want};

/// End of a list; also the queue number of a request that is in none.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Slot {
    /// The request that used this slot last; it stays readable after it left.
    task: Task,
    position: i64,
    prev: u32,
    next: u32,
    /// The queue it is in, or `NONE`.
    queue: u32,
}

#[derive(Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

const FRESH: usize = 0;
const STARTED: usize = 1;

pub(crate) struct Queues {
    slots: Box<[Slot]>,
    /// The fresh and the started requests of each queue.
    lists: Box<[[List; 2]]>,
    /// Fresh and started requests in all queues.
    total: [usize; 2],
    /// The next positions to give; shared by all queues, since only the order within one matters.
    front: i64,
    back: i64,
}

impl Queues {
    /// `capacity` has passed [`ParameterError::check_capacity`](crate::ParameterError); `queues` is
    /// not larger than a `u32`.
    pub(crate) fn new(capacity: usize, queues: usize) -> Self {
        let empty = List {
            head: NONE,
            tail: NONE,
            len: 0,
        };
        let task = Task {
            id: TaskId(NONE),
            class: ClassId(0),
            flow: FlowId(0),
            arrival: Nanos(0),
            started: false,
        };
        let slot = Slot {
            task,
            position: 0,
            prev: NONE,
            next: NONE,
            queue: NONE,
        };
        Self {
            slots: vec![slot; capacity].into_boxed_slice(),
            lists: vec![[empty; 2]; queues].into_boxed_slice(),
            total: [0; 2],
            front: -1,
            back: 0,
        }
    }

    /// Whether `id` has a slot and does not wait.
    pub(crate) fn is_free(&self, id: TaskId) -> bool {
        self.slots
            .get(id.0 as usize)
            .is_some_and(|slot| slot.queue == NONE)
    }

    /// The request that waits in slot `id`, or waited there last.
    pub(crate) fn task(&self, id: TaskId) -> &Task {
        &self.slots[id.0 as usize].task
    }

    /// Requests in `queue` that `want` asks for.
    pub(crate) fn len(&self, queue: usize, want: Want) -> usize {
        let [fresh, started] = &self.lists[queue];
        match want {
            Want::Any => (fresh.len + started.len) as usize,
            Want::StartedOnly => started.len as usize,
        }
    }

    /// Requests in all queues that `want` asks for.
    pub(crate) fn total(&self, want: Want) -> usize {
        match want {
            Want::Any => self.total[FRESH] + self.total[STARTED],
            Want::StartedOnly => self.total[STARTED],
        }
    }

    /// The requests of `queue` that never ran, in their order.
    pub(crate) fn fresh(&self, queue: usize) -> impl Iterator<Item = &Task> {
        let mut next = self.lists[queue][FRESH].head;
        core::iter::from_fn(move || {
            let slot = self.slots.get(next as usize)?;
            next = slot.next;
            Some(&slot.task)
        })
    }

    /// The first request of `queue` that `want` asks for.
    pub(crate) fn first(&self, queue: usize, want: Want) -> Option<&Task> {
        let [fresh, started] = &self.lists[queue];
        let started = self.slots.get(started.head as usize);
        if want == Want::StartedOnly {
            return started.map(|slot| &slot.task);
        }
        let first = match (self.slots.get(fresh.head as usize), started) {
            (Some(fresh), Some(started)) if started.position < fresh.position => started,
            (Some(fresh), _) => fresh,
            (None, started) => started?,
        };
        Some(&first.task)
    }

    /// The first request of `queue` that never ran.
    pub(crate) fn first_fresh(&self, queue: usize) -> Option<&Task> {
        let [fresh, _] = &self.lists[queue];
        self.slots.get(fresh.head as usize).map(|slot| &slot.task)
    }

    /// Takes the first request of `queue` that `want` asks for.
    pub(crate) fn pop(&mut self, queue: usize, want: Want) -> Option<Task> {
        let task = *self.first(queue, want)?;
        self.unlink(task.id);
        Some(task)
    }

    /// Appends `task` to `queue`.
    pub(crate) fn push_back(&mut self, queue: usize, task: Task) {
        let position = self.back;
        self.back += 1;
        let tail = self.lists[queue][usize::from(task.started)].tail;
        self.link(queue, task, position, tail);
    }

    /// Puts `task` before everything in `queue`.
    pub(crate) fn push_front(&mut self, queue: usize, task: Task) {
        let position = self.front;
        self.front -= 1;
        self.link(queue, task, position, NONE);
    }

    /// Puts `task`, which left `queue` last, where it was. Several tasks may come back in any
    /// order.
    pub(crate) fn put_back(&mut self, queue: usize, task: Task) {
        let Some(slot) = self.slots.get(task.id.0 as usize) else {
            return;
        };
        let position = slot.position;
        let mut before = NONE;
        let mut after = self.lists[queue][usize::from(task.started)].head;
        while let Some(slot) = self.slots.get(after as usize)
            && slot.position < position
        {
            before = after;
            after = slot.next;
        }
        self.link(queue, task, position, before);
    }

    /// Takes a request out of whichever queue it is in.
    pub(crate) fn remove(&mut self, id: TaskId) -> Option<Task> {
        let slot = self
            .slots
            .get(id.0 as usize)
            .filter(|slot| slot.queue != NONE)?;
        let task = slot.task;
        self.unlink(id);
        Some(task)
    }

    /// Takes the request of slot `id`, which waits, out of its queue.
    pub(crate) fn unlink(&mut self, id: TaskId) {
        let slot = &mut self.slots[id.0 as usize];
        let (prev, next) = (slot.prev, slot.next);
        let kind = usize::from(slot.task.started);
        let list = &mut self.lists[slot.queue as usize][kind];
        slot.queue = NONE;
        list.len -= 1;
        self.total[kind] -= 1;
        match self.slots.get_mut(prev as usize) {
            Some(prev) => prev.next = next,
            None => list.head = next,
        }
        match self.slots.get_mut(next as usize) {
            Some(next) => next.prev = prev,
            None => list.tail = prev,
        }
    }

    /// Inserts `task` after slot `prev` of its list, or as its head. A task that already waits is
    /// left alone: linking it twice would corrupt the lists.
    fn link(&mut self, queue: usize, task: Task, position: i64, prev: u32) {
        let id = task.id;
        debug_assert!(self.is_free(id), "{task:?} waits already, or has no slot");
        if !self.is_free(id) {
            return;
        }
        let kind = usize::from(task.started);
        let list = &mut self.lists[queue][kind];
        list.len += 1;
        self.total[kind] += 1;
        let next = match self.slots.get_mut(prev as usize) {
            Some(prev) => core::mem::replace(&mut prev.next, id.0),
            None => core::mem::replace(&mut list.head, id.0),
        };
        match self.slots.get_mut(next as usize) {
            Some(next) => next.prev = id.0,
            None => list.tail = id.0,
        }
        self.slots[id.0 as usize] = Slot {
            task,
            position,
            prev,
            next,
            queue: queue as u32,
        };
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const CAPACITY: u32 = 8;

    /// A queue as a plain list of places. A request that leaves keeps its place, empty, to be put
    /// back there.
    #[derive(Default)]
    struct Line(Vec<(TaskId, Option<Task>)>);

    impl Line {
        fn push(&mut self, at_front: bool, task: Task) {
            self.0.retain(|&(id, _)| id != task.id);
            let at = if at_front { 0 } else { self.0.len() };
            self.0.insert(at, (task.id, Some(task)));
        }

        fn put_back(&mut self, task: Task) {
            self.0
                .iter_mut()
                .find(|(id, _)| *id == task.id)
                .expect("has a place")
                .1 = Some(task);
        }

        fn take(&mut self, id: TaskId) -> Option<Task> {
            self.0.iter_mut().find(|place| place.0 == id)?.1.take()
        }

        fn wanted(&self, want: Want) -> impl Iterator<Item = Task> {
            let tasks = self.0.iter().filter_map(|place| place.1);
            tasks.filter(move |task| task.started || want == Want::Any)
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        PushBack { queue: usize, id: u32 },
        PushFront { queue: usize, id: u32 },
        PutBack { id: u32 },
        Pop { queue: usize, want: Want },
        Remove { id: u32 },
    }

    fn step() -> impl Strategy<Value = Step> {
        let queue = 0..2_usize;
        let id = 0..CAPACITY;
        let want = prop_oneof![Just(Want::Any), Just(Want::StartedOnly)];
        prop_oneof![
            4 => (queue.clone(), id.clone()).prop_map(|(queue, id)| Step::PushBack { queue, id }),
            2 => (queue.clone(), id.clone()).prop_map(|(queue, id)| Step::PushFront { queue, id }),
            3 => id.clone().prop_map(|id| Step::PutBack { id }),
            3 => (queue, want).prop_map(|(queue, want)| Step::Pop { queue, want }),
            1 => id.prop_map(|id| Step::Remove { id }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn behave_like_lines(steps in prop::collection::vec((step(), any::<bool>()), 0..150)) {
            let mut queues = Queues::new(CAPACITY as usize, 2);
            let mut lines = [Line::default(), Line::default()];
            // The line in which each slot was last, and the request in it.
            let mut last = [None; CAPACITY as usize];
            for (step, started) in steps {
                match step {
                    Step::PushBack { queue, id } | Step::PushFront { queue, id } => {
                        let at_front = matches!(step, Step::PushFront { .. });
                        let (class, flow, arrival) = (ClassId(0), FlowId(0), Nanos(0));
                        let task = Task { id: TaskId(id), class, flow, arrival, started };
                        if queues.is_free(task.id) {
                            if at_front {
                                queues.push_front(queue, task);
                            } else {
                                queues.push_back(queue, task);
                            }
                            for line in &mut lines {
                                line.0.retain(|place| place.0 != task.id);
                            }
                            lines[queue].push(at_front, task);
                            last[id as usize] = Some((queue, task));
                        }
                    }
                    Step::PutBack { id } => {
                        if let Some((queue, task)) = last[id as usize]
                            && queues.is_free(task.id)
                        {
                            queues.put_back(queue, task);
                            lines[queue].put_back(task);
                        }
                    }
                    Step::Pop { queue, want } => {
                        let expected = lines[queue].wanted(want).next();
                        prop_assert_eq!(queues.pop(queue, want), expected);
                        if let Some(task) = expected {
                            lines[queue].take(task.id);
                        }
                    }
                    Step::Remove { id } => {
                        let expected = lines.iter_mut().find_map(|line| line.take(TaskId(id)));
                        prop_assert_eq!(queues.remove(TaskId(id)), expected);
                    }
                }
                for want in [Want::Any, Want::StartedOnly] {
                    let lengths = [0, 1].map(|queue| lines[queue].wanted(want).count());
                    prop_assert_eq!([0, 1].map(|queue| queues.len(queue, want)), lengths);
                    prop_assert_eq!(queues.total(want), lengths.iter().sum::<usize>());
                }
                for (queue, line) in lines.iter().enumerate() {
                    let first_fresh = line.wanted(Want::Any).find(|task| !task.started);
                    prop_assert_eq!(queues.first_fresh(queue).copied(), first_fresh);
                }
            }
            // Everything leaves in order.
            for (queue, line) in lines.iter().enumerate() {
                for task in line.wanted(Want::Any) {
                    prop_assert_eq!(queues.pop(queue, Want::Any), Some(task));
                }
                prop_assert_eq!(queues.pop(queue, Want::Any), None);
            }
        }
    }
}
