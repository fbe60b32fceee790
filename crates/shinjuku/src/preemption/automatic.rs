//! What `auto` stops code with that does not answer its probes, given the token.
//!
//! | mechanism | looked at | taken |
//! |---|---|---|
//! | dune | where /dev/dune is | if Dune answers and libdune is linked in; not compared, since nobody who has entered it gets out |
//! | guest | where KVM's modules say that interrupts may be posted | if it is cheaper than a signal, as measured |
//! | signal | always | else |
//!
//! Where interrupts leave guest mode, no virtual machine is made only to measure that: such an interrupt saves little over a
//! signal, if anything, and every system call of a handler leaves guest mode on top. Whoever knows better asks for `guest`
//! by name.

use shinjuku_policy::Nanos;
use shinjuku_preempt::guest::Delivery;

/// What was found out of guest mode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum GuestMode {
    /// Why it was not tried.
    Untried(String),
    /// It was tried; why it cannot be.
    Refused(String),
    /// What a preemption costs, and how its interrupts came.
    Measured(Nanos, Delivery),
}

/// What was found out of Dune.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum DuneMode {
    /// There is no device, which needs no words.
    Absent,
    /// Why it cannot be used.
    Refused(String),
    /// Set up.
    Ready,
}

/// A mechanism that takes the token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hard {
    Signal,
    Guest,
    Dune,
}

/// Where the runtime's threads are to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Places {
    pub(super) inline: bool,
    /// Dispatcher and workers have a core each.
    pub(super) apart: bool,
}

/// Whether a virtual machine is worth making, to measure what a preemption costs; else why not.
pub(super) fn is_worth_measuring(places: Places, promised: Delivery) -> Result<(), String> {
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
pub(super) fn decide(signal: Nanos, guest: &GuestMode, dune: &DuneMode) -> (Hard, Vec<String>) {
    let mut said = Vec::new();
    match dune {
        DuneMode::Absent => {}
        DuneMode::Ready => return (Hard::Dune, vec!["guest mode not tried".to_owned()]),
        DuneMode::Refused(why) => said.push(format!("dune not used: {why}")),
    }
    let hard = match guest {
        GuestMode::Measured(cost, _) if *cost < signal => Hard::Guest,
        _ => Hard::Signal,
    };
    said.push(match guest {
        GuestMode::Untried(why) => format!("guest mode not tried: {why}"),
        GuestMode::Refused(why) => format!("guest mode not used: {why}"),
        GuestMode::Measured(..) if hard == Hard::Guest => {
            format!("a signal costs {:.1} us", signal.as_micros_f64())
        }
        GuestMode::Measured(cost, delivery) => format!(
            "guest mode not used: {:.1} us a preemption, interrupts {delivery}",
            cost.as_micros_f64()
        ),
    });
    (hard, said)
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
            let why_not = is_worth_measuring(places, promised).unwrap_err();
            assert!(why_not.contains(says), "{places:?} {promised:?}: {why_not}");
        }
        assert_eq!(is_worth_measuring(APART, POSTING), Ok(()));
    }

    #[test]
    fn guest_mode_is_taken_if_it_is_cheaper_than_a_signal() {
        let posted = Delivery::Posted("APICv");
        let measured = |cost, delivery| GuestMode::Measured(Nanos(cost), delivery);
        for (guest, hard, says) in [
            (
                measured(1_500, posted),
                Hard::Guest,
                "a signal costs 8.0 us",
            ),
            // The module's word was not kept, and still it is cheaper.
            (
                measured(3_000, Delivery::Injected),
                Hard::Guest,
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
        let cheap = GuestMode::Measured(Nanos(1_000), Delivery::Posted("APICv"));
        assert_eq!(decide(SIGNAL, &cheap, &DuneMode::Ready).0, Hard::Dune);
        let refused = DuneMode::Refused("built without libdune".to_owned());
        let (taken, said) = decide(SIGNAL, &cheap, &refused);
        assert_eq!(taken, Hard::Guest);
        assert_eq!(said[0], "dune not used: built without libdune");
    }
}
