//! Which mechanism preempts, from which quantum on, and why.
//!
//! | mechanism | at the quantum | after the grace period |
//! |---|---|---|
//! | none | - | - |
//! | probe | request, found by the code's probes | - |
//! | compiled-probe | request, found by the code's probes and at function entries | - |
//! | signal | request and interrupt | interrupt again, at growing intervals |
//! | escalation | request, found as by compiled-probe if the program has compiled probes | interrupt |
//! | guest, dune | request and interrupt, with the workers in a special mode ([`Backend`]) | interrupt again, at growing intervals |
//! | auto | as escalation; probe alone without the token | interrupt, by what [`automatic`] chooses |
//!
//! Quanta are the policy's, or are kept above a [`QuantumFloor`] for each mechanism: under `auto`,
//! and where `preemption.quanta` asks for it.
//!
//! Compiled probes look at the request only while their gate is up, and the dispatcher raises it
//! with the request. Inline, the request is there before the code runs, with its deadline: the gate
//! would be up all the time. So there the thread's timer raises it, where compiled probes are asked
//! for by name. `escalation` and `auto` leave them out there: the timer's signal has come by then,
//! and it can as well stop the code where it stands. There are none in special modes: a compiled
//! probe that gives way asks the kernel for the signal mask, which leaves the mode.
//!
//! Where contexts are kernel threads, `signal`, `escalation` and `auto` need no token: stopping a
//! thread where it stands takes nothing from it. Special modes are not used with such contexts,
//! since only the workers' own threads could enter them.
//!
//! The layouts `inline` and `symmetric` have no special modes. These save the way through the
//! kernel from one core to another. A thread that stops itself has only its timer, which leaves the
//! mode to fire, so a preemption would cost as much as by the timer's signal. Each poll of the
//! network would leave the mode, too.

mod automatic;
mod in_force;

use std::sync::Arc;

use shinjuku_policy::Nanos;
use shinjuku_policy::verified::LONGEST_STRETCH;
use shinjuku_preempt::{
    BACKENDS, Backend, CompiledProbes, HardPreemption, Mechanism, Prospect, Signal,
};

use crate::calibrate;
use crate::config::{Config, MechanismKind};
use crate::layout::Layout;
use crate::load_profile::{LoadProfile, Period};
use crate::quantum_floor::{PreemptedFor, QuantumFloor};
use crate::start_error::StartError;

pub(crate) use in_force::InForce;
pub use in_force::QuantumInForce;

/// How this runtime preempts.
#[derive(Clone)]
pub(crate) struct Preemption {
    /// Whether code is asked to give way at all.
    pub(crate) enabled: bool,
    /// Compiled probes, if they look at requests as well.
    pub(crate) compiled: Option<CompiledProbes>,
    /// The mechanism for code that does not answer the request.
    pub(crate) hard: Option<Arc<dyn Mechanism>>,
    /// The signal, if that is it, or raises the gate of compiled probes. In the inline layout
    /// nobody is there to send it: a timer on the request's own thread does.
    pub(crate) signal: Option<Signal>,
    /// The special mode, in which `hard` interrupts the workers. They enter it, and so does the
    /// dispatcher where it must.
    pub(crate) backend: Option<Arc<dyn Backend>>,
    /// How long the code has to answer before the hard mechanism; 0: it comes with the request.
    pub(crate) grace: Nanos,
    pub(crate) probe_floor: QuantumFloor,
    pub(crate) hard_floor: QuantumFloor,
    /// The load to which the floors are adapted.
    load: LoadProfile,
    /// Where the floors are published, if they can change.
    pub(crate) in_force: Option<Arc<InForce>>,
    /// What was chosen and why, for the log.
    pub(crate) why: String,
}

impl Preemption {
    /// Chooses as the configuration says. `Auto` measures what the mechanisms cost on the cores of
    /// `layout`.
    pub(crate) fn choose(
        config: &Config,
        layout: &Layout,
        token: Option<HardPreemption>,
    ) -> Result<Self, StartError> {
        let given = Given {
            config,
            layout,
            token,
        };
        let on_probes = |error| given.fall_back_on_probes(error);
        let on_signals = |error| given.fall_back_on_signals(error);
        let grace = config.preemption.grace();
        let chosen = match config.preemption.mechanism {
            MechanismKind::None => Ok(given.soft(false, "none, as configured")),
            MechanismKind::Probe => Ok(given.soft(true, "probe, as configured")),
            MechanismKind::CompiledProbe => given.compiled_probes().or_else(on_probes),
            MechanismKind::Signal => {
                (given.signal(Nanos(0), "signal, as configured")).or_else(on_probes)
            }
            MechanismKind::Escalation => {
                let why = "escalation from probe to signal, as configured";
                (given.signal(grace, why))
                    .map(|chosen| chosen.with_compiled_probes(layout, token))
                    .or_else(on_probes)
            }
            MechanismKind::Guest => given.in_mode("kvm").or_else(on_signals),
            MechanismKind::Dune => given.in_mode("dune").or_else(on_signals),
            MechanismKind::Auto => return Self::automatic(config, layout, token),
        }?;
        Ok(match config.preemption.raises_quanta() {
            true => chosen.raising_measured_quanta(config, layout),
            false => chosen,
        })
    }

    /// As [`raising_quanta`](Self::raising_quanta), with the costs as measured on the cores of
    /// `layout`.
    fn raising_measured_quanta(self, config: &Config, layout: &Layout) -> Self {
        if !self.enabled {
            return self;
        }
        let (priority, kind) = (config.realtime_priority, config.context_kind);
        let costs = calibrate::measure(layout, priority, kind, self.signal, None);
        let by_signal = self.signal.map(|_| ("signal", costs.signal));
        self.raising_quanta(config, costs.probe, by_signal)
    }

    /// Keeps quanta above floors, which follow from the load, the cost of a preemption by probe,
    /// and that of one by the hard mechanism, which has a name here.
    fn raising_quanta(
        mut self,
        config: &Config,
        by_probe: Nanos,
        hard: Option<(&str, Nanos)>,
    ) -> Self {
        self.probe_floor = QuantumFloor::at_cost(by_probe);
        let mut floors = vec![("probe", &self.probe_floor)];
        if let Some((name, cost)) = hard {
            self.hard_floor = QuantumFloor::at_cost(cost);
            floors.push((name, &self.hard_floor));
        }
        self.why += "; no quantum below";
        for (place, (name, floor)) in floors.iter().enumerate() {
            let and = if place > 0 { "," } else { "" };
            let micros = floor.raise(Nanos(0)).as_micros_f64();
            self.why += &format!("{and} {micros:.1} us by {name}");
        }
        self.why += ", at first";
        if PreemptedFor::under(config) == PreemptedFor::Anyone {
            self.why += "; requests preempted often have up to ";
            self.why += &format!("{LONGEST_STRETCH} times their quantum");
        }
        self.in_force = Some(Arc::new(InForce::new(floors)));
        self
    }

    /// The same for one more dispatcher, which does not publish its floors. All dispatchers draw
    /// nearly the same conclusions, so the first one's floors are enough.
    pub(crate) fn for_another(&self) -> Self {
        Self {
            in_force: None,
            ..self.clone()
        }
    }

    /// Says whether probes and the hard mechanism stop requests even if nobody waits.
    pub(crate) fn unasked(mut self, by_probe: bool, hard: bool) -> Self {
        self.probe_floor.unasked(by_probe);
        self.hard_floor.unasked(hard);
        self
    }

    /// Counts a finished request, which has run for `ran` in all.
    #[inline]
    pub(crate) fn finished(&mut self, ran: Nanos) {
        self.load.finished(ran);
    }

    /// Adapts the floors to what a period showed: its length times the number of workers, how much
    /// of that they were without a request, and how many preemptions there were of each kind.
    pub(crate) fn adapt(
        &mut self,
        worker_time: Nanos,
        idle: Nanos,
        by_probe: u64,
        hard: u64,
        preempted_for: PreemptedFor,
    ) {
        let spent = self.probe_floor.spent(by_probe).0 + self.hard_floor.spent(hard).0;
        self.load.observe(Period {
            worker_time,
            idle,
            spent: Nanos(spent),
        });
        for floor in [&mut self.probe_floor, &mut self.hard_floor] {
            floor.suit(&self.load, preempted_for);
        }
        if let Some(in_force) = &self.in_force {
            in_force.publish(&[&self.probe_floor, &self.hard_floor], &self.load);
        }
    }

    /// Lets compiled probes find requests as well, before any interrupt, if the program has any.
    fn with_compiled_probes(mut self, layout: &Layout, token: Option<HardPreemption>) -> Self {
        let Some(compiled) = token.and_then(|token| CompiledProbes::install(token).ok()) else {
            return self;
        };
        let number = CompiledProbes::in_this_program();
        self.why += &if layout.inline {
            format!(
                "; {number} compiled probes left out: in the inline layout and the symmetric one a signal would raise \
                 their gate, and stops the code at the same cost"
            )
        } else if self.backend.is_some() {
            format!(
                "; {number} compiled probes left out: each preemption there would leave the special mode"
            )
        } else {
            self.compiled = Some(compiled);
            format!("; {number} compiled probes")
        };
        self
    }

    /// Preemption without a mechanism that stops code anywhere.
    fn soft(enabled: bool, grace: Nanos, why: &str) -> Self {
        Self {
            enabled,
            compiled: None,
            hard: None,
            signal: None,
            backend: None,
            grace,
            probe_floor: QuantumFloor::NONE,
            hard_floor: QuantumFloor::NONE,
            load: LoadProfile::new(),
            in_force: None,
            why: why.to_owned(),
        }
    }
}

/// On what the choice depends, for a mechanism that is asked for by name.
#[derive(Clone, Copy)]
struct Given<'a> {
    config: &'a Config,
    layout: &'a Layout,
    token: Option<HardPreemption>,
}

impl Given<'_> {
    fn mechanism(self) -> MechanismKind {
        self.config.preemption.mechanism
    }

    fn token(self) -> Result<HardPreemption, StartError> {
        self.token.ok_or(StartError::NotAllowed {
            mechanism: self.mechanism(),
        })
    }

    fn soft(self, enabled: bool, why: &str) -> Preemption {
        Preemption::soft(enabled, self.config.preemption.grace(), why)
    }

    fn compiled_probes(self) -> Result<Preemption, StartError> {
        let token = self.token()?;
        let compiled = CompiledProbes::install(token).map_err(StartError::CompiledProbes)?;
        let number = CompiledProbes::in_this_program();
        let why = format!("compiled probes ({number} of them), as configured");
        let chosen = Preemption {
            compiled: Some(compiled),
            ..self.soft(true, &why)
        };
        if !self.layout.inline {
            return Ok(chosen);
        }
        Ok(Preemption {
            signal: Some(Signal::install(token)?),
            grace: Nanos(0),
            why: format!("{why}; a timer of each thread raises their gate"),
            ..chosen
        })
    }

    fn signal(self, grace: Nanos, why: &str) -> Result<Preemption, StartError> {
        let signal = match self.config.context_kind.is_kernel_thread() {
            true => Signal::for_kernel_threads()?,
            false => Signal::install(self.token()?)?,
        };
        Ok(Preemption {
            hard: Some(Arc::new(signal)),
            signal: Some(signal),
            grace,
            ..self.soft(true, why)
        })
    }

    /// Preemption by the backend of the mechanism's name, which is built with `feature`.
    fn in_mode(self, feature: &'static str) -> Result<Preemption, StartError> {
        let mechanism = self.mechanism();
        if self.config.context_kind.is_kernel_thread() {
            return Err(StartError::KernelThreads { mechanism });
        }
        let token = self.token()?;
        if self.layout.inline {
            return Err(StartError::Inline { mechanism });
        }
        let name = mechanism.to_string();
        let kind = (BACKENDS.iter())
            .find(|kind| kind.name() == name)
            .ok_or(StartError::NotBuilt { mechanism, feature })?;
        let backend =
            (kind.install(token)).map_err(|cause| StartError::Backend { mechanism, cause })?;
        let why = match kind.prospect() {
            Prospect::Measurable(delivery) => {
                format!("{name} (interrupts: {delivery}), as configured")
            }
            _ => format!("{name}, as configured"),
        };
        Ok(Preemption {
            hard: Some(Arc::clone(&backend) as _),
            backend: Some(backend),
            grace: Nanos(0),
            ..self.soft(true, &why)
        })
    }

    fn fall_back_on_probes(self, error: StartError) -> Result<Preemption, StartError> {
        if self.config.strict {
            return Err(error);
        }
        Ok(self.soft(true, &format!("probe, because {error}")))
    }

    fn fall_back_on_signals(self, error: StartError) -> Result<Preemption, StartError> {
        let has_signals = self.token.is_some() || self.config.context_kind.is_kernel_thread();
        if has_signals && !self.config.strict {
            return self.signal(Nanos(0), &format!("signal, because {error}"));
        }
        self.fall_back_on_probes(error)
    }
}
