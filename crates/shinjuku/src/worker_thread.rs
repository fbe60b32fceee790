//! A worker's thread from its start on: takes its core and its priority, becomes a worker, and is
//! what the layout wants of it until the runtime ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use shinjuku_net::Transport;
use shinjuku_preempt::{
    Backend, Clock, Cycles, DeadlineTimer, Parker, Realtime, RemoteTimer, Signal, Worker,
    WorkerLink, request_slice,
};

use crate::config::MechanismKind;
use crate::dispatcher::{DispatcherThread, Post};
use crate::handler::PerCoreStates;
use crate::layout;
use crate::loops::{Idling, LoopThread, LoopThreadParts, Loops};
use crate::start_error::StartError;
use crate::statistics::WorkerStatistics;
use crate::timeline::Lane;
use crate::worker::{Orders, Port, WorkerLoop};

/// A thread that is ready, or why it cannot be.
pub(crate) type Ready = Result<WorkerLink, StartError>;

/// Where and how a worker's thread runs.
pub(crate) struct Place {
    pub(crate) id: usize,
    pub(crate) spare: bool,
    pub(crate) core: Option<usize>,
    /// For how long Linux is asked to let the thread run at a time, beside other threads.
    pub(crate) slice: Option<Duration>,
    pub(crate) realtime_priority: Option<i32>,
    pub(crate) strict: bool,
    pub(crate) mechanism: MechanismKind,
    pub(crate) backend: Option<Arc<dyn Backend>>,
    pub(crate) timer_signal: Option<Signal>,
    pub(crate) is_told_of_work: bool,
}

impl Place {
    /// Makes the calling thread a worker there.
    fn take<S>(&self, states: &PerCoreStates<S>) -> Result<Prepared, StartError> {
        let realtime = prepare(self.core, self.realtime_priority)?;
        if let (Some(slice), None) = (self.slice, &realtime) {
            // Before Linux 6.12 a thread cannot have a slice of its own.
            let _ = request_slice(slice);
        }
        let id = self.id;
        let mut worker = Worker::bind(u32::try_from(id).expect("workers are few"))?;
        self.enter_mode(&mut worker)?;
        if !self.spare {
            catch_unwind(AssertUnwindSafe(|| states.make(id))).map_err(|_| {
                StartError::Panicked {
                    callback: "init_per_core",
                    place: format!("the thread of worker {id}"),
                }
            })?;
        }
        let timer = self.timer_signal.map(DeadlineTimer::new).transpose()?;
        Ok(Prepared {
            worker,
            _realtime: realtime,
            remote_timer: (timer.as_ref().filter(|_| self.is_told_of_work))
                .map(DeadlineTimer::remote)
                .transpose()?,
            timer,
        })
    }

    fn enter_mode(&self, worker: &mut Worker) -> Result<(), StartError> {
        let Some(backend) = &self.backend else {
            return Ok(());
        };
        match worker.enter(&**backend) {
            Err(error) if backend.interrupts_outside() && !self.strict => {
                tracing::warn!(target: "shinjuku", "signals interrupt worker {}: {error}", self.id);
                Ok(())
            }
            entered => entered.map_err(|cause| StartError::Backend {
                mechanism: self.mechanism,
                cause,
            }),
        }
    }
}

/// A thread that has become a worker.
struct Prepared {
    worker: Worker,
    _realtime: Option<Realtime>,
    timer: Option<DeadlineTimer>,
    remote_timer: Option<RemoteTimer>,
}

/// What a worker's thread is started with.
pub(crate) struct WorkerStart<S, Tr: Transport> {
    pub(crate) place: Place,
    pub(crate) states: Arc<PerCoreStates<S>>,
    pub(crate) duty: Duty<Tr>,
    /// One for each dispatcher.
    pub(crate) ports: Vec<Port<Tr>>,
    pub(crate) statistics: Arc<WorkerStatistics>,
    pub(crate) lane: Lane,
    pub(crate) parker: Arc<Parker>,
    pub(crate) orders: Arc<Orders>,
    pub(crate) shares_core: bool,
    pub(crate) idle_backoff: Option<Cycles>,
    /// Whether the thread runs beside other threads.
    pub(crate) beside_others: bool,
}

impl<S, Tr: Transport> WorkerStart<S, Tr> {
    /// The thread's whole life: reports that it is ready, or why it cannot be, and runs its loop.
    pub(crate) fn run(self, ready: mpsc::Sender<Ready>) {
        let prepared = self.place.take(&self.states);
        drop(self.states);
        let Prepared {
            mut worker,
            _realtime,
            timer,
            remote_timer,
        } = match prepared {
            Err(error) => return drop(ready.send(Err(error))),
            Ok(prepared) => prepared,
        };
        drop(ready.send(Ok(worker.link())));
        drop(ready);
        let (shares_core, idle_backoff) = (self.shares_core, self.idle_backoff);
        let mut ports = self.ports;
        match self.duty {
            Duty::Serve(post) => {
                let mut serving = WorkerLoop {
                    link: worker.link(),
                    port: ports.pop().expect("there is one dispatcher"),
                    statistics: self.statistics,
                    lane: self.lane,
                    parker: self.parker,
                    orders: self.orders,
                    shares_core,
                    clock: Clock::get(),
                    idle_backoff,
                    idle_since: Cycles::now(),
                    idle_turns: 0,
                    running: None,
                };
                match post {
                    None => worker.serve(&mut serving),
                    Some(post) => DispatcherThread::new(post, worker, serving).run(),
                }
            }
            Duty::Loop(loops) => LoopThread::new(LoopThreadParts {
                me: self.place.id,
                worker,
                ports,
                statistics: self.statistics,
                lane: self.lane,
                timer,
                remote_timer,
                loops,
                idling: Idling {
                    backoff: idle_backoff,
                    learns: self.beside_others,
                    shares_core,
                },
            })
            .run(),
        }
    }
}

/// What a worker's thread does.
pub(crate) enum Duty<Tr: Transport> {
    /// Serves its mailbox: a worker, or the thread of a dispatcher that works.
    Serve(Option<Post<Tr>>),
    /// Is a loop, or stands by for one.
    Loop(Arc<Loops<Tr>>),
}

/// Gives the calling thread its core and its priority.
pub(crate) fn prepare(
    core: Option<usize>,
    realtime_priority: Option<i32>,
) -> Result<Option<Realtime>, StartError> {
    if let Some(core) = core {
        layout::pin_current(core)?;
    }
    Ok(realtime_priority.map(Realtime::enter).transpose()?)
}
