//! A worker's loop: take a context from the mailbox, run it, send the reply, answer.
//!
//! Between contexts the loop neither allocates nor locks nor drops a user's value, since a
//! suspended context may hold any lock. Its system calls are the transport's one per reply, and
//! sleeping when there is nothing to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use shinjuku_net::{Replier, Transport};
use shinjuku_preempt::{
    Clock, Completion, ContextId, CountersSnapshot, Cycles, Finished, Generation, Panicked, Parker,
    Receiver, Service, Step, Suspended, Worker, WorkerLink,
};

use crate::on_cpu::OnCpu;
use crate::request::{Done, Job, Meta};
use crate::statistics::{Times, WorkerStatistics};
use crate::timeline::Lane;

/// A loop that shares its core sleeps this long when there is nothing to do. The thread that it
/// waits for may wait for the core, and a thread under real-time priority that only yields keeps
/// ordinary threads from running.
pub(crate) const SHARED_PAUSE: Duration = Duration::from_micros(20);
/// How long a worker sleeps at most before it looks for work, even if no thread wakes it. It is
/// long, since there can be hundreds of spares.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(10);

/// What the dispatchers and the shutdown tell the workers. Idle workers read it all the time, so it
/// has cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Orders {
    order: AtomicU8,
    /// How many dispatchers have not ended.
    dispatchers: AtomicUsize,
}

impl Orders {
    pub(crate) const RUN: u8 = 0;
    /// The shutdown has not waited for the requests that still run: finish them, without spinning.
    pub(crate) const BACKGROUND: u8 = 1;
    pub(crate) const END: u8 = 2;

    /// The workers run, for so many dispatchers.
    pub(crate) fn new(dispatchers: usize) -> Self {
        Self {
            order: AtomicU8::new(Self::RUN),
            dispatchers: AtomicUsize::new(dispatchers),
        }
    }

    pub(crate) fn get(&self) -> u8 {
        self.order.load(Ordering::Acquire)
    }

    pub(crate) fn go_on_in_background(&self) {
        self.order.fetch_max(Self::BACKGROUND, Ordering::Release);
    }

    /// The workers end, whatever the dispatchers do.
    pub(crate) fn end(&self) {
        self.order.store(Self::END, Ordering::Release);
    }

    /// One more dispatcher has ended. Returns whether it was the last one; then all threads end.
    pub(crate) fn one_is_over(&self) -> bool {
        let is_last = self.dispatchers.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last {
            self.end();
        }
        is_last
    }
}

/// A worker's end of its mailbox from one dispatcher, and its replier for that one's transport.
pub(crate) struct Port<Tr: Transport> {
    pub(crate) receiver: Receiver<Job<Tr>, Done<Tr>>,
    pub(crate) replier: Tr::Replier,
}

impl<Tr: Transport> Port<Tr> {
    /// Serves the request that the same thread has sent, from the moment `start` on, and then those
    /// that `next` gives, on the same context. `next` is told when the request before ended, and
    /// for how long the thread was away from its CPU within that request. It gives a job with its
    /// generation and its start.
    pub(crate) fn step_inline(
        &mut self,
        worker: &mut Worker,
        (statistics, lane): (&WorkerStatistics, &Lane),
        (clock, on_cpu): (Clock, &OnCpu),
        mut start: Cycles,
        mut next: impl FnMut(Cycles, Cycles) -> Option<(Job<Tr>, Generation, Cycles)>,
    ) {
        let Some((runnable, generation)) = self.receiver.poll() else {
            return;
        };
        let context = runnable.id();
        let counters = lane.is_recording().then(|| worker.counters());
        lane.begins(context, start);
        on_cpu.begin(start);
        let replier = &mut self.replier;
        let mut away = Cycles(0);
        let mut completion = worker.run_on(runnable, generation, &mut |ended| {
            let end = Cycles::now();
            away = on_cpu.end(end);
            let service = Cycles(ended.run_time.0 + end.since(start).since(away).0);
            let ran = (ended.first_start.unwrap_or(start), service, end);
            let meta = deliver::<Tr>(ended.result, ran, replier, statistics, clock);
            lane.ended(context, (start, end), meta);
            let (job, generation, its_start) = next(end, away)?;
            start = its_start;
            lane.begins(context, start);
            on_cpu.begin(start);
            Some((job, generation))
        });
        lane.idles();
        if let Completion::Preempted(suspended) = &mut completion {
            let end = Cycles::now();
            away = on_cpu.end(end);
            suspended.add_run_time(end.since(start).since(away));
            suspended.note_start(start);
            lane.preempted(context, (start, end), counters, || worker.counters());
        }
        completion.note_away(away);
        self.receiver.answer(completion);
    }
}

/// A worker's loop. Where contexts are kernel threads, these pass it on to each other.
pub(crate) struct WorkerLoop<Tr: Transport> {
    pub(crate) link: WorkerLink,
    pub(crate) port: Port<Tr>,
    pub(crate) statistics: Arc<WorkerStatistics>,
    pub(crate) lane: Lane,
    pub(crate) parker: Arc<Parker>,
    pub(crate) orders: Arc<Orders>,
    pub(crate) clock: Clock,
    /// How long it polls without finding work before it sleeps; `None`: it never sleeps.
    pub(crate) idle_backoff: Option<Cycles>,
    /// Whether other threads of the runtime may need the worker's core.
    pub(crate) shares_core: bool,
    /// When the last request ended.
    pub(crate) idle_since: Cycles,
    pub(crate) idle_turns: u32,
    pub(crate) running: Option<Slice>,
}

/// What runs, from when, and the counters at that moment, if a timeline is recorded.
pub(crate) struct Slice {
    context: ContextId,
    start: Cycles,
    counters: Option<CountersSnapshot>,
}

impl<Tr: Transport> Service<Job<Tr>, Done<Tr>> for WorkerLoop<Tr> {
    /// The next request, until the orders are to end.
    fn next(&mut self) -> Step<Job<Tr>, Done<Tr>> {
        if let Some((runnable, generation)) = self.port.receiver.poll() {
            self.begin(runnable.id());
            return Step::Run(runnable, generation);
        }
        let orders = self.orders.get();
        if orders == Orders::END {
            return Step::End;
        }
        if self.shares_core {
            std::thread::sleep(SHARED_PAUSE);
        } else {
            std::hint::spin_loop();
        }
        self.idle_turns = self.idle_turns.wrapping_add(1);
        let idle_for_long = || {
            let backoff = self.idle_backoff;
            backoff.is_some_and(|backoff| Cycles::now().since(self.idle_since) > backoff)
        };
        let looks = self.idle_turns.is_multiple_of(64);
        match looks && (orders == Orders::BACKGROUND || idle_for_long()) {
            true => Step::Sleep,
            false => Step::Nothing,
        }
    }

    fn finished(&mut self, finished: Finished<Job<Tr>, Done<Tr>>) {
        let (Slice { context, start, .. }, end) = self.end_slice();
        let service = Cycles(finished.run_time().0 + end.since(start).0);
        let ran = (finished.first_start().unwrap_or(start), service, end);
        let (idle, result) = finished.take();
        let Self {
            port: Port { replier, .. },
            statistics,
            clock,
            ..
        } = self;
        let meta = deliver::<Tr>(result, ran, replier, statistics, *clock);
        self.lane.ended(context, (start, end), meta);
        self.port.receiver.answer(Completion::Finished(idle));
    }

    fn preempted(&mut self, mut suspended: Suspended<Job<Tr>, Done<Tr>>) {
        let (slice, end) = self.end_slice();
        let Slice {
            context,
            start,
            counters,
        } = slice;
        suspended.add_run_time(end.since(start));
        suspended.note_start(start);
        let after = || self.link.counters();
        self.lane.preempted(context, (start, end), counters, after);
        self.port.receiver.answer(Completion::Preempted(suspended));
    }

    fn sleep(&mut self) {
        self.parker.sleep(LONGEST_SLEEP, || {
            self.port.receiver.is_waiting() || self.orders.get() == Orders::END
        });
    }
}

impl<Tr: Transport> WorkerLoop<Tr> {
    fn begin(&mut self, context: ContextId) {
        let start = Cycles::now();
        let counters = self.lane.is_recording().then(|| self.link.counters());
        self.lane.begins(context, start);
        self.running = Some(Slice {
            context,
            start,
            counters,
        });
    }

    /// What ran, and when that ended.
    fn end_slice(&mut self) -> (Slice, Cycles) {
        self.port.receiver.prefetch();
        self.lane.idles();
        let end = Cycles::now();
        (self.idle_since, self.idle_turns) = (end, 0);
        let slice = self.running.take();
        (slice.expect("`next` has begun a slice"), end)
    }
}

/// Sends a request's reply and records the request: it first ran at `start`, for `service` in all,
/// until `end`. Returns which request it was and whether it failed; `None` if its reply is lost.
#[inline]
fn deliver<Tr: Transport>(
    result: Result<Done<Tr>, Panicked>,
    (start, service, end): (Cycles, Cycles, Cycles),
    replier: &mut Tr::Replier,
    statistics: &WorkerStatistics,
    clock: Clock,
) -> Option<(Meta, bool)> {
    let Ok(done) = result else {
        // `threads::entry` has caught the handler's panic, so this is the transport's.
        statistics.record_lost();
        return None;
    };
    let Done {
        meta,
        outgoing,
        failed,
    } = done;
    replier.send(outgoing);
    let since_arrival = |moment| clock.nanos_at(moment).saturating_sub(meta.arrival.0);
    let times = Times {
        latency: since_arrival(end),
        service: clock.to_nanos(service),
        queue: since_arrival(start),
    };
    statistics.record(meta.class, times, failed);
    Some((meta, failed))
}

#[cfg(test)]
mod tests;
