//! After start the dispatcher and the workers' own code never call the allocator, under any policy
//! and transport, while 64 contexts are preempted within malloc and may hold its locks.
//!
//! A context has its own thread-locals. So the counting allocator tells three things apart: the
//! handlers' calls, the calls of the threads that run them, and those threads' calls between two
//! requests on a context's stack.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use shinjuku::net::udp::{Datagram, DatagramReply, Udp, UdpConfig};
use shinjuku::policy::{
    ClassId, FlowId, Full, Nanos, ParameterError, Parameters, Policy, PolicyName, Task, TaskId,
    Want, WorkerId,
    registry::{self, Registered},
};
use shinjuku::{
    ClassConfig, Config, ContextKind, DispatcherConfig, Handle, LayoutKind, MechanismKind,
    RequestContext, RequestHandler, Runtime, ShutdownReport, Statistics, SubmitOptions, Ticket,
    preempt_point,
};
use shinjuku_preempt::in_context;
use shinjuku_preempt::stress::{allocations_between_jobs, contexts_in_the_allocator};
use shinjuku_tests_support::runtime::{config, token};
use shinjuku_tests_support::watch::{WatchedThreads, grown};
use shinjuku_tests_support::{PATIENCE, turn, wait_for};

const CONTEXTS: usize = 64;
const WORKERS: usize = 2;
/// Requests sent together: some wait, so that every context is in use.
const WINDOW: usize = CONTEXTS + 16;
/// How many more contexts than threads must be within the allocator: so many are suspended there.
/// One is enough, and there are seldom many: the holder of the allocator's lock goes on soon, since
/// the requests that wait for the lock stand aside.
const SUSPENDED: usize = 1;
/// No more threads than this run contexts, spare workers included.
const THREADS_AT_MOST: usize = WORKERS + 16;

/// The classes: two that are served, and one whose requests are too late.
const HASTY: u16 = 2;
const UNKNOWN: u16 = 3;

fn configuration(kind: impl Into<PolicyName>) -> Config {
    let mut config = config(WORKERS, MechanismKind::Signal);
    config.contexts = CONTEXTS;
    config.queue = 4 * WINDOW;
    config.policy.kind = kind.into();
    config.policy.quantum_us = 50.0;
    let class = |name| ClassConfig::new(name).slo_us(100.0);
    config.class = vec![
        class("even"),
        class("odd"),
        class("hasty").deadline_us(0.001),
    ];
    config
}

/// The threads that must not allocate, and their calls.
#[derive(Default)]
struct Watch {
    threads: WatchedThreads,
    /// The most contexts that were within the allocator when one had just been preempted.
    most_in_the_allocator: AtomicUsize,
    /// Requests whose end the policy was told of.
    finished: AtomicUsize,
    /// Requests whose end the policy was told of on the context's stack: another request follows
    /// there at once.
    followed: AtomicUsize,
    /// While true, requests that start wait, and so do the requests behind them.
    held: AtomicBool,
}

impl Watch {
    fn counts(&self) -> Vec<(String, u64)> {
        let mut counts = self.threads.counts();
        counts.sort();
        counts.push((BETWEEN.to_owned(), allocations_between_jobs()));
        counts
    }
}

/// Serves with a function, and watches the workers' threads, spare ones included.
struct Watched<Request, Reply> {
    serve: fn(Request) -> Reply,
    watch: Arc<Watch>,
}

impl<Request: Send + 'static, Reply: Send + 'static> RequestHandler for Watched<Request, Reply> {
    type Request = Request;
    type Reply = Reply;
    type PerCore = ();

    fn init_per_core(&self, _: usize) {
        self.watch.threads.add_this_thread();
    }

    fn handle_request(&self, request: Request, _: &RequestContext<'_, ()>) -> Reply {
        while self.watch.held.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        (self.serve)(request)
    }
}

/// The name of a policy under watch.
const WATCHED: &str = "watched";

/// The policy, which the dispatcher calls on its own thread.
struct WatchedPolicy {
    policy: Box<dyn Policy>,
    watch: Arc<Watch>,
    seen: bool,
    /// Whether it allocates where it must not.
    sloppy: bool,
}

impl WatchedPolicy {
    /// A request has ended.
    fn note(&self, task: Task) {
        if self.sloppy {
            drop(std::hint::black_box(Box::new(task)));
        }
        let followed = usize::from(in_context());
        self.watch.followed.fetch_add(followed, Ordering::Release);
        self.watch.finished.fetch_add(1, Ordering::Release);
    }
}

impl Policy for WatchedPolicy {
    fn arrive(&mut self, task: Task) -> Result<(), Full> {
        if !std::mem::replace(&mut self.seen, true) {
            self.watch.threads.add_this_thread();
        }
        self.policy.arrive(task)
    }
    fn preempted(&mut self, task: Task, worker: WorkerId, now: Nanos) {
        let most = &self.watch.most_in_the_allocator;
        most.fetch_max(contexts_in_the_allocator(), Ordering::Relaxed);
        self.policy.preempted(task, worker, now);
    }
    fn returned(&mut self, task: Task, worker: WorkerId) {
        self.policy.returned(task, worker);
    }
    fn finished(&mut self, task: Task, worker: WorkerId) {
        self.note(task);
        self.policy.finished(task, worker);
    }
    fn finished_after(&mut self, task: Task, worker: WorkerId, ran: Nanos) {
        self.note(task);
        self.policy.finished_after(task, worker, ran);
    }
    fn next(&mut self, worker: WorkerId, now: Nanos, want: Want) -> Option<Task> {
        self.policy.next(worker, now, want)
    }
    fn remove(&mut self, id: TaskId, worker: WorkerId) -> Option<Task> {
        self.policy.remove(id, worker)
    }
    fn quantum(&self, task: &Task) -> Option<Nanos> {
        self.policy.quantum(task)
    }
    fn waiting(&self, worker: WorkerId, want: Want) -> usize {
        self.policy.waiting(worker, want)
    }
    fn len(&self) -> usize {
        self.policy.len()
    }
    fn name(&self) -> String {
        self.policy.name()
    }
}

type Build = Box<dyn FnMut(&Parameters) -> Result<Box<dyn Policy>, ParameterError>>;

/// Puts a policy under watch: `config` then names the watched policy, which is built as the one
/// that it named before.
fn under_watch(config: &mut Config, watch: &Arc<Watch>, sloppy: bool) -> Build {
    let name = std::mem::replace(&mut config.policy.kind, WATCHED.into());
    let watch = Arc::clone(watch);
    Box::new(move |parameters| {
        Ok(Box::new(WatchedPolicy {
            policy: registry::named(name.as_str()).unwrap().build(parameters)?,
            watch: Arc::clone(&watch),
            seen: false,
            sloppy,
        }))
    })
}

/// A handler's work: allocates, grows and frees memory of all sizes, some of it allocated by other
/// contexts.
fn churn(seed: u64) -> u64 {
    const ROUNDS: u64 = 200;
    static SHELF: [Mutex<Vec<u8>>; 16] = [const { Mutex::new(Vec::new()) }; 16];
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut held: Vec<Vec<u8>> = Vec::new();
    for _ in 0..ROUNDS {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let size = (random >> 20) as usize % (1 << (4 + (random >> 8) % 15));
        match random % 4 {
            0 => held.push(Vec::with_capacity(size)),
            1 => held.iter_mut().for_each(|block| block.reserve_exact(size)),
            2 if !held.is_empty() => drop(held.swap_remove(size % held.len())),
            _ => {
                // Without waiting, since the holder may be suspended.
                if let Ok(mut theirs) = SHELF[size % SHELF.len()].try_lock() {
                    *theirs = Vec::with_capacity(size);
                }
            }
        }
    }
    seed
}

/// Sends requests.
trait Client {
    /// Sends a request that is answered.
    fn submit(&mut self, number: u64);
    /// Sends a request that is refused.
    fn submit_in_vain(&mut self, class: u16);
    /// Waits for the reply to a request that is answered.
    fn wait(&mut self);
    fn statistics(&self) -> Statistics;
}

/// The event that has to happen often enough. It is counted as it happens. Answers tell the client
/// too late, since most of its requests can have ended when it looks; and how many requests follow
/// each other on one context depends on the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Enough {
    /// Requests that ended.
    Finished,
    /// Requests that another one followed at once, on the same context.
    Followed,
    /// Requests that ended, and preemptions; after one preemption, this many contexts were within
    /// the allocator.
    Preempted(usize),
}

impl Enough {
    const MANY_SUSPENDED: Self = Self::Preempted(THREADS_AT_MOST + SUSPENDED);

    fn under(kind: Registered) -> Self {
        match kind.name {
            // The preempted request keeps its place, so it runs before requests that have not
            // started. One preemption is enough: its worker runs nothing when it is counted.
            "edf" | "priority" => Self::Preempted(WORKERS),
            _ if kind.preempts => Self::MANY_SUSPENDED,
            _ => Self::Finished,
        }
    }

    /// How many requests counted so far.
    fn requests(self, watch: &Watch) -> usize {
        let told = match self {
            Self::Finished | Self::Preempted(_) => &watch.finished,
            Self::Followed => &watch.followed,
        };
        told.load(Ordering::Acquire)
    }
}

/// Sends requests, a window at a time, until there was enough of everything. Returns the calls of
/// the threads that must not allocate, from the time when every context had been used.
fn steady_state(client: &mut impl Client, watch: &Watch, enough: Enough) -> Vec<(String, u64)> {
    let start = std::time::Instant::now();
    let (mut sent, mut answered) = (0, 0);
    let mut warm = None;
    loop {
        if sent == answered {
            // Otherwise, with fewer free cores than threads, each request could be served before
            // the next one is sent.
            watch.held.store(true, Ordering::Release);
            (0..WINDOW as u64).for_each(|number| client.submit(sent + number));
            sent += WINDOW as u64;
            watch.held.store(false, Ordering::Release);
        }
        client.wait();
        answered += 1;
        if answered.is_multiple_of(8) {
            client.submit_in_vain(HASTY);
            client.submit_in_vain(UNKNOWN);
        }
        let Some((at, before)) = &warm else {
            if answered == 2 * CONTEXTS as u64 {
                // The calls are counted before the requests here, and after them at the end. So the
                // calls of all counted requests are counted.
                let before = watch.counts();
                warm = Some((enough.requests(watch), before));
            }
            continue;
        };
        let statistics = client.statistics();
        let most = watch.most_in_the_allocator.load(Ordering::Relaxed);
        let preempted = match enough {
            Enough::Preempted(wanted) => statistics.preemptions.taken() > 200 && most >= wanted,
            Enough::Finished | Enough::Followed => true,
        };
        let requests = enough.requests(watch) - at;
        if requests > 100 && statistics.refused.total() > 10 && preempted {
            let after = watch.counts();
            while answered < sent {
                client.wait();
                answered += 1;
            }
            return grown(before, after);
        }
        assert!(
            start.elapsed() < PATIENCE,
            "not enough happened: {answered} answered, {requests} that count, {most} contexts in the allocator, {statistics}"
        );
    }
}

/// The name for all threads' calls between two requests.
const BETWEEN: &str = "between requests";

/// The watched threads.
const THREADS: [&str; 3] = [
    "shinjuku-dispatcher",
    "shinjuku-worker-0",
    "shinjuku-worker-1",
];

fn assert_none(grown: &[(String, u64)], threads: &[&str], how: &str) {
    for expected in threads {
        assert!(
            grown.iter().any(|(name, _)| name == expected),
            "{expected} is watched: {grown:?}"
        );
    }
    let guilty: Vec<_> = grown.iter().filter(|(_, calls)| *calls > 0).collect();
    assert!(guilty.is_empty(), "{how}: calls of malloc: {guilty:?}");
}

// --- in process ----------------------------------------------------------------------------------

struct InProcess {
    /// Not dropped when a test fails: a dispatcher that hangs in malloc does not end.
    runtime: ManuallyDrop<Runtime<u64, u64>>,
    handle: Handle<u64, u64>,
    tickets: VecDeque<(u64, Ticket<u64>)>,
}

impl InProcess {
    fn start(config: Config, watch: &Arc<Watch>, sloppy: bool) -> Self {
        Self::serving(churn, config, watch, sloppy)
    }

    fn serving(
        serve: fn(u64) -> u64,
        mut config: Config,
        watch: &Arc<Watch>,
        sloppy: bool,
    ) -> Self {
        let policy = under_watch(&mut config, watch, sloppy);
        let handler = Watched {
            serve,
            watch: Arc::clone(watch),
        };
        let runtime = Runtime::builder(handler)
            .config(config)
            .policy_with(WATCHED, policy)
            .allow_hard_preemption(token())
            .start()
            .unwrap();
        Self {
            handle: runtime.handle(),
            runtime: ManuallyDrop::new(runtime),
            tickets: VecDeque::new(),
        }
    }
}

impl InProcess {
    fn shutdown(self) -> ShutdownReport {
        ManuallyDrop::into_inner(self.runtime).shutdown(PATIENCE)
    }
}

impl Client for InProcess {
    fn submit(&mut self, number: u64) {
        let options = SubmitOptions::new(ClassId((number % 2) as u16)).flow(FlowId(number % 13));
        let ticket = self.handle.submit_with(options, number).unwrap();
        self.tickets.push_back((number, ticket));
    }

    fn submit_in_vain(&mut self, class: u16) {
        // No thread waits for the answer.
        drop(self.handle.submit(ClassId(class), 0).unwrap());
    }

    fn wait(&mut self) {
        let (number, mut ticket) = self.tickets.pop_front().unwrap();
        let answer = ticket.wait_timeout(PATIENCE).expect("an answer in time");
        assert_eq!(answer, Ok(number));
    }

    fn statistics(&self) -> Statistics {
        self.runtime.statistics()
    }
}

/// No thread allocates in a runtime that is configured so.
fn assert_none_in_process(config: Config, enough: Enough, threads: &[&str], how: &str) {
    let watch = Arc::default();
    let mut client = InProcess::start(config, &watch, false);
    let grown = steady_state(&mut client, &watch, enough);
    assert_none(&grown, threads, how);
    let report = client.shutdown();
    assert!(report.is_clean(), "{how}: {report}");
    assert_eq!(report.policy_error, None, "{how}");
}

/// With such contexts the worker's loop runs on the contexts' own threads.
#[test]
fn on_kernel_threads_no_thread_allocates() {
    let _turn = turn();
    for &kind in registry::ALL.iter().filter(|kind| kind.preempts) {
        let config = configuration(kind).context_kind(ContextKind::KernelThread);
        assert_none_in_process(config, Enough::under(kind), &THREADS, kind.name);
    }
}

#[test]
fn in_process_no_thread_allocates_under_any_policy() {
    let _turn = turn();
    for &kind in registry::ALL {
        let config = configuration(kind);
        assert_none_in_process(config, Enough::under(kind), &THREADS, kind.name);
    }
}

#[test]
fn in_process_no_thread_allocates_with_requests_staged_and_recalled() {
    let _turn = turn();
    let config = configuration("c-pre-sq").depth(4);
    assert_none_in_process(config, Enough::MANY_SUSPENDED, &THREADS, "depth 4");
}

#[test]
fn in_process_no_thread_allocates_inline() {
    let _turn = turn();
    for kind in ["c-pre-sq", "c-pre-mq"] {
        let config = configuration(kind).layout(LayoutKind::Inline).workers(None);
        assert_none_in_process(config, Enough::MANY_SUSPENDED, &["shinjuku-inline"], kind);
    }
}

#[test]
fn in_process_no_thread_allocates_in_symmetric_loops() {
    let _turn = turn();
    for kind in ["c-pre-sq", "c-pre-mq"] {
        let mut config = configuration(kind).layout(LayoutKind::Symmetric);
        // A deadline passes while Linux runs other threads in the place of a loop. With a short one
        // a busy machine preempts a request before it gets anywhere.
        config.policy.quantum_us *= 5.0;
        let loops = ["shinjuku-loop-0", "shinjuku-loop-1", BETWEEN];
        assert_none_in_process(config, Enough::MANY_SUSPENDED, &loops, kind);
    }
}

/// Allocates, and probes for longer than the dispatcher stays.
fn churn_and_probe(seed: u64) -> u64 {
    let start = std::time::Instant::now();
    churn(seed);
    while start.elapsed() < std::time::Duration::from_micros(50) {
        preempt_point();
    }
    seed
}

/// Its threads run handlers, too, and these allocate in their contexts, as everywhere.
#[test]
fn in_process_no_thread_allocates_where_the_dispatcher_works() {
    let _turn = turn();
    let watch = Arc::<Watch>::default();
    let handler = Watched {
        serve: churn_and_probe,
        watch: Arc::clone(&watch),
    };
    let mut config = configuration("c-pre-sq").dispatcher(DispatcherConfig::default().works(true));
    config.preemption.mechanism = MechanismKind::Probe;
    let runtime = Runtime::builder(handler).config(config).start().unwrap();
    let handle = runtime.handle();
    let serve_until = |begun: u64| {
        let start = std::time::Instant::now();
        while runtime.statistics().run_by_dispatcher < begun {
            let tickets: Vec<_> = (0..WINDOW as u64)
                .map(|number| (number, handle.submit(ClassId(0), number).unwrap()))
                .collect();
            for (number, mut ticket) in tickets {
                let answer = ticket.wait_timeout(PATIENCE).expect("an answer in time");
                assert_eq!(answer, Ok(number));
            }
            assert!(start.elapsed() < PATIENCE, "it seldom works");
        }
        runtime.statistics().run_by_dispatcher
    };
    let begun = serve_until(200);
    let before = watch.counts();
    serve_until(begun + 1_000);
    let after = watch.counts();
    let threads = [&THREADS[..], &["shinjuku-relief"]].concat();
    assert_none(&grown(&before, after), &threads, "a dispatcher that works");
    let preemptions = runtime.statistics().preemptions;
    assert!(preemptions.taken() > 0, "{preemptions:?}");
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// Mostly work that ends before the network is polled again: such requests follow each other on one
/// context.
fn mostly_short(seed: u64) -> u64 {
    if seed.is_multiple_of(16) {
        return churn(seed);
    }
    drop(std::hint::black_box(Box::new(seed)));
    seed
}

fn in_succession(sloppy: bool) -> Vec<(String, u64)> {
    let watch = Arc::default();
    let config = configuration("c-fcfs")
        .layout(LayoutKind::Inline)
        .workers(None);
    let mut client = InProcess::serving(mostly_short, config, &watch, sloppy);
    let grown = steady_state(&mut client, &watch, Enough::Followed);
    assert!(client.shutdown().is_clean());
    grown
}

#[test]
fn in_process_no_thread_allocates_between_requests() {
    let _turn = turn();
    let grown = in_succession(false);
    assert_none(&grown, &["shinjuku-inline", BETWEEN], "in succession");
}

#[test]
fn a_policy_that_allocates_between_requests_is_noticed() {
    let _turn = turn();
    let grown = in_succession(true);
    let between = grown.iter().find(|(name, _)| name == BETWEEN).unwrap();
    assert!(between.1 > 100, "two calls a request: {grown:?}");
}

#[test]
fn a_policy_that_allocates_is_noticed() {
    let _turn = turn();
    let watch = Arc::default();
    let mut client = InProcess::start(configuration("c-fcfs"), &watch, true);
    let grown = steady_state(&mut client, &watch, Enough::Finished);
    let dispatcher = grown
        .iter()
        .find(|(name, _)| name == "shinjuku-dispatcher")
        .unwrap();
    assert!(dispatcher.1 > 100, "two calls a request: {grown:?}");
    assert!(client.shutdown().is_clean());
}

// --- UDP -----------------------------------------------------------------------------------------

type Server<C> = shinjuku::Server<Udp<C>>;

/// Several sockets, so that there are several flows.
struct OverUdp<C: shinjuku::net::udp::Classifier> {
    /// Not dropped when a test fails, as above.
    server: ManuallyDrop<Server<C>>,
    sockets: Vec<(UdpSocket, u64)>,
}

impl<C: shinjuku::net::udp::Classifier> Client for OverUdp<C> {
    fn submit(&mut self, number: u64) {
        let at = number as usize % self.sockets.len();
        let (socket, unanswered) = &mut self.sockets[at];
        let mut request = number.to_le_bytes().to_vec();
        request.push((number % 2) as u8);
        socket.send(&request).unwrap();
        *unanswered += 1;
    }

    fn submit_in_vain(&mut self, class: u16) {
        let request = [0, 0, 0, 0, 0, 0, 0, 0, class as u8];
        self.sockets[0].0.send(&request).unwrap();
    }

    fn wait(&mut self) {
        let (socket, unanswered) = self.sockets.iter_mut().max_by_key(|(_, n)| *n).unwrap();
        let mut reply = [0; 64];
        let length = socket.recv(&mut reply).expect("a reply in time");
        assert_eq!(length, 9);
        *unanswered -= 1;
    }

    fn statistics(&self) -> Statistics {
        self.server.statistics()
    }
}

#[test]
fn over_udp_no_thread_allocates_under_any_policy() {
    let _turn = turn();
    for &kind in registry::ALL {
        let watch: Arc<Watch> = Arc::default();
        let mut config = configuration(kind);
        let udp = Udp::bind_classified(
            UdpConfig::new("127.0.0.1:0".parse().unwrap()).max_datagram(64),
            |datagram: &[u8], _| datagram.get(8).map(|&class| u16::from(class)),
        )
        .unwrap();
        let address = udp.local_addr();
        let handler = Watched {
            serve: (|request| {
                churn(u64::from_le_bytes(request[..8].try_into().unwrap()));
                Some(request.echo())
            }) as fn(Datagram) -> Option<DatagramReply>,
            watch: Arc::clone(&watch),
        };
        let policy = under_watch(&mut config, &watch, false);
        let server = Runtime::builder(handler)
            .config(config)
            .policy_with(WATCHED, policy)
            .allow_hard_preemption(token())
            .serve(udp)
            .unwrap();
        let sockets = (0..5).map(|_| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(address).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            (socket, 0)
        });
        let mut client = OverUdp {
            server: ManuallyDrop::new(server),
            sockets: sockets.collect(),
        };
        let grown = steady_state(&mut client, &watch, Enough::under(kind));
        assert_none(&grown, &THREADS, &format!("{kind}"));
        wait_for("the last answer's count", || {
            client.server.statistics().started == 0
        });
        let (report, _) = ManuallyDrop::into_inner(client.server).shutdown(PATIENCE);
        assert!(report.is_clean(), "{kind}: {report}");
    }
}
