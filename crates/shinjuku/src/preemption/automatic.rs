//! What `auto` stops code with that does not answer its probes, given the token.
//!
//! | mechanism | looked at | taken |
//! |---|---|---|
//! | dune | where /dev/dune is | if Dune answers and libdune is linked in; not compared, since nobody who has entered it gets out |
//! | guest | where KVM's modules say that interrupts may be posted | if a preemption is cheaper than by signal, as measured |
//! | signal | if Dune is not taken | else |
//!
//! Where interrupts leave guest mode, no virtual machine is made only to measure that: such an interrupt saves little over a
//! signal, if anything, and every system call of a handler leaves guest mode on top. Whoever knows better asks for `guest`
//! by name.

use shinjuku_policy::Nanos;
use shinjuku_preempt::dune::Dune;
use shinjuku_preempt::guest::{self, Delivery, Guest, GuestConfig};
use shinjuku_preempt::{HardPreemption, Mechanism, Signal};

use super::Preemption;
use crate::calibrate;
use crate::config::Config;
use crate::floor::Floor;
use crate::layout::Layout;
use crate::start_error::StartError;

/// What a preemption under Dune is taken to cost at first: to measure it is to enter it for good.
/// Some four times what the Shinjuku paper has (sections 3.2 and 3.3: 298 cycles for the sender,
/// 1212 for the receiver and 109 for a switch, at 2 GHz), to be safe.
const ASSUMED_DUNE: Nanos = Nanos(3_000);

/// What was found out of guest mode.
#[derive(Clone, PartialEq, Eq, Debug)]
enum GuestMode {
    /// Why it was not tried.
    Untried(String),
    /// It was tried; why it cannot be.
    Refused(String),
    /// What a preemption costs, and how its interrupts came.
    Measured(Nanos, Delivery),
}

/// What was found out of Dune.
#[derive(Clone, PartialEq, Eq, Debug)]
enum DuneMode {
    /// There is no device, or no core for each thread, which needs no words.
    Absent,
    /// Why it cannot be used.
    Refused(String),
    /// Set up.
    Ready,
}

/// The mechanism taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hard {
    Signal,
    Guest(Nanos, Delivery),
    Dune,
}

/// Where the runtime's threads are to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Places {
    inline: bool,
    /// Dispatcher and workers have a core each.
    apart: bool,
}

/// Whether a virtual machine is worth making, to measure what a preemption costs; else why not.
fn is_worth_measuring(places: Places, promised: Delivery, dune: &DuneMode) -> Result<(), String> {
    if *dune == DuneMode::Ready {
        return Err("Dune is there".to_owned());
    }
    if places.inline {
        return Err("in the inline layout nobody is there to post its interrupts".to_owned());
    }
    match promised {
        Delivery::Injected | Delivery::Software => Err(format!(
            "interrupts would come {promised}, and system calls exit as well"
        )),
        _ if !places.apart => Err(
            "it is measured only where dispatcher and workers have cores of their own".to_owned(),
        ),
        _ => Ok(()),
    }
}

/// The mechanism, and what is to be said of the others.
fn decide(signal: Nanos, guest: &GuestMode, dune: &DuneMode) -> (Hard, Vec<String>) {
    let mut said = Vec::new();
    if let DuneMode::Refused(why) = dune {
        said.push(format!("dune not used: {why}"));
    }
    let hard = match (dune, guest) {
        (DuneMode::Ready, _) => Hard::Dune,
        (_, &GuestMode::Measured(cost, delivery)) if cost < signal => Hard::Guest(cost, delivery),
        _ => Hard::Signal,
    };
    said.push(match guest {
        GuestMode::Untried(why) => format!("guest mode not tried: {why}"),
        GuestMode::Refused(why) => format!("guest mode not used: {why}"),
        GuestMode::Measured(..) if hard != Hard::Signal => format!(
            "a signal costs {:.1} us; what system calls cost in guest mode was not weighed",
            signal.as_micros_f64()
        ),
        GuestMode::Measured(cost, delivery) => format!(
            "guest mode not used: {:.1} us a preemption, interrupts {delivery}",
            cost.as_micros_f64()
        ),
    });
    (hard, said)
}

impl Preemption {
    /// Measures what is worth it on the cores of `layout`, and chooses.
    pub(super) fn automatic(
        config: &Config,
        layout: &Layout,
        token: Option<HardPreemption>,
    ) -> Result<Self, StartError> {
        let micros = |nanos: Nanos| nanos.as_micros_f64();
        let grace = config.preemption.grace();
        let Some(token) = token else {
            let costs = calibrate::measure(layout, config.realtime_priority, None, None);
            let why = format!(
                "auto: probe ({:.2} us a preemption); nothing else, since `allow_hard_preemption` was not called; {}",
                micros(costs.probe),
                costs.how
            );
            return Ok(Self {
                probe_floor: Floor::at_cost(costs.probe),
                ..Self::soft(true, grace, &why)
            });
        };
        let places = Places {
            inline: layout.inline,
            apart: calibrate::cores(layout).is_ok() && layout.workers.iter().all(Option::is_some),
        };
        let (dune, dune_mode) = match Dune::has_device() && places.apart {
            false => (None, DuneMode::Absent),
            true => match Dune::install(token) {
                Err(error) => (None, DuneMode::Refused(error.to_string())),
                Ok(dune) => (Some(dune), DuneMode::Ready),
            },
        };
        let (guest, unmeasured) = match is_worth_measuring(places, guest::promised(), &dune_mode) {
            Err(why) => (None, GuestMode::Untried(why)),
            Ok(()) => match Guest::install(token, GuestConfig::default()) {
                Err(error) => (None, GuestMode::Refused(error.to_string())),
                Ok(guest) => {
                    let unmeasured = "it could not be measured".to_owned();
                    (Some(guest), GuestMode::Refused(unmeasured))
                }
            },
        };
        // libdune ignores them.
        let signal = match dune {
            None => Some(Signal::install(token)?),
            Some(_) => None,
        };
        let costs = calibrate::measure(layout, config.realtime_priority, signal, guest.as_ref());
        let guest_mode = costs.guest.map_or(unmeasured, |(cost, delivery)| {
            GuestMode::Measured(cost, delivery)
        });
        let (taken, said) = decide(costs.signal, &guest_mode, &dune_mode);
        let mut chosen = Self {
            probe_floor: Floor::at_cost(costs.probe),
            ..Self::soft(true, grace, "")
        };
        let (name, cost) = match taken {
            Hard::Dune => {
                chosen.hard = dune.map(|dune| Box::new(dune) as Box<dyn Mechanism>);
                chosen.dune = dune;
                ("dune (cost assumed)".to_owned(), ASSUMED_DUNE)
            }
            Hard::Guest(cost, delivery) => {
                chosen.hard = guest
                    .clone()
                    .map(|guest| Box::new(guest) as Box<dyn Mechanism>);
                chosen.guest = guest;
                (format!("guest (interrupts: {delivery})"), cost)
            }
            Hard::Signal => {
                chosen.hard = signal.map(|signal| Box::new(signal) as Box<dyn Mechanism>);
                chosen.timer_signal = signal.filter(|_| layout.inline);
                ("signal".to_owned(), costs.signal)
            }
        };
        chosen.hard_floor = Floor::at_cost(cost);
        chosen.why = format!(
            "auto: probe ({:.2} us a preemption), then {name} ({:.1} us, so not below {:.0} us of running); {}; {}",
            micros(costs.probe),
            micros(cost),
            micros(chosen.hard_floor.raise(Nanos(0))),
            costs.how,
            said.join("; ")
        );
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNAL: Nanos = Nanos(8_000);
    const POSTING: Delivery = Delivery::Unproven("APICv");
    const APART: Places = Places {
        inline: false,
        apart: true,
    };

    #[test]
    fn a_virtual_machine_is_made_only_where_interrupts_may_be_posted() {
        let inline = Places {
            inline: true,
            ..APART
        };
        let sharing = Places {
            apart: false,
            ..APART
        };
        for (places, promised, says) in [
            (APART, Delivery::Injected, "come injected with exits"),
            (APART, Delivery::Software, "come by software virtualisation"),
            (inline, POSTING, "inline"),
            (sharing, POSTING, "cores of their own"),
            // What holds wherever the threads are is said first.
            (sharing, Delivery::Software, "software"),
        ] {
            let why_not = is_worth_measuring(places, promised, &DuneMode::Absent).unwrap_err();
            assert!(why_not.contains(says), "{places:?} {promised:?}: {why_not}");
        }
        let refused = DuneMode::Refused("why".to_owned());
        for dune in [&DuneMode::Absent, &refused] {
            assert_eq!(is_worth_measuring(APART, POSTING, dune), Ok(()));
        }
        assert!(is_worth_measuring(APART, POSTING, &DuneMode::Ready).is_err());
    }

    #[test]
    fn guest_mode_is_taken_if_it_is_cheaper_than_a_signal() {
        let posted = Delivery::Posted("APICv");
        let measured = |cost, delivery| GuestMode::Measured(Nanos(cost), delivery);
        for (guest, hard, says) in [
            (
                measured(1_500, posted),
                Hard::Guest(Nanos(1_500), posted),
                "a signal costs 8.0 us",
            ),
            // The module's word was not kept, and still it is cheaper.
            (
                measured(3_000, Delivery::Injected),
                Hard::Guest(Nanos(3_000), Delivery::Injected),
                "a signal costs 8.0 us",
            ),
            (
                measured(9_000, Delivery::Injected),
                Hard::Signal,
                "9.0 us a preemption, interrupts injected with exits",
            ),
            (
                measured(SIGNAL.0, posted),
                Hard::Signal,
                "interrupts posted by APICv, as counted",
            ),
            (
                GuestMode::Untried("inline".to_owned()),
                Hard::Signal,
                "not tried: inline",
            ),
            (
                GuestMode::Refused("no permission".to_owned()),
                Hard::Signal,
                "not used: no permission",
            ),
        ] {
            let (taken, said) = decide(SIGNAL, &guest, &DuneMode::Absent);
            let said = said.join("; ");
            assert_eq!(taken, hard, "{guest:?}");
            assert!(said.contains(says), "{guest:?}: {said}");
            assert!(!said.contains("dune"), "{said}");
        }
    }

    #[test]
    fn dune_goes_first_where_it_is_and_is_named_where_it_is_broken() {
        let (cost, posted) = (Nanos(1_000), Delivery::Posted("APICv"));
        let cheap = GuestMode::Measured(cost, posted);
        let untried = GuestMode::Untried("Dune is there".to_owned());
        for guest in [&cheap, &untried] {
            assert_eq!(decide(SIGNAL, guest, &DuneMode::Ready).0, Hard::Dune);
        }
        let refused = DuneMode::Refused("built without libdune".to_owned());
        let (taken, said) = decide(SIGNAL, &cheap, &refused);
        assert_eq!(taken, Hard::Guest(cost, posted));
        assert_eq!(said[0], "dune not used: built without libdune");
    }
}
