//! Reports end to end: the sample in `data/results.json` through reading, checking, drawing and
//! documentation.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use shinjuku_bench::costs::operations::TIMELINE;
use shinjuku_bench::harness::{Goal, Measured, Results, Verdict};
use shinjuku_bench::policies::results::{BASELINE, Class, Run};
use shinjuku_bench::policies::{Policies, csv, figures, summary};
use shinjuku_bench::report::{self, html};
use shinjuku_plot::{Figure, Style};

fn sample() -> Results<Policies> {
    Results::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/results.json")).unwrap()
}

fn page(results: &Policies) -> String {
    let results = Results {
        measured: results.clone(),
        ..sample()
    };
    html::page(&results, &results.measured.sections()).unwrap()
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
    let first = &mut results.measured.runs[0];
    first.ideal_p99_us = Some(1.0);
    first.predicted_p99_us = Some(1.1);
    first.picked = Some("probe".into());
    first.delivery = Some("injected with exits".into());
    first.times_slower = Some(1.02);
    first.times_slower_max = Some(1.05);
    let value = serde_json::to_value(&results).unwrap();

    let document =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results.md"))
            .unwrap();
    for (heading, object) in [
        ("## The whole", &value),
        ("## machine", &value["machine"]),
        ("## stalls", &value["stalls"]),
        ("### cores of stalls", &value["stalls"]["cores"][0]),
        ("## settings", &value["settings"]),
        ("## targets", &value["targets"][0]),
        ("## runtime", &value["runtime"]),
        (
            "## costs and cost_details",
            &value["cost_details"]["switch/own"],
        ),
        ("## runs", &value["runs"][0]),
        ("## fcfs_check", &value["fcfs_check"][0]),
        ("## comparisons", &value["comparisons"][0]),
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
        .take_while(|line| !line.starts_with("## ") && !line.starts_with("### "));
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
    let saturated = |results: &Results<Policies>| {
        results
            .measured
            .runs
            .iter()
            .position(|run| run.saturated)
            .unwrap()
    };
    let measured = |results: &Results<Policies>| {
        results
            .measured
            .runs
            .iter()
            .position(|run| !run.saturated)
            .unwrap()
    };
    type Spoil = fn(&mut Results<Policies>, usize, usize);
    let cases: [(&str, Spoil); 7] = [
        ("no percentiles", |results, saturated, _| {
            results.measured.runs[saturated].p99_us = Some(1.0)
        }),
        ("do not rise", |results, _, measured| {
            results.measured.runs[measured].p50_us = Some(1e9)
        }),
        ("must be positive", |results, _, measured| {
            results.measured.runs[measured].p999_us = Some(f64::NAN)
        }),
        ("twice", |results, _, measured| {
            results
                .measured
                .runs
                .push(results.measured.runs[measured].clone())
        }),
        ("not among the costs", |results, _, _| {
            results.measured.costs.remove("guard");
        }),
        ("schema 99", |results, _, _| results.schema = 99),
        ("results of kv", |results, _, _| results.bench = "kv".into()),
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
    let mut results = sample().measured;
    let run = results.runs.iter_mut().find(|run| !run.saturated).unwrap();
    run.saturate();
    (run.saturated, run.n) = (false, 0);
    results.check().unwrap();
}

#[test]
fn comparisons_with_saturated_points_say_so_and_claim_nothing() {
    let tables = summary::other_tables(&sample().measured);
    let table = |words: &str| tables.iter().find(|t| t.title.contains(words)).unwrap();
    let check = &table("Lindley").rows;
    assert_eq!(check[0][3], "+1.0 %");
    assert_eq!(check[1][1..], ["saturated", "saturated", "", ""]);
    let paired = &table("ratios of pairs").rows;
    assert_eq!(paired[0][1..], ["12", "0.97", "(0.90..1.05)", "0.93..1.01"]);
    assert_eq!(paired[1][1..], ["0", "-", "", ""]);
}

#[test]
fn saturating_a_run_makes_it_consistent() {
    let mut results = sample().measured;
    let run = results.runs.iter_mut().find(|run| !run.saturated).unwrap();
    run.saturate();
    assert!(run.p99_us.is_none() && run.p99_us_max.is_none());
    results.check().unwrap();
}

#[test]
fn tables_show_ratios_to_the_baseline_and_no_value_for_saturated_points() {
    let results = sample().measured;
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

/// The report with one point of `hi` at 20 % whose work took `times` as long as calibrated.
fn with_a_slow_point(times: f64, saturated: bool) -> Policies {
    let mut results = sample().measured;
    let slow = |run: &&mut Run| run.mix == "hi" && run.load == 0.2 && run.mechanism == "probe";
    for run in results.runs.iter_mut().filter(slow) {
        run.times_slower = Some(times);
        if saturated {
            run.saturate();
        }
    }
    results
}

#[test]
fn work_slower_than_calibrated_marks_the_point_everywhere() {
    let words = "* 20 %, c-PRE-SQ probe 5 µs: the work ran 1.6 times slower than calibrated";
    for saturated in [false, true] {
        let results = with_a_slow_point(1.6, saturated);
        results.check().unwrap();
        let tables = summary::mix_tables(&results, "hi");
        let tables: Vec<_> = tables
            .iter()
            .filter(|table| table.header[1] == "20 %")
            .collect();
        assert_eq!(tables.len(), 2, "short and long requests");
        for table in tables {
            assert!(table.notes.iter().any(|note| note == words), "{table}");
            let row = table
                .rows
                .iter()
                .find(|row| row[0] == "c-PRE-SQ probe 5 µs");
            let marked: Vec<_> = (row.unwrap().iter())
                .map(|cell| cell.ends_with('*'))
                .collect();
            assert!(marked[1] && !marked[2..].contains(&true), "{table}");
        }
        let page = page(&results);
        assert!(page.contains(words));
        let json = serde_json::to_value(&results).unwrap();
        let of_json = json["runs"].as_array().unwrap().iter();
        assert_eq!(of_json.filter(|run| run["times_slower"] == 1.6).count(), 3);
        let csv = csv::runs(&results.runs);
        assert_eq!(
            csv.lines().filter(|line| line.ends_with(",1.6,")).count(),
            3
        );
    }
}

#[test]
fn a_slow_repetition_that_the_p99_is_not_of_marks_the_spread() {
    let mut results = with_a_slow_point(1.0, false);
    let slow = |run: &&mut Run| run.times_slower.is_some();
    for run in results.runs.iter_mut().filter(slow) {
        run.times_slower_max = Some(1.6);
    }
    let words = "* 20 %, c-PRE-SQ probe 5 µs: the work ran 1.6 times slower than calibrated in a repetition of the spread";
    let table = &summary::mix_tables(&results, "hi")[0];
    assert!(table.notes.iter().any(|note| note == words), "{table}");
    let mut rows = table.rows.iter();
    let row = rows.find(|row| row[0] == "c-PRE-SQ probe 5 µs").unwrap();
    assert!(!row[1].contains('*') && row[2].ends_with('*'), "{row:?}");
}

#[test]
fn a_gain_is_met_missed_or_not_shown() {
    const CONTENDER: &str = "c-PRE-SQ probe 5 µs";
    let verdict = |spoil: &dyn Fn(&mut Policies)| {
        let mut results = sample().measured;
        let run = results.of("hi", Class::Short).find(|run| !run.saturated);
        let run = run.unwrap().clone();
        results.runs.clear();
        for policy in [BASELINE, "c-PRE-SQ"] {
            let preempts = policy != BASELINE;
            results.runs.push(Run {
                load: 0.6,
                policy: policy.to_owned(),
                mechanism: if preempts { "probe" } else { "none" }.to_owned(),
                quantum_us: preempts.then_some(5.0),
                ..run.clone()
            });
        }
        let gain = &mut results.comparisons[0];
        gain.what = "hi at 60 %, p99 of short requests".to_owned();
        gain.under = CONTENDER.to_owned();
        gain.ratio.as_mut().unwrap().ratio.median = 21.0;
        spoil(&mut results);
        let targets = results.targets();
        let name = format!("hi at 60 %, p99 of short requests: {BASELINE} / {CONTENDER}");
        let target = targets.iter().find(|one| one.name == name).unwrap();
        assert_eq!(target.wanted, Goal::AtLeast(20.0));
        target.verdict
    };
    assert_eq!(verdict(&|_| ()), Verdict::Met);
    let less = |results: &mut Policies| {
        results.comparisons[0].ratio.as_mut().unwrap().ratio.median = 19.0;
    };
    assert_eq!(verdict(&less), Verdict::Missed);
    // Saturated while c-FCFS is not: worse than any ratio.
    assert_eq!(verdict(&|one| one.runs[1].saturate()), Verdict::Missed);
    assert_eq!(verdict(&|one| one.runs[0].saturate()), Verdict::NotShown);
    assert_eq!(verdict(&|one| one.runs.clear()), Verdict::NotShown);
}

#[test]
fn a_timelines_slice_has_a_cost_to_keep_to() {
    let verdicts = |on: f64, preempted_on: f64, off: f64| {
        let mut results = sample().measured;
        for (row, cost) in TIMELINE.into_iter().zip([on, preempted_on, off]) {
            results.costs.insert(row.to_owned(), cost);
        }
        let targets = results.targets();
        TIMELINE.map(|row| {
            let target = targets.iter().find(|one| one.name == format!("{row}, ns"));
            target.unwrap().verdict
        })
    };
    let (met, missed) = (Verdict::Met, Verdict::Missed);
    assert_eq!(verdicts(30.0, 30.0, 1.2), [met; 3]);
    assert_eq!(verdicts(6.0, 12.0, 4.0), [met, met, missed]);
    assert_eq!(verdicts(31.0, 31.0, 1.0), [missed, missed, met]);
    let targets = sample().measured.targets();
    let [on, ..] = TIMELINE;
    let unmeasured = targets.iter().find(|one| one.name.starts_with(on));
    assert_eq!(unmeasured.unwrap().verdict, Verdict::NotShown);
}

#[test]
fn a_marked_point_misses_the_target_of_the_check() {
    let of = |results: &Policies| {
        let target = results.targets().pop().unwrap();
        (target.measured, target.verdict)
    };
    let marked = with_a_slow_point(1.6, false);
    assert_eq!(of(&marked), (Some(1.0), Verdict::Missed));
    let mut unmarked = with_a_slow_point(1.1, false);
    assert_eq!(of(&unmarked), (Some(0.0), Verdict::Met));
    unmarked.costs.clear();
    assert_eq!(of(&unmarked), (None, Verdict::NotShown));
}

#[test]
fn work_about_as_fast_as_calibrated_marks_nothing() {
    let sections = with_a_slow_point(1.1, false).sections();
    let tables = sections.iter().flat_map(|section| &section.tables);
    let all: String = tables.map(ToString::to_string).collect();
    assert!(!all.contains('*') && !all.contains("slower than calibrated"));
}

#[test]
fn the_stalls_of_the_host_are_a_row_a_line_and_a_table() {
    let mut results = sample().measured;
    let tables = summary::mix_tables(&results, "hi");
    let row = &tables[0].rows.last().unwrap();
    assert_eq!(
        (row[0].as_str(), row[1].as_str()),
        ("this host's stalls", "3.50")
    );
    // What long requests pay is far above, and not what the floor is about.
    let of_long = tables
        .iter()
        .filter(|table| table.title.contains("long requests"));
    let mut rows = of_long.flat_map(|table| &table.rows);
    assert!(rows.all(|row| row[0] != "this host's stalls"));
    let lines = |results: &Policies, mix| -> Vec<(String, Option<f64>)> {
        let figures = figures::of_mix(results, mix)
            .into_iter()
            .chain(figures::of_sweep(results));
        let of = |figure: Figure| {
            let line = figure
                .series
                .into_iter()
                .find(|line| line.style == Style::Stalls);
            line.map(|line| (figure.name, line.points[0].y))
        };
        figures.filter_map(of).collect()
    };
    let named = |name: &str| (name.to_owned(), Some(3.5));
    let drawn = lines(&results, "hi");
    assert_eq!(drawn[0], named("hi-p99-short"));
    assert!(
        drawn[1..].iter().all(|(name, _)| name.ends_with("quantum")),
        "{drawn:?}"
    );
    let table = &summary::other_tables(&results)[0];
    assert_eq!(table.rows.len(), 2, "{table}");
    assert!(
        table
            .to_string()
            .contains("floor of every p99: 3.50 µs (before the bench 0.00 µs")
    );

    // Nothing to draw on a logarithmic axis, and nothing to say.
    results.stalls.as_mut().unwrap().p99_us = 0.0;
    assert!(lines(&results, "hi").is_empty());
    assert_eq!(
        summary::mix_tables(&results, "hi")[0].rows.len(),
        tables[0].rows.len() - 1
    );
}

#[test]
fn a_mix_that_is_at_the_floor_says_so() {
    let mut results = sample().measured;
    let best = results.of("exp", Class::All).filter(|run| run.load == 0.4);
    let best = best.filter_map(|run| run.p99_us).fold(f64::MAX, f64::min);
    let mut said = |floor: f64| {
        results.stalls.as_mut().unwrap().p99_us = floor;
        let tables = summary::mix_tables(&results, "exp");
        let notes = tables.into_iter().flat_map(|table| table.notes);
        notes
            .filter(|note| note.starts_with("40 %"))
            .collect::<String>()
    };
    assert!(said(best * 1.01).contains("is not above the floor"));
    assert!(said(best / 1.99).contains("is at most twice the floor"));
    assert_eq!(said(best / 2.01), "");
}

#[test]
fn a_mix_of_one_kind_is_reported_over_all_requests() {
    let results = sample().measured;
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
    let results = sample().measured;
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
    results.measured.runs.retain(|run| run.mix == "hi");
    let sections = report::write(&results, &path).unwrap();
    let figures = sections.iter().flat_map(|section| &section.figures);
    let (notes, results) = (results.notes, results.measured);
    for figure in figures {
        assert!(figure.title.contains("Invented CPU"), "{}", figure.title);
    }
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
    assert!(page.contains("<svg") && page.contains("<table") && page.contains(&notes[0]));
    assert!(page.contains("Invented CPU") && page.contains("<caption>targets</caption>"));
    for outside in ["src=\"http", "href=\"http", "@import"] {
        assert!(
            !page.contains(outside),
            "the page is to stand alone, but has {outside}"
        );
    }
}
