//! The contenders: policies, each with a way to preempt.

use shinjuku::policy::{Registered, cfcfs, dfcfs, multi_queue, single_queue, stealing};
use shinjuku::{Config, ContextKind, CoresConfig, LayoutKind, MechanismKind};

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
    /// Who dispatches. `threads`, with a core for the dispatcher; or `symmetric`, where all cores
    /// serve, or `auto`: the default configuration.
    pub layout: LayoutKind,
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
            layout: LayoutKind::Threads,
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

    /// As it stands, with a loop on each core.
    pub const fn symmetric(self) -> Self {
        Self {
            layout: LayoutKind::Symmetric,
            ..self
        }
    }

    /// The default configuration, which chooses for itself, where these requests poll.
    pub const fn default_configuration(probes: Probes) -> Self {
        Self {
            probes,
            layout: LayoutKind::Auto,
            ..Self::AUTO
        }
    }

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
            Self::probe(5.0).symmetric(),
            Self::default_configuration(Probes::All),
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
        let others = [
            mq,
            Self::signal(50.0).symmetric(),
            Self::default_configuration(Probes::None),
        ];
        Self::all(workers, here)
            .into_iter()
            .filter(|one| one.probes == Probes::None)
            .chain(others.into_iter().filter(|_| here.has_signals()))
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

    /// The mechanism's name; where requests have kernel threads, that of these. The layout, unless
    /// it is `threads`.
    pub fn mechanism_name(&self) -> String {
        let layout = match self.layout {
            LayoutKind::Symmetric => ", symmetric",
            LayoutKind::Auto => ", layout auto",
            _ => "",
        };
        match self.contexts {
            ContextKind::KernelThread => format!("kernel-thread{layout}"),
            _ => format!("{}{layout}", self.mechanism),
        }
    }

    /// Whether a thread only dispatches, and the others only serve.
    pub fn has_dispatcher(&self) -> bool {
        self.layout == LayoutKind::Threads
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
    /// Kernel threads would be switched between for each request; and loops stage nothing.
    pub fn depth(&self, workers: usize) -> usize {
        let on_threads = self.contexts == ContextKind::KernelThread;
        if workers > 1 || self.wants_slos() || on_threads || !self.has_dispatcher() {
            1
        } else {
            2
        }
    }

    /// Sets the runtime's configuration up for it, on these cores.
    pub fn apply(&self, config: &mut Config, cores: &[usize]) {
        match self.layout {
            LayoutKind::Auto => {
                // No more is given.
                config.workers = None;
                return;
            }
            LayoutKind::Symmetric => {
                config.layout = LayoutKind::Symmetric;
                config.workers = Some(cores.len());
                config.cores = CoresConfig::default().workers(cores.iter().copied());
            }
            _ => {}
        }
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
                let on_stacks = one.contexts == ContextKind::Stack;
                let may_stage = !one.wants_slos() && on_stacks && one.has_dispatcher();
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

    #[test]
    fn loops_have_all_cores_and_the_default_is_given_nothing() {
        let here = Mechanisms::signals_alone();
        let common = Config::default().workers(1);
        for all in [Contender::all, Contender::without_probes] {
            let of = |layout| {
                let one = all(1, &here).into_iter().find(|one| one.layout == layout);
                let mut config = common.clone();
                one.unwrap().apply(&mut config, &[0, 1]);
                config
            };
            let [symmetric, auto] = [LayoutKind::Symmetric, LayoutKind::Auto].map(of);
            assert_eq!(symmetric.workers, Some(2));
            assert_eq!(symmetric.layout, LayoutKind::Symmetric);
            assert_eq!(auto, common.clone().workers(None));
        }
    }
}
