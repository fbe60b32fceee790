//! A thread that a handler starts has neither the worker's priority nor, if it calls
//! `unpin_current`, the worker's core. The test has a process of its own, since the runtime notes
//! once which cores a process could use before.
#![allow(missing_docs)]

use shinjuku::policy::ClassId;
use shinjuku::{Config, LayoutKind, Runtime, StartError, handler_fn, unpin_current};
use shinjuku_preempt::Affinity;
use shinjuku_tests_support::PATIENCE;

/// The kernel's number of the ordinary scheduling class.
const SCHED_OTHER: u32 = 0;
const SCHED_FIFO: u32 = 1;

/// The calling thread's scheduling class, and how many cores it has.
fn place() -> (u32, usize) {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // proc_pid_stat(5): the name, which is the second field, may have blanks; the class is the
    // 41st.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let class = fields.split_whitespace().nth(41 - 3).unwrap();
    (
        class.parse().unwrap(),
        Affinity::of_current().unwrap().cores(),
    )
}

#[test]
fn threads_of_a_handler_have_neither_its_priority_nor_its_core() {
    let all = Affinity::of_current().unwrap().cores();
    if all < 2 {
        eprintln!(
            "SKIPPED threads_of_a_handler_have_neither_its_priority_nor_its_core: a single core"
        );
        return;
    }
    let config = |realtime_priority| {
        Config::default()
            .layout(LayoutKind::Threads)
            .workers(1)
            .realtime_priority(realtime_priority)
    };
    let start = |priority| {
        let handler = handler_fn(|()| {
            let worker = place();
            let thread = std::thread::spawn(|| {
                unpin_current().unwrap();
                place()
            });
            (worker, thread.join().unwrap())
        });
        Runtime::builder(handler).config(config(priority)).start()
    };
    let (runtime, class) = match start(Some(1)) {
        Err(StartError::Realtime(error)) => {
            eprintln!("SKIPPED in part, the priority: {error}");
            (start(None).unwrap(), SCHED_OTHER)
        }
        started => (started.unwrap(), SCHED_FIFO),
    };
    let mut ticket = runtime.handle().submit(ClassId(0), ()).unwrap();
    let (worker, thread) = ticket.wait_timeout(PATIENCE).expect("answered").unwrap();
    assert_eq!(worker, (class, 1), "the worker's own thread");
    assert_eq!(thread, (SCHED_OTHER, all));
    assert!(runtime.shutdown(PATIENCE).is_clean());
}
