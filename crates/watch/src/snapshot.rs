//! A server's answer about itself, and what happened between two answers.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// How much longer than a recording the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends one line, and gives the answer, which takes the server a little more than `duration`.
///
/// # Errors
/// If there is no server at `socket`, or it does not answer in time.
pub fn ask(socket: &Path, line: &str, duration: Duration) -> Result<String> {
    let mut server = UnixStream::connect(socket).with_context(|| {
        format!(
            "no server can be reached at {}: is it running, with `watch` set to this path, by this user?",
            socket.display()
        )
    })?;
    server.set_read_timeout(Some(duration + PATIENCE))?;
    server.set_write_timeout(Some(PATIENCE))?;
    let mut answer = String::new();
    server
        .write_all(format!("{line}\n").as_bytes())
        .and_then(|()| server.read_to_string(&mut answer))
        .with_context(|| format!("the server at {} does not answer", socket.display()))?;
    Ok(answer)
}

/// The counts of a server since its start.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct Snapshot {
    pub description: String,
    /// The quanta that `auto` has in force, with its reasons; `None` where it changes none.
    pub quantum_in_force: Option<String>,
    pub uptime_seconds: f64,
    /// `None`: no thread only dispatches.
    pub dispatcher_occupancy: Option<f64>,
    pub policy_set_aside: bool,
    pub received: u64,
    pub lost: u64,
    pub waiting: u64,
    pub started: u64,
    pub running: u64,
    pub refused: BTreeMap<String, u64>,
    pub helped: u64,
    pub rescued: u64,
    pub workers_blocked: u64,
    pub spares_exhausted: u64,
    pub preempted_by_probe: u64,
    pub preempted_by_compiled_probe: u64,
    pub preempted_by_interrupt: u64,
    pub preempted_at_guard: u64,
    pub migrations: u64,
    pub stalls_computing: u64,
    pub stalls_blocked: u64,
    pub classes: Vec<Class>,
    /// The workers or loops now, and the spares that run something.
    pub threads: Vec<Thread>,
    /// Requests that have not ended now, the oldest first.
    pub oldest: Vec<Request>,
}

/// A worker, loop or spare.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct Thread {
    pub name: String,
    /// Of the request that runs there, if one does.
    pub class: Option<String>,
    pub runs_for_nanos: u64,
    /// Requests in the loop's own queue; `None`: it has none.
    pub waiting: Option<u64>,
}

/// A request that has not ended.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct Request {
    pub class: String,
    pub age_nanos: u64,
    /// It has waited since it arrived.
    pub never_ran: bool,
    /// Where it runs; `None`: it waits.
    pub thread: Option<String>,
    pub runs_for_nanos: u64,
}

/// The counts of one class.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct Class {
    pub name: String,
    /// How many wait now and never ran.
    pub never_ran: u64,
    /// How many wait now and have run.
    pub preempted: u64,
    pub finished: u64,
    pub failed: u64,
    pub preemptions: u64,
    pub service_nanos: u64,
    pub latency_nanos: Buckets,
    /// From arrival to the first run.
    pub queue_nanos: Buckets,
    pub slowdown_thousandths: Buckets,
}

/// A histogram: pairs of a value and how often it occurred, in ascending order.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct Buckets(Vec<(u64, u64)>);

impl Buckets {
    /// The value that a share `quantile` of all did not exceed; `None` if there are none.
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        let count: u64 = self.0.iter().map(|(_, count)| count).sum();
        let share = ((count as f64 * quantile).ceil() as u64).max(1);
        let mut below = 0;
        let found = self.0.iter().find(|(_, count)| {
            below += count;
            below >= share
        });
        found.map(|&(value, _)| value)
    }

    /// The values that occurred since `before`.
    fn since(&self, before: &Self) -> Self {
        let before: BTreeMap<_, _> = before.0.iter().copied().collect();
        let left = |&(value, count): &(u64, u64)| {
            let had = before.get(&value).copied().unwrap_or(0);
            (value, count.saturating_sub(had))
        };
        let pairs = self.0.iter().map(left).filter(|&(_, count)| count > 0);
        Self(pairs.collect())
    }
}

impl Snapshot {
    /// Asks the server.
    ///
    /// # Errors
    /// If it does not answer, or its answer is no snapshot.
    pub fn of(socket: &Path) -> Result<Self> {
        Self::parse(&ask(socket, "statistics", Duration::ZERO)?)
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// If it is no snapshot.
    pub fn parse(answer: &str) -> Result<Self> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Answer {
            Statistics(Box<Snapshot>),
            Refused { error: String },
        }
        match serde_json::from_str(answer) {
            Ok(Answer::Statistics(snapshot)) => Ok(*snapshot),
            Ok(Answer::Refused { error }) => bail!("the server says: {error}"),
            Err(_) => bail!("the answer is not a server's statistics of this version"),
        }
    }

    /// What happened since `before`: counts are differences, and the present state stays as it is.
    /// If the server was restarted in between, its counts are since its start.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        if before.uptime_seconds > self.uptime_seconds {
            return self.clone();
        }
        let refused = self.refused.iter().map(|(cause, &count)| {
            let had = before.refused.get(cause).copied().unwrap_or(0);
            (cause.clone(), count.saturating_sub(had))
        });
        let mut since = Self {
            uptime_seconds: self.uptime_seconds - before.uptime_seconds,
            refused: refused.collect(),
            ..self.clone()
        };
        for (now, then) in [
            (&mut since.received, before.received),
            (&mut since.lost, before.lost),
            (&mut since.helped, before.helped),
            (&mut since.rescued, before.rescued),
            (&mut since.workers_blocked, before.workers_blocked),
            (&mut since.spares_exhausted, before.spares_exhausted),
            (&mut since.preempted_by_probe, before.preempted_by_probe),
            (
                &mut since.preempted_by_compiled_probe,
                before.preempted_by_compiled_probe,
            ),
            (
                &mut since.preempted_by_interrupt,
                before.preempted_by_interrupt,
            ),
            (&mut since.preempted_at_guard, before.preempted_at_guard),
            (&mut since.migrations, before.migrations),
            (&mut since.stalls_computing, before.stalls_computing),
            (&mut since.stalls_blocked, before.stalls_blocked),
        ] {
            *now = now.saturating_sub(then);
        }
        for (now, then) in since.classes.iter_mut().zip(&before.classes) {
            now.finished = now.finished.saturating_sub(then.finished);
            now.failed = now.failed.saturating_sub(then.failed);
            now.preemptions = now.preemptions.saturating_sub(then.preemptions);
            now.service_nanos = now.service_nanos.saturating_sub(then.service_nanos);
            now.latency_nanos = now.latency_nanos.since(&then.latency_nanos);
            now.queue_nanos = now.queue_nanos.since(&then.queue_nanos);
            now.slowdown_thousandths = now.slowdown_thousandths.since(&then.slowdown_thousandths);
        }
        since
    }

    /// All preemptions.
    #[must_use]
    pub fn preempted(&self) -> u64 {
        self.preempted_by_probe
            + self.preempted_by_compiled_probe
            + self.preempted_by_interrupt
            + self.preempted_at_guard
    }

    /// A count of this snapshot per second of its time.
    #[must_use]
    pub fn rate(&self, count: u64) -> f64 {
        count as f64 / self.uptime_seconds.max(1e-9)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A server's answer after `seconds`, with `finished` requests of class `get`.
    pub fn told(seconds: u64, finished: u64) -> Snapshot {
        let class = format!(
            r#"{{"name":"get","never_ran":17,"preempted":2,"finished":{finished},"failed":0,"preemptions":3,"service_nanos":{},
               "latency_nanos":[[1000,{finished}],[2000000,{}]],
               "queue_nanos":[[700,{finished}]],"slowdown_thousandths":[[1500,{finished}]]}}"#,
            finished * 500,
            finished / 50
        );
        let answer = format!(
            r#"{{"description":"threads, probe","uptime_seconds":{seconds}.5,"dispatcher_occupancy":0.25,
               "policy_set_aside":false,"refused":{{"QueueFull":{seconds}}},"classes":[{class}],
               "received":{finished},"returned":{finished},"lost":0,"waiting":4,"started":2,"running":1,
               "helped":0,"rescued":0,"workers_blocked":0,"spares_exhausted":0,
               "progress_interventions":0,"preempted_by_probe":{seconds},
               "preempted_by_compiled_probe":0,"preempted_by_interrupt":0,
               "preempted_at_guard":0,"migrations":0,"stalls_computing":{seconds},"stalls_blocked":0,
               "quantum_in_force":"probe: no quantum below 5.0 us",
               "threads":[{{"name":"loop-0","class":"get","runs_for_nanos":2000,"waiting":9}},
                          {{"name":"loop-1","class":null,"runs_for_nanos":0,"waiting":8}}],
               "oldest":[{{"class":"get","age_nanos":8000000,"never_ran":true,"thread":null,"runs_for_nanos":0}},
                         {{"class":"get","age_nanos":7000000,"never_ran":false,"thread":"loop-0","runs_for_nanos":2000}},
                         {{"class":"get","age_nanos":6000000,"never_ran":false,"thread":null,"runs_for_nanos":0}}]}}"#
        );
        Snapshot::parse(&answer).unwrap()
    }

    #[test]
    fn what_happened_in_between_is_the_difference() {
        let since = told(12, 300).since(&told(10, 100));
        assert_eq!((since.received, since.refused["QueueFull"]), (200, 2));
        assert_eq!((since.waiting, since.running), (4, 1));
        assert_eq!(since.preempted(), 2);
        let class = &since.classes[0];
        assert_eq!((class.finished, class.preemptions), (200, 0));
        assert_eq!(
            class.latency_nanos,
            Buckets(vec![(1_000, 200), (2_000_000, 4)])
        );
        assert_eq!(since.rate(since.received), 100.0);
    }

    #[test]
    fn a_server_that_was_started_anew_counts_from_its_start() {
        assert_eq!(told(1, 7).since(&told(10, 100)), told(1, 7));
    }

    #[test]
    fn quantiles_are_of_what_came() {
        let buckets = Buckets(vec![(10, 98), (20, 1), (30, 1)]);
        let at = |quantile| buckets.quantile(quantile);
        assert_eq!(
            [at(0.5), at(0.98), at(0.99), at(1.0)],
            [10, 10, 20, 30].map(Some)
        );
        assert_eq!(at(0.0), Some(10));
        assert_eq!(Buckets::default().quantile(0.5), None);
    }

    #[test]
    fn what_is_no_answer_is_said() {
        let why = |answer: &str| Snapshot::parse(answer).unwrap_err().to_string();
        assert_eq!(why(r#"{"error":"not now"}"#), "the server says: not now");
        assert!(why("").contains("not a server's statistics"));
        assert!(why("{}").contains("not a server's statistics"));
    }
}
