//! The repository's plans run, and errors in bad plans name line and key.

use std::path::Path;

use shinjuku_sim::plan::{Plan, Target};
use shinjuku_sim::{SimError, Until, sweep};
use shinjuku_workload::Mix;

const GOOD: &str = "\
mix = \"hi\"
workers = 2
load = [0.3, 0.6]
policy = [\"c-FCFS\", \"c-PRE-SQ\"]
quantum_us = [5, 10]
requests = 2_000
replications = 3
";

/// The line and key that the error names, and the rest of its message.
#[track_caller]
fn refused(text: &str) -> (usize, String, String) {
    match Plan::parse(text, Path::new("plan.toml")).map(|_| ()) {
        Err(SimError::Plan {
            line, key, what, ..
        }) => (line, key, what),
        other => panic!("{other:?}"),
    }
}

/// `GOOD` with a line replaced.
fn with(line: usize, text: &str) -> String {
    let mut lines: Vec<_> = GOOD.lines().collect();
    lines[line - 1] = text;
    lines.join("\n")
}

#[test]
fn best_effort_classes_are_the_mixs() {
    let plan = |rest: &str| format!("best_effort = {rest}\n{GOOD}");
    let parse = |text: &str| Plan::parse(text, Path::new("plan.toml"));
    let Target::Server(scenario) = &parse(&plan("[\"long\"]")).unwrap().points[0].target else {
        panic!("a server's plan");
    };
    assert!(scenario.policy.has_best_effort());
    let (line, key, what) = refused(&plan("[\"slow\"]"));
    assert_eq!((line, key.as_str()), (1, "best_effort"));
    assert_eq!(what, "mix hi has no class \"slow\"");
    let (line, key, _) = refused(&plan("[\"long\"]\ndepth = 2"));
    assert_eq!((line, key.as_str()), (2, "depth"));
    let (_, key, _) = refused(&plan("[\"long\"]").replace("c-FCFS", "PS"));
    assert_eq!(key, "best_effort");
}

#[test]
fn a_dispatcher_works_where_it_can() {
    let works = GOOD.replace("\"c-FCFS\", ", "") + "works_us = 2.5\n";
    let plan = Plan::parse(&works, Path::new("plan.toml")).unwrap();
    let Target::Server(scenario) = &plan.points[0].target else {
        panic!("a server's plan");
    };
    assert_eq!(scenario.shape.works_ns, 2_500);
    for (text, what) in [
        (format!("{GOOD}works_us = 5\n"), "policies that preempt"),
        (works.clone() + "best_effort = [\"long\"]\n", "best effort"),
        (works.clone() + "layout = \"symmetric\"\n", "central"),
        (works.replace("2.5", "-1"), "0 to 1e6"),
    ] {
        let (_, key, found) = refused(&text);
        assert_eq!(key, "works_us");
        assert!(found.contains(what), "{found}");
    }
}

#[test]
fn a_plan_is_all_combinations_and_prints_as_table_and_csv() {
    let plan = Plan::parse(GOOD, Path::new("plan.toml")).unwrap();
    // c-FCFS has no quantum to sweep: 3 contenders at 2 loads.
    assert_eq!(plan.points.len(), 6);
    let mut steps = 0;
    let measured = sweep::run(&plan, None, |_| steps += 1).unwrap();
    assert_eq!(steps, 6);
    let table = sweep::table(&plan, &measured);
    assert!(
        table.contains("c-PRE-SQ(10us)") && table.contains('±'),
        "{table}"
    );
    let csv = sweep::csv(&measured);
    // A heading, and three lines a point: all, short, long.
    assert_eq!(csv.lines().count(), 1 + 6 * 3, "{csv}");
    let columns = csv.lines().map(|line| line.split(',').count());
    assert!(
        columns
            .clone()
            .all(|count| Some(count) == columns.clone().next()),
        "{csv}"
    );
}

#[test]
fn the_plans_of_the_repository_are_good() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans");
    let mut count = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let plan = Plan::read(&entry.unwrap().path()).unwrap();
        plan.points[0].target.run(1).unwrap();
        count += 1;
    }
    assert!(count >= 3, "{count}");
}

#[test]
fn an_unknown_key_is_named_with_its_line() {
    let (line, key, what) = refused(&with(5, "quantm_us = 5"));
    assert_eq!((line, key.as_str()), (5, "quantm_us"));
    assert!(what.contains("unknown field `quantm_us`"), "{what}");
    let (line, key, _) = refused(&format!(
        "{GOOD}[rack]\nservers = 2\nbalancr = \"random\"\n"
    ));
    assert_eq!((line, key.as_str()), (10, "balancr"));
    let (line, key, _) = refused(&format!("{GOOD}[overheads]\nswitch = 2\n"));
    assert_eq!((line, key.as_str()), (9, "switch"));
}

#[test]
fn a_load_over_one_needs_an_end() {
    let (line, key, what) =
        refused(&with(3, "load = [0.5, 1.2]").replace("requests = 2_000\n", ""));
    assert_eq!((line, key.as_str()), (3, "load"));
    assert!(what.contains("1.2") && what.contains("requests"), "{what}");
    // With an end it is fine.
    let plan = Plan::parse(&with(3, "load = 1.2"), Path::new("plan.toml")).unwrap();
    let Target::Server(scenario) = &plan.points[0].target else {
        panic!("a server was asked for");
    };
    assert_eq!(scenario.load, 1.2);
    // But it never converges.
    let (line, key, _) = refused(&format!("{}\nuntil_ci = \"2%\"", with(3, "load = 1.2")));
    assert_eq!((line, key.as_str()), (8, "until_ci"));
}

#[test]
fn zero_quanta_and_empty_mixes_are_refused() {
    let (line, key, what) = refused(&with(5, "quantum_us = [5, 0]"));
    assert_eq!((line, key.as_str()), (5, "quantum_us"));
    assert!(what.contains("it is 0") && what.contains("PS"), "{what}");
    let (line, key, what) = refused(&with(1, "mix = []"));
    assert_eq!((line, key.as_str()), (1, "mix"));
    assert!(what.contains("empty"), "{what}");
    let (line, key, what) = refused(&with(1, "mix = { name = \"none\", classes = [] }"));
    assert_eq!((line, key.as_str()), (1, "mix"));
    assert!(what.contains("empty"), "{what}");
}

#[test]
fn other_mistakes_are_named_too() {
    let cases = [
        (1, "mix = \"high\"", "mix", "no mix is named"),
        (2, "workers = 0", "workers", "it is 0"),
        (2, "workers = 2.5", "workers", "invalid type"),
        (3, "load = -0.1", "load", "it is -0.1"),
        (4, "policy = \"lifo\"", "policy", "c-pre-sq, c-pre-mq"),
        (4, "policy = []", "policy", "empty"),
        (6, "requests = 0", "requests", "at least 1"),
        (7, "replications = 0", "replications", "at least 1"),
        (7, "until_ci = \"much\"", "until_ci", "2%"),
        (7, "depth = 0", "depth", "1 to 64"),
        (7, "costs = \"missing.json\"", "costs", "missing.json"),
        (7, "report = { x = \"mixx\" }", "report", "no key to sweep"),
        (7, "report = { class = \"huge\" }", "report", "short, long"),
        (
            7,
            "rack = { servers = 2, balancer = \"best\" }",
            "rack",
            "power-of-K",
        ),
        (7, "rack = { servers = 2, loss = 1 }", "rack", "below 1"),
        (
            7,
            "arrivals = { kind = \"mmpp\", rate_ratio = 0.5, burst_fraction = 0.1, burst_requests = 9 }",
            "arrivals",
            "rate_ratio",
        ),
    ];
    for (line, text, key, part) in cases {
        let (found_line, found_key, what) = refused(&with(line, text));
        assert_eq!(
            (found_line, found_key.as_str()),
            (line, key),
            "{text}: {what}"
        );
        assert!(what.contains(part), "{text}: {what}");
    }
    let missing = GOOD.replace("workers = 2\n", "");
    let (_, _, what) = refused(&missing);
    assert!(what.contains("missing field `workers`"), "{what}");
}

#[test]
fn until_ci_takes_a_share_in_either_form() {
    for text in ["2%", "0.02", " 2 % "] {
        let plan = with(7, &format!("until_ci = \"{text}\""));
        let plan = Plan::parse(&plan, Path::new("plan.toml")).unwrap();
        assert!(matches!(plan.until, Until::Precision { relative, .. } if relative == 0.02));
    }
}

#[test]
fn an_overloaded_plan_does_not_run_until_a_precision() {
    let plan = with(3, "load = [0.3, 1.2]");
    let plan = Plan::parse(&plan, Path::new("plan.toml")).unwrap();
    let until = Until::Precision {
        relative: 0.5,
        measure: plan.y,
    };
    let error = sweep::run(&plan, Some(until), |_| ())
        .map(|_| ())
        .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("1.2") && text.contains("converge"), "{text}");
    sweep::run(&plan, None, |_| ()).unwrap();
}

#[test]
fn plans_are_compared_point_by_point_on_the_same_requests() {
    let parse = |text: &str| Plan::parse(text, Path::new("plan.toml")).unwrap();
    let (a, b) = (
        parse(&with(4, "policy = \"c-FCFS\"")),
        parse(&with(4, "policy = \"d-FCFS\"")),
    );
    let in_a = sweep::run(&a, None, |_| ()).unwrap();
    let in_b = sweep::run(&b, None, |_| ()).unwrap();
    let text = sweep::compare((&a, &in_a), (&a, &in_a)).unwrap();
    assert_eq!(text.matches("ratio 1.000 ± 0.000").count(), 2, "{text}");
    let text = sweep::compare((&a, &in_a), (&b, &in_b)).unwrap();
    assert_eq!(
        text.matches("c-FCFS against d-FCFS: ratio 0.").count(),
        2,
        "{text}"
    );
    let fcfs = with(4, "policy = \"c-FCFS\"");
    let change = |from: &str, to: &str| fcfs.replace(from, to);
    for (other, part) in [
        (GOOD.to_owned(), "points"),
        (
            change("replications = 3", "replications = 2"),
            "replications",
        ),
        (change("[0.3, 0.6]", "[0.3, 0.5]"), "0.6 against 0.5"),
        (
            format!("{fcfs}\nreport = {{ class = \"short\" }}"),
            "report.class",
        ),
        (format!("{fcfs}\nreport = {{ x = \"mix\" }}"), "report.x"),
        (format!("{fcfs}\nseed = 2"), "seed"),
    ] {
        let other = parse(&other);
        let in_other = sweep::run(&other, None, |_| ()).unwrap();
        let error = sweep::compare((&a, &in_a), (&other, &in_other)).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// In some replications no request of a rare class finishes: their pairs are left out, and no other
/// pair shifts.
#[test]
fn pairs_stay_pairs_where_a_replication_finished_nothing() {
    let text = with(6, "requests = 100")
        .replace(
            "replications = 3",
            "replications = 12\nreport = { class = \"long\" }",
        )
        .replace("[\"c-FCFS\", \"c-PRE-SQ\"]", "\"c-FCFS\"");
    let plan = Plan::parse(&text, Path::new("plan.toml")).unwrap();
    let full = sweep::run(&plan, None, |_| ()).unwrap();
    let mut less = sweep::run(&plan, None, |_| ()).unwrap();
    let some = |each: &sweep::Measured<'_>| {
        let classes = each.result.classes.iter();
        classes
            .map(|c| c[usize::from(Mix::LONG)].requests > 0)
            .collect::<Vec<_>>()
    };
    let with_some = some(&full[0]);
    let first = with_some.iter().position(|some| *some).unwrap();
    assert!(
        with_some.iter().filter(|some| **some).count() > 2,
        "{with_some:?}"
    );
    // As if the first such replication of one plan had finished none.
    for each in &mut less {
        each.result.classes[first][usize::from(Mix::LONG)].requests = 0;
    }
    let text = sweep::compare((&plan, &less), (&plan, &full)).unwrap();
    assert!(text.contains("ratio 1.000 ± 0.000"), "{text}");
    assert!(!text.contains("NaN"), "{text}");
}

#[test]
fn what_would_take_all_memory_or_time_is_refused_in_its_line() {
    let cases = [
        ("packets = 65", "packets", "1 to 64"),
        ("packets = 4000000000", "packets", "1 to 64"),
        ("balancer = \"power-of-4097\"", "balancer", "4096"),
        ("packet_gap_us = 1e13", "packet_gap_us", "1e12"),
    ];
    for (text, key, part) in cases {
        let (line, found, what) = refused(&rack(0, text));
        assert_eq!((line, found.as_str()), (11, key), "{text}: {what}");
        assert!(what.contains(part), "{text}: {what}");
    }
    let (line, key, what) = refused(&with(5, "quantum_us = 1e10"));
    assert_eq!((line, key.as_str()), (5, "quantum_us"), "{what}");
    // 2 servers are few enough, 8 and one that may come as the 4096th are not.
    let large = with(7, "capacity = 16777216");
    let rack = |more: &str| format!("{large}\n[rack]\n{more}");
    assert!(Plan::parse(&rack("servers = 4"), Path::new("plan.toml")).is_ok());
    let late = "servers = 2\nchanges = [{ at_us = 1, server = 4095, action = \"add\" }]";
    for more in ["servers = [1, 8]", late] {
        let (line, key, what) = refused(&rack(more));
        assert_eq!((line, key.as_str()), (7, "capacity"), "{what}");
        assert!(what.contains("2^26"), "{what}");
    }
}

#[test]
fn a_rack_that_cannot_run_is_refused_in_its_line() {
    let (line, key, what) = refused(&rack(0, "balancer = [\"random\", \"jbsq-2\"]\npackets = 2"));
    assert_eq!((line, key.as_str()), (12, "packets"), "{what}");
    assert!(what.contains("JBSQ"), "{what}");
    let one = rack(0, "balancer = \"jbsq-2\"\npackets = 1");
    assert!(Plan::parse(&one, Path::new("plan.toml")).is_ok());
    let change = "{ at_us = 1, server = 5000, action = \"add\" }";
    let rack =
        |changes: &str| refused(&format!("{GOOD}[rack]\nservers = 2\nchanges = {changes}\n"));
    let (line, key, what) = rack(&format!("[{change}]"));
    assert_eq!((line, key.as_str()), (10, "changes"), "{what}");
    let (line, key, what) = rack(&format!("[\n    {change},\n]"));
    assert_eq!((line, key.as_str()), (11, "server"), "{what}");
    assert!(what.contains("it is 5000: choose 0 to 4095"), "{what}");
}

/// `GOOD` with the servers of a rack, of which the first `fail` fail at the start.
fn rack(fail: usize, more: &str) -> String {
    let changes: Vec<_> = (0..fail)
        .map(|server| format!("{{ at_us = 0, server = {server}, action = \"fail\" }}"))
        .collect();
    format!(
        "{}\n[rack]\nservers = 2\nchanges = [{}]\n{more}",
        with(4, "policy = \"c-FCFS\""),
        changes.join(", ")
    )
}

#[test]
fn losses_are_shown_and_nothing_is_said_of_no_request() {
    let parse = |text: &str| Plan::parse(text, Path::new("plan.toml")).unwrap();
    let run = |plan: &Plan| {
        let measured = sweep::run(plan, None, |_| ()).unwrap();
        let compared = sweep::compare((plan, &measured), (plan, &measured)).unwrap();
        (
            sweep::table(plan, &measured),
            sweep::csv(&measured),
            compared,
        )
    };
    let column = |csv: &str, name: &str| {
        let at = csv
            .lines()
            .next()
            .unwrap()
            .split(',')
            .position(|c| c == name);
        let row = csv.lines().nth(1).unwrap().split(',').nth(at.unwrap());
        row.unwrap().to_owned()
    };
    let (table, csv, compared) = run(&parse(&rack(0, "loss = 0.01")));
    assert_eq!(table.matches(" (losses)").count(), 2, "{table}");
    assert!(table.contains('±') && compared.contains("(losses) against"));
    assert!(column(&csv, "lost").parse::<u64>().unwrap() > 50, "{csv}");
    let (table, csv, compared) = run(&parse(&rack(2, "")));
    assert!(table.contains("none finished (losses)"), "{table}");
    assert!(
        !table.contains('±') && !compared.contains("ratio"),
        "{table}{compared}"
    );
    assert_eq!(column(&csv, "p99_us"), "", "{csv}");
    // 2,000 requests in each of three replications.
    assert_eq!(column(&csv, "lost"), "6000", "{csv}");
    let (table, ..) = run(&parse(&rack(0, "packets = 3\naffinity = false")));
    assert!(table.contains("(losses)"), "{table}");
    let (table, ..) = run(&parse(&rack(0, "")));
    assert!(!table.contains("(losses)"), "{table}");
}

/// The examples of docs/simulator.md are plans.
#[test]
fn the_documentation_shows_good_plans() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/simulator.md");
    let text = std::fs::read_to_string(path).unwrap();
    let blocks: Vec<_> = text.split("```toml\n").skip(1).collect();
    let blocks: Vec<_> = blocks
        .iter()
        .map(|b| b.split("```").next().unwrap())
        .collect();
    let [plan, rack, fanout] = blocks[..] else {
        panic!("{} examples", blocks.len());
    };
    let server = Plan::parse(plan, Path::new("simulator.md")).unwrap();
    assert_eq!(server.points.len(), 4 * 3);
    for one_type in [false, true] {
        let rack = rack.replace("one_type = false", &format!("one_type = {one_type}"));
        let rack = Plan::parse(&format!("{plan}\n{rack}"), Path::new("simulator.md")).unwrap();
        assert_eq!(rack.points.len(), 4 * 3 * 2);
        let Target::Rack(scenario) = &rack.points[0].target else {
            panic!("a rack");
        };
        assert_eq!(scenario.one_type, one_type);
    }
    let fanout = Plan::parse(fanout, Path::new("simulator.md")).unwrap();
    // edf by either deadline, and two policies that do not go by it, at two loads.
    assert_eq!(fanout.points.len(), 2 * (2 + 2));
    assert!(matches!(fanout.points[0].target, Target::Fanout(_)));
}

const FANOUT: &str = "\
mix = \"exp\"
workers = 2
load = 0.4
policy = [\"c-FCFS\", \"edf\"]
quantum_us = 2
requests = 2_000
replications = 2
[fanout]
servers = 10
fanouts = [{ servers = 1, weight = 9 }, { servers = 10, weight = 1 }]
slos = [{ us = 50, weight = 1 }]
deadline = [\"slo\", \"slo-and-fanout\"]
";

#[test]
fn queries_that_fan_out_are_a_plan_whose_classes_are_the_types_of_query() {
    let plan = Plan::parse(FANOUT, Path::new("plan.toml")).unwrap();
    let measured = sweep::run(&plan, None, |_| {}).unwrap();
    let csv = sweep::csv(&measured);
    // A heading; of each of three points all queries, narrow ones and wide ones.
    assert_eq!(csv.lines().count(), 1 + 3 * 3, "{csv}");
    assert!(
        csv.contains(",50us-of-1,") && csv.contains(",50us-of-10,"),
        "{csv}"
    );
    assert!(
        csv.contains(",none,") && csv.contains(",slo-and-fanout,"),
        "{csv}"
    );
    let preemptions = |at: usize| measured[at].result.preemptions;
    assert_eq!(preemptions(0), 0, "c-FCFS");
    // With one SLO for all, what came first is due first.
    assert_eq!(preemptions(1), 0, "edf by the SLO");
    assert!(preemptions(2) > 0, "edf by SLO and fan-out");

    for (from, to, line, key) in [
        ("\"edf\"", "\"c-PRE-SQ\"", 4, "policy"),
        (
            "servers = 10, weight",
            "servers = 11, weight",
            10,
            "fanouts",
        ),
        ("us = 50", "us = 0", 11, "slos"),
        ("servers = 10\n", "servers = 0\n", 9, "servers"),
        ("\"slo\",", "\"soon\",", 12, "deadline"),
    ] {
        let (at, named, what) = refused(&FANOUT.replacen(from, to, 1));
        assert_eq!((at, named.as_str()), (line, key), "{what}");
    }
    let (_, key, what) = refused(&format!("{FANOUT}[rack]\nservers = 2\n"));
    assert!(what.contains("either"), "{key}: {what}");
}
