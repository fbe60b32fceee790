//! The tables without a plot as CSV: those with one have its file.

use shinjuku_workload::repeat::Spread;

use super::delay::Delay;
use super::networked::Served;
use super::noticing::Row;
use crate::harness::Runs;
use crate::report::quoted;

/// The slides' table of durations and intervals, beside theirs.
pub(super) fn durations(delays: &[Delay]) -> String {
    let mut text = String::from(
        "entity,pattern,turns,duration_us,duration_us_min,duration_us_max,slides_duration_us,\
         interval_us,interval_us_min,interval_us_max,slides_interval_us,added_us,why_not\n",
    );
    for row in delays {
        let [duration, interval] = row.slides.map(|slides| slides.to_string());
        let fields = [
            quoted(&row.entity),
            quoted(&row.runs.name),
            optional(row.runs.median(|turns| Some(turns.turns as f64))),
            spread(row.runs.spread(|turns| turns.duration_us)),
            duration,
            spread(row.runs.spread(|turns| turns.interval_us)),
            interval,
            optional(row.runs.median(|turns| turns.added_us)),
            quoted(row.why_not.as_deref().unwrap_or_default()),
        ];
        text += &(fields.join(",") + "\n");
    }
    text
}

/// Both orders of the slots.
pub(super) fn orders(tables: &[Runs<Served>]) -> String {
    let mut text =
        String::from("order,mean_us,mean_us_min,mean_us_max,p99_us,p99_us_min,p99_us_max\n");
    for runs in tables {
        let fields = [
            quoted(&runs.name),
            spread(runs.spread(|served| served.mean_us)),
            spread(runs.spread(|served| served.p99_us)),
        ];
        text += &(fields.join(",") + "\n");
    }
    text
}

/// What it costs to notice a sleep.
pub(super) fn noticing(ways: &[Row]) -> String {
    let mut text = String::from("way,us,us_min,us_max,tells\n");
    for row in ways {
        let fields = [
            quoted(&row.micros.name),
            spread(row.micros.spread(|micros| Some(*micros))),
            quoted(&row.tells),
        ];
        text += &(fields.join(",") + "\n");
    }
    text
}

/// Three fields: median, lowest and highest repetition; empty ones where nothing was measured.
fn spread(spread: Option<Spread>) -> String {
    let values = [
        spread.map(|one| one.median),
        spread.map(|one| one.min),
        spread.map(|one| one.max),
    ];
    values.map(optional).join(",")
}

fn optional(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}
