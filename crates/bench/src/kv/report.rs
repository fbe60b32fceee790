//! The key-value server's part of the report.

use shinjuku_loadgen::Mark;

use super::compare;
use super::figures::figures;
use super::results::{KeyValue, ScenarioResults};
use super::tables::tables;
use crate::harness::{Measured, Section, Target};

impl Measured for KeyValue {
    const BENCH: &'static str = "kv";
    const TITLE: &'static str = "the key-value server beside redis-server";
    const DIRECTORY: &'static str = "bench-kv";

    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("Server's core", self.server_core.to_string()),
            ("Client's core", self.client_core.to_string()),
        ]
    }

    fn targets(&self) -> Vec<Target> {
        compare::targets(&self.scenarios)
    }

    fn sections(&self) -> Vec<Section> {
        let mark = |mark: &Mark| format!("{}: {}", mark.letter(), mark.meaning());
        let of_scenario = |scenario: &ScenarioResults| {
            let said = scenario.descriptions.iter();
            Section {
                heading: scenario.title.clone(),
                figures: figures(scenario),
                tables: tables(scenario, self.slo_us),
                notes: Mark::ALL.iter().map(mark).collect(),
                details: said.map(|(name, said)| format!("{name}: {said}")).collect(),
                ..Section::default()
            }
        };
        self.scenarios.iter().map(of_scenario).collect()
    }
}
