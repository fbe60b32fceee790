//! The machine's life, and its workers' lives.

use std::time::Instant;

use shinjuku_preempt::guest::Guest;
use shinjuku_preempt::{
    Completion, Mechanism as _, Outcome, Pool, PoolConfig, Receiver, Sender, Worker, mailbox,
};
use shinjuku_tests_support::{PATIENCE, need, test_name};

use crate::stage::{Stage, guest};

/// A job that makes a system call, so that KVM_RUN returns at least once.
fn ask_the_kernel() -> u64 {
    std::process::id().into()
}

/// A worker on the calling thread.
struct Alone {
    worker: Worker,
    sender: Sender<fn() -> u64, u64>,
    receiver: Receiver<fn() -> u64, u64>,
    pool: Pool<fn() -> u64, u64>,
}

impl Alone {
    fn new(guest: &Guest) -> Self {
        let mut worker = Worker::bind(0).unwrap();
        worker.enter(guest).unwrap();
        let (sender, receiver) = mailbox(1);
        Self {
            worker,
            sender,
            receiver,
            pool: Pool::new(PoolConfig::default(), |job: fn() -> u64| job()).unwrap(),
        }
    }

    fn run(&mut self, job: fn() -> u64) -> u64 {
        let job = self.pool.idle.pop().unwrap().load(job);
        self.sender.send(job.into()).ok().unwrap();
        let (runnable, generation) = self.receiver.poll().unwrap();
        let Outcome::Finished(finished) = self.worker.run(runnable, generation) else {
            panic!("no interrupt was sent");
        };
        let (idle, answer) = finished.take();
        self.receiver.answer(Completion::Finished(idle));
        let Some((_, Completion::Finished(idle))) = self.sender.poll() else {
            panic!("just answered");
        };
        self.pool.idle.push(idle);
        answer.unwrap()
    }

    fn returns(&self) -> u64 {
        self.worker.link().guest_counters().unwrap().returns
    }

    fn end(self) {
        drop(self.worker);
        let end = self.pool.handles.hand_back(self.pool.idle, PATIENCE);
        assert_eq!(end.leaked, 0);
    }
}

#[test]
fn the_worker_goes_on_when_nobody_else_has_the_machine() {
    let guest = need!(guest(test_name!(), Default::default()));
    let mut alone = Alone::new(&guest);
    drop(guest);
    assert!(alone.run(ask_the_kernel) > 0);
    assert!(alone.returns() > 0);
    alone.end();
}

#[test]
fn a_thread_may_end_in_guest_mode() {
    let guest = need!(guest(test_name!(), Default::default()));
    let in_thread = guest.clone();
    let thread = std::thread::spawn(move || {
        let mut alone = Alone::new(&in_thread);
        assert_eq!(alone.run(|| 7), 7);
        let link = alone.worker.link();
        // The worker never leaves: the thread's end is a call in guest mode.
        std::mem::forget(alone);
        link
    });
    let link = thread.join().unwrap();
    let counters = link.guest_counters().unwrap();
    assert_eq!(counters.left, 1, "{counters:?}");
    let start = Instant::now();
    // The kernel's thread may take a moment longer.
    while guest.interrupt(&link).is_ok() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

#[test]
fn vcpus_are_used_again() {
    let guest = need!(guest(test_name!(), Default::default()));
    // More workers than there can be vCPUs.
    for id in 0..300 {
        let guest = guest.clone();
        let worker = std::thread::spawn(move || {
            let mut worker = Worker::bind(id).unwrap();
            worker.enter(&guest).map_err(|error| error.to_string())
        });
        assert_eq!(worker.join().unwrap(), Ok(()));
    }
}

#[test]
fn programs_that_are_started_get_none_of_its_descriptors() {
    let stage = need!(Stage::new(test_name!()));
    let mut seen = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        // Other tests' descriptors come and go.
        let Ok(file) = std::fs::read_link(&path) else {
            continue;
        };
        let file = file.to_string_lossy();
        if !(file.contains("kvm") || file.contains("eventfd")) {
            continue;
        }
        let number = path.file_name().unwrap().to_string_lossy().into_owned();
        let Ok(text) = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")) else {
            continue;
        };
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = i32::from_str_radix(flags.unwrap().trim(), 8).unwrap();
        assert!(flags & libc::O_CLOEXEC != 0, "{file} stays open");
        seen += 1;
    }
    // The machine, and a worker's vCPU and eventfd; on most kernels also its statistics.
    assert!(seen >= 3, "{seen}");
    stage.end();
}

#[test]
fn a_forked_child_goes_on_natively() {
    let guest = need!(guest(test_name!(), Default::default()));
    let mut alone = Alone::new(&guest);
    // SAFETY: the child runs one more job, and ends.
    let child = alone.run(|| unsafe { libc::fork() } as u64) as i32;
    let before = alone.returns();
    let answer = alone.run(ask_the_kernel);
    if child == 0 {
        let natively = answer > 0 && alone.returns() == before;
        // SAFETY: runs none of the parent's code.
        unsafe { libc::_exit(if natively { 7 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 7, "{status:#x}");
    assert!(answer > 0);
    assert!(alone.returns() > before, "the parent goes on in guest mode");
    alone.end();
}
