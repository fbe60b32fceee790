//! The completion thread, which calls a user's code for the dispatcher and for contexts.
//!
//! It answers the tickets of requests that were turned away, and drops what these carried. It also
//! calls the wakers of tickets that are awaited. That code may allocate and lock, so it must not
//! run on the dispatcher (see the crate documentation of `shinjuku-net`).

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::thread::{self, JoinHandle, ThreadId};

use shinjuku_preempt::without_preemption;

use crate::in_process::ring::{Consumer, Producer, ring};
use crate::in_process::sleeper::Sleeper;
use crate::pool::{Lookout, Standstill};

/// Calls a user's code, and goes on if it panics: the panic hook has reported that.
pub(crate) fn quietly(body: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(body)) {
        // A payload may panic when it is dropped; the payload of that panic is leaked.
        if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(second);
        }
    }
}

/// A waiter for an answer, which will not come once the completion thread has ended.
pub(crate) trait Waits: Send + Sync {
    /// Wakes the waiter, which finds the reason by [`CompletionThread::has_ended`].
    fn wake_at_the_end(&self);
}

/// What the completion thread does beside calling wakers.
pub(crate) trait Round: Send + 'static {
    /// Does a bounded part of what there is to do.
    fn go(&mut self);

    /// Whether there is something to do.
    fn is_ready(&self) -> bool;

    /// Does all that is left. Nothing comes after that.
    fn finish(self);
}

/// What contexts, tickets and the dispatcher know of the completion thread.
pub(crate) struct CompletionThread {
    wakers: Producer<Waker>,
    /// The ring's other end. The completion thread pops from it, and after that thread's end the
    /// contexts that outlive it.
    wakers_out: Mutex<Consumer<Waker>>,
    /// The thread's id, once it runs.
    itself: OnceLock<ThreadId>,
    sleeper: Sleeper,
    finishing: AtomicBool,
    ended: AtomicBool,
    /// The waiters, by the address of what they wait for.
    waiting: Mutex<HashMap<usize, Weak<dyn Waits>>>,
    /// Of a pool, what its closures know of each other's waiting.
    pub(crate) standstill: Standstill,
}

impl CompletionThread {
    /// Takes memory for `wakers` at a time.
    pub(crate) fn new(wakers: usize) -> Self {
        let (producer, consumer) = ring(wakers);
        Self {
            wakers: producer,
            wakers_out: Mutex::new(consumer),
            itself: OnceLock::new(),
            sleeper: Sleeper::default(),
            finishing: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            waiting: Mutex::new(HashMap::new()),
            standstill: Standstill::default(),
        }
    }

    /// Starts the thread. It inherits the caller's affinity and scheduling class.
    pub(crate) fn start(self: Arc<Self>, round: impl Round) -> std::io::Result<JoinHandle<()>> {
        thread::Builder::new()
            .name("shinjuku-completion".into())
            .spawn(move || self.run(round))
    }

    fn run(&self, mut round: impl Round) {
        self.itself.get_or_init(|| thread::current().id());
        let mut lookout = Lookout::new();
        loop {
            // The flag is read first, so that all that came before it was set is done below.
            let finishing = self.finishing.load(Ordering::Acquire);
            round.go();
            self.call_wakers();
            if finishing {
                break;
            }
            let patience = lookout.look(&self.standstill);
            self.sleeper.sleep(patience, || {
                round.is_ready()
                    || lock(&self.wakers_out).is_ready()
                    || self.finishing.load(Ordering::Acquire)
            });
        }
        round.finish();
        self.end();
    }

    /// Whether the caller runs on the completion thread: a waker, or the drop of something that was
    /// turned away.
    pub(crate) fn is_current(&self) -> bool {
        self.itself.get() == Some(&thread::current().id())
    }

    /// Has `waker` called soon, or calls it here if the completion thread has too many to call. Any
    /// thread may call this, contexts included.
    pub(crate) fn carry(&self, waker: Waker) {
        if let Err(waker) = self.wakers.push(waker) {
            call(waker);
        }
        self.wake();
        // After the fence in `wake`, either this sees the end, or the completion thread at its end
        // sees the waker.
        if self.has_ended() {
            self.call_wakers();
        }
    }

    fn call_wakers(&self) {
        while let Some(waker) = without_preemption(|| lock(&self.wakers_out).pop()) {
            call(waker);
        }
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        self.sleeper.wake();
    }

    /// Tells the thread to do all that is left, and to end. Does not wait for that.
    pub(crate) fn finish(&self) {
        self.finishing.store(true, Ordering::Release);
        self.wake();
    }

    /// Tells all waiters, the present ones and later ones, that no further answer comes.
    pub(crate) fn end(&self) {
        let waiting = without_preemption(|| {
            let mut waiting = lock(&self.waiting);
            self.ended.store(true, Ordering::SeqCst);
            std::mem::take(&mut *waiting)
        });
        for ticket in waiting.into_values() {
            if let Some(ticket) = ticket.upgrade() {
                ticket.wake_at_the_end();
            }
        }
        fence(Ordering::SeqCst);
        self.call_wakers();
    }

    /// Whether no further answers come.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Lists a waiter for the end to wake. `false`: the end has come.
    pub(crate) fn list(&self, key: usize, ticket: Weak<dyn Waits>) -> bool {
        without_preemption(|| {
            let mut waiting = lock(&self.waiting);
            if self.has_ended() {
                return false;
            }
            waiting.insert(key, ticket);
            true
        })
    }

    /// Takes a waiter off the list. Not preempted: the end of the runtime needs the lock even if
    /// the context never runs again.
    pub(crate) fn unlist(&self, key: usize) {
        without_preemption(|| drop(lock(&self.waiting).remove(&key)));
    }
}

impl fmt::Debug for CompletionThread {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut completion_thread = formatter.debug_struct("CompletionThread");
        completion_thread
            .field("wakers", &self.wakers.len())
            .field("ended", &self.ended);
        completion_thread.finish_non_exhaustive()
    }
}

/// Calls a waker, in a context without preemption: the waker takes locks of its async runtime, and
/// that runtime's threads would wait for a preempted context.
fn call(waker: Waker) {
    without_preemption(|| quietly(|| waker.wake()));
}

/// Locks. No user's code runs under these locks, so no value is half changed after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;
    use std::task::Wake;
    use std::time::Duration;

    use shinjuku_preempt::{
        Dispatched, Generation, Outcome, Pool, PoolConfig, Worker, mailbox, preempt_point,
    };

    use super::*;
    use crate::in_process::tests::bounded;

    const PATIENCE: Duration = Duration::from_secs(10);

    struct Nothing;

    impl Round for Nothing {
        fn go(&mut self) {}
        fn is_ready(&self) -> bool {
            false
        }
        fn finish(self) {}
    }

    struct Call<F: Fn() + Send + Sync>(F);

    impl<F: Fn() + Send + Sync + 'static> Wake for Call<F> {
        fn wake(self: Arc<Self>) {
            (self.0)();
        }
    }

    fn waker(body: impl Fn() + Send + Sync + 'static) -> Waker {
        Arc::new(Call(body)).into()
    }

    fn join(completion_thread: &CompletionThread, thread: JoinHandle<()>) {
        completion_thread.finish();
        thread.join().unwrap();
    }

    #[test]
    fn wakers_are_called_on_its_own_thread() {
        bounded(|| {
            let completion_thread = Arc::new(CompletionThread::new(4));
            let thread = completion_thread.clone().start(Nothing).unwrap();
            let (send, names) = mpsc::channel();
            for _ in 0..10 {
                let send = send.clone();
                completion_thread.carry(waker(move || {
                    send.send(thread::current().name().map(str::to_owned))
                        .unwrap();
                }));
                let name = names.recv_timeout(PATIENCE).unwrap();
                assert_eq!(name.as_deref(), Some("shinjuku-completion"));
            }
            join(&completion_thread, thread);
        });
    }

    #[test]
    fn panicking_wakers_do_not_end_it() {
        bounded(|| {
            struct PanicsWhenDropped;
            impl Drop for PanicsWhenDropped {
                fn drop(&mut self) {
                    panic!("on purpose: a payload");
                }
            }
            let completion_thread = Arc::new(CompletionThread::new(4));
            let thread = completion_thread.clone().start(Nothing).unwrap();
            completion_thread.carry(waker(|| panic!("on purpose: a waker")));
            completion_thread.carry(waker(|| std::panic::panic_any(PanicsWhenDropped)));
            let (send, called) = mpsc::channel();
            completion_thread.carry(waker(move || send.send(()).unwrap()));
            called.recv_timeout(PATIENCE).unwrap();
            join(&completion_thread, thread);
        });
    }

    #[test]
    fn what_it_has_no_room_for_is_called_by_who_brings_it() {
        // The thread is not started, so nothing leaves the ring.
        let completion_thread = CompletionThread::new(2);
        let called = Arc::new(AtomicUsize::new(0));
        let bring = || {
            let called = called.clone();
            completion_thread.carry(waker(move || {
                called.fetch_add(1, Ordering::Relaxed);
            }));
        };
        bring();
        bring();
        assert_eq!(called.load(Ordering::Relaxed), 0);
        bring();
        assert_eq!(called.load(Ordering::Relaxed), 1);
    }

    /// A preemption that is asked for during the waker's call comes after it.
    #[test]
    fn what_a_context_calls_itself_is_not_preempted() {
        let completion_thread = Arc::new(CompletionThread::new(2));
        (0..2).for_each(|_| completion_thread.carry(waker(|| ())));
        let config = PoolConfig::default().contexts(1);
        let mut pool = Pool::new(config, |job: Box<dyn FnOnce() + Send>| job()).unwrap();
        let (mut sender, mut receiver) = mailbox(1);
        let dispatched = Arc::new(OnceLock::<Dispatched>::new());
        let called = Arc::new(AtomicBool::new(false));
        let (asks, calls) = (Arc::clone(&dispatched), Arc::clone(&called));
        let locks = waker(move || {
            asks.get().unwrap().request();
            preempt_point();
            calls.store(true, Ordering::Release);
        });
        let job: Box<dyn FnOnce() + Send> = Box::new(move || completion_thread.carry(locks));
        let ready = pool.idle.pop().unwrap().load(job);
        let sent = sender.send(ready.into()).ok().expect("there is room");
        assert!(dispatched.set(sent).is_ok());
        let mut worker = Worker::bind(0).unwrap();
        let (runnable, generation) = receiver.poll().unwrap();
        let Outcome::Preempted(suspended) = worker.run(runnable, generation) else {
            panic!("it is preempted once the waker was called")
        };
        assert!(called.load(Ordering::Acquire), "preempted within the waker");
        let Outcome::Finished(finished) = worker.run(suspended.into(), Generation(1)) else {
            panic!("no one preempts it again")
        };
        let (context, result) = finished.take();
        result.unwrap();
        assert_eq!(pool.handles.hand_back(vec![context], PATIENCE).leaked, 0);
    }

    #[test]
    fn no_waker_is_lost_around_the_end() {
        bounded(|| {
            for _ in 0..200 {
                let completion_thread = Arc::new(CompletionThread::new(64));
                let thread = completion_thread.clone().start(Nothing).unwrap();
                let called = Arc::new(AtomicUsize::new(0));
                thread::scope(|scope| {
                    for _ in 0..2 {
                        scope.spawn(|| {
                            for _ in 0..20 {
                                let called = called.clone();
                                completion_thread.carry(waker(move || {
                                    called.fetch_add(1, Ordering::Relaxed);
                                }));
                            }
                        });
                    }
                    completion_thread.finish();
                });
                thread.join().unwrap();
                assert_eq!(called.load(Ordering::Relaxed), 40);
            }
        });
    }
}
