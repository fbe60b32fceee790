//! Which mechanisms can be measured here, how their interrupts come, and why the others cannot.

use shinjuku::{HardPreemption, MechanismKind};
use shinjuku_preempt::{BACKENDS, Delivery, Prospect};

use super::contender::Contender;

/// What there is on this machine.
#[derive(Clone, Debug)]
pub struct Mechanisms {
    /// How interrupts would come in guest mode; or why there is none.
    pub guest: Result<Delivery, String>,
    /// Set up; or why it cannot be.
    pub dune: Result<(), String>,
}

impl Mechanisms {
    /// Tries each of them.
    pub fn find(token: HardPreemption) -> Self {
        let install = |name: &str| {
            let kind = BACKENDS.iter().find(|kind| kind.name() == name);
            let kind = kind.ok_or_else(|| "it is not in this build".to_owned())?;
            kind.install(token).map_err(|error| error.to_string())?;
            Ok(kind.prospect())
        };
        let guest = install("guest").and_then(|prospect| match prospect {
            Prospect::Measurable(delivery) => Ok(delivery),
            prospect => Err(format!("it cannot be measured: {prospect:?}")),
        });
        let dune = install("dune").map(drop);
        Self { guest, dune }
    }

    /// Whether threads of this process can be interrupted by signal: libdune, once set up, ignores
    /// most of them.
    pub fn has_signals(&self) -> bool {
        self.dune.is_err()
    }

    /// Those that signals do not take part in, and that interrupt code anywhere.
    pub fn contenders(&self) -> impl Iterator<Item = Contender> + '_ {
        let guest = self.guest.as_ref().ok().filter(|_| self.has_signals());
        let guest = guest.map(|delivery| Contender::guest(quantum_us(*delivery)));
        let dune = self.dune.as_ref().ok().map(|()| Contender::DUNE);
        guest.into_iter().chain(dune)
    }

    /// A line for each: how it interrupts, or why it is not measured. `competing` are those that
    /// are.
    pub fn lines(&self, competing: &[Contender]) -> Vec<String> {
        let signals = match self.has_signals() {
            true => Ok("by tgkill".to_owned()),
            false => Err(
                "libdune, once set up, ignores the signals of the whole process, and there is no way back; run the \
                 bench again without the feature `libdune` to have it"
                    .to_owned(),
            ),
        };
        let guest = match (&signals, &self.guest) {
            (Err(why_not), _) | (_, Err(why_not)) => Err(why_not.clone()),
            (Ok(_), Ok(delivery)) => Ok(format!(
                "{delivery}; its quantum of {} µs goes by what a preemption costs when they come so",
                quantum_us(*delivery)
            )),
        };
        let dune = match &self.dune {
            Ok(()) => Ok(
                "posted by the dispatcher; not in the table of costs, since no thread that has entered it gets out"
                    .to_owned(),
            ),
            Err(why_not) => Err(why_not.clone()),
        };
        let polls = Ok("found by the code's probes".to_owned());
        [
            (MechanismKind::Probe, polls),
            (MechanismKind::Signal, signals),
            (MechanismKind::Guest, guest),
            (MechanismKind::Dune, dune),
        ]
        .into_iter()
        .map(|(kind, found)| match found {
            Err(why_not) => format!("Mechanism {kind}, not run: {why_not}."),
            Ok(_) if !competing.iter().any(|one| one.mechanism == kind) => {
                format!("Mechanism {kind}, not run: no contender with it was asked for.")
            }
            Ok(how) => format!("Mechanism {kind}, run: {how}."),
        })
        .collect()
    }
}

/// About ten times what a preemption costs: tens of microseconds in software, as much as a signal
/// with exits, less without. Where interrupts are posted, as counted, Shinjuku's own quantum.
fn quantum_us(delivery: Delivery) -> f64 {
    match delivery {
        Delivery::Software => 350.0,
        Delivery::Posted(_) => 5.0,
        Delivery::Unproven(_) => 20.0,
        // With exits, and whatever there may be one day.
        _ => 50.0,
    }
}

#[cfg(test)]
impl Mechanisms {
    /// Nothing but probes and signals.
    pub fn signals_alone() -> Self {
        Self {
            guest: Err("there is no /dev/kvm".to_owned()),
            dune: Err("there is no /dev/dune".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(mechanisms: &Mechanisms) -> String {
        mechanisms.lines(&Contender::all(1, mechanisms)).join("\n")
    }

    #[test]
    fn whatever_is_not_run_says_why_in_a_line() {
        let none = Mechanisms::signals_alone();
        assert_eq!(lines(&none).lines().count(), 4);
        assert!(lines(&none).contains("guest, not run: there is no /dev/kvm.\n"));
        assert!(lines(&none).contains("dune, not run: there is no /dev/dune."));
        assert!(lines(&none).contains("signal, run: by tgkill."));
        let only = none.lines(&[Contender::FCFS, Contender::probe(5.0)]);
        assert!(only[0].starts_with("Mechanism probe, run: "), "{only:?}");
        assert!(
            only[1].contains("signal, not run: no contender"),
            "{only:?}"
        );
    }

    #[test]
    fn what_guest_mode_delivers_by_decides_its_quantum() {
        let guest = |delivery| Mechanisms {
            guest: Ok(delivery),
            ..Mechanisms::signals_alone()
        };
        for (delivery, quantum, says) in [
            (Delivery::Software, 350.0, "by software virtualisation"),
            (Delivery::Injected, 50.0, "injected with exits"),
            (Delivery::Unproven("AVIC"), 20.0, "AVIC is on"),
            (Delivery::Posted("APICv"), 5.0, "posted by APICv"),
        ] {
            let here = guest(delivery);
            let all = Contender::all(1, &here);
            let found: Vec<_> = all
                .iter()
                .filter(|one| one.mechanism == MechanismKind::Guest)
                .map(|one| one.quantum_us)
                .collect();
            assert_eq!(found, [Some(quantum)]);
            assert!(lines(&here).contains(says), "{}", lines(&here));
        }
    }

    #[test]
    fn beside_dune_nothing_is_run_that_takes_signals() {
        let here = Mechanisms {
            guest: Ok(Delivery::Injected),
            dune: Ok(()),
        };
        let kinds: Vec<_> = Contender::all(1, &here)
            .iter()
            .chain(&Contender::without_probes(1, &here))
            .map(|one| one.mechanism)
            .collect();
        assert!(kinds.contains(&MechanismKind::Dune));
        for kind in [
            MechanismKind::Signal,
            MechanismKind::Escalation,
            MechanismKind::Auto,
            MechanismKind::Guest,
        ] {
            assert!(!kinds.contains(&kind), "{kind}");
        }
        let said = lines(&here);
        assert_eq!(
            said.matches("ignores the signals of the whole process")
                .count(),
            2,
            "{said}"
        );
    }
}
