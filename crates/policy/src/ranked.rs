//! What EDF and strict priority share: one queue in the order of a rank that is fixed at arrival.
//!
//! A request runs for its class's quantum; if another that goes before it waits then, it is
//! preempted and goes back to its place in the order. Requests of the same rank run in order of
//! arrival. With [`Want::StartedOnly`], the first of those that have run already is
//! next. A class number beyond the last class counts as the last class.
//!
//! Two binary heaps over one array with a slot per [`TaskId`]: one of the fresh requests, one of
//! the started ones, so that "the first started request" needs no scan. A slot knows its place in
//! its heap, so a request can leave by name. Equal ranks stand in order of arrival. Every change
//! takes logarithmic time; the memory is boxed slices, which cannot grow.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec;

use crate::{ClassId, FlowId, Full, Nanos, ParameterError, Policy, Task, TaskId, Want, WorkerId};

/// The place of a request that is in no heap.
const NONE: u32 = u32::MAX;

const FRESH: usize = 0;
const STARTED: usize = 1;

/// Rank, then number of arrival; the lower key goes first.
type Key = (i128, u64);

#[derive(Clone, Copy)]
struct Slot {
    /// The request that used this slot last.
    task: Task,
    key: Key,
    /// Where the request is in its heap, or `NONE`.
    place: u32,
}

/// Slots, the smallest key at the root: the children of place `p` are `2p + 1` and `2p + 2`.
struct Heap {
    slots: Box<[u32]>,
    len: usize,
}

/// A request's rank by the request, its class's value, and the deadline that it brings, if any; the
/// lower rank goes first.
pub(crate) type Rank = fn(&Task, i64, Option<Nanos>) -> i128;

/// One queue in the order of ranks. Work conserving.
pub(crate) struct Ranked {
    label: &'static str,
    classes: Box<[Rule]>,
    rank: Rank,
    /// The value that an SLO stands for; `None`: values are not of SLOs.
    of_slo: Option<fn(Nanos) -> i64>,
    slots: Box<[Slot]>,
    heaps: [Heap; 2],
    arrivals: u64,
}

/// A class's value, from which its requests' ranks are made, and its quantum.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    pub(crate) value: i64,
    pub(crate) quantum: Nanos,
}

impl Ranked {
    /// Room for `capacity` requests, with task slots below `capacity`.
    ///
    /// # Errors
    /// [`ParameterError::Capacity`], [`ParameterError::Classes`], [`ParameterError::ZeroQuantum`].
    pub(crate) fn new(
        label: &'static str,
        capacity: usize,
        classes: Box<[Rule]>,
        rank: Rank,
    ) -> Result<Self, ParameterError> {
        ParameterError::check_capacity(capacity)?;
        ParameterError::check_classes(classes.len())?;
        ParameterError::check_quanta(classes.iter().map(|rule| rule.quantum))?;
        let task = Task {
            id: TaskId(NONE),
            class: ClassId(0),
            flow: FlowId(0),
            arrival: Nanos(0),
            started: false,
        };
        let slot = Slot {
            task,
            key: (0, 0),
            place: NONE,
        };
        let heap = || Heap {
            slots: vec![NONE; capacity].into_boxed_slice(),
            len: 0,
        };
        Ok(Self {
            label,
            classes,
            rank,
            of_slo: None,
            slots: vec![slot; capacity].into_boxed_slice(),
            heaps: [heap(), heap()],
            arrivals: 0,
        })
    }

    /// The same where a class's value follows from its SLO, which may be learnt.
    pub(crate) fn with_slos_as(self, of_slo: fn(Nanos) -> i64) -> Self {
        Self {
            of_slo: Some(of_slo),
            ..self
        }
    }

    /// The request that goes first.
    fn first(&self, want: Want) -> Option<&Slot> {
        let root = |heap: &Heap| (heap.len > 0).then(|| &self.slots[heap.slots[0] as usize]);
        let [fresh, started] = [FRESH, STARTED].map(|heap| root(&self.heaps[heap]));
        let fresh = fresh.filter(|_| want == Want::Any);
        [fresh, started]
            .into_iter()
            .flatten()
            .min_by_key(|slot| slot.key)
    }

    fn rule(&self, task: &Task) -> Rule {
        self.classes[usize::from(task.class.0).min(self.classes.len() - 1)]
    }

    fn admit(&mut self, task: Task, due: Option<Nanos>) -> Result<(), Full> {
        let rank = (self.rank)(&task, self.rule(&task).value, due);
        match self.slots.get_mut(task.id.0 as usize) {
            Some(slot) if slot.place == NONE => slot.key = (rank, self.arrivals),
            _ => return Err(Full),
        }
        self.arrivals += 1;
        self.insert(task);
        Ok(())
    }

    /// Puts `task` at its place in the order.
    fn insert(&mut self, task: Task) {
        let slot = &mut self.slots[task.id.0 as usize];
        debug_assert!(slot.place == NONE, "{task:?} waits already");
        if slot.place != NONE {
            return;
        }
        slot.task = task;
        let heap = usize::from(task.started);
        let place = self.heaps[heap].len;
        self.heaps[heap].len += 1;
        self.settle(heap, place, task.id.0);
    }

    /// Puts `slot` at `place`, which is free, or higher or lower, as the order demands.
    fn settle(&mut self, heap: usize, mut place: usize, slot: u32) {
        let key = self.slots[slot as usize].key;
        while place > 0 {
            let parent = (place - 1) / 2;
            let above = self.heaps[heap].slots[parent];
            if self.slots[above as usize].key <= key {
                break;
            }
            self.put(heap, place, above);
            place = parent;
        }
        while let Some((child, below)) = self.smaller_child(heap, place) {
            if key <= self.slots[below as usize].key {
                break;
            }
            self.put(heap, place, below);
            place = child;
        }
        self.put(heap, place, slot);
    }

    /// The place and slot of the child of `place` that goes first.
    fn smaller_child(&self, heap: usize, place: usize) -> Option<(usize, u32)> {
        let Heap { slots, len } = &self.heaps[heap];
        let children = (2 * place + 1)..(2 * place + 3).min(*len);
        children
            .map(|child| (child, slots[child]))
            .min_by_key(|&(_, slot)| self.slots[slot as usize].key)
    }

    fn put(&mut self, heap: usize, place: usize, slot: u32) {
        self.heaps[heap].slots[place] = slot;
        self.slots[slot as usize].place = place as u32;
    }
}

impl Policy for Ranked {
    fn arrive(&mut self, task: Task) -> Result<(), Full> {
        self.admit(task, None)
    }

    fn arrive_due(&mut self, task: Task, due: Nanos) -> Result<(), Full> {
        self.admit(task, Some(due))
    }

    fn preempted(&mut self, task: Task, _worker: WorkerId, _now: Nanos) {
        self.insert(task);
    }

    fn returned(&mut self, task: Task, _worker: WorkerId) {
        self.insert(task);
    }

    fn next(&mut self, worker: WorkerId, _now: Nanos, want: Want) -> Option<Task> {
        let first = self.first(want)?.task.id;
        self.remove(first, worker)
    }

    fn remove(&mut self, id: TaskId, _worker: WorkerId) -> Option<Task> {
        let slot = self.slots.get_mut(id.0 as usize)?;
        if slot.place == NONE {
            return None;
        }
        let place = core::mem::replace(&mut slot.place, NONE) as usize;
        let task = slot.task;
        let heap = usize::from(task.started);
        self.heaps[heap].len -= 1;
        let last = self.heaps[heap].len;
        if place != last {
            let moved = self.heaps[heap].slots[last];
            self.settle(heap, place, moved);
        }
        Some(task)
    }

    fn quantum(&self, task: &Task) -> Option<Nanos> {
        Some(self.rule(task).quantum)
    }

    fn set_slo(&mut self, class: ClassId, slo: Nanos) {
        let rule = self.classes.get_mut(usize::from(class.0));
        if let (Some(rule), Some(of_slo)) = (rule, self.of_slo) {
            rule.value = of_slo(slo);
        }
    }

    fn waiting(&self, _worker: WorkerId, want: Want) -> usize {
        match want {
            Want::Any => self.heaps[FRESH].len + self.heaps[STARTED].len,
            Want::StartedOnly => self.heaps[STARTED].len,
        }
    }

    fn worth_preempting(&self, worker: WorkerId, want: Want, running: Option<&Task>) -> usize {
        let running = running.and_then(|running| self.slots.get(running.id.0 as usize));
        let goes_first = |first: &Slot| running.is_none_or(|running| first.key < running.key);
        match self.first(want).is_some_and(goes_first) {
            true => self.waiting(worker, want),
            false => 0,
        }
    }

    fn len(&self) -> usize {
        self.waiting(WorkerId(0), Want::Any)
    }

    fn name(&self) -> String {
        format!("{}({} classes)", self.label, self.classes.len())
    }
}
