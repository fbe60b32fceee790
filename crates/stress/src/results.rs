//! What a stress run found, as it stands in the JSON file: field by field in `docs/stress.md`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use shinjuku_plot::Table;
use shinjuku_preempt::stress::{Quantum, Report};

use super::Options;

/// The failure of a run that was ended from outside.
pub const INTERRUPTED: &str = "interrupted";

/// The file's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// How long contexts ran.
    pub seconds: f64,
    /// `signal`, `kernel-thread`, `probe` or `guest`.
    pub mechanism: String,
    /// A worker was interrupted about this often; 0 before that is known.
    pub quantum_us: u64,
    /// What a preemption was measured to take of a worker's time, in microseconds; null where the
    /// quantum was given or the cost could not be measured.
    #[serde(default)]
    pub preemption_us: Option<f64>,
    /// Worker threads.
    pub workers: u64,
    /// Contexts that shared them.
    pub contexts: u64,
    /// The defence that was taken out.
    pub without: Option<String>,
    /// Preemptions taken, all kinds together.
    pub preemptions: u64,
    /// The same by kind.
    pub preemptions_by: PreemptionsBy,
    /// Resumptions on another worker than the last.
    pub migrations: u64,
    /// Interrupts that found nothing to preempt.
    pub late: u64,
    /// Preemptions that were held off until a guard's end.
    pub deferred: u64,
    /// What happened in the workers' special mode, all workers together; empty elsewhere.
    #[serde(default)]
    pub mode: BTreeMap<String, u64>,
    /// How interrupts came to workers in it, in words; null elsewhere.
    #[serde(default)]
    pub delivery: Option<String>,
    /// Jobs that ran to their end.
    pub requests: u64,
    /// How often each operation ran.
    pub operations: BTreeMap<String, u64>,
    /// All errors.
    pub errors: u64,
    /// The same by operation, or check of the scheduler; only those that failed.
    pub errors_by: BTreeMap<String, u64>,
    /// Why the run is no success.
    pub failure: Option<String>,
}

/// Where preemptions were taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreemptionsBy {
    /// Inside the signal, in the middle of the operation's code.
    pub signal: u64,
    /// At a probe.
    pub probe: u64,
    /// At the end of a guard, or on entry to the context, having been held off.
    pub guard: u64,
}

impl Results {
    /// Nothing yet. A reader who finds this in the file sees a run that ended before its first
    /// second.
    pub fn new(options: &Options) -> Self {
        let not_yet = Quantum {
            length: Duration::from_micros(options.quantum_us.unwrap_or(0)),
            preemption: None,
        };
        Self {
            failure: Some("did not run for a second".to_owned()),
            ..Self::of(&Report::default(), options, not_yet)
        }
    }

    /// What `report` says.
    pub fn of(report: &Report, options: &Options, quantum: Quantum) -> Self {
        let counters = &report.counters;
        let errors = report.errors.iter().filter(|(_, count)| *count > 0);
        let by_name = |(name, count): &(&str, u64)| ((*name).to_owned(), *count);
        Self {
            seconds: report.elapsed.as_secs_f64(),
            mechanism: options.mechanism.name(),
            quantum_us: quantum.length.as_micros() as u64,
            preemption_us: quantum.preemption.map(|cost| cost.as_secs_f64() * 1e6),
            workers: options.workers.into(),
            contexts: options.contexts.into(),
            without: options.without.clone(),
            preemptions: counters.taken(),
            preemptions_by: PreemptionsBy {
                signal: counters.taken_by_interrupt,
                probe: counters.taken_by_probe,
                guard: counters.taken_at_guard,
            },
            migrations: counters.migrations,
            late: counters.late,
            deferred: counters.deferred,
            mode: report.mode.iter().map(by_name).collect(),
            delivery: report.delivery.map(|delivery| delivery.to_string()),
            requests: report.requests,
            operations: report.operations.iter().map(by_name).collect(),
            errors: report.errors_total(),
            errors_by: errors.map(by_name).collect(),
            failure: report.failure(),
        }
    }

    /// Reads what the child left.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))
    }

    /// The run was ended from outside: no error of what it tests, but no success either.
    pub fn interrupted(&mut self) {
        self.failure = Some(INTERRUPTED.to_owned());
    }

    /// The child could not say it itself.
    pub fn failed_by(&mut self, name: &str, how: &str) {
        self.errors += 1;
        *self.errors_by.entry(name.to_owned()).or_insert(0) += 1;
        self.failure = Some(how.to_owned());
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut operations = Table::new("operations", ["operation or check", "runs", "errors"]);
        let runs = self
            .operations
            .iter()
            .map(|(name, runs)| (name, Some(runs)));
        let checks = self
            .errors_by
            .keys()
            .filter(|name| !self.operations.contains_key(*name));
        for (name, runs) in runs.chain(checks.map(|name| (name, None))) {
            let errors = self.errors_by.get(name).copied().unwrap_or(0);
            let runs = runs.map_or_else(|| "-".to_owned(), u64::to_string);
            operations.push([name.clone(), runs, errors.to_string()]);
        }
        writeln!(f, "{operations}")?;
        let title = format!(
            "{:.1} s, {} workers, {} contexts, {} every {} us",
            self.seconds, self.workers, self.contexts, self.mechanism, self.quantum_us
        );
        let mut totals = Table::new(title, ["what", "in all", "a second"]);
        let inside = match self.mechanism.as_str() {
            "guest" => "  inside an interrupt",
            _ => "  inside the signal",
        };
        let rows = [
            ("preemptions", self.preemptions),
            (inside, self.preemptions_by.signal),
            ("  at a probe", self.preemptions_by.probe),
            ("  at the end of a guard", self.preemptions_by.guard),
            ("migrations", self.migrations),
            ("late interrupts", self.late),
            ("deferred interrupts", self.deferred),
            ("requests", self.requests),
            ("errors", self.errors),
        ];
        let rows = rows.map(|(what, count)| (what.to_owned(), count));
        let mode = (self.mode.iter()).map(|(what, &count)| (format!("in the mode: {what}"), count));
        for (what, count) in rows.into_iter().chain(mode) {
            let rate = count as f64 / self.seconds.max(0.001);
            totals.push([what, count.to_string(), format!("{rate:.0}")]);
        }
        write!(f, "{totals}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_the_main_figures_is_damaged() {
        let directory = std::env::temp_dir().join(format!("stress-results-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("damaged.json");
        std::fs::write(&path, "{\"seconds\": 1.0}").unwrap();
        let error = Results::read(&path).unwrap_err().to_string();
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(error.contains("is damaged"), "{error}");
    }
}
