//! A view of a runtime's statistics for threads that do not own the runtime: handlers, a metrics
//! endpoint.

use std::sync::Arc;

use shinjuku_policy::Nanos;
use shinjuku_preempt::{Backend, WorkerLink};

use crate::change_log::Changing;
use crate::in_process::RefusedAtSubmit;
use crate::learned::Learned;
use crate::pool::TurnedAway;
use crate::preemption::InForce;
use crate::stalls::StallCounts;
use crate::started::Started;
use crate::statistics::{DispatcherStatistics, Statistics, WorkerStatistics};
use crate::timeline::Recorder;

/// Reads a runtime's statistics from anywhere, also after the runtime's end; see
/// [`Runtime::observer`](crate::Runtime::observer) and
/// [`Server::observer`](crate::Server::observer).
///
/// ```
/// use shinjuku::policy::ClassId;
/// use shinjuku::{Runtime, handler_fn};
/// use std::time::Duration;
///
/// let runtime = Runtime::builder(handler_fn(|n: u64| n + 1)).start()?;
/// let observer = runtime.observer();
/// runtime.handle().submit(ClassId(0), 1)?.wait()?;
/// runtime.shutdown(Duration::from_secs(1));
/// let counted = std::thread::spawn(move || observer.statistics().classes[0].finished);
/// assert_eq!(counted.join().unwrap(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Observer {
    /// For a runtime whose requests are submitted in this process.
    pub(crate) at_submit: Option<Arc<RefusedAtSubmit>>,
    /// For a pool.
    pub(crate) turned_away: Option<Arc<TurnedAway>>,
    pub(crate) workers: Arc<[Arc<WorkerStatistics>]>,
    pub(crate) dispatchers: Arc<[Arc<DispatcherStatistics>]>,
    pub(crate) links: Arc<[WorkerLink]>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) started: Arc<Started>,
    pub(crate) stalls: Arc<StallCounts>,
    pub(crate) class_names: Arc<[String]>,
    pub(crate) backend: Option<Arc<dyn Backend>>,
    /// The line that was logged at start.
    pub(crate) description: Arc<str>,
    /// The quanta in force, where `auto` can change them after the start.
    pub(crate) in_force: Option<Arc<InForce>>,
    /// What the policy learns, where it was not given.
    pub(crate) learned: Option<Arc<Learned>>,
    pub(crate) arrangement: Arc<Arrangement>,
}

/// What stays as it was at the start.
#[derive(Debug)]
pub(crate) struct Arrangement {
    /// How many threads serve, the spares left out.
    pub(crate) serving: usize,
    /// Whether these are loops: none only dispatches.
    pub(crate) are_loops: bool,
    /// Each class's quantum by the policy, where that is known; `None`: to completion.
    pub(crate) quanta: Vec<Option<Nanos>>,
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Observer(of {} threads)", self.links.len())
    }
}

impl Observer {
    /// How the runtime preempts and why: the line that was logged at start; and, if they have
    /// changed, the quanta that `auto` has in force now, and what was learnt.
    #[must_use]
    pub fn description(&self) -> String {
        let mut now = String::new();
        for part in self.changing().filter(|part| part.changes() > 0) {
            now += if now.is_empty() { "; now " } else { "; " };
            now += &part.to_string();
        }
        format!("{}{now}", self.description)
    }

    /// What can change after the start.
    pub(crate) fn changing(&self) -> impl Iterator<Item = Arc<dyn Changing>> {
        let in_force = self.in_force.clone().map(|one| one as Arc<dyn Changing>);
        let learned = self.learned.clone().map(|one| one as Arc<dyn Changing>);
        in_force.into_iter().chain(learned)
    }

    /// What happened so far. Allocates.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let (first, others) = (self.dispatchers.split_first()).expect("a runtime has a dispatcher");
        let mut statistics = Statistics::gather(
            &self.workers,
            first,
            self.links.iter().map(WorkerLink::counters),
            &self.class_names,
        );
        for other in others {
            statistics += &Statistics::gather(&[], other, [], &self.class_names);
        }
        if let Some(at_submit) = &self.at_submit {
            statistics.add_refused_at_submit(at_submit.refusals());
        }
        if let Some(turned_away) = &self.turned_away {
            turned_away.add_to(&mut statistics);
        }
        let backend = self.backend.as_ref();
        Statistics {
            stalls: self.stalls.read(),
            delivery: backend.and_then(|backend| backend.delivery_to(&self.links)),
            ..statistics
        }
    }
}
