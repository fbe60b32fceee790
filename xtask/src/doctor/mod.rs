//! `cargo xtask doctor`: what this machine offers, what is missing, and what to do about it.
//!
//! Everything is looked at, nothing is changed. The readers take what they read from (a directory
//! in place of `/`, a CPUID reader), so that they are tested on machines that are not there. The
//! conclusion is no guess: it is what the runtime says when it starts here with its defaults.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use shinjuku::{Config, MechanismKind, Runtime, handler_fn};

pub mod cpu;
pub mod finding;
pub mod network;
pub mod root;
pub mod scheduling;
pub mod software;
pub mod virtualization;

use finding::Finding;
use root::Root;

/// Arguments of `cargo xtask doctor`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// What was found, and what follows.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The findings by subject.
    pub sections: Vec<Section>,
    /// What the runtime's `auto` chooses here, with and without permission for hard preemption, and
    /// what becomes of `guest`.
    pub conclusion: Vec<String>,
}

/// Findings on one subject.
#[derive(Debug, Serialize)]
pub struct Section {
    /// The subject.
    pub subject: &'static str,
    /// What was found.
    pub findings: Vec<Finding>,
}

/// Runs `cargo xtask doctor`. What is missing is no failure: the exit code is 0.
///
/// # Errors
/// If the report cannot be printed.
pub fn run(options: &Options) -> Result<ExitCode> {
    let report = Report {
        sections: examine(),
        conclusion: conclude(),
    };
    if options.json {
        let text = serde_json::to_string_pretty(&report).context("writing the report as JSON")?;
        println!("{text}");
    } else {
        print!("{report}");
    }
    Ok(ExitCode::SUCCESS)
}

fn examine() -> Vec<Section> {
    let root = Root::of_this_machine();
    vec![
        Section {
            subject: "CPU",
            findings: cpu::examine(&root, raw_cpuid::CpuIdReaderNative),
        },
        Section {
            subject: "interrupts without the kernel",
            findings: virtualization::examine(&root),
        },
        Section {
            subject: "scheduling and memory",
            findings: scheduling::examine(&root),
        },
        Section {
            subject: "network interfaces",
            findings: network::examine(&root),
        },
        Section {
            subject: "software",
            findings: software::examine(&root),
        },
    ]
}

fn conclude() -> Vec<String> {
    vec![
        format!(
            "auto, without a token: {}",
            chosen(MechanismKind::Auto, false)
        ),
        format!(
            "auto, with HardPreemption allowed: {}",
            chosen(MechanismKind::Auto, true)
        ),
        format!(
            "guest, asked for by name: {}",
            chosen(MechanismKind::Guest, true)
        ),
    ]
}

/// Starts a runtime with its defaults but for the mechanism, and asks it. No request is sent.
fn chosen(mechanism: MechanismKind, hard: bool) -> String {
    let mut config = Config::default();
    config.preemption.mechanism = mechanism;
    let mut builder = Runtime::builder(handler_fn(|(): ()| ())).config(config);
    if hard {
        builder = builder.allow_hard_preemption(shinjuku_bench::allow_signals());
    }
    match builder.start() {
        Ok(runtime) => {
            let description = runtime.description();
            let _ = runtime.shutdown(Duration::from_secs(1));
            description
        }
        Err(error) => format!("nothing: it does not start, because {error}"),
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for section in &self.sections {
            writeln!(formatter, "{}", section.subject)?;
            for finding in &section.findings {
                writeln!(formatter, "  {finding}")?;
            }
        }
        writeln!(formatter, "conclusion")?;
        for line in &self.conclusion {
            writeln!(formatter, "  {line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described_and_what_is_missing_has_advice() {
        let sections = examine();
        let findings = sections.iter().flat_map(|section| &section.findings);
        for finding in findings.clone() {
            assert!(
                finding.found || finding.advice.is_some(),
                "{finding}: missing, and no advice"
            );
        }
        let mut names: Vec<_> = findings.map(|finding| finding.what).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "each thing is looked at once");
    }

    #[test]
    fn the_conclusion_is_the_runtimes_own() {
        let said = chosen(MechanismKind::Probe, false);
        assert!(said.contains("preemption probe, as configured"), "{said}");
        let refused = chosen(MechanismKind::Signal, false);
        assert!(refused.contains("probe, because"), "{refused}");
    }

    #[test]
    fn a_report_reads_as_text_and_as_json() {
        let report = Report {
            sections: vec![Section {
                subject: "CPU",
                findings: vec![Finding::missing("AVX2", "none", "buy one")],
            }],
            conclusion: vec!["probe".to_owned()],
        };
        assert_eq!(
            report.to_string(),
            "CPU\n  missing AVX2: none\n          advice: buy one\nconclusion\n  probe\n"
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["sections"][0]["findings"][0]["found"], false);
        assert_eq!(json["conclusion"][0], "probe");
    }
}
