//! By which hard mechanism `auto` stops code that does not answer its probes, given the token.
//!
//! | mechanism | tried | taken |
//! |---|---|---|
//! | a backend that a process enters for good (dune) | where its device is there, and a core for each thread | if it can be set up; not compared, since a process cannot leave it |
//! | a backend that can be measured (guest) | where the kernel says that interrupts may be posted | if a preemption is cheaper than by signal, as measured |
//! | signal | unless a backend was entered for good | else |
//!
//! A mode that interrupts leave is not set up to be measured: such an interrupt saves little over a
//! signal, if anything, and every system call of a handler leaves the mode as well. A user who
//! knows better asks for the mechanism by name.

use std::sync::Arc;

use shinjuku_policy::Nanos;
use shinjuku_preempt::{
    BACKENDS, Backend, BackendKind, Delivery, HardPreemption, Prospect, Signal,
};

use super::Preemption;
use crate::calibrate::{self, Costs};
use crate::config::Config;
use crate::layout::Layout;
use crate::start_error::StartError;

/// What was found out about a backend.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Finding {
    /// There is no device, or no core for each thread. The description does not mention that.
    Absent,
    /// It was not tried, for this reason.
    Untried(String),
    /// It was tried and cannot be used, for this reason.
    Refused(String),
    /// It is set up for good, and a preemption is assumed to cost this at first.
    Ready(Nanos),
    /// A preemption costs this, and its interrupts came in this way.
    Measured(Nanos, Delivery),
}

/// A backend that could be taken.
struct Candidate {
    name: &'static str,
    finding: Finding,
    /// `None` if it could not be set up, or was not tried.
    backend: Option<Arc<dyn Backend>>,
}

/// Where the runtime's threads are to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Places {
    inline: bool,
    /// Dispatcher and workers have a core each.
    apart: bool,
}

/// Checks whether a backend is worth setting up, where the backend `ready`, if any, was entered for
/// good. The error is the finding if it is not.
fn is_worth_trying(places: Places, prospect: Prospect, ready: Option<&str>) -> Result<(), Finding> {
    let delivery = match prospect {
        Prospect::ForGood { .. } if places.apart && ready.is_none() => return Ok(()),
        Prospect::Measurable(delivery) => delivery,
        _ => return Err(Finding::Absent),
    };
    let why_not = match delivery {
        _ if let Some(ready) = ready => format!("{ready} is there"),
        _ if places.inline => {
            "in the inline layout and the symmetric one no thread is there to post its interrupts"
                .to_owned()
        }
        Delivery::Injected | Delivery::Software => {
            format!("interrupts would come {delivery}, and system calls exit as well")
        }
        _ if !places.apart => {
            "it is measured only where dispatcher and workers have cores of their own".to_owned()
        }
        _ => return Ok(()),
    };
    Err(Finding::Untried(why_not))
}

/// The number of the backend to take, `None` for signals, and what the description says of the
/// others.
fn decide(signal: Nanos, found: &[(&str, Finding)]) -> (Option<usize>, Vec<String>) {
    let ready = (found.iter()).position(|(_, finding)| matches!(finding, Finding::Ready(_)));
    let cheapest = (found.iter().enumerate())
        .filter_map(|(at, (_, finding))| match finding {
            Finding::Measured(cost, _) if *cost < signal => Some((*cost, at)),
            _ => None,
        })
        .min();
    let taken = ready.or(cheapest.map(|(_, at)| at));
    let said = (found.iter().enumerate())
        .filter_map(|(at, (name, finding))| match finding {
            Finding::Absent | Finding::Ready(_) => None,
            Finding::Untried(why) => Some(format!("{name} mode not tried: {why}")),
            Finding::Refused(why) => Some(format!("{name} mode not used: {why}")),
            Finding::Measured(..) if taken == Some(at) => Some(format!(
                "a signal costs {:.1} us; what system calls cost in {name} mode was not weighed",
                signal.as_micros_f64()
            )),
            Finding::Measured(cost, delivery) => Some(format!(
                "{name} mode not used: {:.1} us a preemption, interrupts {delivery}",
                cost.as_micros_f64()
            )),
        })
        .collect();
    (taken, said)
}

impl Candidate {
    /// Sets the backend up if that is worth trying.
    fn look(
        kind: &BackendKind,
        places: Places,
        ready: Option<&str>,
        token: HardPreemption,
    ) -> Self {
        let prospect = kind.prospect();
        let (finding, backend) = match is_worth_trying(places, prospect, ready) {
            Err(finding) => (finding, None),
            Ok(()) => match (kind.install(token), prospect) {
                (Err(error), _) => (Finding::Refused(error.to_string()), None),
                (Ok(backend), Prospect::ForGood { cost }) => {
                    (Finding::Ready(Nanos(cost)), Some(backend))
                }
                (Ok(backend), _) => {
                    let unmeasured = "it could not be measured".to_owned();
                    (Finding::Refused(unmeasured), Some(backend))
                }
            },
        };
        Self {
            name: kind.name(),
            finding,
            backend,
        }
    }

    /// All backends of this build. Once one is entered for good, no other is tried.
    fn all(places: Places, token: HardPreemption) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for kind in BACKENDS {
            let ready = (all.iter())
                .find(|one| one.is_for_good())
                .map(|one| one.name);
            all.push(Self::look(kind, places, ready, token));
        }
        all
    }

    fn is_for_good(&self) -> bool {
        matches!(self.finding, Finding::Ready(_))
    }
}

impl Preemption {
    /// Measures what is worth it on the cores of `layout`, and chooses.
    pub(super) fn automatic(
        config: &Config,
        layout: &Layout,
        token: Option<HardPreemption>,
    ) -> Result<Self, StartError> {
        let grace = config.preemption.grace();
        let priority = config.realtime_priority;
        let kind = config.context_kind;
        if kind.is_kernel_thread() {
            let signal = Signal::for_kernel_threads()?;
            let costs = calibrate::measure(layout, priority, kind, Some(signal), None);
            let mut chosen = Self::soft(true, grace, "");
            chosen.hard = Some(Arc::new(signal));
            let chosen = chosen.taking_the_best(Vec::new(), &costs, config);
            return Ok(chosen.with_compiled_probes(layout, token));
        }
        let Some(token) = token else {
            let costs = calibrate::measure(layout, priority, kind, None, None);
            let why = format!(
                "auto: probe ({:.2} us a preemption); nothing else, since `allow_hard_preemption` was not called; {}",
                costs.probe.as_micros_f64(),
                costs.how
            );
            let chosen = Self::soft(true, grace, &why);
            return Ok(match config.preemption.raises_quanta() {
                true => chosen.raising_quanta(config, costs.probe, None),
                false => chosen,
            });
        };
        let places = Places {
            inline: layout.inline,
            apart: calibrate::cores(layout).is_ok() && layout.workers.iter().all(Option::is_some),
        };
        let mut candidates = Candidate::all(places, token);
        // Signals do not reach threads in a mode that is entered for good.
        let signal = match candidates.iter().any(Candidate::is_for_good) {
            false => Some(Signal::install(token)?),
            true => None,
        };
        let mut measured =
            (candidates.iter_mut()).find(|one| one.backend.is_some() && !one.is_for_good());
        let backend = measured.as_ref().and_then(|one| one.backend.clone());
        let costs = calibrate::measure(layout, priority, kind, signal, backend.as_ref());
        if let (Some(one), Some((cost, delivery))) = (&mut measured, costs.backend) {
            one.finding = Finding::Measured(cost, delivery);
        }
        let mut chosen = Self::soft(true, grace, "");
        chosen.hard = signal.map(|signal| Arc::new(signal) as _);
        chosen.signal = signal;
        let chosen = chosen.taking_the_best(candidates, &costs, config);
        Ok(chosen.with_compiled_probes(layout, Some(token)))
    }

    /// Replaces the signal where a candidate is better, and says why.
    fn taking_the_best(
        mut self,
        mut candidates: Vec<Candidate>,
        costs: &Costs,
        config: &Config,
    ) -> Self {
        let found: Vec<_> = (candidates.iter())
            .map(|one| (one.name, one.finding.clone()))
            .collect();
        let (taken, said) = decide(costs.signal, &found);
        let (name, cost) = match taken.map(|at| candidates.swap_remove(at)) {
            None => ("signal".to_owned(), costs.signal),
            Some(one) => {
                self.hard = one.backend.clone().map(|backend| backend as _);
                self.signal = None;
                self.backend = one.backend;
                match one.finding {
                    Finding::Measured(cost, delivery) => {
                        (format!("{} (interrupts: {delivery})", one.name), cost)
                    }
                    Finding::Ready(cost) => (format!("{} (cost assumed)", one.name), cost),
                    finding => unreachable!("{finding:?} is not taken"),
                }
            }
        };
        let micros = |nanos: Nanos| nanos.as_micros_f64();
        self.why = format!(
            "auto: probe ({:.2} us a preemption), then {name} ({:.1} us); {}",
            micros(costs.probe),
            micros(cost),
            costs.how,
        );
        if config.preemption.raises_quanta() {
            self = self.raising_quanta(config, costs.probe, Some((&name, cost)));
        }
        for words in said {
            self.why += "; ";
            self.why += &words;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNAL: Nanos = Nanos(8_000);
    const POSTING: Delivery = Delivery::Unproven("APICv");
    const FOR_GOOD: Prospect = Prospect::ForGood { cost: 3_000 };
    const APART: Places = Places {
        inline: false,
        apart: true,
    };
    const INLINE: Places = Places {
        inline: true,
        apart: true,
    };
    const SHARING: Places = Places {
        inline: false,
        apart: false,
    };

    #[test]
    fn a_virtual_machine_is_made_only_where_interrupts_may_be_posted() {
        for (places, promised, says) in [
            (APART, Delivery::Injected, "come injected with exits"),
            (APART, Delivery::Software, "come by software virtualisation"),
            (INLINE, POSTING, "inline"),
            (SHARING, POSTING, "cores of their own"),
            // A reason that holds wherever the threads are goes first.
            (SHARING, Delivery::Software, "software"),
        ] {
            let found = is_worth_trying(places, Prospect::Measurable(promised), None);
            let Err(Finding::Untried(why_not)) = found else {
                panic!("{places:?} {promised:?}: {found:?}");
            };
            assert!(why_not.contains(says), "{places:?} {promised:?}: {why_not}");
        }
        let posting = Prospect::Measurable(POSTING);
        assert_eq!(is_worth_trying(APART, posting, None), Ok(()));
        let untried = Finding::Untried("dune is there".to_owned());
        assert_eq!(is_worth_trying(APART, posting, Some("dune")), Err(untried));
    }

    #[test]
    fn what_is_for_good_takes_a_core_for_each_thread() {
        assert_eq!(is_worth_trying(APART, FOR_GOOD, None), Ok(()));
        for (places, prospect) in [(SHARING, FOR_GOOD), (APART, Prospect::Absent)] {
            let found = is_worth_trying(places, prospect, None);
            assert_eq!(found, Err(Finding::Absent), "{places:?} {prospect:?}");
        }
    }

    #[test]
    fn guest_mode_is_taken_if_it_is_cheaper_than_a_signal() {
        let posted = Delivery::Posted("APICv");
        let measured = |cost, delivery| Finding::Measured(Nanos(cost), delivery);
        for (guest, takes_it, says) in [
            (measured(1_500, posted), true, "a signal costs 8.0 us"),
            // The kernel's module promised posted interrupts, and they were injected.
            (
                measured(3_000, Delivery::Injected),
                true,
                "a signal costs 8.0 us",
            ),
            (
                measured(9_000, Delivery::Injected),
                false,
                "9.0 us a preemption, interrupts injected with exits",
            ),
            (
                measured(SIGNAL.0, posted),
                false,
                "interrupts posted by APICv, as counted",
            ),
            (
                Finding::Untried("inline".to_owned()),
                false,
                "guest mode not tried: inline",
            ),
            (
                Finding::Refused("no permission".to_owned()),
                false,
                "guest mode not used: no permission",
            ),
        ] {
            let found = [("dune", Finding::Absent), ("guest", guest.clone())];
            let (taken, said) = decide(SIGNAL, &found);
            let said = said.join("; ");
            assert_eq!(taken, takes_it.then_some(1), "{guest:?}");
            assert!(said.contains(says), "{guest:?}: {said}");
            assert!(!said.contains("dune"), "{said}");
        }
    }

    #[test]
    fn dune_goes_first_where_it_is_and_is_named_where_it_is_broken() {
        let cheap = Finding::Measured(Nanos(1_000), Delivery::Posted("APICv"));
        let untried = Finding::Untried("dune is there".to_owned());
        for guest in [cheap.clone(), untried] {
            let found = [("dune", Finding::Ready(Nanos(3_000))), ("guest", guest)];
            assert_eq!(decide(SIGNAL, &found).0, Some(0));
        }
        let refused = Finding::Refused("built without libdune".to_owned());
        let (taken, said) = decide(SIGNAL, &[("dune", refused), ("guest", cheap)]);
        assert_eq!(taken, Some(1));
        assert_eq!(said[0], "dune mode not used: built without libdune");
    }

    #[test]
    fn without_a_backend_there_are_signals_and_nothing_to_say() {
        assert_eq!(decide(SIGNAL, &[]), (None, Vec::new()));
    }
}
