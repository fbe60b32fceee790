//! What the bench of the policies puts into `results.json`. `docs/results.md` explains every field
//! to readers of the file.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::harness::{Comparison, distinct};

/// A point counts as saturated when it delivered less than this share of what was offered.
pub const SATURATION_THROUGHPUT: f64 = 0.99;

/// By how many standard deviations of a count of requests (its square root) less must have been
/// delivered, where that is more than 1 %.
pub const COUNTING_NOISE: f64 = 3.0;

/// A point is marked where its work ran more than so many times slower than calibrated.
pub const SLOWER: f64 = 1.1;

/// The name of the policy that every ratio is taken against.
pub const BASELINE: &str = "c-FCFS";

/// What the bench of the policies measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Policies {
    /// The stalls of the machine's cores.
    #[serde(default)]
    pub stalls: Option<HostStalls>,
    /// How the runtimes were configured.
    pub runtime: RuntimeSettings,
    /// Price of single operations, ns. A `/` in a name groups: `switch/own`, `switch/swapcontext`.
    pub costs: BTreeMap<String, f64>,
    /// How sure each of `costs` is, by the same names.
    pub cost_details: BTreeMap<String, CostDetail>,
    /// What each mix is, in words.
    pub mixes: BTreeMap<String, String>,
    /// The measured points: one entry per mix, load, contender and class.
    pub runs: Vec<Run>,
    /// The same at one load with the quantum swept (after figure 7a of the Shinjuku paper).
    pub quantum_sweep: Vec<Run>,
    /// c-FCFS as measured against c-FCFS as computed.
    pub fcfs_check: Vec<FcfsCheck>,
    /// c-FCFS's p99 over every other contender's, paired over seeds.
    pub comparisons: Vec<Comparison>,
}

/// How the runtimes were configured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RuntimeSettings {
    /// Worker cores.
    pub workers: u32,
    /// Scheduling class of the measured threads, for example `SCHED_FIFO`.
    pub scheduler: String,
    /// Requests staged at a worker, the running one included: by policy.
    pub depth: BTreeMap<String, usize>,
    /// Requests that may be started and unfinished.
    pub contexts: usize,
    /// Requests that may wait; more are refused.
    pub queue: usize,
    /// SLOs given to c-PRE-MQ, us: mix, then the name of the class in that mix.
    pub slo_us: BTreeMap<String, BTreeMap<String, f64>>,
}

/// For how long the cores were taken away from the highest priority there is, by the host and not
/// by the bench.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostStalls {
    /// The floor that they put under every p99, us. Take a request that arrives at a random moment
    /// and waits for nothing but the end of the stall it arrives in, on the dispatcher's core or on
    /// its worker's: 1 % wait for longer than this.
    pub p99_us: f64,
    /// The same of what was seen before the bench alone.
    pub before_p99_us: f64,
    /// The same of what was seen after it; absent if it ended early.
    pub after_p99_us: Option<f64>,
    /// Core by core.
    pub cores: Vec<CoreStalls>,
}

/// The stalls of one core, before the bench and after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoreStalls {
    /// The core's number.
    pub core: usize,
    /// What the bench runs there: `dispatcher` or `worker`.
    pub role: String,
    /// For how long it was watched, seconds.
    pub seconds: f64,
    /// How often it stalled for a microsecond or longer.
    pub stalls: u64,
    /// The share of the time that it stalled, 0 to 1.
    pub share: f64,
    /// The longest stall, us.
    pub longest_us: f64,
}

/// What stands behind one of [`Policies::costs`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CostDetail {
    /// Lower end of the spread over the rounds, ns; absent where the cost was taken over from
    /// another row.
    pub low: Option<f64>,
    /// Upper end of it.
    pub high: Option<f64>,
    /// What was measured.
    pub note: String,
}

/// The kind of request a [`Run`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// The short requests of a mix.
    Short,
    /// The long requests of a mix.
    Long,
    /// All requests of a mix.
    All,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "short",
            Self::Long => "long",
            Self::All => "all",
        })
    }
}

/// One class of one contender at one load of one mix. Percentiles are medians over the repetitions,
/// and absent where the point is saturated: a queue that grows without bound has no percentile,
/// only a duration of the experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Name of the request mix.
    pub mix: String,
    /// Offered load as a share of the workers' capacity, 0 to 1.
    pub load: f64,
    /// Policy, by the paper's name.
    pub policy: String,
    /// What preempts: `none`, `probe`, `compiled-probe`, `signal`, `escalation`, `auto`, `guest`,
    /// `dune`.
    pub mechanism: String,
    /// Quantum, us; absent without preemption and where the runtime adapts it.
    pub quantum_us: Option<f64>,
    /// Which requests are counted.
    pub class: Class,
    /// How many requests the figures rest on, over all repetitions.
    pub n: u64,
    /// Median sojourn time, us.
    pub p50_us: Option<f64>,
    /// 99th percentile of the sojourn time, us.
    pub p99_us: Option<f64>,
    /// 99.9th percentile of the sojourn time, us.
    pub p999_us: Option<f64>,
    /// 99th percentile of the slowdown (sojourn time / service time).
    pub p99_slowdown: Option<f64>,
    /// Requests of this class answered per second.
    pub throughput_rps: f64,
    /// Preemptions of requests of this class, over all repetitions.
    pub preemptions: u64,
    /// Requests of this class offered per second.
    pub offered_rps: f64,
    /// Whether the point is saturated; a property of the point, the same for its classes.
    pub saturated: bool,
    /// Requests of this class refused, over all repetitions.
    pub refusals: u64,
    /// Requests of this class neither answered nor refused when the repetition's patience ended,
    /// over all repetitions.
    pub unfinished: u64,
    /// Lowest p99 of a repetition, us.
    pub p99_us_min: Option<f64>,
    /// Highest p99 of a repetition, us.
    pub p99_us_max: Option<f64>,
    /// p99 of a simulated system with the same policy and quantum, without any cost, us.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ideal_p99_us: Option<f64>,
    /// The same with the costs measured in this run, us.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_p99_us: Option<f64>,
    /// How many times slower the work ran than calibrated, at least, in the repetition that the p99
    /// is of; of a saturated point, which has none, the median over the repetitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times_slower: Option<f64>,
    /// The same in the repetition in which it ran slowest: the spread of the p99 has it in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times_slower_max: Option<f64>,
    /// What the runtime picked where the mechanism is `auto`, in words: in the first repetition,
    /// with the quanta at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub picked: Option<String>,
    /// How interrupts came to the workers, as counted, where they ran in guest mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<String>,
}

/// c-FCFS as measured beside the Lindley recursion over the same arrivals and service times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FcfsCheck {
    /// Name of the request mix.
    pub mix: String,
    /// Offered load, 0 to 1.
    pub load: f64,
    /// Which requests are counted.
    pub class: Class,
    /// p99 measured, us; absent where the point is saturated.
    pub measured_p99_us: Option<f64>,
    /// p99 computed, us; absent where the offered load has no steady state.
    pub lindley_p99_us: Option<f64>,
    /// p99 that the simulator gives with the costs measured in this run, us.
    pub predicted_p99_us: Option<f64>,
}

/// A contender's name: policy, mechanism, quantum, as far as they apply.
pub fn contender_name(policy: &str, mechanism: &str, quantum_us: Option<f64>) -> String {
    let mut name = policy.to_owned();
    if mechanism != "none" {
        name += &format!(" {mechanism}");
    }
    if let Some(quantum) = quantum_us {
        name += &format!(" {quantum} µs");
    }
    name
}

impl Run {
    /// The contender's name, as [`contender_name`] writes it.
    pub fn contender(&self) -> String {
        contender_name(&self.policy, &self.mechanism, self.quantum_us)
    }

    /// How many times slower the work ran than calibrated, where that is enough to mark the p99.
    pub fn slow(&self) -> Option<f64> {
        self.times_slower.filter(|&times| times > SLOWER)
    }

    /// How many times slower the work of some repetition ran, where that is enough to mark the
    /// spread alone.
    pub fn slow_in_spread(&self) -> Option<f64> {
        let alone = self.times_slower_max.filter(|_| self.slow().is_none());
        alone.filter(|&times| times > SLOWER)
    }

    /// Marks the run saturated and takes its percentiles away.
    pub fn saturate(&mut self) {
        self.saturated = true;
        for value in [
            &mut self.p50_us,
            &mut self.p99_us,
            &mut self.p999_us,
            &mut self.p99_slowdown,
            &mut self.p99_us_min,
            &mut self.p99_us_max,
        ] {
            *value = None;
        }
    }

    fn check(&self) -> Result<()> {
        ensure!(
            self.load > 0.0 && self.load.is_finite(),
            "load {} is not a share of the capacity",
            self.load
        );
        let percentiles = [self.p50_us, self.p99_us, self.p999_us, self.p99_slowdown];
        if self.saturated || self.n == 0 {
            ensure!(
                percentiles.iter().all(Option::is_none),
                "a point that is saturated or without requests has no percentiles"
            );
        } else {
            for value in percentiles {
                // Zero and NaN cannot be drawn on a logarithmic axis, and neither is a latency.
                ensure!(
                    value.is_some_and(|v| v > 0.0 && v.is_finite()),
                    "percentiles must be positive: {percentiles:?}"
                );
            }
            ensure!(
                self.p50_us <= self.p99_us && self.p99_us <= self.p999_us,
                "percentiles do not rise: {percentiles:?}"
            );
        }
        Ok(())
    }
}

impl Policies {
    /// Checks what the types cannot: percentiles against saturation, names without doubles.
    ///
    /// # Errors
    /// If something is wrong; the message names the entry.
    pub fn check(&self) -> Result<()> {
        if let Some((name, ns)) = self.costs.iter().find(|(_, ns)| !ns.is_finite()) {
            bail!("cost {name} is {ns}");
        }
        if let Some(name) = (self.cost_details.keys()).find(|name| !self.costs.contains_key(*name))
        {
            bail!("cost_details has {name}, which is not among the costs");
        }
        if let Some(stalls) = &self.stalls
            && !(stalls.p99_us >= 0.0 && stalls.p99_us.is_finite())
        {
            bail!("the floor of the host's stalls is {} us", stalls.p99_us);
        }
        for (list, runs) in [("runs", &self.runs), ("quantum_sweep", &self.quantum_sweep)] {
            let mut seen = std::collections::HashSet::new();
            for run in runs {
                let name = format!(
                    "{list}: {} at {}, {}, {}",
                    run.mix,
                    run.load,
                    run.contender(),
                    run.class
                );
                run.check().with_context(|| name.clone())?;
                ensure!(seen.insert(name.clone()), "{name} is there twice");
            }
        }
        Ok(())
    }

    /// The mixes in the order they were run.
    pub fn mix_names(&self) -> Vec<&str> {
        distinct(self.runs.iter().map(|run| run.mix.as_str()))
    }

    /// The contenders of all runs in the order they were run.
    pub fn contenders(&self) -> Vec<String> {
        distinct(self.runs.iter().map(Run::contender))
    }

    /// The floor that the host's stalls put under every p99, us, where they have one.
    pub fn stall_floor_us(&self) -> Option<f64> {
        (self.stalls.as_ref())
            .map(|stalls| stalls.p99_us)
            .filter(|&floor| floor > 0.0)
    }

    /// The runs of one mix that count one class.
    pub fn of<'a>(&'a self, mix: &'a str, class: Class) -> impl Iterator<Item = &'a Run> + Clone {
        self.runs
            .iter()
            .filter(move |run| run.mix == mix && run.class == class)
    }

    /// The class whose latency a mix is about: short requests, or all where the mix knows only one
    /// kind.
    pub fn leading_class(&self, mix: &str) -> Class {
        if self.of(mix, Class::Short).next().is_some() {
            Class::Short
        } else {
            Class::All
        }
    }
}
