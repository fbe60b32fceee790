//! What a user implements: the paper's three callbacks (Shinjuku, NSDI'19, section 3.5).

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, TryLockError};
use std::time::Duration;

use shinjuku_policy::{ClassId, Nanos};
use shinjuku_preempt::{Clock, current_worker, without_preemption};

/// Handles requests. One value serves all workers at once, so what changes needs a lock, an atomic,
/// or [`RequestContext::per_core`].
///
/// ```
/// use shinjuku::policy::ClassId;
/// use shinjuku::{RequestContext, RequestHandler, Runtime};
/// use std::collections::HashMap;
/// use std::sync::RwLock;
///
/// /// Words by number, and each worker's count of what it looked up.
/// struct Dictionary(RwLock<HashMap<u64, &'static str>>);
///
/// impl RequestHandler for Dictionary {
///     type Request = u64;
///     type Reply = Option<&'static str>;
///     type PerCore = usize;
///
///     fn init_per_core(&self, _worker: usize) -> usize {
///         0
///     }
///
///     fn handle_request(
///         &self,
///         number: u64,
///         context: &RequestContext<'_, usize>,
///     ) -> Option<&'static str> {
///         context.per_core(|lookups| *lookups += 1);
///         self.0.read().unwrap().get(&number).copied()
///     }
/// }
///
/// let dictionary = Dictionary(RwLock::new(HashMap::from([(1, "one")])));
/// let runtime = Runtime::builder(dictionary).start()?;
/// assert_eq!(runtime.handle().submit(ClassId(0), 1)?.wait()?, Some("one"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait RequestHandler: Send + Sync + 'static {
    /// What a request carries.
    type Request: Send + 'static;
    /// What it is answered with.
    type Reply: Send + 'static;
    /// State of which every worker has its own; `()` if none is wanted.
    type PerCore: Send + 'static;

    /// Called once, before any worker starts.
    ///
    /// # Errors
    /// Whatever keeps the handler from serving: the runtime does not start and passes it on.
    fn init(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }

    /// Makes a worker's own state. Called on each worker's thread before the first request. A spare
    /// worker, which takes the place of a blocked one, gets its state later: from within the first
    /// request on the spare that asks for it.
    fn init_per_core(&self, worker: usize) -> Self::PerCore;

    /// Serves one request. May be preempted and go on at another worker: thread-locals, locks and
    /// panics work as ever. A panic ends this request only.
    fn handle_request(
        &self,
        request: Self::Request,
        context: &RequestContext<'_, Self::PerCore>,
    ) -> Self::Reply;

    /// Whether the request that got this reply counts as failed in the statistics. A failed request
    /// is counted and left out of the histograms, as one that panicked is. By default no reply
    /// means a failure. Called in the request's context.
    fn is_failure(&self, reply: &Self::Reply) -> bool {
        let _ = reply;
        false
    }
}

/// What a handler can ask about the request it serves.
///
/// ```
/// use shinjuku::policy::ClassId;
/// use shinjuku::{RequestContext, RequestHandler, Runtime};
/// use std::time::Duration;
///
/// /// Answers with the request's class and how long ago it arrived, and counts by worker.
/// struct Inspector;
///
/// impl RequestHandler for Inspector {
///     type Request = ();
///     type Reply = (ClassId, Duration, u64);
///     type PerCore = u64;
///
///     fn init_per_core(&self, _worker: usize) -> u64 {
///         0
///     }
///
///     fn handle_request(&self, (): (), context: &RequestContext<'_, u64>) -> Self::Reply {
///         let served = context.per_core(|served| {
///             *served += 1;
///             *served
///         });
///         (context.class(), context.age(), served)
///     }
/// }
///
/// let runtime = Runtime::builder(Inspector).workers(1).start()?;
/// let (class, age, served) = runtime.handle().submit(ClassId(0), ())?.wait()?;
/// assert_eq!((class, served), (ClassId(0), 1));
/// assert!(age > Duration::ZERO);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RequestContext<'a, PerCore> {
    pub(crate) class: ClassId,
    pub(crate) arrival: AtomicU64,
    pub(crate) per_core: &'a PerCoreStates<PerCore>,
}

impl<PerCore> RequestContext<'_, PerCore> {
    /// The request's class.
    #[must_use]
    pub fn class(&self) -> ClassId {
        self.class
    }

    /// How long ago the request arrived: its sojourn time so far.
    #[must_use]
    pub fn age(&self) -> Duration {
        Duration::from_nanos(Clock::get().now_nanos().saturating_sub(self.arrival().0))
    }

    pub(crate) fn arrival(&self) -> Nanos {
        Nanos(self.arrival.load(Ordering::Relaxed))
    }

    /// From here on the context serves another request, which arrived at `arrival`.
    pub(crate) fn serve(&self, arrival: Nanos) {
        self.arrival.store(arrival.0, Ordering::Relaxed);
    }

    /// Gives `body` the state of the worker that the request runs on, and holds preemption off
    /// meanwhile, so keep `body` short. Outside of `body` the request may change workers at any
    /// time, so there is no other way to the state.
    ///
    /// # Panics
    /// If called within `body`: the state is lent out already.
    pub fn per_core<Out>(&self, body: impl FnOnce(&mut PerCore) -> Out) -> Out {
        without_preemption(|| {
            let worker = current_worker().expect("handlers run in contexts, on workers") as usize;
            body(&mut self.per_core.lend(worker))
        })
    }
}

/// A state for each worker. The locks are never contended: only the request that runs on a worker
/// takes that worker's, and it cannot be preempted meanwhile.
pub(crate) struct PerCoreStates<PerCore> {
    states: Vec<OnceLock<Mutex<PerCore>>>,
    make: Box<dyn Fn(usize) -> PerCore + Send + Sync>,
}

impl<PerCore> std::fmt::Debug for PerCoreStates<PerCore> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "PerCoreStates(of {} workers)", self.states.len())
    }
}

impl<PerCore> PerCoreStates<PerCore> {
    pub(crate) fn new(
        workers: usize,
        make: impl Fn(usize) -> PerCore + Send + Sync + 'static,
    ) -> Self {
        Self {
            states: (0..workers).map(|_| OnceLock::new()).collect(),
            make: Box::new(make),
        }
    }

    /// Makes the state of a worker, unless it is there.
    pub(crate) fn make(&self, worker: usize) -> &Mutex<PerCore> {
        self.states[worker].get_or_init(|| Mutex::new((self.make)(worker)))
    }

    fn lend(&self, worker: usize) -> impl std::ops::DerefMut<Target = PerCore> + '_ {
        match self.make(worker).try_lock() {
            Ok(state) => state,
            // A body panicked. It left the state as it is, and its request was answered with the
            // failure.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                panic!("`per_core` was called within `per_core` of the same worker")
            }
        }
    }
}

/// A handler from a function of the request alone.
///
/// ```
/// # use shinjuku::{Runtime, handler_fn};
/// let runtime = Runtime::builder(handler_fn(|word: String| word.len())).start()?;
/// # Ok::<(), shinjuku::StartError>(())
/// ```
pub fn handler_fn<F, Request, Reply>(
    function: F,
) -> impl RequestHandler<Request = Request, Reply = Reply, PerCore = ()>
where
    F: Fn(Request) -> Reply + Send + Sync + 'static,
    Request: Send + 'static,
    Reply: Send + 'static,
{
    FromFn {
        function,
        signature: PhantomData,
    }
}

struct FromFn<F, Request, Reply> {
    function: F,
    signature: PhantomData<fn(Request) -> Reply>,
}

impl<F, Request, Reply> RequestHandler for FromFn<F, Request, Reply>
where
    F: Fn(Request) -> Reply + Send + Sync + 'static,
    Request: Send + 'static,
    Reply: Send + 'static,
{
    type Request = Request;
    type Reply = Reply;
    type PerCore = ();

    fn init_per_core(&self, _: usize) {}

    fn handle_request(&self, request: Request, _: &RequestContext<'_, ()>) -> Reply {
        (self.function)(request)
    }
}
