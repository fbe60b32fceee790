//! After start, the preemptive server's dispatcher and workers never call the allocator.
#![allow(missing_docs)]

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use shinjuku_elevate::ElevateError;
use shinjuku_elevate::server::{Server, ServerConfig, Source};
use shinjuku_preempt::stress::{Allocations, CountingAllocator, allocations_of_this_thread};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const REQUESTS: u64 = 2000;
const PATIENCE: Duration = Duration::from_secs(60);

/// The threads met so far.
static THREADS: Mutex<Vec<Allocations>> = Mutex::new(Vec::new());

thread_local! {
    static KNOWN: OnceLock<()> = const { OnceLock::new() };
}

/// Watches the calling thread from now on.
fn watch() {
    KNOWN.with(|known| {
        known.get_or_init(|| THREADS.lock().unwrap().push(allocations_of_this_thread()));
    });
}

fn allocations() -> (usize, u64) {
    let threads = THREADS.lock().unwrap();
    let counts = threads.iter().map(|thread| thread.count());
    (threads.len(), counts.sum())
}

/// Numbers, as many as were asked for.
struct Numbers {
    wanted: Arc<AtomicU64>,
    given: u64,
    /// Whether it allocates where it must not, to show that this would be noticed.
    sloppy: bool,
}

impl Source for Numbers {
    type Request = u64;

    fn poll(&mut self) -> Option<u64> {
        watch();
        if self.given == self.wanted.load(SeqCst) {
            return None;
        }
        if self.sloppy {
            drop(std::hint::black_box(Box::new(self.given)));
        }
        self.given += 1;
        Some(self.given)
    }

    fn wait(&mut self) -> Option<u64> {
        std::thread::sleep(Duration::from_millis(1));
        None
    }
}

/// Calls of the allocator while many requests are served, some of them preempted; `None` without
/// the permission.
fn calls(sloppy: bool) -> Option<u64> {
    THREADS.lock().unwrap().clear();
    let (wanted, served) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let source = Numbers {
        wanted: Arc::clone(&wanted),
        given: 0,
        sloppy,
    };
    let count = Arc::clone(&served);
    let cores = rustix::thread::sched_getaffinity(None).unwrap();
    let core = (0..1024).rev().find(|core| cores.is_set(*core)).unwrap();
    let config = ServerConfig::new(core)
        .workers(4)
        .threshold(Duration::from_micros(200));
    let server = Server::start(config, source, move |number: u64| {
        watch();
        let begun = Instant::now();
        while number.is_multiple_of(100) && begun.elapsed() < Duration::from_millis(1) {
            std::hint::spin_loop();
        }
        count.fetch_add(1, SeqCst);
    });
    let server = match server {
        Err(ElevateError::Refused(error)) => {
            println!("SKIPPED after_start_nothing_is_allocated: {error}");
            return None;
        }
        server => server.unwrap(),
    };
    let serve = |upto| {
        wanted.store(upto, SeqCst);
        let deadline = Instant::now() + PATIENCE;
        while served.load(SeqCst) < upto {
            assert!(Instant::now() < deadline, "the requests are not served");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    // Until all threads are known, which those are that serve long requests, too.
    let mut upto = 0;
    let mut known = 0;
    for _ in 0..20 {
        upto += REQUESTS;
        serve(upto);
        let (threads, before) = allocations();
        if threads == known {
            serve(upto + REQUESTS);
            let (threads, after) = allocations();
            if threads == known {
                let report = server.stop();
                assert!(report.preemptions > 0, "{report:?}");
                return Some(after - before);
            }
            upto += REQUESTS;
        }
        known = threads;
    }
    panic!("new threads keep coming");
}

#[test]
fn after_start_nothing_is_allocated() {
    if let Some(calls) = calls(false) {
        assert_eq!(calls, 0);
        let sloppy = self::calls(true).unwrap();
        assert!(sloppy >= REQUESTS, "{sloppy} would be noticed");
    }
}
