//! What the dispatcher knows of one worker: what it was sent, since when it runs, what was asked of
//! it.
//! ARCHITECTURE.md draws its states.

use std::sync::Arc;
use std::thread::Thread;

use shinjuku_net::Transport;
use shinjuku_policy::{Nanos, TaskId, WorkerId};
use shinjuku_preempt::{
    ContextId, Dispatched, Generation, MAX_DEPTH, Outstanding, Parker, Runnable, Sender, WorkerLink,
};

use crate::request::{Done, Job};

/// What a worker is sent.
type Load<Tr> = Runnable<Job<Tr>, Done<Tr>>;

/// About what it takes a sleeping thread to run.
const WAKE_UP: Nanos = Nanos::from_micros(50);

pub(crate) struct WorkerState<Tr: Transport> {
    /// Whom the policy knows this worker as.
    pub(crate) worker: WorkerId,
    pub(crate) sender: Sender<Job<Tr>, Done<Tr>>,
    pub(crate) link: WorkerLink,
    pub(crate) thread: Thread,
    /// `None`: the worker runs what it is sent at once, on the dispatcher's own thread.
    pub(crate) parker: Option<Arc<Parker>>,
    /// Sent and not answered: a ring whose oldest entry, which runs, is at `first`.
    sent: [Option<Sent>; MAX_DEPTH],
    first: usize,
    count: usize,
    /// Those of the staged that never ran.
    staged_fresh: usize,
    /// The context that it answered for last.
    last_context: Option<ContextId>,
    /// It was woken after what was sent last.
    is_woken: bool,
    /// Since when the first one runs, as far as the dispatcher can know.
    pub(crate) running_since: Nanos,
    pub(crate) asked: Option<Asked>,
    /// It has given no answer for long, and why.
    pub(crate) silence: Option<Silence>,
    /// Within what runs, it was found blocked.
    pub(crate) was_blocked: bool,
    /// When the reason for its silence is looked for next.
    pub(crate) look_at: Nanos,
    /// It is blocked: so many suspended requests run in its place before fresh ones do, since one
    /// of them may have the lock that it waits for.
    pub(crate) suspended_first: usize,
    /// It is blocked, and there was no spare; counted once.
    pub(crate) without_spare: bool,
    /// A recall brought nothing: not again before the next answer.
    pub(crate) recalled_in_vain: bool,
    idle_since: Nanos,
    idle_time: u64,
}

/// Why a worker gives no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Silence {
    /// Its thread runs, or waits for its core, and was first found so at that moment: code without
    /// probes, or with preemption held off.
    Computing { since: Nanos },
    /// Its thread is blocked in the kernel, and leaves its core to others.
    Blocked,
}

pub(crate) struct Sent {
    pub(crate) task: TaskId,
    /// It never ran before.
    pub(crate) fresh: bool,
    pub(crate) dispatched: Dispatched,
}

/// What a worker has answered for.
pub(crate) struct Answered {
    pub(crate) sent: Sent,
    /// How long it ran, as far as the dispatcher can know.
    pub(crate) ran: Nanos,
    /// Some of that time its thread was blocked.
    pub(crate) was_blocked: bool,
}

/// A preemption that was asked for and not answered yet.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) at: Nanos,
    /// When the hard mechanism is used next.
    pub(crate) interrupt_at: Nanos,
    pub(crate) interrupts: u32,
    /// Compiled probes may take it, as long as no interrupt was sent.
    pub(crate) at_entries: Option<Outstanding>,
}

impl<Tr: Transport> WorkerState<Tr> {
    pub(crate) fn new(
        worker: WorkerId,
        sender: Sender<Job<Tr>, Done<Tr>>,
        link: WorkerLink,
        thread: Thread,
        parker: Option<Arc<Parker>>,
    ) -> Self {
        Self {
            worker,
            sender,
            link,
            thread,
            parker,
            sent: [const { None }; MAX_DEPTH],
            first: 0,
            count: 0,
            staged_fresh: 0,
            last_context: None,
            is_woken: false,
            running_since: Nanos(0),
            asked: None,
            silence: None,
            was_blocked: false,
            look_at: Nanos(0),
            suspended_first: 0,
            without_spare: false,
            recalled_in_vain: false,
            idle_since: Nanos(0),
            idle_time: 0,
        }
    }

    /// Sent and not answered.
    pub(crate) fn out(&self) -> usize {
        self.count
    }

    /// The context that it answered for last.
    pub(crate) fn last_context(&self) -> Option<ContextId> {
        self.last_context
    }

    /// Those of them that do not run yet.
    pub(crate) fn staged(&self) -> usize {
        self.count.saturating_sub(1)
    }

    /// Those of the staged that never ran: they count as waiting.
    pub(crate) fn staged_fresh(&self) -> usize {
        debug_assert_eq!(
            self.staged_fresh,
            self.all_staged().filter(|sent| sent.fresh).count()
        );
        self.staged_fresh
    }

    /// The place of the `number`-th one sent and not answered.
    fn place(&self, number: usize) -> usize {
        (self.first + number) % MAX_DEPTH
    }

    /// Those that do not run yet.
    pub(crate) fn staged_tasks(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.all_staged().map(|sent| sent.task)
    }

    fn all_staged(&self) -> impl Iterator<Item = &Sent> {
        (1..self.count).filter_map(|number| self.sent[self.place(number)].as_ref())
    }

    /// For how long it had nothing to run since the last call.
    pub(crate) fn take_idle_time(&mut self, now: Nanos) -> Nanos {
        if self.count == 0 {
            self.idle_time += now.since(self.idle_since).0;
            self.idle_since = now;
        }
        Nanos(std::mem::take(&mut self.idle_time))
    }

    /// The request that runs.
    pub(crate) fn running(&self) -> Option<&Sent> {
        self.sent[self.first].as_ref()
    }

    /// Sends, and wakes the worker if it is seen to sleep. That can be missed: [`wake`](Self::wake)
    /// it until it answers.
    pub(crate) fn send(&mut self, task: TaskId, runnable: Load<Tr>, now: Nanos) {
        let fresh = matches!(runnable, Runnable::Ready(_));
        let Ok(dispatched) = self.sender.send(runnable) else {
            unreachable!("the dispatcher asks for room first")
        };
        self.is_woken = false;
        if self.count == 0 {
            self.running_since = now;
            self.asked = None;
            self.idle_time += now.since(self.idle_since).0;
            self.wake(now);
        } else {
            self.staged_fresh += usize::from(fresh);
        }
        self.sent[self.place(self.count)] = Some(Sent {
            task,
            fresh,
            dispatched,
        });
        self.count += 1;
    }

    /// Wakes the worker if it sleeps over what it was sent.
    #[inline]
    pub(crate) fn wake(&mut self, now: Nanos) {
        let parker = self.parker.as_ref().filter(|_| !self.is_woken);
        if parker.is_some_and(|parker| parker.wake(&self.thread)) {
            self.is_woken = true;
            // It runs when it is awake: its quantum does not begin before.
            self.running_since = Nanos(now.0 + WAKE_UP.0);
            self.asked = None;
        }
    }

    /// Since when the request that runs is to give way, or, if it was not asked to, since when it
    /// runs.
    pub(crate) fn silent_since(&self) -> Nanos {
        self.asked
            .as_ref()
            .map_or(self.running_since, |asked| asked.at)
    }

    /// Whether it was asked to give way, less than `time` ago.
    pub(crate) fn was_asked_since(&self, now: Nanos, time: Nanos) -> bool {
        let asked = self.asked.as_ref();
        asked.is_some_and(|asked| now.since(asked.at) < time)
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.silence == Some(Silence::Blocked)
    }

    /// The worker goes straight on from the request that runs to `task`, which never ran, on the
    /// same context.
    pub(crate) fn went_on(&mut self, task: TaskId, now: Nanos) -> Generation {
        let sent = self.sent[self.first]
            .as_mut()
            .expect("it goes on from what it was sent");
        sent.task = task;
        sent.fresh = true;
        self.running_since = now;
        self.sender.renew(&mut sent.dispatched)
    }

    /// The oldest one was answered: takes its note, and lets the next one's time begin.
    pub(crate) fn answered(&mut self, now: Nanos) -> Answered {
        let sent = self.sent[self.first]
            .take()
            .expect("workers answer what they were sent");
        let ran = now.since(self.running_since);
        let was_blocked = self.was_blocked;
        self.last_context = Some(sent.dispatched.id());
        self.first = self.place(1);
        self.count -= 1;
        let is_fresh = self.running().is_some_and(|next| next.fresh);
        self.staged_fresh -= usize::from(is_fresh);
        self.begin_anew(now);
        Answered {
            sent,
            ran,
            was_blocked,
        }
    }

    /// What was sent before is over.
    fn begin_anew(&mut self, now: Nanos) {
        self.running_since = now;
        self.idle_since = now;
        self.asked = None;
        self.silence = None;
        self.was_blocked = false;
        self.look_at = Nanos(0);
        self.suspended_first = 0;
        self.without_spare = false;
        self.recalled_in_vain = false;
    }

    /// Takes back the newest one, if the worker has not begun it.
    pub(crate) fn recall(&mut self, now: Nanos) -> Option<(TaskId, Load<Tr>)> {
        let runnable = self.sender.recall()?;
        self.count -= 1;
        if self.count == 0 {
            self.begin_anew(now);
        }
        let sent = self.sent[self.place(self.count)]
            .take()
            .expect("noted when it was sent");
        self.staged_fresh -= usize::from(sent.fresh && self.count > 0);
        Some((sent.task, runnable))
    }
}
