//! Which mechanism preempts, from which quantum on, and why.
//!
//! | mechanism | at the quantum | after the grace period |
//! |---|---|---|
//! | none | - | - |
//! | probe | request, found by the code's probes | - |
//! | signal | request and interrupt | interrupt again, ever more seldom |
//! | escalation | request | interrupt |
//! | guest | request and interrupt, with the workers in guest mode | interrupt again, ever more seldom |
//! | dune | the same, with dispatcher and workers under Dune | interrupt again, ever more seldom |
//! | auto | request; probe alone without the token | interrupt, by what [`automatic`] chooses; all under a [`Floor`] |
//!
//! Not inline: guest and dune. What they save is the way through the kernel from one core to another. A thread that stops itself
//! has its timer alone, which leaves guest mode to fire, so it would cost what the timer's signal costs; and each look at the
//! network would leave guest mode on top.

mod automatic;

use shinjuku_policy::Nanos;
use shinjuku_preempt::dune::Dune;
use shinjuku_preempt::guest::{self, Guest, GuestConfig};
use shinjuku_preempt::{HardPreemption, Mechanism, Signal};

use crate::config::{Config, MechanismKind};
use crate::floor::Floor;
use crate::layout::Layout;
use crate::start_error::StartError;

/// How this runtime preempts.
pub(crate) struct Preemption {
    /// Whether requests are made at all.
    pub(crate) enabled: bool,
    /// The mechanism for code that does not answer the request.
    pub(crate) hard: Option<Box<dyn Mechanism>>,
    /// In the inline layout nobody is there to send it: a timer on the request's own thread does.
    pub(crate) timer_signal: Option<Signal>,
    /// The workers enter guest mode, where this interrupts them.
    pub(crate) guest: Option<Guest>,
    /// Dispatcher and workers enter Dune mode, where this interrupts them.
    pub(crate) dune: Option<Dune>,
    /// How long the code has to answer before the hard mechanism; 0: it comes with the request.
    pub(crate) grace: Nanos,
    pub(crate) probe_floor: Floor,
    pub(crate) hard_floor: Floor,
    /// What was chosen and why, for the log.
    pub(crate) why: String,
}

impl Preemption {
    /// Chooses as the configuration says. `Auto` measures what the mechanisms cost on the cores of `layout`.
    pub(crate) fn choose(
        config: &Config,
        layout: &Layout,
        token: Option<HardPreemption>,
    ) -> Result<Self, StartError> {
        let grace = config.preemption.grace();
        let soft = |enabled, why: &str| Self::soft(enabled, grace, why);
        let signal = |grace, why: &str| match token {
            Some(token) => {
                let signal = Signal::install(token)?;
                Ok(Self {
                    hard: Some(Box::new(signal)),
                    timer_signal: layout.inline.then_some(signal),
                    grace,
                    ..soft(true, why)
                })
            }
            None => Err(StartError::NotAllowed {
                mechanism: config.preemption.mechanism,
            }),
        };
        let guest = || match token {
            Some(_) if layout.inline => Err(StartError::Inline {
                mechanism: config.preemption.mechanism,
            }),
            Some(token) => {
                let guest = Guest::install(token, GuestConfig::default())?;
                Ok(Self {
                    hard: Some(Box::new(guest.clone())),
                    guest: Some(guest),
                    grace: Nanos(0),
                    ..soft(
                        true,
                        &format!("guest (interrupts: {}), as configured", guest::promised()),
                    )
                })
            }
            None => Err(StartError::NotAllowed {
                mechanism: config.preemption.mechanism,
            }),
        };
        let dune = || match token {
            Some(_) if layout.inline => Err(StartError::Inline {
                mechanism: config.preemption.mechanism,
            }),
            Some(token) => {
                let dune = Dune::install(token)?;
                Ok(Self {
                    hard: Some(Box::new(dune)),
                    dune: Some(dune),
                    grace: Nanos(0),
                    ..soft(true, "dune, as configured")
                })
            }
            None => Err(StartError::NotAllowed {
                mechanism: config.preemption.mechanism,
            }),
        };
        let fall_back = |error: StartError| {
            if config.strict {
                return Err(error);
            }
            Ok(soft(true, &format!("probe, because {error}")))
        };
        let fall_back_on_signal = |error: StartError| match token {
            Some(_) if !config.strict => signal(Nanos(0), &format!("signal, because {error}")),
            _ => fall_back(error),
        };
        match config.preemption.mechanism {
            MechanismKind::None => Ok(soft(false, "none, as configured")),
            MechanismKind::Probe => Ok(soft(true, "probe, as configured")),
            MechanismKind::Signal => signal(Nanos(0), "signal, as configured").or_else(fall_back),
            MechanismKind::Escalation => {
                signal(grace, "escalation from probe to signal, as configured").or_else(fall_back)
            }
            MechanismKind::Guest => guest().or_else(fall_back_on_signal),
            MechanismKind::Dune => dune().or_else(fall_back_on_signal),
            MechanismKind::Auto => Self::automatic(config, layout, token),
        }
    }

    /// The floor for preemptions by the hard mechanism, or by probe.
    pub(crate) fn floor_of(&mut self, hard: bool) -> &mut Floor {
        if hard {
            &mut self.hard_floor
        } else {
            &mut self.probe_floor
        }
    }

    /// Nothing that stops code anywhere.
    fn soft(enabled: bool, grace: Nanos, why: &str) -> Self {
        Self {
            enabled,
            hard: None,
            timer_signal: None,
            guest: None,
            dune: None,
            grace,
            probe_floor: Floor::NONE,
            hard_floor: Floor::NONE,
            why: why.to_owned(),
        }
    }
}
