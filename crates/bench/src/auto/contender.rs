//! The contenders of `auto`: every combination of layout, mechanism and quantum that one might
//! choose by hand.

use shinjuku::policy::{cfcfs, single_queue};
use shinjuku::{ClassConfig, Config, CoresConfig, LayoutKind, MechanismKind, PolicyConfig};

use crate::closures;
use crate::policies::contender::Probes;
use crate::policies::mixes::BenchMix;

/// The name that results give it.
pub const AUTO: &str = "auto";

/// Quanta with probes and with signals, us.
const PROBE_US: [f64; 2] = [5.0, 20.0];
const SIGNAL_US: [f64; 2] = [50.0, 200.0];

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Contender {
    /// Whether the requests' code has probes.
    with_probes: bool,
    choice: Choice,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Choice {
    /// The default configuration.
    Auto,
    /// This one; without a quantum, to completion.
    Fixed(LayoutKind, Option<f64>),
}

impl Contender {
    /// `auto` first, then what is fixed.
    fn all(with_probes: bool) -> Vec<Self> {
        let quanta = if with_probes { PROBE_US } else { SIGNAL_US };
        let mut choices = vec![Choice::Auto];
        for layout in [LayoutKind::Threads, LayoutKind::Symmetric] {
            choices.push(Choice::Fixed(layout, None));
            choices.extend(quanta.map(|quantum| Choice::Fixed(layout, Some(quantum))));
        }
        let contender = |choice| Self {
            with_probes,
            choice,
        };
        choices.into_iter().map(contender).collect()
    }

    /// The contenders in bursts.
    pub fn of_bursts(with_probes: bool) -> Vec<Self> {
        Self::all(with_probes)
    }

    /// The contenders in the service experiment. There the layout `threads` would dispatch on a
    /// core that the requests want, so only one of its kind competes.
    pub fn of_service(with_probes: bool) -> Vec<Self> {
        let mut all = Self::all(with_probes);
        let quantum = if with_probes { PROBE_US } else { SIGNAL_US }[1];
        all.retain(|one| match one.choice {
            Choice::Fixed(LayoutKind::Threads, of) => of == Some(quantum),
            _ => true,
        });
        all
    }

    /// As results call it.
    pub fn name(&self) -> String {
        let Choice::Fixed(layout, quantum) = self.choice else {
            return AUTO.to_owned();
        };
        let layout = layout_name(layout);
        match quantum {
            Some(quantum) => format!("{layout}, {} {quantum} us", self.mechanism()),
            None => to_completion(layout),
        }
    }

    /// Whether nothing is preempted.
    pub fn is_to_completion(&self) -> bool {
        matches!(self.choice, Choice::Fixed(_, None))
    }

    /// Which requests poll.
    pub fn probes(&self) -> Probes {
        match self.with_probes {
            true => Probes::All,
            false => Probes::None,
        }
    }

    fn mechanism(&self) -> MechanismKind {
        match self.with_probes {
            true => MechanismKind::Probe,
            false => MechanismKind::Signal,
        }
    }

    /// The configuration for a burst, from what all bursts have in common.
    pub fn config(&self, common: Config, cores: &[usize], mix: &BenchMix) -> Config {
        let classes = mix.mix.classes().iter();
        let config = common.class(classes.map(|class| ClassConfig::new(&class.name)));
        let Choice::Fixed(layout, _) = self.choice else {
            return config.workers(None);
        };
        let config = self.fix(config);
        if layout == LayoutKind::Symmetric {
            let loops = CoresConfig::default().workers(cores.iter().copied());
            return config.workers(cores.len()).cores(loops);
        }
        config
    }

    /// The pool of the service experiment.
    pub fn pool(&self) -> closures::Contender {
        let config = match self.choice {
            Choice::Auto => Config::default(),
            Choice::Fixed(..) => self.fix(Config::default()),
        };
        match self.with_probes {
            true => closures::Contender::pool(AUTO, config),
            false => closures::Contender::pool_without_probes(AUTO, config, true),
        }
    }

    fn fix(&self, config: Config) -> Config {
        let Choice::Fixed(layout, quantum) = self.choice else {
            return config;
        };
        let mut config = config.layout(layout).strict(true);
        config.preemption.mechanism = match quantum {
            Some(_) => self.mechanism(),
            None => MechanismKind::None,
        };
        config.policy = match quantum {
            Some(quantum) => PolicyConfig::new(single_queue::REGISTERED).quantum_us(quantum),
            None => PolicyConfig::new(cfcfs::REGISTERED),
        };
        config
    }
}

/// The name of what never preempts in this layout: c-FCFS.
pub fn to_completion(layout: &str) -> String {
    format!("{layout}, to completion")
}

/// A layout's name in results.
pub fn layout_name(layout: LayoutKind) -> &'static str {
    match layout {
        LayoutKind::Symmetric => "symmetric",
        LayoutKind::Inline => "inline",
        _ => "threads",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_contenders_apart_and_auto_is_first() {
        for all in [
            Contender::of_bursts(true),
            Contender::of_bursts(false),
            Contender::of_service(true),
            Contender::of_service(false),
        ] {
            let names: Vec<_> = all.iter().map(Contender::name).collect();
            let distinct: std::collections::BTreeSet<_> = names.iter().collect();
            assert_eq!(distinct.len(), names.len(), "{names:?}");
            assert_eq!(names[0], AUTO);
        }
    }

    #[test]
    fn auto_is_given_nothing_and_the_others_all() {
        let mix = BenchMix::spinning("hi").unwrap();
        for one in Contender::of_bursts(true) {
            let config = one.config(Config::default(), &[0, 1], &mix);
            let is_auto = one.choice == Choice::Auto;
            assert_eq!(config.layout == LayoutKind::Auto, is_auto);
            let mechanism = config.preemption.mechanism;
            assert_eq!(mechanism == MechanismKind::Auto, is_auto);
            assert_eq!(config.class.len(), 2);
        }
    }
}
