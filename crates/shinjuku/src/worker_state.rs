//! What the dispatcher knows of one worker: which requests it sent there, since when the first of
//! them runs, and what it asked of that one. ARCHITECTURE.md draws its states.

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

/// Estimated wake-up latency of a sleeping thread.
const WAKE_UP: Nanos = Nanos::from_micros(50);

pub(crate) struct WorkerState<Tr: Transport> {
    /// The worker's number to the policy.
    pub(crate) worker: WorkerId,
    pub(crate) sender: Sender<Job<Tr>, Done<Tr>>,
    pub(crate) link: WorkerLink,
    pub(crate) thread: Thread,
    /// `None`: the worker runs what it is sent at once, on the dispatcher's own thread.
    pub(crate) parker: Option<Arc<Parker>>,
    /// Requests sent and not answered: a ring whose oldest entry, which runs, is at `first`.
    sent: [Option<Sent>; MAX_DEPTH],
    first: usize,
    count: usize,
    /// How many of the staged requests never ran.
    staged_fresh: usize,
    /// The context of the worker's last answer.
    last_context: Option<ContextId>,
    /// The worker was woken since it was last sent a request.
    is_woken: bool,
    /// The thread was seen to have begun the oldest request. Kept for spares alone.
    has_begun: bool,
    /// Since when the oldest request runs, as far as the dispatcher can know.
    pub(crate) running_since: Nanos,
    pub(crate) asked: Option<Asked>,
    /// Why the worker has given no answer for long, if it has given none.
    pub(crate) silence: Option<Silence>,
    /// The worker was found blocked within the request that runs.
    pub(crate) was_blocked: bool,
    /// When the dispatcher next looks for the reason of the silence.
    pub(crate) look_at: Nanos,
    /// How many suspended requests run in a blocked worker's place before fresh ones do, since one
    /// of them may have the lock that the worker waits for.
    pub(crate) suspended_first: usize,
    /// The worker is blocked, and there was no spare; counted once.
    pub(crate) without_spare: bool,
    /// No idle worker could take what was recalled here: no recall again before the next answer.
    pub(crate) recalled_in_vain: bool,
    idle_since: Nanos,
    idle_time: u64,
}

/// Why a worker gives no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Silence {
    /// Its thread runs, or waits for its core, and was first found so at the moment `since`. Its
    /// code has no probes, or holds preemption off.
    Computing { since: Nanos },
    /// Its thread is blocked in the kernel, and leaves its core to others.
    Blocked,
}

pub(crate) struct Sent {
    pub(crate) task: TaskId,
    /// The request never ran before.
    pub(crate) fresh: bool,
    pub(crate) dispatched: Dispatched,
}

/// The request that a worker has answered for.
pub(crate) struct Answered {
    pub(crate) sent: Sent,
    /// How long the request ran, as far as the dispatcher can know.
    pub(crate) ran: Nanos,
    /// The worker's thread was found blocked in that time.
    pub(crate) was_blocked: bool,
}

/// A preemption that was asked for and not answered yet.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) at: Nanos,
    /// When the hard mechanism is used next.
    pub(crate) interrupt_at: Nanos,
    pub(crate) interrupts: u32,
    /// Compiled probes may take the preemption, as long as no interrupt was sent.
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
            has_begun: false,
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

    /// How many requests are sent and not answered.
    pub(crate) fn out(&self) -> usize {
        self.count
    }

    /// The context of the worker's last answer.
    pub(crate) fn last_context(&self) -> Option<ContextId> {
        self.last_context
    }

    /// How many requests are staged: sent, and not begun as far as the dispatcher can know.
    pub(crate) fn staged(&self) -> usize {
        self.count.saturating_sub(1)
    }

    /// How many of the staged requests never ran. These count as waiting.
    pub(crate) fn staged_fresh(&self) -> usize {
        debug_assert_eq!(
            self.staged_fresh,
            self.all_staged().filter(|sent| sent.fresh).count()
        );
        self.staged_fresh
    }

    /// The place in the ring of the `number`-th request sent and not answered.
    fn place(&self, number: usize) -> usize {
        (self.first + number) % MAX_DEPTH
    }

    /// The staged requests.
    pub(crate) fn staged_tasks(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.all_staged().map(|sent| sent.task)
    }

    fn all_staged(&self) -> impl Iterator<Item = &Sent> {
        (1..self.count).filter_map(|number| self.sent[self.place(number)].as_ref())
    }

    /// For how long the worker had nothing to run since the last call.
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

    /// Sends a request, and wakes the worker if it is seen to sleep. The dispatcher may miss that
    /// the worker falls asleep, so it calls [`wake`](Self::wake) until the answer.
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
            // The request runs when the worker is awake, and its quantum begins then.
            self.running_since = Nanos(now.0 + WAKE_UP.0);
            self.asked = None;
        }
    }

    /// Whether the thread has begun the request, whose time counts from when that is seen first: a
    /// spare's thread can come late to a core that it shares.
    pub(crate) fn begins(&mut self, now: Nanos) -> bool {
        let begins = |sent: &Sent| sent.dispatched.has_begun();
        if !self.has_begun && self.running().is_some_and(begins) {
            (self.has_begun, self.running_since) = (true, now);
        }
        self.has_begun
    }

    /// When the request that runs was asked to give way, or, if it was not, when it began to run.
    pub(crate) fn silent_since(&self) -> Nanos {
        self.asked
            .as_ref()
            .map_or(self.running_since, |asked| asked.at)
    }

    /// Whether the request that runs was asked to give way less than `time` ago.
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
            .expect("the worker goes on from a request that it was sent");
        sent.task = task;
        sent.fresh = true;
        self.running_since = now;
        self.sender.renew(&mut sent.dispatched)
    }

    /// The worker has answered for the oldest request. Takes its entry, and lets the time of the
    /// next one begin.
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

    /// The oldest request is answered or recalled: another one runs now, or none.
    fn begin_anew(&mut self, now: Nanos) {
        self.running_since = now;
        self.has_begun = false;
        self.idle_since = now;
        self.asked = None;
        self.silence = None;
        self.was_blocked = false;
        self.look_at = Nanos(0);
        self.suspended_first = 0;
        self.without_spare = false;
        self.recalled_in_vain = false;
    }

    /// Takes back the request sent last, if the worker has not begun it.
    pub(crate) fn recall(&mut self, now: Nanos) -> Option<(TaskId, Load<Tr>)> {
        let runnable = self.sender.recall()?;
        self.count -= 1;
        if self.count == 0 {
            self.begin_anew(now);
        }
        let sent = self.sent[self.place(self.count)]
            .take()
            .expect("`send` has made the entry");
        self.staged_fresh -= usize::from(sent.fresh && self.count > 0);
        Some((sent.task, runnable))
    }
}
