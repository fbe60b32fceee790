//! The tables of a report, made from the results.

use shinjuku_plot::Table;

use super::results::{BASELINE, Class, Policies, Run};
use crate::harness::{comparisons, distinct};
use crate::report::figure;

/// How many loads fit beside each other on a terminal line; further loads get a further table.
const LOADS_A_TABLE: usize = 3;

/// The sign of a point whose work ran slower than calibrated.
const SLOW: &str = "*";

/// The floor that the host's stalls put under every p99.
pub(crate) const STALLS: &str = "this host's stalls";

/// The tables of one mix: what its short requests gain, then what its long ones pay.
pub fn mix_tables(results: &Policies, mix: &str) -> Vec<Table> {
    let leading = results.leading_class(mix);
    let of = if leading == Class::All {
        ""
    } else {
        " of short requests"
    };
    let mut tables = latency(
        results,
        mix,
        leading,
        &format!(
            "{mix}: p99 latency{of}, µs; gain = {BASELINE} / this, more than 1 is better than {BASELINE}"
        ),
        ("gain", |baseline, this| baseline / this),
    );
    tables.extend(latency(
        results,
        mix,
        Class::Long,
        &format!("{mix}: what long requests pay: p99 latency, µs; pays = this / {BASELINE}, more than 1 is worse"),
        ("pays", |baseline, this| this / baseline),
    ));
    tables
}

/// The tables that belong to no single mix: costs, the check of the baseline, paired comparisons.
pub fn other_tables(results: &Policies) -> Vec<Table> {
    [
        stalls(results),
        costs(results),
        fcfs_check(results),
        simulated(results),
        comparisons(&results.comparisons),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Rows are contenders; three columns a load: p99, its spread over the repetitions, the ratio to
/// the baseline.
fn latency(
    results: &Policies,
    mix: &str,
    class: Class,
    title: &str,
    (ratio_name, ratio): (&str, fn(f64, f64) -> f64),
) -> Vec<Table> {
    let runs = results.of(mix, class);
    let mut loads = distinct(runs.clone().map(|run| run.load));
    loads.sort_by(f64::total_cmp);
    let contenders = distinct(runs.clone().map(Run::contender));
    let find = |load: f64, wanted: &dyn Fn(&Run) -> bool| {
        runs.clone().find(|run| run.load == load && wanted(run))
    };

    let mut tables = Vec::new();
    let floor = results
        .stall_floor_us()
        .filter(|_| class == results.leading_class(mix));
    for loads in loads.chunks(LOADS_A_TABLE) {
        let columns = loads
            .iter()
            .flat_map(|load| [percent(*load), "spread".into(), ratio_name.into()]);
        let mut table = Table::new(title, std::iter::once(String::new()).chain(columns));
        for contender in &contenders {
            let mut row = vec![contender.clone()];
            for &load in loads {
                let run = find(load, &|run| run.contender() == *contender);
                let baseline = find(load, &|run| run.policy == BASELINE).and_then(|run| run.p99_us);
                row.extend(match run {
                    None => ["", "", ""].map(String::from),
                    Some(run) => cells(run, baseline, ratio),
                });
            }
            table.push(row);
        }
        if let Some(floor) = floor {
            let cells = loads
                .iter()
                .flat_map(|_| [figure(floor), String::new(), String::new()]);
            table.push(std::iter::once(STALLS.to_owned()).chain(cells));
        }
        for &load in loads {
            let runs = runs.clone().filter(|run| run.load == load);
            table.notes.extend(runs.clone().flat_map(slower));
            table
                .notes
                .extend(floor.and_then(|floor| mostly_stalls(runs, floor)));
        }
        tables.push(table);
    }
    tables
}

fn cells(run: &Run, baseline: Option<f64>, ratio: fn(f64, f64) -> f64) -> [String; 3] {
    let mark = if run.slow().is_some() { SLOW } else { "" };
    let Some(p99) = run.p99_us else {
        let why = if run.saturated { "saturated" } else { "none" };
        return [format!("{why}{mark}"), String::new(), String::new()];
    };
    let in_spread = run.slow_in_spread().map_or("", |_| SLOW);
    let spread = match (run.p99_us_min, run.p99_us_max) {
        (Some(low), Some(high)) => format!("{}-{}{in_spread}", figure(low), figure(high)),
        _ => String::new(),
    };
    let ratio = baseline.map_or_else(String::new, |baseline| {
        format!("{}x", figure(ratio(baseline, p99)))
    });
    [format!("{}{mark}", figure(p99)), spread, ratio]
}

/// What is to be said of a point whose work did not run as fast as it was calibrated to.
fn slower(run: &Run) -> Option<String> {
    let (times, in_one) = match (run.slow(), run.slow_in_spread()) {
        (Some(times), _) => (times, ""),
        (None, Some(times)) if run.p99_us.is_some() => (times, " in a repetition of the spread"),
        _ => return None,
    };
    Some(format!(
        "{SLOW} {}, {}: the work ran {times:.1} times slower than calibrated{in_one}",
        percent(run.load),
        run.contender(),
    ))
}

/// What is to be said of the points at one load if even the best latency is the host's, for a half
/// or more.
fn mostly_stalls<'a>(runs: impl Iterator<Item = &'a Run>, floor: f64) -> Option<String> {
    let (load, best) = runs
        .filter_map(|run| Some((run.load, run.p99_us?)))
        .min_by(|(_, one), (_, other)| one.total_cmp(other))?;
    let (where_it_is, so) = if best <= floor {
        (
            "is not above",
            "it tells of the host, not of the contenders",
        )
    } else if best <= 2.0 * floor {
        ("is at most twice", "a half of it or more may be the host's")
    } else {
        return None;
    };
    Some(format!(
        "{}: the best p99, {} µs, {where_it_is} the floor of this host's stalls, {} µs: {so}",
        percent(load),
        figure(best),
        figure(floor)
    ))
}

/// The host's stalls, core by core, and the floors that they come to.
fn stalls(results: &Policies) -> Option<Table> {
    let stalls = results.stalls.as_ref()?;
    let mut table = Table::new(
        format!("{STALLS} for a microsecond or longer, watched before and after the bench"),
        ["core", "watched, s", "stalls", "of the time", "longest, µs"],
    );
    for core in &stalls.cores {
        table.push([
            format!("{} ({})", core.core, core.role),
            figure(core.seconds),
            core.stalls.to_string(),
            format!("{:.2} %", 100.0 * core.share),
            figure(core.longest_us),
        ]);
    }
    let after = stalls.after_p99_us.map_or_else(
        || "not watched".to_owned(),
        |floor| format!("{} µs", figure(floor)),
    );
    table.notes.push(format!(
        "floor of every p99: {} µs (before the bench {} µs, after it {after}): of requests that arrive at random moments and wait \
         for the end of a stall alone, 1 % wait for longer; 0 where stalls take less than 1 % of the time",
        figure(stalls.p99_us),
        figure(stalls.before_p99_us),
    ));
    Some(table)
}

fn costs(results: &Policies) -> Option<Table> {
    let mut table = Table::new("costs, ns", ["operation", "ns", "low", "high"]);
    for (name, ns) in &results.costs {
        let detail = results.cost_details.get(name);
        table.push([
            name.clone(),
            figure(*ns),
            optional(detail.and_then(|detail| detail.low)),
            optional(detail.and_then(|detail| detail.high)),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

fn fcfs_check(results: &Policies) -> Option<Table> {
    let mut table = Table::new(
        format!(
            "{BASELINE} as measured against the Lindley recursion over the same requests: p99, µs"
        ),
        [
            "point",
            "measured",
            "computed",
            "difference",
            "with costs (simulated)",
        ],
    );
    for check in &results.fcfs_check {
        table.push([
            format!("{} {}, {}", check.mix, percent(check.load), check.class),
            or_saturated(check.measured_p99_us.map(figure)),
            or_saturated(check.lindley_p99_us.map(figure)),
            check
                .measured_p99_us
                .zip(check.lindley_p99_us)
                .map_or_else(String::new, |(measured, computed)| {
                    format!("{:+.1} %", 100.0 * (measured / computed - 1.0))
                }),
            optional(check.predicted_p99_us),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

/// How far each point is from what its policy could reach if scheduling cost nothing, and from what
/// the costs measured explain.
fn simulated(results: &Policies) -> Option<Table> {
    let mut table = Table::new(
        "measured beside simulated: p99, µs",
        [
            "point",
            "measured",
            "no cost",
            "measured / it",
            "costs as measured",
            "measured / it",
        ],
    );
    for run in &results.runs {
        let (Some(p99), Some(ideal)) = (run.p99_us, run.ideal_p99_us) else {
            continue;
        };
        if run.class != results.leading_class(&run.mix) {
            continue;
        }
        let over = |simulated: f64| format!("{}x", figure(p99 / simulated));
        table.push([
            format!("{} {}: {}", run.mix, percent(run.load), run.contender()),
            figure(p99),
            figure(ideal),
            over(ideal),
            run.predicted_p99_us.map_or_else(String::new, figure),
            run.predicted_p99_us.map_or_else(String::new, over),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

fn or_saturated(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "saturated".to_owned())
}

fn optional(value: Option<f64>) -> String {
    value.map_or_else(String::new, figure)
}

/// A load as a percentage.
pub(crate) fn percent(load: f64) -> String {
    // Rounded to a tenth first, because 0.07 * 100 is not 7.
    format!("{} %", (load * 1000.0).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_percentages() {
        assert_eq!(percent(0.07), "7 %");
        assert_eq!(percent(0.625), "62.5 %");
    }
}
