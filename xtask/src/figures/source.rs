//! The documents that captions speak of, and the places in them that a caption may name.

/// A document.
pub(super) struct Source {
    /// What it is called here.
    pub(super) name: &'static str,
    /// Its authors, its title, and where it was published.
    pub(super) reference: &'static str,
    /// Its sections; of slides, their numbers or titles.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests hold claims to it"))]
    places: &'static [&'static str],
}

/// What a document says, so that the simulator can be held to it.
#[derive(Clone, Copy)]
pub(super) struct Claim {
    /// Where it says so, in the words of [`Source::places`].
    pub(super) place: &'static str,
    /// What it says, in our words.
    pub(super) says: &'static str,
    /// The test in `crates/sim/tests/simulator/claims` that shows it.
    pub(super) test: &'static str,
}

pub(super) const SHINJUKU: Source = Source {
    name: "Shinjuku",
    reference: "Kaffes et al., Shinjuku: Preemptive Scheduling for µsecond-scale Tail Latency, NSDI 2019",
    places: &[
        "section 1",
        "section 2",
        "section 3.1",
        "section 3.2",
        "section 3.3",
        "section 3.4",
        "section 3.5",
        "section 3.6",
        "section 4.1",
        "section 4.2",
        "section 4.3",
        "section 4.4",
    ],
};

pub(super) const ZYGOS: Source = Source {
    name: "ZygOS",
    reference: "Prekas, Kogias and Bugnion, ZygOS: Achieving Low Tail Latency for Microsecond-scale Networked Tasks, \
                SOSP 2017, the slides of the talk",
    places: &[
        "slide 4", "slide 6", "slide 7", "slide 8", "slide 10", "slide 11", "slide 29", "slide 32",
        "slide 33", "slide 35", "slide 36",
    ],
};

pub(super) const RACKSCHED: Source = Source {
    name: "RackSched",
    reference: "Zhu et al., RackSched: A Microsecond-Scale Scheduler for Rack-Scale Computers, OSDI 2020, the abstract",
    places: &["abstract"],
};

pub(super) const TAILGUARD: Source = Source {
    name: "TailGuard",
    reference: "Wang et al., TailGuard: Tail Latency SLO Guaranteed Task Scheduling for Data-Intensive User-Facing \
                Applications, ICDCS 2023, the abstract",
    places: &["abstract"],
};

/// What this project says itself.
pub(super) const OURS: Source = Source {
    name: "This project",
    reference: "Its own manual",
    places: &["docs/choosing.md"],
};

#[cfg(test)]
mod tests {
    use shinjuku_bench::paper::List;

    use super::*;
    use crate::figures::{Entry, entries};

    /// Slides without numbers: their titles.
    const ELEVATION: Source = Source {
        name: "Priority elevation",
        reference: "Yasukata and Ishiguro, Developing Process Scheduling Policies in User Space with Common OS \
                    Features, slides",
        places: &["use case preemptive scheduling"],
    };

    const SOURCES: [Source; 5] = [SHINJUKU, ZYGOS, RACKSCHED, TAILGUARD, ELEVATION];

    const CLAIMS: [&str; 4] = [
        include_str!("../../../crates/sim/tests/simulator/claims/learning.rs"),
        include_str!("../../../crates/sim/tests/simulator/claims/policies.rs"),
        include_str!("../../../crates/sim/tests/simulator/claims/queues.rs"),
        include_str!("../../../crates/sim/tests/simulator/claims/racks.rs"),
    ];

    /// The tests of `CLAIMS`: name, and the first line of what is said of each.
    fn tests() -> Vec<(&'static str, &'static str)> {
        let lines: Vec<&str> = CLAIMS.iter().flat_map(|text| text.lines()).collect();
        let marked = (0..lines.len()).filter(|at| lines[*at] == "#[test]");
        let test = |at: usize| {
            let name = lines[at + 1]
                .strip_prefix("fn ")
                .and_then(|rest| rest.split_once('('));
            let above = lines[..at].iter().rev();
            let first = above.take_while(|line| line.starts_with("///")).last();
            (
                name.expect("a test is a function").0,
                first.map_or("", |line| line.trim_start_matches("/// ")),
            )
        };
        marked.map(test).collect()
    }

    /// Whether a test's comment begins with a document and a place that is in it, or with "Ours:".
    fn cites(comment: &str) -> bool {
        let place_of = |source: &Source| {
            let rest = comment
                .strip_prefix(source.name)
                .and_then(|rest| rest.strip_prefix(", "));
            rest.is_some_and(|rest| {
                let after = |place: &&str| rest.strip_prefix(*place);
                let mut places = source.places.iter();
                places.any(|place| after(place).is_some_and(|end| end.starts_with([':', ' '])))
            })
        };
        comment.starts_with("Ours: ") || SOURCES.iter().any(place_of)
    }

    #[test]
    fn every_claim_of_a_caption_names_a_place_that_exists_and_a_test_that_shows_it() {
        let tests: Vec<_> = tests().into_iter().map(|(name, _)| name).collect();
        for Entry {
            source,
            name,
            claims,
            ..
        } in entries()
        {
            assert!(!claims.is_empty(), "{name} claims nothing");
            for claim in *claims {
                let Claim { place, test, .. } = claim;
                assert!(source.places.contains(place), "{name}: {place}");
                assert!(tests.contains(test), "{name}: no test {test}");
            }
        }
    }

    #[test]
    fn places_are_those_of_the_list_of_claims() {
        let documents = List::read().unwrap().documents;
        for source in SOURCES {
            let document = documents.values().find(|one| one.name == source.name);
            let document = document.unwrap_or_else(|| panic!("{}", source.name));
            assert_eq!(document.reference, source.reference);
            for place in source.places {
                assert!(document.places.contains_key(*place), "{place}");
            }
        }
    }

    #[test]
    fn every_claim_that_the_simulator_is_tested_for_has_its_place_or_is_ours() {
        let tests = tests();
        assert!(tests.len() > 20, "{tests:?}");
        for (name, comment) in tests {
            assert!(cites(comment), "{name}: {comment}");
        }
        for wrong in ["Shinjuku, section 3: x", "Shinjuku, section 3.41: x", "x"] {
            assert!(!cites(wrong), "{wrong}");
        }
    }
}
