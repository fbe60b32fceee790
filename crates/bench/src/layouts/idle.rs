//! How much processor time a pool's threads take at little load: when idle, they are to sleep.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use shinjuku::{Config, LayoutKind};
use shinjuku_plot::Table;

use crate::closures::{Contender, Experiment, Outcome};
use crate::harness::{Runs, Section, Session};
use crate::report::figure;

/// Cores that the requests take.
const LOADS: [f64; 3] = [0.0, 0.1, 0.5];

/// One load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// How many cores the requests' work takes.
    pub busy_cores: f64,
    /// What came of it, contender by contender.
    pub runs: Vec<Runs<Outcome>>,
}

fn contenders() -> Vec<Contender> {
    let layout = |layout| Config::default().layout(layout);
    vec![
        Contender::pool("symmetric", layout(LayoutKind::Symmetric)),
        Contender::pool("threads", layout(LayoutKind::Threads)),
        Contender::pool("inline", layout(LayoutKind::Inline)),
        Contender::RAYON,
        Contender::SPAWN_BLOCKING,
    ]
}

/// About how long it takes.
pub fn duration(session: &Session) -> Duration {
    session.all(Experiment::each(session.length()), contenders().len()) * LOADS.len() as u32
}

/// Measures all loads.
///
/// # Errors
/// It was interrupted, or the work cannot be calibrated.
pub fn measure(session: &mut Session, points: &mut Vec<Point>) -> Result<()> {
    let experiment = Experiment::short(session.cores.len())?;
    let length = session.length();
    for busy_cores in LOADS {
        let runs = session.interleave(
            &format!("processor time, {busy_cores} cores busy"),
            &mut contenders(),
            |one| one.name.to_owned(),
            Experiment::each(length),
            |one, seed| {
                let arrivals = match busy_cores > 0.0 {
                    true => experiment.arrivals(busy_cores, length, seed)?,
                    false => Vec::new(),
                };
                experiment.run(one, &arrivals, length).map(Some)
            },
        )?;
        points.push(Point { busy_cores, runs });
    }
    Ok(())
}

/// One table of all loads.
pub fn section(points: &[Point]) -> Section {
    let columns = points.iter().flat_map(|point| {
        let busy = figure(point.busy_cores);
        [format!("cores used, {busy} busy"), "spread".to_owned()]
    });
    let mut table = Table::new(
        "processor time of all threads but the generator's, in cores; medians",
        std::iter::once(String::new()).chain(columns),
    );
    for contender in contenders() {
        let cells = points.iter().flat_map(|point| {
            let runs = point.runs.iter().find(|runs| runs.name == contender.name);
            let used = runs.and_then(|runs| runs.spread(|one| Some(one.cores_used)));
            match used {
                Some(used) => [
                    format!("{:.3}", used.median),
                    format!("{:.3}-{:.3}", used.min, used.max),
                ],
                None => ["-".to_owned(), String::new()],
            }
        });
        table.push(std::iter::once(contender.name.to_owned()).chain(cells));
    }
    Section {
        heading: "Processor time at little load".to_owned(),
        introduction: Some(
            "Requests of 20 µs each, as closures, within an ordinary process. What is used beyond the busy cores is what the \
             contender's threads do besides: take requests over, fall asleep and wake up, and look for work. What the generator's \
             thread does to hand a request over, the call that wakes a thread included, is not counted for any contender."
                .to_owned(),
        ),
        tables: vec![table],
        ..Section::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contender_without_figures_has_its_row_all_the_same() {
        let point = Point {
            busy_cores: 0.5,
            runs: vec![Runs {
                name: "symmetric".to_owned(),
                runs: vec![None],
            }],
        };
        let table = &section(&[point]).tables[0];
        assert_eq!(table.rows.len(), contenders().len());
        assert_eq!(table.rows[0], ["symmetric", "-", ""]);
    }
}
