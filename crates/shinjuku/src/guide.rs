//! The manual. Each page is a module, and its code is compiled with the documentation's tests.
//!
//! | page | about |
//! |---|---|
//! | [`getting_started`] | a server, handlers with state, a pool in a process, configuration |
//! | [`choosing`] | probes or the token, which layout, which policy |
//! | [`pool`] | closures beside an async runtime: waiting, cancelling, borrowing, sizing; from `spawn_blocking` and rayon |
//! | [`serving`] | layouts, transports, past the kernel |
//! | [`policies`] | which request runs next |
//! | [`preemption`] | mechanisms, the token, what still differs from a thread |
//! | [`compiled_probes`] | code without probes of its own, preempted at function entries: `cargo shinjuku` |
//! | [`rack`] | several servers as one, scheduled by the kernel's XDP: `shinjuku-rack` |
//! | [`fanout`] | queries over many servers, with deadlines by fan-out: `shinjuku-fanout` |
//! | [`elevation`] | any threads and processes, scheduled by priorities from user space: `shinjuku-elevate` |
//! | [`deploying`] | threads and memory, containers, bare metal |
//! | [`watching`] | statistics, `shinjuku top`, metrics, a dashboard, a timeline, stalls |
//! | [`troubleshooting`] | by symptom |
//! | [`limits`] | where the crate runs, and when not to use it |
//! | [`upgrading`] | versions, what counts as the interface, which Rust |
//! | [`measurements`] | what was measured, and on which machine |
//! | [`results`] | what the benches write, and the papers, item by item |
//! | [`simulator`] | trying a policy, a quantum or a machine without having one |
//! | [`soundness`] | the argument for the unsafe code |
//! | [`pitfalls`] | what goes wrong when ordinary code is preempted, and which test watches it |
//! | [`stress`] | ordinary code under hostile preemption: `cargo xtask stress` |

macro_rules! pages {
    ($($page:ident: $file:literal;)*) => {
        $(
            // Only who reads the manual compiles it.
            #[cfg_attr(any(doc, doctest), doc = include_str!(concat!(env!("OUT_DIR"), "/guide/", $file)))]
            #[cfg_attr(not(any(doc, doctest)), doc = concat!("The manual's page ", $file, "."))]
            pub mod $page {}
        )*

        /// Each page as rustdoc has it.
        #[cfg(test)]
        const PAGES: &[(&str, &str)] = &[$((
            stringify!($page),
            include_str!(concat!(env!("OUT_DIR"), "/guide/", $file)),
        )),*];
    };
}

pages! {
    getting_started: "getting-started.md";
    choosing: "choosing.md";
    pool: "pool.md";
    serving: "serving.md";
    policies: "policies.md";
    preemption: "preemption.md";
    compiled_probes: "compiled-probes.md";
    rack: "rack.md";
    fanout: "fanout.md";
    elevation: "elevation.md";
    deploying: "deploying.md";
    watching: "watching.md";
    troubleshooting: "troubleshooting.md";
    limits: "limits.md";
    upgrading: "upgrading.md";
    measurements: "measurements.md";
    results: "results.md";
    simulator: "simulator.md";
    soundness: "unsafe.md";
    pitfalls: "pitfalls.md";
    stress: "stress.md";
}

/// The landing page's code, compiled with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

#[cfg(test)]
mod tests {
    use super::PAGES;

    /// The targets of a page's links. Code has none.
    fn links(page: &str) -> impl Iterator<Item = &str> {
        let prose = page.split("```").step_by(2);
        let links = prose.flat_map(|prose| prose.split("](").skip(1));
        links.filter_map(|link| Some(link.split_once(')')?.0))
    }

    /// The anchor that rustdoc makes of each heading.
    fn anchors(page: &str) -> impl Iterator<Item = String> {
        let prose = page.split("```").step_by(2).flat_map(str::lines);
        let headings = prose.filter_map(|line| Some(line.strip_prefix('#')?.split_once(' ')?.1));
        headings.map(|heading| {
            let kept = |letter: &char| letter.is_alphanumeric() || " -_".contains(*letter);
            let letters = heading.chars().filter(kept);
            letters.collect::<String>().to_lowercase().replace(' ', "-")
        })
    }

    #[test]
    fn links_of_the_manual_lead_to_pages_and_headings_of_it() {
        let mut seen = 0;
        for (name, page) in PAGES {
            for target in links(page) {
                seen += 1;
                if target.starts_with("https://") || target.starts_with("data:image/") {
                    continue;
                }
                let (module, anchor) = match target.split_once('#') {
                    Some((module, anchor)) => (module, Some(anchor)),
                    None => (target, None),
                };
                let module = match module {
                    "" => Some(*name),
                    _ => module.strip_prefix("crate::guide::"),
                };
                let linked = PAGES.iter().find(|(name, _)| Some(*name) == module);
                let Some((_, linked)) = linked else {
                    panic!("{name}: {target} is no page");
                };
                let has = |anchor| anchors(linked).any(|heading| heading == anchor);
                assert!(anchor.is_none_or(has), "{name}: {target} is no heading");
            }
        }
        assert!(seen > 40, "only {seen} links were found");
    }
}
