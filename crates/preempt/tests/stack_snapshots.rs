//! Snapshots of the stack of a context, while its code computes and while it is blocked.
#![allow(missing_docs)]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use shinjuku_preempt::{ContextId, ContextKind, PoolConfig, StackSnapshot, StackSnapshots};
use shinjuku_tests_support::contexts::OneThread;

const PATIENCE: Duration = Duration::from_secs(60);
const MARK: u64 = 0x5a17_0cab_1e5e_ed0f;

/// Runs `job` in a context on a thread of its own, takes snapshots of it until one is as it should
/// be, and then tells the job to end.
fn snapshot_of(
    kind: ContextKind,
    job: fn(&AtomicBool),
    is_good: impl Fn(&StackSnapshot) -> bool,
) -> Option<StackSnapshot> {
    let end = Arc::new(AtomicBool::new(false));
    let (send, link) = mpsc::channel();
    let ends = Arc::clone(&end);
    let worker = thread::spawn(move || {
        let config = PoolConfig::default().contexts(1).kind(kind);
        let mut thread = OneThread::new(config, move |()| {
            job(&ends);
            0
        });
        send.send(thread.worker.link()).unwrap();
        assert_eq!(thread.run(()).ok(), Some(0));
        assert_eq!(thread.hand_back().unwrap().leaked, 0);
    });
    let link = link.recv_timeout(PATIENCE).unwrap();
    let snapshots = StackSnapshots::install().unwrap();
    let start = Instant::now();
    let mut found = None;
    while found.is_none() && start.elapsed() < PATIENCE {
        found = snapshots.take(&link, ContextId(0)).filter(&is_good);
    }
    assert_eq!(
        snapshots
            .take(&link, ContextId(1))
            .filter(|one| one.system_call.is_none()),
        None
    );
    end.store(true, Relaxed);
    worker.join().unwrap();
    found
}

/// A kernel thread is not the worker's own.
const KINDS: [ContextKind; 2] = [ContextKind::Stack, ContextKind::KernelThread];

/// Whether the mark that the job keeps on its stack is in the snapshot.
fn has_mark(snapshot: &StackSnapshot) -> bool {
    let addresses = (snapshot.stack_pointer & !7..).step_by(8);
    let mut words = addresses.map_while(|address| snapshot.word(address));
    words.any(|word| word == MARK)
}

#[test]
fn code_that_computes_is_found_with_its_stack() {
    fn computes(end: &AtomicBool) {
        let mark = AtomicU64::new(MARK);
        while !end.load(Relaxed) {
            black_box(&mark);
        }
    }
    for kind in KINDS {
        let found = snapshot_of(kind, computes, has_mark);
        let found = found.expect("it computes, with its mark on the stack");
        assert!(found.instruction != 0 && found.system_call.is_none());
    }
}

/// Its system call goes on: a sleep that is interrupted by a signal would end, or begin anew.
#[test]
fn code_that_is_blocked_is_found_and_left_alone() {
    fn sleeps(end: &AtomicBool) {
        let mark = AtomicU64::new(MARK);
        while !end.load(Relaxed) {
            thread::sleep(Duration::from_millis(20));
            black_box(&mark);
        }
    }
    let is_good = |one: &StackSnapshot| one.system_call.is_some() && has_mark(one);
    for kind in KINDS {
        assert!(snapshot_of(kind, sleeps, is_good).is_some(), "{kind:?}");
    }
}

/// Two pools number their contexts alike. A signal that one's thread had masked comes while the
/// other's is asked for.
#[test]
fn a_signal_that_comes_late_answers_for_no_other_pool() {
    let (late, other) = (Masks::start(), Masks::start());
    let snapshots = StackSnapshots::install().unwrap();
    assert_eq!(snapshots.take(&late.link, ContextId(0)), None, "masked");
    let found = thread::scope(|scope| {
        let asked = scope.spawn(|| snapshots.take(&other.link, ContextId(0)));
        thread::sleep(Duration::from_millis(10));
        late.unmasks.store(true, Relaxed);
        asked.join().unwrap()
    });
    assert_eq!(found, None, "another pool's stack");
    for pool in [late, other] {
        pool.unmasks.store(true, Relaxed);
        pool.ends.store(true, Relaxed);
        pool.worker.join().unwrap();
    }
}

/// A pool whose only context masks all signals until it is told otherwise.
struct Masks {
    link: shinjuku_preempt::WorkerLink,
    unmasks: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
    worker: thread::JoinHandle<()>,
}

impl Masks {
    fn start() -> Self {
        let (unmasks, ends) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let (send, link) = mpsc::channel();
        let (until, end) = (Arc::clone(&unmasks), Arc::clone(&ends));
        let worker = thread::spawn(move || {
            let config = PoolConfig::default().contexts(1);
            let mut thread = OneThread::new(config, move |link| {
                mask(libc::SIG_BLOCK);
                send.send(link).unwrap();
                while !until.load(Relaxed) {
                    std::hint::spin_loop();
                }
                mask(libc::SIG_UNBLOCK);
                while !end.load(Relaxed) {
                    std::hint::spin_loop();
                }
                0
            });
            assert_eq!(thread.run(thread.worker.link()).ok(), Some(0));
            assert_eq!(thread.hand_back().unwrap().leaked, 0);
        });
        let link = link.recv_timeout(PATIENCE).unwrap();
        Self {
            link,
            unmasks,
            ends,
            worker,
        }
    }
}

/// Blocks or lets through all signals on the calling thread.
fn mask(how: libc::c_int) {
    // SAFETY: a set of the test's own, and the calling thread's mask, which nothing else relies on.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(how, &all, std::ptr::null_mut());
    }
}
