//! A pool for closures, from any async runtime and any thread.
//!
//! ```text
//!  Pool::run ──▶ Closure (one Arc) ──token──▶ in-process transport ──▶ dispatcher ──▶ context
//!      │                                                                                │ run
//!      └──▶ Job: await, wait, drop ◀──────────────── answer ────────────────────────────┘
//! ```
//!
//! The runtime's request is a *token*, a reference to the closure; the closure answers its job
//! itself. So the dispatcher moves a pointer, and never drops a user's value.

mod call;
mod error;
mod job;
mod options;
mod scope;
mod standstill;
mod urgent;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use shinjuku_net::{Arrival, Refusal};
use shinjuku_policy::{ClassId, Nanos};
use shinjuku_preempt::{Clock, HardPreemption, lend};

use crate::builder::Builder;
use crate::completion_thread::CompletionThread;
use crate::config::{
    ClassConfig, Config, ContextKind, CoresConfig, DispatcherConfig, Help, LayoutKind,
    PolicyConfig, PreemptionConfig, StallsConfig, config_keys,
};
use crate::handler::{RequestContext, RequestHandler};
use crate::in_process::{Handle, RefusedAtSubmit, flow_of_this_thread};
use crate::layout::needs_dispatcher;
use crate::observer::Observer;
use crate::runtime::{Runtime, ShutdownReport};
use crate::start_error::StartError;
use crate::statistics::Statistics;
use crate::ticket::Route;
use crate::timeline::{RecordError, Trace};
use crate::watch::WatchSocket;

use call::{Call, Closure, Ended, Order, refuse_queued, run_as_current};
use options::ClassKey;
use urgent::Urgent;

pub use error::{Panic, RunError};
pub use job::{Cancelled, Job, cancellation_point, cancellation_point_or_unwind};
pub use options::{Class, RunOptions};
pub use scope::{Scope, ScopedJob};
pub(crate) use standstill::{Lookout, Standstill};

/// Runs closures of any type, short ones past long ones.
///
/// ```
/// use shinjuku::Pool;
///
/// let pool = Pool::new(["interactive", "batch"])?;
/// let text = String::from("a needle in a haystack");
/// let hits = pool.run("interactive", move || text.matches("needle").count());
/// // In async code, under any runtime: `hits.await?`
/// assert_eq!(hits.wait()?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// - A closure costs one allocation. Classes go by name, or by a [`Class`] looked up once.
/// - Closures are preempted where their code has probes ([`preemptible`](crate::preemptible)),
///   elsewhere with [`PoolBuilder::allow_hard_preemption`].
/// - Closures may block, wait for other closures of the same pool, and use rayon, tokio's handle or
///   `block_on`: another thread takes the place of a blocked worker. With the mechanism `none` no
///   thread does, and a closure that waits for another may wait for ever.
/// - The pool is shared by reference or in an [`Arc`]. Dropping it shuts it down, with a deadline
///   of one second, and blocks meanwhile; closures that were submitted before run. Dropped within a
///   closure or by a job's waker, as the last `Arc` may be, it ends in the background.
pub struct Pool {
    runtime: Runtime<Arc<dyn Call>, Ended>,
    handle: Handle<Arc<dyn Call>, Ended>,
    completion: Arc<CompletionThread>,
    classes: Box<[PoolClass]>,
    turned_away: Arc<TurnedAway>,
    _watch: Option<WatchSocket>,
}

/// What the pool knows of a class.
struct PoolClass {
    name: String,
    deadline: Option<Nanos>,
    urgent: Arc<Urgent>,
}

impl Pool {
    /// Starts a pool with these classes, the most urgent first: of two closures that wait, the one
    /// of the earlier class runs, and a closure is preempted for those of earlier classes. The pool
    /// is there beside whatever else the process does: layout `symmetric`, with as many loops as
    /// cores. A loop parks when it is idle, and is not pinned unless all cores of the process are
    /// isolated. [`description`](Self::description) says which mechanism was chosen.
    ///
    /// # Errors
    /// [`StartError`] says what is in the way. No thread of the pool is left running then.
    pub fn new<Name: Into<String>>(
        classes: impl IntoIterator<Item = Name>,
    ) -> Result<Self, StartError> {
        Self::builder(classes).start()
    }

    /// Begins to configure a pool with these classes, the most urgent first. So the policy of
    /// several is `priority`, unless another is set.
    pub fn builder<Name: Into<String>>(classes: impl IntoIterator<Item = Name>) -> PoolBuilder {
        let config = Config::default().class(classes.into_iter().map(ClassConfig::new));
        let config = match config.class.len() {
            0 | 1 => config,
            _ => config.policy(PolicyConfig::new("priority")),
        };
        PoolBuilder {
            config,
            token: None,
        }
    }

    /// Runs `closure`. The [`Job`] brings its result, or a refusal: the queue is full, there is no
    /// such class, or the pool shuts down.
    ///
    /// ```
    /// use shinjuku::net::Refusal;
    /// use shinjuku::{Pool, RunError};
    ///
    /// let pool = Pool::new(["batch"])?;
    /// let batch = pool.class("batch").unwrap();
    /// let jobs: Vec<_> = (0..10u64).map(|n| pool.run(batch, move || n * n)).collect();
    /// let squares = jobs.into_iter().map(|job| job.wait()).sum::<Result<u64, _>>()?;
    /// assert_eq!(squares, 285);
    ///
    /// let refused = pool.run("bathc", || ()).wait();
    /// assert!(matches!(refused, Err(RunError::Refused(Refusal::UnknownClass))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run<'a, F, R>(&self, options: impl Into<RunOptions<'a>>, closure: F) -> Job<R>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        let options = options.into();
        let class = self.number(options.class);
        let known = class.and_then(|class| self.classes.get(usize::from(class.0)));
        let arrived_nanos = Clock::get().now_nanos();
        let allowed = match options.deadline {
            Some(allowed) => Some(u64::try_from(allowed.as_nanos()).unwrap_or(u64::MAX)),
            None => known
                .and_then(|class| class.deadline)
                .map(|allowed| allowed.0),
        };
        let order = Order::new(class.unwrap_or_default(), options.priority, arrived_nanos)
            .deadline(allowed.map(|allowed| arrived_nanos.saturating_add(allowed)))
            .span(options.span);
        let closure = Arc::new(Closure::new(order, closure, Arc::clone(&self.completion)));
        let job = Job::new(Arc::clone(&closure) as _);
        if known.is_some() {
            let due = options.deadline.and(closure.order().deadline_nanos);
            self.send(closure, due);
        } else {
            self.handle.refused_at_submit().count(Refusal::UnknownClass);
            refuse_queued(&*closure, Refusal::UnknownClass.into());
        }
        job
    }

    /// Sends a token for `call`, whose own deadline policies order by is `due_nanos`.
    fn send(&self, call: Arc<dyn Call>, due_nanos: Option<u64>) {
        let route = Route::new(Arc::clone(&call) as _);
        let order = call.order();
        let (class, arrived_nanos) = (order.class.0, order.arrived_nanos);
        // Another token may start a closure with a priority, so its deadline is checked then.
        let deadline_nanos = order.deadline_nanos.filter(|_| order.priority == 0);
        if order.priority > 0 {
            self.classes[usize::from(class)]
                .urgent
                .join(Arc::clone(&call));
        }
        let arrival = Arrival::new(call, route, arrived_nanos)
            .class(class)
            .flow(flow_of_this_thread().0)
            .deadline_nanos(deadline_nanos)
            .due_nanos(due_nanos);
        if let Err((arrival, cause)) = self.handle.bring(arrival) {
            arrival.route.answer(Err(cause.into()));
        }
    }

    /// Runs closures that borrow, as `std::thread::scope` does. Returns once all of them have
    /// finished, even if `body` panics. Blocks the calling thread meanwhile, so async code calls it
    /// where it may block.
    ///
    /// ```
    /// use shinjuku::Pool;
    ///
    /// let pool = Pool::new(["batch"])?;
    /// let words = ["zebra", "ant", "bee"];
    /// let mut longest = "";
    /// let letters = pool.scope(|scope| {
    ///     scope.run("batch", || longest = words.iter().max_by_key(|word| word.len()).unwrap());
    ///     let letters = scope.run("batch", || words.iter().map(|word| word.len()).sum::<usize>());
    ///     letters.wait()
    /// });
    /// assert_eq!((longest, letters?), ("zebra", 11));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// With the panic of `body`; or if a closure panicked or was refused, and its job was dropped
    /// without a look at the result.
    pub fn scope<'env, Out>(
        &'env self,
        body: impl for<'scope> FnOnce(Scope<'scope, 'env>) -> Out,
    ) -> Out {
        lend(|lender| body(Scope { lender, pool: self }))
    }

    /// The pool's class of this name.
    #[must_use]
    pub fn class(&self, name: &str) -> Option<Class> {
        self.number(ClassKey::Name(name)).map(Class)
    }

    fn number(&self, class: ClassKey<'_>) -> Option<ClassId> {
        match class {
            ClassKey::Number(number) => Some(number),
            // A search is fast enough, since classes are few.
            ClassKey::Name(name) => (self.classes.iter().zip(0..))
                .find(|(class, _)| class.name == name)
                .map(|(_, number)| ClassId(number)),
        }
    }

    /// What happened so far. A closure that was cancelled before it started counts as refused once
    /// its turn has come. One that unwound at a cancellation point counts as failed.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.observer().statistics()
    }

    /// A view of the statistics that closures and other threads can keep.
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer {
            turned_away: Some(Arc::clone(&self.turned_away)),
            ..self.runtime.observer()
        }
    }

    /// Records which request runs where for `duration`, as [`Observer::record`] does, and blocks
    /// the calling thread meanwhile.
    ///
    /// ```
    /// use std::time::Duration;
    /// # use shinjuku::Pool;
    /// # let pool = Pool::new(["batch"])?;
    /// let trace = pool.record(Duration::from_millis(5))?;
    /// assert!(trace.duration() >= Duration::from_millis(5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`RecordError::Busy`](crate::error::RecordError::Busy) while another thread records.
    pub fn record(&self, duration: Duration) -> Result<Trace, RecordError> {
        self.observer().record(duration)
    }

    /// What the pool chose and why: the line that was logged at start, and the quanta in force now
    /// if they have changed.
    #[must_use]
    pub fn description(&self) -> String {
        self.runtime.description()
    }

    /// Takes no more closures, lets those that were taken finish for at most `deadline`, and ends
    /// all threads. A closure that has started and not finished by then goes on in the background,
    /// and its job resolves to [`RunError::RuntimeEnded`]. A closure that has not started is
    /// refused, or its job resolves to [`RunError::RuntimeEnded`], whichever comes first.
    #[must_use = "the report says what did not finish"]
    pub fn shutdown(self, deadline: Duration) -> ShutdownReport {
        let mut report = self.runtime.shutdown(deadline);
        if let Some(statistics) = &mut report.statistics {
            self.turned_away.add_to(statistics);
        }
        report
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Pool({})", self.description())
    }
}

/// Configures a pool; see [`Pool::builder`]. Each key of [`Config`] is a method of the same name;
/// [`start`](Self::start) checks all values at once.
///
/// ```
/// use shinjuku::{ClassConfig, Pool, PolicyConfig};
///
/// let pool = Pool::builder(["interactive", "batch"])
///     .workers(1)
///     .policy(PolicyConfig::new("priority").quantum_us(50.0))
///     .start()?;
/// println!("{}", pool.description());
/// # Ok::<(), shinjuku::StartError>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until `start`"]
pub struct PoolBuilder {
    config: Config,
    token: Option<HardPreemption>,
}

macro_rules! pool_setters {
    ($config:ident: $($key:ident: $type:ty => $value:expr;)*) => {
        $(
            #[doc = concat!("Sets [`Config::", stringify!($key), "`](field@Config::", stringify!($key), ").")]
            pub fn $key(mut self, $key: $type) -> Self {
                self.config = self.config.$key($key);
                self
            }
        )*
    };
}

impl PoolBuilder {
    /// Takes a whole configuration. The classes that [`Pool::builder`] named keep their places, and
    /// take the settings of the configuration's classes of these names. The configuration's other
    /// classes come after them. All else that was set before is lost, the policy included.
    pub fn config(mut self, mut config: Config) -> Self {
        let mut given = std::mem::take(&mut config.class);
        if given == Config::default().class {
            given.clear();
        }
        let settings = |named: ClassConfig| {
            let same = given.iter().position(|class| class.name == named.name);
            same.map_or(named, |at| given.remove(at))
        };
        config.class = self.config.class.into_iter().map(settings).collect();
        config.class.extend(given);
        self.config = config;
        self
    }

    config_keys!(pool_setters);

    /// Lets mechanisms that interrupt closures at any instruction be used, besides probes.
    pub fn allow_hard_preemption(mut self, token: HardPreemption) -> Self {
        self.token = Some(token);
        self
    }

    /// Starts the pool.
    ///
    /// # Errors
    /// [`StartError`] says what is in the way. No thread of the pool is left running then.
    pub fn start(self) -> Result<Pool, StartError> {
        let Self { mut config, token } = self;
        // The process needs its cores for other things than the pool. So the pool has a
        // dispatcher's thread only if the configuration asks for what only that can do.
        if config.layout == LayoutKind::Auto && needs_dispatcher(&config).is_none() {
            config.layout = LayoutKind::Symmetric;
        }
        config.validate()?;
        let watch = config.watch.take();
        // The pool checks deadlines itself: the runtime would refuse a token, which may run another
        // closure than its own.
        let classes: Box<[_]> = (config.class.iter_mut())
            .map(|class| PoolClass {
                name: class.name.clone(),
                deadline: std::mem::take(&mut class.deadline_us)
                    .and_then(|us| ClassConfig::new("").deadline_us(us).deadline()),
                urgent: Arc::default(),
            })
            .collect();
        let turned_away = Arc::new(TurnedAway::new(classes.len()));
        let tokens = Tokens {
            urgent: (classes.iter())
                .map(|class| Arc::clone(&class.urgent))
                .collect(),
            turned_away: Arc::clone(&turned_away),
        };
        let mut builder = Builder::new(tokens).config(config);
        if let Some(token) = token {
            builder = builder.allow_hard_preemption(token);
        }
        let runtime = builder.start()?;
        let handle = runtime.handle();
        let mut pool = Pool {
            completion: handle.completion_thread(),
            handle,
            runtime,
            classes,
            turned_away,
            _watch: None,
        };
        pool.completion.standstill.watch(pool.observer().started);
        // From now on it looks.
        pool.completion.wake();
        if let Some(path) = watch {
            pool._watch = Some(pool.observer().listen(path)?);
        }
        Ok(pool)
    }
}

/// The handler: what contexts do with tokens.
struct Tokens {
    urgent: Box<[Arc<Urgent>]>,
    turned_away: Arc<TurnedAway>,
}

impl RequestHandler for Tokens {
    type Request = Arc<dyn Call>;
    type Reply = Ended;
    type PerCore = ();

    fn init_per_core(&self, _worker: usize) {}

    fn handle_request(&self, own: Arc<dyn Call>, context: &RequestContext<'_, ()>) -> Ended {
        let class = usize::from(own.order().class.0);
        let Some(call) = self.urgent[class].start(own) else {
            self.turned_away.count(class, Refusal::Cancelled);
            return Ended::TurnedAway;
        };
        context.serve(Nanos(call.order().arrived_nanos));
        if call.order().is_late() {
            self.turned_away.count(class, Refusal::DeadlinePassed);
            call.refuse(RunError::Refused(Refusal::DeadlinePassed));
            return Ended::TurnedAway;
        }
        run_as_current(call)
    }

    fn is_failure(&self, reply: &Ended) -> bool {
        *reply != Ended::Returned
    }
}

/// Counts, by class, tokens that found no closure to run. The runtime counts them as failed.
pub(crate) struct TurnedAway(Box<[RefusedAtSubmit]>);

impl TurnedAway {
    fn new(classes: usize) -> Self {
        Self((0..classes).map(|_| RefusedAtSubmit::default()).collect())
    }

    fn count(&self, class: usize, cause: Refusal) {
        self.0[class].count(cause);
    }

    pub(crate) fn add_to(&self, statistics: &mut Statistics) {
        for (class, turned_away) in self.0.iter().enumerate() {
            statistics.reclassify_as_refused(class, turned_away.refusals());
        }
    }
}
