//! The contenders: policies, each with a way to preempt.

use shinjuku::policy::{Registered, cfcfs, dfcfs, multi_queue, single_queue, stealing};
use shinjuku::{Config, ContextKind, MechanismKind};

use super::mechanisms::Mechanisms;
use super::results::contender_name;

/// One way to schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Contender {
    /// Order of requests.
    pub policy: Registered,
    /// What they run on.
    pub contexts: ContextKind,
    /// What stops them.
    pub mechanism: MechanismKind,
    /// After how long, us; `None`: to completion, or as `auto` finds.
    pub quantum_us: Option<f64>,
    /// Which requests poll.
    pub probes: Probes,
}

/// Which requests have probes in their code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probes {
    /// All of them.
    All,
    /// The short ones and half of the long ones.
    HalfOfLong,
    /// None of them.
    None,
}

impl Contender {
    const fn new(
        policy: Registered,
        mechanism: MechanismKind,
        quantum_us: Option<f64>,
        probes: Probes,
    ) -> Self {
        Self {
            policy,
            contexts: ContextKind::Stack,
            mechanism,
            quantum_us,
            probes,
        }
    }

    /// First come, first served from one queue: the baseline.
    pub const FCFS: Self = Self::new(cfcfs::REGISTERED, MechanismKind::None, None, Probes::None);

    /// c-PRE-SQ with probes.
    pub const fn probe(quantum_us: f64) -> Self {
        Self::new(
            single_queue::REGISTERED,
            MechanismKind::Probe,
            Some(quantum_us),
            Probes::All,
        )
    }

    /// c-PRE-SQ with signals, on code without probes.
    pub const fn signal(quantum_us: f64) -> Self {
        Self::new(
            single_queue::REGISTERED,
            MechanismKind::Signal,
            Some(quantum_us),
            Probes::None,
        )
    }

    /// c-PRE-SQ with a kernel thread for each started request, on code without probes.
    pub const fn kernel_thread(quantum_us: f64) -> Self {
        Self {
            contexts: ContextKind::KernelThread,
            ..Self::signal(quantum_us)
        }
    }

    /// c-PRE-SQ with workers in guest mode, on code without probes.
    pub const fn guest(quantum_us: f64) -> Self {
        Self::new(
            single_queue::REGISTERED,
            MechanismKind::Guest,
            Some(quantum_us),
            Probes::None,
        )
    }

    /// c-PRE-SQ under Dune, on code without probes: the paper's own mechanism. The quantum is ours;
    /// the paper has 5 to 15 us.
    pub const DUNE: Self = Self::new(
        single_queue::REGISTERED,
        MechanismKind::Dune,
        Some(20.0),
        Probes::None,
    );

    /// c-PRE-SQ with whatever `Auto` picks, on code without probes.
    pub const AUTO: Self = Self::new(
        single_queue::REGISTERED,
        MechanismKind::Auto,
        None,
        Probes::None,
    );

    /// c-PRE-SQ, probe first, signal for the half of the long requests without probes.
    pub const ESCALATION: Self = Self::new(
        single_queue::REGISTERED,
        MechanismKind::Escalation,
        Some(5.0),
        Probes::HalfOfLong,
    );

    /// c-PRE-MQ with probes.
    pub const MQ: Self = Self::new(
        multi_queue::REGISTERED,
        MechanismKind::Probe,
        Some(5.0),
        Probes::All,
    );

    /// All that make sense with so many workers and what there is `here`.
    pub fn all(workers: usize, here: &Mechanisms) -> Vec<Self> {
        let mut all = vec![Self::FCFS];
        if workers > 1 {
            all.push(Self {
                policy: dfcfs::REGISTERED,
                ..Self::FCFS
            });
            all.push(Self {
                policy: stealing::REGISTERED,
                ..Self::FCFS
            });
        }
        all.extend([
            Self::probe(5.0),
            Self::probe(10.0),
            Self::signal(50.0),
            Self::kernel_thread(50.0),
            Self::AUTO,
            Self::ESCALATION,
            Self::MQ,
        ]);
        all.extend(here.contenders());
        all.retain(|one| here.has_signals() || !one.takes_signals());
        all
    }

    /// All that make sense on code into which no probes can be put.
    pub fn without_probes(workers: usize, here: &Mechanisms) -> Vec<Self> {
        let mq = Self {
            policy: multi_queue::REGISTERED,
            ..Self::signal(50.0)
        };
        Self::all(workers, here)
            .into_iter()
            .filter(|one| one.probes == Probes::None)
            .chain(here.has_signals().then_some(mq))
            .collect()
    }

    fn takes_signals(&self) -> bool {
        !matches!(
            self.mechanism,
            MechanismKind::None | MechanismKind::Probe | MechanismKind::Dune
        )
    }

    /// The policy's name in the literature.
    pub fn policy_name(&self) -> &'static str {
        self.policy.label
    }

    /// The mechanism's name; where requests have kernel threads, that of these.
    pub fn mechanism_name(&self) -> String {
        match self.contexts {
            ContextKind::KernelThread => "kernel-thread".to_owned(),
            _ => self.mechanism.to_string(),
        }
    }

    /// The row of the table of costs that says what a preemption by signal takes.
    pub fn preemption_row(&self) -> &'static str {
        match self.contexts {
            ContextKind::KernelThread => "preempt/kernel-thread",
            _ => "preempt/signal",
        }
    }

    /// Policy, mechanism, quantum, as the report writes them.
    pub fn name(&self) -> String {
        contender_name(self.policy_name(), &self.mechanism_name(), self.quantum_us)
    }

    /// Whether the policy wants SLOs.
    pub fn wants_slos(&self) -> bool {
        self.policy.needs_slo
    }

    /// Requests staged at a worker, the running one included. With two, a worker need not wait for
    /// the dispatcher (JBSQ(2), Concord section 3.2). Under MQ the staged one would be ahead of
    /// more urgent ones that come later; and among several workers it may wait behind a long
    /// request while another worker idles, which would handicap a contender that cannot preempt.
    /// Kernel threads would be switched between for each request.
    pub fn depth(&self, workers: usize) -> usize {
        if workers > 1 || self.wants_slos() || self.contexts == ContextKind::KernelThread {
            1
        } else {
            2
        }
    }

    /// Sets the runtime's configuration up for it.
    pub fn apply(&self, config: &mut Config) {
        config.policy.kind = self.policy.into();
        config.context_kind = self.contexts;
        config.preemption.mechanism = self.mechanism;
        config.strict = true;
        if let Some(quantum) = self.quantum_us {
            config.policy.quantum_us = quantum;
        }
    }
}

#[cfg(test)]
mod tests {
    use shinjuku_preempt::Delivery;

    use super::*;

    #[test]
    fn among_several_workers_nobody_has_requests_staged() {
        for workers in 1..4 {
            for one in Contender::all(workers, &Mechanisms::signals_alone()) {
                let may_stage = !one.wants_slos() && one.contexts == ContextKind::Stack;
                let depth = if workers == 1 && may_stage { 2 } else { 1 };
                assert_eq!(one.depth(workers), depth, "{} on {workers}", one.name());
            }
        }
    }

    #[test]
    fn names_tell_contenders_apart() {
        let here = Mechanisms {
            guest: Ok(Delivery::Software),
            ..Mechanisms::signals_alone()
        };
        let names: Vec<_> = Contender::all(2, &here)
            .iter()
            .map(Contender::name)
            .collect();
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
        assert_eq!(names[0], crate::policies::results::BASELINE);
    }
}
