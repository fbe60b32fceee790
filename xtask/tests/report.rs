//! Reports end to end: the sample in `data/results.json` through reading, checking, drawing and documentation.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use xtask::report::results::{BASELINE, Class, Results};
use xtask::report::{self, figures, summary};

fn sample() -> Results {
    Results::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/results.json")).unwrap()
}

/// A directory of this test's own below Cargo's directory for such.
fn directory(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&path);
    path
}

#[test]
fn every_field_is_documented_and_every_documented_field_exists() {
    let mut results = sample();
    // Absent options leave no key behind: fill them.
    results.runs[0].ideal_p99_us = Some(1.0);
    results.runs[0].predicted_p99_us = Some(1.1);
    results.runs[0].picked = Some("probe".into());
    results.runs[0].delivery = Some("injected with exits".into());
    let value = serde_json::to_value(&results).unwrap();

    let document =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/results.md"))
            .unwrap();
    for (heading, object) in [
        ("## The whole", &value),
        ("## machine", &value["machine"]),
        ("## settings", &value["settings"]),
        (
            "## costs and cost_details",
            &value["cost_details"]["switch/own"],
        ),
        ("## runs", &value["runs"][0]),
        ("## fcfs_check", &value["fcfs_check"][0]),
        ("## paired", &value["paired"][0]),
    ] {
        let keys: BTreeSet<&str> = object
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(documented(&document, heading), keys, "under {heading}");
    }
}

/// The field names in the table below a heading: the first cell of each row, in backticks.
fn documented<'a>(document: &'a str, heading: &str) -> BTreeSet<&'a str> {
    let section = document
        .lines()
        .skip_while(|line| *line != heading)
        .skip(1)
        .take_while(|line| !line.starts_with("## "));
    section
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(field, _)| field)
        .collect()
}

#[test]
fn the_promised_fields_have_the_promised_types() {
    let value = serde_json::to_value(sample()).unwrap();
    assert!(
        value["costs"]
            .as_object()
            .unwrap()
            .values()
            .all(Value::is_number)
    );
    for run in value["runs"].as_array().unwrap() {
        for field in ["mix", "policy", "mechanism", "class"] {
            assert!(run[field].is_string(), "{field} in {run}");
        }
        for field in ["load", "n", "throughput_rps", "preemptions"] {
            assert!(run[field].is_number(), "{field} in {run}");
        }
        for field in ["p50_us", "p99_us", "p999_us", "p99_slowdown"] {
            assert_eq!(
                run[field].is_null(),
                run["saturated"] == true,
                "{field} in {run}"
            );
        }
        assert!(["short", "long", "all"].contains(&run["class"].as_str().unwrap()));
    }
}

#[test]
fn writing_and_reading_changes_nothing() {
    let path = directory("round-trip");
    fs::create_dir_all(&path).unwrap();
    let results = sample();
    results.write(&path.join("results.json")).unwrap();
    assert_eq!(Results::read(&path.join("results.json")).unwrap(), results);
}

#[test]
fn contradictions_are_refused_by_name() {
    let saturated = |results: &Results| results.runs.iter().position(|run| run.saturated).unwrap();
    let measured = |results: &Results| results.runs.iter().position(|run| !run.saturated).unwrap();
    type Spoil = fn(&mut Results, usize, usize);
    let cases: [(&str, Spoil); 6] = [
        ("no percentiles", |results, saturated, _| {
            results.runs[saturated].p99_us = Some(1.0)
        }),
        ("do not rise", |results, _, measured| {
            results.runs[measured].p50_us = Some(1e9)
        }),
        ("must be positive", |results, _, measured| {
            results.runs[measured].p999_us = Some(f64::NAN)
        }),
        ("twice", |results, _, measured| {
            results.runs.push(results.runs[measured].clone())
        }),
        ("not among the costs", |results, _, _| {
            results.costs.remove("guard");
        }),
        ("schema 99", |results, _, _| results.schema = 99),
    ];
    for (message, spoil) in cases {
        let mut results = sample();
        let (saturated, measured) = (saturated(&results), measured(&results));
        spoil(&mut results, saturated, measured);
        let error = format!("{:#}", results.check().unwrap_err());
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn a_class_without_requests_needs_no_percentiles() {
    let mut results = sample();
    let run = results.runs.iter_mut().find(|run| !run.saturated).unwrap();
    run.saturate();
    (run.saturated, run.n) = (false, 0);
    results.check().unwrap();
}

#[test]
fn comparisons_with_saturated_points_say_so_and_claim_nothing() {
    let tables = summary::other_tables(&sample());
    let table = |words: &str| tables.iter().find(|t| t.title.contains(words)).unwrap();
    let check = &table("Lindley").rows;
    assert_eq!(check[0][3], "+1.0 %");
    assert_eq!(check[1][1..], ["saturated", "saturated", "", ""]);
    let paired = &table("paired").rows;
    assert_eq!(paired[0][5], "bounds, 95 % each");
    assert_eq!(paired[1][2..], ["saturated", "", "", ""]);
}

#[test]
fn saturating_a_run_makes_it_consistent() {
    let mut results = sample();
    let run = results.runs.iter_mut().find(|run| !run.saturated).unwrap();
    run.saturate();
    assert!(run.p99_us.is_none() && run.p99_us_max.is_none());
    results.check().unwrap();
}

#[test]
fn tables_show_ratios_to_the_baseline_and_no_value_for_saturated_points() {
    let results = sample();
    let tables = summary::mix_tables(&results, "hi");
    let short = &tables[0];
    let row = |name: &str| short.rows.iter().find(|row| row[0] == name).unwrap();
    assert_eq!(row(BASELINE)[3], "1.00x");
    let p99 = |policy: &str, quantum| {
        let mut runs = results
            .of("hi", Class::Short)
            .filter(|run| run.policy == policy && run.quantum_us == quantum);
        runs.find(|run| run.load == 0.2).unwrap().p99_us.unwrap()
    };
    let gain: f64 = row("c-PRE-SQ probe 5 µs")[3]
        .trim_end_matches('x')
        .parse()
        .unwrap();
    let expected = p99(BASELINE, None) / p99("c-PRE-SQ", Some(5.0));
    assert!(
        (gain / expected - 1.0).abs() < 0.01,
        "{gain} is not {expected}"
    );
    let all: String = tables.iter().map(ToString::to_string).collect();
    assert!(all.contains("saturated"));
    assert!(all.contains("what long requests pay"));
}

#[test]
fn a_mix_of_one_kind_is_reported_over_all_requests() {
    let results = sample();
    assert_eq!(results.leading_class("exp"), Class::All);
    let names: Vec<_> = figures::of_mix(&results, "exp")
        .into_iter()
        .map(|figure| figure.name)
        .collect();
    assert_eq!(
        names,
        ["exp-p99-all", "exp-p999-all", "exp-p99-slowdown-all"]
    );
}

#[test]
fn contenders_look_the_same_in_every_figure() {
    let results = sample();
    let mut looks = std::collections::BTreeMap::new();
    for mix in results.mix_names() {
        for series in figures::of_mix(&results, mix)
            .into_iter()
            .flat_map(|figure| figure.series)
        {
            let known = *looks.entry(series.label.clone()).or_insert(series.style);
            assert_eq!(known, series.style, "{}", series.label);
        }
    }
    assert!(looks.len() >= results.contenders().len());
}

#[test]
fn the_whole_report_is_written() {
    let path = directory("whole");
    let mut results = sample();
    // One mix, because drawing PNGs takes its time without optimisation.
    results.runs.retain(|run| run.mix == "hi");
    report::write(&results, &path).unwrap();
    let size = |name: &str| {
        fs::metadata(path.join(name))
            .unwrap_or_else(|e| panic!("{name}: {e}"))
            .len()
    };
    for name in [
        "hi-p99-short",
        "hi-p99-long",
        "hi-p999-short",
        "hi-p99-slowdown-all",
        "hi-60-quantum",
    ] {
        assert!(size(&format!("{name}.svg")) > 1000);
        let png = fs::read(path.join(format!("{name}.png"))).unwrap();
        assert!(png.starts_with(b"\x89PNG") && png.len() > 1000);
    }
    let lines = |name: &str| fs::read_to_string(path.join(name)).unwrap().lines().count();
    assert_eq!(lines("runs.csv"), results.runs.len() + 1);
    assert_eq!(lines("costs.csv"), results.costs.len() + 1);
    let columns = |line: &str| line.split(',').count();
    let csv = fs::read_to_string(path.join("runs.csv")).unwrap();
    assert!(
        csv.lines()
            .all(|line| columns(line) == columns(csv.lines().next().unwrap()))
    );

    let page = fs::read_to_string(path.join("report.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert!(page.contains("<svg") && page.contains("<table") && page.contains(&results.notes[0]));
    for outside in ["src=\"http", "href=\"http", "@import"] {
        assert!(
            !page.contains(outside),
            "the page is to stand alone, but has {outside}"
        );
    }
}
