//! The floor under the quantum: no more preemption than is worth its cost, and none where it helps
//! no request.
//!
//! `Auto` keeps a floor for each mechanism, which the quantum in force never goes below. Every
//! period it estimates from the [`LoadProfile`] how long a short request has to wait under each of
//! some quanta, and under none, and takes the quantum with the shortest wait.
//!
//! The estimate. A request that arrives finds requests in the system whose remaining times have the
//! equilibrium distribution of the running times *S*. For each of them it waits until that request
//! ends, or for a quantum *q* and the cost *c* of a preemption, whichever is shorter. The number of
//! these requests grows with the share *U* of its time that the worker is busy, to which the
//! preemptions add:
//!
//! ```text
//!   X(q) = (E[S a - a^2 / 2] + c E[S; S > q]) / E[S],  a = min(S, q)    waited for, of each
//!   U(q) = U + U^2 2c E[ceil(S / q) - 1] / E[S]                        if others wait
//!   W(q) = X(q) / (1 - U(q)) * ceil(s / q)                             for a short one of length s
//! ```
//!
//! Without a quantum, `W` is the mean wait of an M/G/1 queue up to a factor, and the tail of the
//! wait grows with its mean. Several workers divide all waits by the same number. Near saturation,
//! expensive preemptions raise `U(q)` towards 1, and with it the quantum. Requests that are all
//! alike would have to wait once for each quantum that they take, so they are not preempted at all.
//! A cost that was measured too low does most harm in `U(q)`, so the cost counts twice there.
//!
//! Under strict priority and EDF a request is preempted only for one that goes before it, so each
//! arrival causes one preemption at most, and short requests do not queue behind long ones. The
//! floor is the least one there, unless preemptions took more than a share of what is left of the
//! workers' time.
//! Where a request is stopped at the end of each quantum whether others wait or not, the quantum is
//! so long that this takes a small share of its time.
//!
//! The profile knows finished requests only. A request that runs for twice as long as the longest
//! of these is preempted, whatever the estimate says.

use shinjuku_policy::{Nanos, registry};

use crate::config::Config;
use crate::load_profile::LoadProfile;

/// How often the floor is estimated.
pub(crate) const PERIOD: Nanos = Nanos::from_millis(10);

/// The floor over the cost, before the load is known.
const FIRST_MULTIPLE: u64 = 10;
/// The least floor over the cost. The cost is known to within a factor of two or three.
const LEAST_MULTIPLE: f64 = 5.0;
/// The ratio of two successive quanta that are tried.
const STEP: f64 = std::f64::consts::SQRT_2;
const STEPS: i32 = 24;
/// A request that runs for so many times the longest known length is preempted even where
/// preempting is not worth it.
const UNKNOWN: f64 = 2.0;
/// With a quantum the wait has to be below this share of that without one: the estimate is rough,
/// and preempted requests pay.
const WORTH_IT: f64 = 0.8;
/// With another quantum the wait has to be below this share of that with the present one.
const WORTH_CHANGING: f64 = 0.85;
/// How many times the measured cost a preemption is taken to add to the workers' load.
const CAUTION: f64 = 2.0;
/// The least floor over the cost where requests are stopped for more urgent ones.
const ASKED_MULTIPLE: f64 = 10.0;
/// The same where they are stopped even if nobody waits.
const UNASKED_MULTIPLE: f64 = 20.0;
/// Preemptions for more urgent requests may take this share of what the workers have left.
const FOR_URGENT: f64 = 0.5;
/// The length below which this share of the requests lies stands for the short ones.
const SHORT: f64 = 0.1;
/// The workers count as no busier than this, lest the estimate become infinite.
const BUSIEST: f64 = 0.98;

/// For whom the policy has requests preempted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PreemptedFor {
    /// Whoever waits: the preempted one goes behind them.
    Anyone,
    /// Nobody that is as long: the preempted one would run next again.
    Nobody,
    /// Whoever goes before it by rank.
    MoreUrgent,
}

impl PreemptedFor {
    /// By the configured policy. Where a preempted request can only go back to the place that its
    /// rank gives it, it is preempted for those before it.
    pub(crate) fn under(config: &Config) -> Self {
        match registry::named(config.policy.kind.as_str()) {
            Ok(policy) if policy.preempts && !policy.requeues => Self::MoreUrgent,
            _ => Self::Anyone,
        }
    }
}

/// The floor for one mechanism.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuantumFloor {
    /// Worker time that one preemption takes; 0: a floor that stays at 0.
    cost: Nanos,
    current: u64,
    /// Whether requests are stopped even if nobody waits.
    is_unasked: bool,
}

impl QuantumFloor {
    /// No floor: the policy's quantum is in force.
    pub(crate) const NONE: Self = Self::at_cost(Nanos(0));

    pub(crate) const fn at_cost(cost: Nanos) -> Self {
        Self {
            cost,
            current: cost.0 * FIRST_MULTIPLE,
            is_unasked: false,
        }
    }

    /// Says whether requests are stopped even if nobody waits.
    pub(crate) fn unasked(&mut self, is_unasked: bool) {
        self.is_unasked = is_unasked;
    }

    /// The worker time that so many preemptions take.
    pub(crate) fn spent(&self, preemptions: u64) -> Nanos {
        Nanos(preemptions.saturating_mul(self.cost.0))
    }

    /// The quantum in force where the policy says `quantum`.
    pub(crate) fn raise(&self, quantum: Nanos) -> Nanos {
        Nanos(quantum.0.max(self.current))
    }

    fn for_urgent(&self) -> f64 {
        let multiple = match self.is_unasked {
            true => UNASKED_MULTIPLE,
            false => ASKED_MULTIPLE,
        };
        self.cost.0 as f64 * multiple
    }

    /// Sets the floor to what suits the load and the policy.
    pub(crate) fn suit(&mut self, load: &LoadProfile, preempted_for: PreemptedFor) {
        match preempted_for {
            PreemptedFor::Anyone => self.adapt(load),
            PreemptedFor::Nobody => self.let_run(load),
            PreemptedFor::MoreUrgent => self.give_way(load),
        }
    }

    /// Sets the floor to the least one, or the least at which preemptions take no more than
    /// [`FOR_URGENT`] of the workers' time that is left: there is one an arrival at most, and one a
    /// quantum.
    fn give_way(&mut self, load: &LoadProfile) {
        let busy = load.busy().min(BUSIEST);
        let spent = busy * CAUTION * self.cost.0 as f64 / (FOR_URGENT * (1.0 - busy));
        let mean: f64 = load.lengths().map(|(share, length)| share * length).sum();
        let least = self.for_urgent();
        let floor = if spent > mean {
            least.max(spent)
        } else {
            least
        };
        // The load changes a little all the time.
        let near = self.current as f64 * WORTH_CHANGING..=self.current as f64 / WORTH_CHANGING;
        if !near.contains(&floor) {
            self.current = floor as u64;
        }
    }

    /// Sets the floor so that no request is preempted that is as long as others: the policy would
    /// have it run next again.
    fn let_run(&mut self, load: &LoadProfile) {
        let none = self.none(load) as u64;
        // The longest length changes a little all the time.
        if self.cost.0 > 0 && !(none..=2 * none).contains(&self.current) {
            self.current = none + none / 2;
        }
    }

    /// The floor under which no request is preempted that is as long as others.
    fn none(&self, load: &LoadProfile) -> f64 {
        self.lowest().max(UNKNOWN * load.longest())
    }

    fn lowest(&self) -> f64 {
        self.cost.0 as f64 * LEAST_MULTIPLE
    }

    /// Sets the floor to the quantum that suits the load.
    fn adapt(&mut self, load: &LoadProfile) {
        if self.cost.0 == 0 {
            return;
        }
        let wait = |quantum| wait(load, self.cost.0 as f64, quantum);
        let (lowest, none) = (self.lowest(), self.none(load));
        let mut chosen = (none, wait(none) * WORTH_IT);
        for step in 0..STEPS {
            let quantum = lowest * STEP.powi(step);
            let its_wait = wait(quantum);
            if its_wait < chosen.1 {
                chosen = (quantum, its_wait);
            }
        }
        if chosen.1 < wait(self.current as f64) * WORTH_CHANGING {
            self.current = chosen.0 as u64;
        }
    }
}

/// The wait of short requests under such a quantum, up to a factor: `W(q)` of this file's header.
/// Infinite where preemptions would take what is left of the workers' time.
fn wait(load: &LoadProfile, cost: f64, quantum: f64) -> f64 {
    let (mut mean, mut ahead, mut cut, mut preemptions) = (0.0, 0.0, 0.0, 0.0);
    let (mut seen, mut short) = (0.0, None);
    for (share, length) in load.lengths() {
        let first = length.min(quantum);
        mean += share * length;
        ahead += share * (length * first - first * first / 2.0);
        if length > quantum {
            cut += share * length;
            preemptions += share * ((length / quantum).ceil() - 1.0);
        }
        seen += share;
        if seen >= SHORT {
            short.get_or_insert(length);
        }
    }
    let Some(short) = short else {
        return 0.0;
    };
    let busy = load.busy().min(BUSIEST);
    let with_preemptions = busy + busy * busy * CAUTION * cost * preemptions / mean;
    if with_preemptions > BUSIEST {
        return f64::INFINITY;
    }
    let each = (ahead + cost * cut) / mean;
    each / (1.0 - with_preemptions) * (short / quantum).ceil()
}

#[cfg(test)]
mod tests;
