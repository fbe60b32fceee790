//! How long code takes to give way: one context on a worker's core, and the one that asks on
//! another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use core_affinity::CoreId;
use shinjuku_preempt::{
    Clock, CompiledProbes, Completion, Cycles, Dispatched, HardPreemption, Mechanism, Outcome,
    Outstanding, Pool, PoolConfig, Runnable, Sender, Signal, Worker, WorkerLink, mailbox,
};

use crate::works::Job;
use crate::{Answers, By};

/// What is not answered in this time takes a signal: the least quantum of one, about.
const PATIENCE: Duration = Duration::from_micros(100);
/// A request without an answer is given up after this.
const LATEST: Duration = Duration::from_millis(20);
/// Pauses between an answer and the next request, at random.
const PAUSES: std::ops::Range<u64> = 10_000..20_000;
/// The worker is a thread like any other, and may take so long to start or to end.
const LONGEST: Duration = Duration::from_secs(10);

/// The job again and again, until it is enough, or the job fails.
struct Task {
    job: Job,
    enough: Arc<AtomicBool>,
}

impl Task {
    fn run(mut self) {
        while !self.enough.load(Ordering::Relaxed) {
            if std::hint::black_box((self.job)()).is_err() {
                break;
            }
        }
    }
}

/// The ways to ask.
#[derive(Clone, Copy)]
enum Asking {
    Compiled(CompiledProbes),
    Signal(Signal),
}

impl Asking {
    fn by(by: By) -> Result<Self> {
        let token = token();
        Ok(match by {
            By::CompiledProbe => Self::Compiled(CompiledProbes::install(token)?),
            By::Signal => Self::Signal(Signal::install(token)?),
        })
    }

    fn ask(self, dispatched: &Dispatched, link: &WorkerLink) -> Result<Option<Outstanding>> {
        match self {
            Self::Compiled(compiled) => Ok(Some(compiled.request(dispatched))),
            Self::Signal(signal) => {
                dispatched.request();
                signal.interrupt(link)?;
                Ok(None)
            }
        }
    }
}

#[allow(unsafe_code)]
pub(crate) fn token() -> HardPreemption {
    // SAFETY: the works compute. None relies on its kernel thread, on priority inheritance, or on
    // system calls that never answer EINTR.
    unsafe { HardPreemption::allow() }
}

/// Asks for `length`, on `cores`: the asking thread's and the worker's.
///
/// # Errors
/// There are no compiled probes in this program, no signals or contexts on this machine, or the
/// worker does not answer.
pub fn measure(job: Job, by: By, length: Duration, cores: [CoreId; 2]) -> Result<Answers> {
    let asking = Asking::by(by)?;
    core_affinity::set_for_current(cores[0]);
    let config = PoolConfig::default().contexts(1);
    let mut pool = Pool::new(config, Task::run)?;
    let (sender, mut receiver) = mailbox::<Task, ()>(1);
    let enough = Arc::new(AtomicBool::new(false));
    let stop = Arc::new(AtomicBool::new(false));
    let (tell, told) = std::sync::mpsc::channel();
    let worker = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || -> Result<()> {
            core_affinity::set_for_current(cores[1]);
            let mut worker = Worker::bind(0)?;
            tell.send(worker.link())?;
            while !stop.load(Ordering::Relaxed) {
                let Some((runnable, generation)) = receiver.poll() else {
                    std::hint::spin_loop();
                    continue;
                };
                receiver.answer(match worker.run(runnable, generation) {
                    Outcome::Finished(finished) => Completion::Finished(finished.take().0),
                    Outcome::Preempted(suspended) => Completion::Preempted(suspended),
                });
            }
            Ok(())
        }
    });
    let link = told
        .recv_timeout(LONGEST)
        .context("the worker did not start")?;
    let idle = pool.idle.pop().context("there is one context")?;
    let task = Task {
        job,
        enough: Arc::clone(&enough),
    };
    let mut stage = Stage {
        sender,
        link,
        asking,
        random: 88_172_645_463_325_252,
    };
    let answers = stage.ask_for(length, idle.load(task).into(), &enough);
    stop.store(true, Ordering::Relaxed);
    match worker.join() {
        Ok(end) => end?,
        Err(_) => bail!("the worker panicked"),
    }
    answers
}

/// The asking side.
struct Stage {
    sender: Sender<Task, ()>,
    link: WorkerLink,
    asking: Asking,
    random: u64,
}

impl Stage {
    fn send(&mut self, runnable: Runnable<Task, ()>) -> Result<Dispatched> {
        self.sender
            .send(runnable)
            .ok()
            .context("there is room for one")
    }

    fn pause(&mut self) -> Cycles {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let nanos = PAUSES.start + self.random % (PAUSES.end - PAUSES.start);
        Clock::get().to_cycles(nanos)
    }

    /// Asks at random moments, and sends back at once what has given way.
    fn ask_for(
        &mut self,
        length: Duration,
        first: Runnable<Task, ()>,
        enough: &AtomicBool,
    ) -> Result<Answers> {
        let clock = Clock::get();
        let cycles = |time: Duration| clock.to_cycles(time.as_nanos() as u64);
        let (patience, latest, length) = (cycles(PATIENCE), cycles(LATEST), cycles(length));
        let mut answered: Vec<u64> = Vec::with_capacity(1 << 20);
        let mut unanswered = 0u64;
        let start = Cycles::now();
        let mut dispatched = self.send(first)?;
        while Cycles::now().since(start) < length {
            let pause = self.pause();
            self.wait(&mut dispatched, pause)?;
            let asked = Cycles::now();
            let outstanding = self.asking.ask(&dispatched, &self.link)?;
            let answer = self.wait(&mut dispatched, patience)?;
            if answer.is_none() {
                // Whatever it is that takes so long is met once.
                self.wait(&mut dispatched, latest)?;
            }
            drop(outstanding);
            match answer {
                Some(moment) if answered.len() < answered.capacity() => {
                    answered.push(clock.to_nanos(moment.since(asked)));
                }
                Some(_) => {}
                None => unanswered += 1,
            }
        }
        enough.store(true, Ordering::Relaxed);
        self.finish(cycles(LONGEST))?;
        answered.sort_unstable();
        let at = |share: f64| {
            let last = answered.len().checked_sub(1)?;
            Some(answered[(last as f64 * share) as usize] as f64 / 1_000.0)
        };
        Ok(Answers {
            requests: answered.len() as u64 + unanswered,
            p50_us: at(0.5),
            p99_us: at(0.99),
            unanswered,
        })
    }

    /// Waits so long for the code to give way; if it does, sends it back, and tells when that was.
    fn wait(&mut self, dispatched: &mut Dispatched, time: Cycles) -> Result<Option<Cycles>> {
        let start = Cycles::now();
        loop {
            let now = Cycles::now();
            match self.sender.poll() {
                Some((_, Completion::Preempted(suspended))) => {
                    *dispatched = self.send(suspended.into())?;
                    return Ok(Some(now));
                }
                Some((_, Completion::Finished(_))) => bail!("a job failed"),
                None if now.since(start) > time => return Ok(None),
                None => {}
            }
        }
    }

    /// Lets the job come to its end.
    fn finish(&mut self, longest: Cycles) -> Result<()> {
        let start = Cycles::now();
        loop {
            match self.sender.poll() {
                Some((_, Completion::Finished(_))) => return Ok(()),
                Some((_, Completion::Preempted(suspended))) => {
                    self.send(suspended.into())?;
                }
                None if Cycles::now().since(start) > longest => bail!("the job does not end"),
                None => std::hint::spin_loop(),
            }
        }
    }
}
