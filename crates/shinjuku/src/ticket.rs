//! The two ends of a reply: the submitter holds the [`Ticket`], and the [`Route`] travels with the
//! request. Between them is an [`Answer`], allocated once.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use shinjuku_net::{Failure, Refusal};
use shinjuku_preempt::in_context;

use crate::answer::{Answer, Claim, Found};
use crate::completion_thread::{CompletionThread, quietly};

/// Why there is no reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TicketError {
    /// The request was turned away before it started.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The request started but did not come to a reply.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// A request handler has waited. It would hold up the worker that may have to run the request
    /// that it waits for. Reply from the handler and let the submitter put the parts together, or
    /// look with [`Ticket::try_take`].
    #[error(
        "waiting for a reply within a request handler is not allowed: it would block the worker"
    )]
    InsideHandler,
    /// The runtime ended with the request unfinished.
    #[error("the runtime ended before the request was finished")]
    RuntimeEnded,
    /// The reply was handed out before.
    #[error("the reply of this ticket has been taken already")]
    Taken,
}

/// The claim to the reply of a submitted request.
///
/// Wait for it ([`wait`](Self::wait), [`wait_timeout`](Self::wait_timeout)), look for it
/// ([`try_take`](Self::try_take)), or await it: a ticket is a `Future` that needs no particular
/// async runtime. If the ticket is dropped, the request goes on, and its reply is dropped.
///
/// ```
/// use shinjuku::policy::ClassId;
/// use shinjuku::{Runtime, TicketError, handler_fn};
/// use std::time::Duration;
///
/// let runtime = Runtime::builder(handler_fn(|n: u32| 100 / n)).start()?;
/// let handle = runtime.handle();
///
/// // Blocks.
/// assert_eq!(handle.submit(ClassId(0), 4)?.wait()?, 25);
///
/// // Blocks for so long; then the ticket is still there.
/// let mut ticket = handle.submit(ClassId(0), 5)?;
/// let reply = loop {
///     match ticket.wait_timeout(Duration::from_millis(10)) {
///         Some(reply) => break reply?,
///         None => println!("not yet"),
///     }
/// };
/// assert_eq!(reply, 20);
///
/// // A handler that panics fails its own request only.
/// let failed = handle.submit(ClassId(0), 0)?.wait();
/// assert!(matches!(failed, Err(TicketError::Failed(_))));
///
/// // In async code: `let reply = handle.submit(ClassId(0), 6)?.await?;`
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Waiting in any form inside a request handler resolves to [`TicketError::InsideHandler`] at once.
#[must_use = "without its ticket a request's reply is dropped"]
pub struct Ticket<Reply: Send + 'static>(Claim<Answer<Outcome<Reply>>>);

/// What a ticket resolves to.
type Outcome<Reply> = Result<Reply, TicketError>;

/// The way back to the ticket. Dropped without an answer, it answers [`TicketError::RuntimeEnded`].
pub struct Route<Reply: Send + 'static>(Option<Arc<dyn Deliver<Reply>>>);

/// Where a request's reply goes.
pub(crate) trait Deliver<Reply>: Send + Sync {
    /// Takes the outcome, once. Runs in the request's context or on the completion thread. Does not
    /// allocate; it may drop a user's value.
    fn deliver(&self, outcome: Result<Reply, TicketError>);

    /// Whether the outcome is still wanted.
    fn is_wanted(&self) -> bool {
        true
    }
}

impl<Reply: Send> Deliver<Reply> for Answer<Outcome<Reply>> {
    fn deliver(&self, outcome: Outcome<Reply>) {
        self.answer(outcome);
    }
}

/// Makes both ends.
pub(crate) fn ticket<Reply: Send + 'static>(
    completion_thread: Arc<CompletionThread>,
) -> (Ticket<Reply>, Route<Reply>) {
    let answer = Arc::new(Answer::new(completion_thread));
    let route = Route::new(answer.clone());
    (Ticket(Claim::new(answer)), route)
}

impl<Reply: Send + 'static> Route<Reply> {
    /// Makes the way to `end`.
    pub(crate) fn new(end: Arc<dyn Deliver<Reply>>) -> Self {
        Self(Some(end))
    }

    /// Whether the outcome is still wanted.
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.as_ref().is_some_and(|end| end.is_wanted())
    }

    /// Answers the ticket. Does not allocate; frees and drops on the calling thread.
    pub(crate) fn answer(mut self, result: Result<Reply, TicketError>) {
        self.deliver(result);
    }

    fn deliver(&mut self, result: Result<Reply, TicketError>) {
        if let Some(end) = self.0.take() {
            end.deliver(result);
            // If the ticket is gone, this drops the reply, a user's value.
            quietly(|| drop(end));
        }
    }
}

impl<Reply: Send + 'static> Drop for Route<Reply> {
    fn drop(&mut self) {
        self.deliver(Err(TicketError::RuntimeEnded));
    }
}

impl<Reply: Send + 'static> fmt::Debug for Route<Reply> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Route")
    }
}

impl<Reply: Send + 'static> Ticket<Reply> {
    /// Blocks the calling thread until the request has its reply.
    ///
    /// # Errors
    /// [`TicketError`]: why there is no reply.
    pub fn wait(mut self) -> Result<Reply, TicketError> {
        self.wait_until(None)
            .unwrap_or_else(|| unreachable!("waiting without a deadline ends with an outcome"))
    }

    /// As [`wait`](Self::wait), for at most `patience`. `None`: there is no reply yet, and the
    /// ticket can be used further.
    ///
    /// # Errors
    /// [`TicketError`]: why there is no reply.
    pub fn wait_timeout(&mut self, patience: Duration) -> Option<Result<Reply, TicketError>> {
        // With a patience beyond what the clock can hold, there is no deadline.
        self.wait_until(Instant::now().checked_add(patience))
    }

    /// The reply if it is there. Allowed everywhere, within request handlers too.
    ///
    /// # Errors
    /// [`TicketError`]: why no reply will come; [`TicketError::Taken`] after the reply was handed
    /// out.
    pub fn try_take(&mut self) -> Option<Result<Reply, TicketError>> {
        self.0.look().map(outcome)
    }

    fn wait_until(&mut self, deadline: Option<Instant>) -> Option<Result<Reply, TicketError>> {
        if in_context() {
            return Some(Err(TicketError::InsideHandler));
        }
        self.0.wait_until(deadline).map(outcome)
    }
}

fn outcome<Reply>(found: Found<Outcome<Reply>>) -> Outcome<Reply> {
    match found {
        Found::Answer(outcome) => outcome,
        Found::Taken => Err(TicketError::Taken),
        Found::Ended => Err(TicketError::RuntimeEnded),
    }
}

/// Resolves to the reply, or the reason why there is none; woken by the runtime's completion
/// thread. Polled again after that, it resolves to [`TicketError::Taken`].
impl<Reply: Send + 'static> Future for Ticket<Reply> {
    type Output = Result<Reply, TicketError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if in_context() {
            return Poll::Ready(Err(TicketError::InsideHandler));
        }
        self.0.poll(context).map(outcome)
    }
}

impl<Reply: Send + 'static> fmt::Debug for Ticket<Reply> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Ticket")
            .field("state", &self.0.source.state())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::task::Wake;
    use std::thread;

    use shinjuku_preempt::{Generation, Outcome, Pool, PoolConfig, Worker};

    use super::*;
    use crate::in_process::tests::{advancing, bounded};

    const PATIENCE: Duration = Duration::from_secs(10);

    /// A completion thread that is not started: only the test calls wakers.
    fn completion_thread() -> Arc<CompletionThread> {
        Arc::new(CompletionThread::new(64))
    }

    fn pair() -> (Ticket<u64>, Route<u64>) {
        ticket(completion_thread())
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Count {
        fn get(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn poll(ticket: &mut Ticket<u64>, waker: &Arc<Count>) -> Poll<Result<u64, TicketError>> {
        pin!(ticket).poll(&mut Context::from_waker(&waker.clone().into()))
    }

    #[test]
    fn tickets_go_anywhere() {
        fn anywhere<T: Send + Sync + Unpin + 'static>() {}
        // A reply that is only `Send`.
        anywhere::<Ticket<std::cell::Cell<u8>>>();
        anywhere::<Route<std::cell::Cell<u8>>>();
    }

    #[test]
    fn looking_gives_the_reply_once() {
        let (mut ticket, route) = pair();
        assert_eq!(ticket.try_take(), None);
        route.answer(Ok(5));
        assert_eq!(ticket.try_take(), Some(Ok(5)));
        assert_eq!(ticket.try_take(), Some(Err(TicketError::Taken)));
        let count = Arc::default();
        assert_eq!(
            poll(&mut ticket, &count),
            Poll::Ready(Err(TicketError::Taken))
        );
        assert_eq!(ticket.wait(), Err(TicketError::Taken));
    }

    #[test]
    fn waiting_ends_with_the_patience_and_can_be_taken_up_again() {
        let (mut ticket, route) = pair();
        assert_eq!(ticket.wait_timeout(Duration::ZERO), None);
        assert_eq!(ticket.wait_timeout(Duration::from_millis(5)), None);
        route.answer(Err(Failure::Panicked.into()));
        assert_eq!(
            ticket.wait_timeout(PATIENCE),
            Some(Err(TicketError::Failed(Failure::Panicked)))
        );
    }

    #[test]
    fn an_endless_patience_is_no_deadline() {
        bounded(|| {
            let (mut ticket, route) = pair();
            thread::scope(|scope| {
                scope.spawn(move || {
                    thread::sleep(Duration::from_millis(5));
                    route.answer(Ok(6));
                });
                assert_eq!(ticket.wait_timeout(Duration::MAX), Some(Ok(6)));
            });
        });
    }

    /// The answer comes at any moment of registering, waiting, and polling.
    #[test]
    fn no_answer_is_missed() {
        advancing(|rounds| {
            const ROUNDS: u64 = 3_000;
            // A wait with a deadline, which does not come while the test runs.
            const FAR: Duration = Duration::from_secs(86_400);
            let completion_thread = completion_thread();
            let (send, routes) = mpsc::sync_channel::<Route<u64>>(1);
            thread::scope(|scope| {
                scope.spawn(move || {
                    for (number, route) in routes.into_iter().enumerate() {
                        (0..number % 64 * 8).for_each(|_| std::hint::spin_loop());
                        route.answer(Ok(number as u64));
                    }
                });
                for number in 0..ROUNDS {
                    let (mut ticket, route) = ticket(completion_thread.clone());
                    send.send(route).unwrap();
                    let reply = match number % 3 {
                        0 => ticket.wait(),
                        1 => ticket.wait_timeout(FAR).expect("it is far away"),
                        _ => {
                            let count = Arc::default();
                            loop {
                                if let Poll::Ready(reply) = poll(&mut ticket, &count) {
                                    break reply;
                                }
                                // The waker is called at most once; the test polls all the time.
                                assert!(count.get() <= 1);
                            }
                        }
                    };
                    assert_eq!(reply, Ok(number));
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
                drop(send);
            });
        });
    }

    #[test]
    fn only_the_last_waker_is_called_and_only_by_the_completion_thread() {
        let completion_thread = completion_thread();
        let (mut ticket, route) = ticket(completion_thread.clone());
        let (first, last) = (Arc::default(), Arc::default());
        assert!(poll(&mut ticket, &first).is_pending());
        assert!(poll(&mut ticket, &last).is_pending());
        route.answer(Ok(1));
        assert_eq!(
            (first.get(), last.get()),
            (0, 0),
            "not where it is answered"
        );
        completion_thread.end();
        assert_eq!((first.get(), last.get()), (0, 1));
        assert_eq!(poll(&mut ticket, &last), Poll::Ready(Ok(1)));
    }

    #[test]
    fn the_end_wakes_who_waits_and_whoever_comes_later() {
        bounded(|| {
            let completion_thread = completion_thread();
            let mut tickets: Vec<_> = (0..3)
                .map(|_| ticket::<u64>(completion_thread.clone()))
                .collect();
            let (late, _late_route) = tickets.pop().unwrap();
            let (mut polled, _polled_route) = tickets.pop().unwrap();
            let (blocked, _blocked_route) = tickets.pop().unwrap();
            let count = Arc::default();
            assert!(poll(&mut polled, &count).is_pending());
            thread::scope(|scope| {
                let blocked = scope.spawn(|| blocked.wait());
                thread::sleep(Duration::from_millis(5));
                completion_thread.end();
                assert_eq!(blocked.join().unwrap(), Err(TicketError::RuntimeEnded));
            });
            assert_eq!(count.get(), 1);
            let ended = Err(TicketError::RuntimeEnded);
            assert_eq!(poll(&mut polled, &count), Poll::Ready(ended));
            assert_eq!(late.wait(), ended);
        });
    }

    /// The end comes at any moment of registering and waiting, with an answer on the way or not.
    #[test]
    fn nobody_waits_past_the_end() {
        for round in 0..400 {
            let completion_thread = completion_thread();
            let (mut ticket, route) = ticket(completion_thread.clone());
            thread::scope(|scope| {
                scope.spawn(|| {
                    (0..round % 50 * 20).for_each(|_| std::hint::spin_loop());
                    completion_thread.end();
                });
                let mut route = Some(route);
                if round % 2 == 0 {
                    let route = route.take().unwrap();
                    scope.spawn(move || route.answer(Ok(3)));
                }
                let outcome = ticket.wait_timeout(PATIENCE).expect("woken by the end");
                assert!(
                    matches!(outcome, Ok(3) | Err(TicketError::RuntimeEnded)),
                    "{outcome:?}"
                );
            });
        }
    }

    #[test]
    fn what_was_answered_before_the_end_counts() {
        let completion_thread = completion_thread();
        let (ticket, route) = ticket(completion_thread.clone());
        route.answer(Ok(9));
        completion_thread.end();
        assert_eq!(ticket.wait(), Ok(9));
    }

    #[test]
    fn a_route_that_is_dropped_answers() {
        let (ticket, route) = pair();
        drop(route);
        assert_eq!(ticket.wait(), Err(TicketError::RuntimeEnded));
    }

    #[test]
    fn a_reply_that_nobody_wants_is_dropped_where_it_is_answered() {
        struct Reply(Arc<AtomicUsize>);
        impl Drop for Reply {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
                panic!("on purpose: a reply's drop");
            }
        }
        let dropped = Arc::new(AtomicUsize::new(0));
        let (ticket, route) = ticket(completion_thread());
        drop(ticket);
        let answer = || route.answer(Ok(Reply(dropped.clone())));
        assert!(catch_unwind(AssertUnwindSafe(answer)).is_ok());
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn within_a_context_waiting_is_an_error_and_looking_is_not() {
        let config = PoolConfig::default().contexts(1);
        let pool = Pool::new(config, |job: Box<dyn FnOnce() + Send>| job()).unwrap();
        let (mut waits, _route) = pair();
        let (polls, _other_route) = pair();
        let (mut looks, answered) = pair();
        answered.answer(Ok(4));
        let (send, outcomes) = mpsc::channel();
        let job = move || {
            let mut polls = polls;
            send.send(waits.wait_timeout(PATIENCE).unwrap()).unwrap();
            send.send(waits.wait()).unwrap();
            let Poll::Ready(polled) = poll(&mut polls, &Arc::default()) else {
                panic!("it would hang")
            };
            send.send(polled).unwrap();
            send.send(looks.try_take().unwrap()).unwrap();
        };
        let mut idle = pool.idle;
        let ready = idle.pop().unwrap().load(Box::new(job) as Box<_>);
        let outcome = Worker::bind(0).unwrap().run(ready.into(), Generation(1));
        let Outcome::Finished(finished) = outcome else {
            unreachable!("no one preempts it")
        };
        let (context, result) = finished.take();
        result.unwrap();
        let inside = Err(TicketError::InsideHandler);
        assert_eq!(
            outcomes.iter().collect::<Vec<_>>(),
            [inside, inside, inside, Ok(4)]
        );
        assert_eq!(pool.handles.hand_back(vec![context], PATIENCE).leaked, 0);
    }

    #[test]
    fn every_error_says_what_happened() {
        let errors = [
            TicketError::from(Refusal::QueueFull),
            TicketError::from(Failure::Panicked),
            TicketError::InsideHandler,
            TicketError::RuntimeEnded,
            TicketError::Taken,
        ];
        let mut messages = errors.map(|error| error.to_string()).to_vec();
        messages.sort();
        messages.dedup();
        assert_eq!(messages.len(), errors.len());
    }
}
