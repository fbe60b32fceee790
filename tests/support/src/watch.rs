//! Threads that must not call the allocator, and how a test notices that they do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shinjuku::net::{Arrival, Failure, Refusal, Transport};
use shinjuku_preempt::stress::{Allocations, allocations_of_this_thread};

/// The threads under watch, and how often each called the allocator.
#[derive(Default, Debug)]
pub struct WatchedThreads(Mutex<Vec<(String, Allocations)>>);

impl WatchedThreads {
    /// Watches no threads yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Watches the calling thread from now on, and allocates for that.
    pub fn add_this_thread(&self) {
        let name = std::thread::current().name().unwrap_or("?").to_owned();
        let mut threads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        threads.push((name, allocations_of_this_thread()));
    }

    /// Stops watching all threads.
    pub fn clear(&self) {
        let mut threads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        threads.clear();
    }

    /// Each thread's calls so far, in the threads' order.
    #[must_use]
    pub fn counts(&self) -> Vec<(String, u64)> {
        let threads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = threads.iter();
        counts
            .map(|(name, allocations)| (name.clone(), allocations.count()))
            .collect()
    }
}

/// The calls of each thread between two [`counts`](WatchedThreads::counts).
#[must_use]
pub fn grown(before: &[(String, u64)], after: Vec<(String, u64)>) -> Vec<(String, u64)> {
    assert_eq!(before.len(), after.len(), "all threads are known by then");
    let both = before.iter().zip(after);
    both.map(|((name, before), (_, after))| (name.clone(), after - before))
        .collect()
}

/// A transport whose first poll registers its thread.
#[derive(Debug)]
pub struct Watched<Tr> {
    transport: Tr,
    threads: &'static WatchedThreads,
    known: bool,
    /// Whether it calls the allocator for each request, against the rules.
    sloppy: bool,
    delivered: Arc<AtomicU64>,
}

impl<Tr> Watched<Tr> {
    /// Watches the thread that polls `transport`. If `sloppy`, this calls the allocator for each
    /// request, to show that the test would notice that.
    #[must_use]
    pub fn new(transport: Tr, threads: &'static WatchedThreads, sloppy: bool) -> Self {
        Self {
            transport,
            threads,
            known: false,
            sloppy,
            delivered: Arc::default(),
        }
    }

    /// How many requests it has delivered. A request counts after the call of the allocator for it.
    #[must_use]
    pub fn delivered(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.delivered)
    }

    /// The transport that it watches.
    #[must_use]
    pub fn into_inner(self) -> Tr {
        self.transport
    }
}

impl<Tr: Transport> Transport for Watched<Tr> {
    type Request = Tr::Request;
    type Reply = Tr::Reply;
    type Route = Tr::Route;
    type Outgoing = Tr::Outgoing;
    type Replier = Tr::Replier;

    fn poll(
        &mut self,
        now_nanos: u64,
        room: usize,
        mut deliver: impl FnMut(Arrival<Tr::Request, Tr::Route>),
    ) {
        if !std::mem::replace(&mut self.known, true) {
            self.threads.add_this_thread();
        }
        let (sloppy, delivered) = (self.sloppy, &*self.delivered);
        self.transport.poll(now_nanos, room, |arrival| {
            if sloppy {
                drop(std::hint::black_box(Box::new(arrival.class)));
            }
            delivered.fetch_add(1, Ordering::Release);
            deliver(arrival);
        });
    }

    fn refuse(&mut self, request: Tr::Request, route: Tr::Route, cause: Refusal) {
        self.transport.refuse(request, route, cause);
    }

    fn conclude(route: Tr::Route, result: Result<Tr::Reply, Failure>) -> Tr::Outgoing {
        Tr::conclude(route, result)
    }

    fn replier(&mut self) -> std::io::Result<Tr::Replier> {
        self.transport.replier()
    }

    fn wait(&mut self, patience: Duration) {
        self.transport.wait(patience);
    }

    fn close(&mut self) {
        self.transport.close();
    }
}

/// A handler's work: allocates, grows and frees memory of all sizes.
pub fn churn(seed: u64) {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut held: Vec<Vec<u8>> = Vec::new();
    for _ in 0..200 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let size = (random >> 20) as usize % (1 << (4 + (random >> 8) % 15));
        match random % 3 {
            0 => held.push(Vec::with_capacity(size)),
            1 => held.iter_mut().for_each(|block| block.reserve_exact(size)),
            _ if !held.is_empty() => drop(held.swap_remove(size % held.len())),
            _ => {}
        }
    }
}
