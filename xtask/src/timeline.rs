//! `cargo xtask timeline`: a picture of a recorded timeline, as SVG.
//!
//! ```text
//!   the example `timeline` ──▶ trace.json ──▶ a part of it ──▶ lanes, slices, marks ──▶ SVG
//! ```
//!
//! The picture in `docs/watching.md` is one of these. What a viewer for traces shows is more; this
//! is for documents, where a reader cannot zoom.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use shinjuku_bench::paths;
use shinjuku_plot::timeline::{Slice, Timeline, svg};

/// Arguments of `cargo xtask timeline`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// A file by `Trace::save` or `shinjuku trace`; by default, of a run of the example `timeline`.
    trace: Option<PathBuf>,
    /// Where to write; by default `timeline.svg` in Cargo's target directory.
    #[arg(long)]
    out: Option<PathBuf>,
    /// From which moment of the trace on, in microseconds; by default, where most requests move to
    /// another thread.
    #[arg(long)]
    from: Option<f64>,
    /// For how long, in microseconds.
    #[arg(long, default_value_t = 2_000.0)]
    length: f64,
}

/// A trace's file.
#[derive(Debug, Deserialize)]
struct Trace {
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
}

/// One line of it; what a phase does not have is empty.
#[derive(Debug, Deserialize)]
struct Event {
    ph: String,
    #[serde(default)]
    tid: usize,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    name: String,
    /// Of an instant, whether it is a thread's.
    #[serde(default)]
    s: String,
    #[serde(default)]
    id: u64,
    #[serde(default)]
    args: serde_json::Value,
}

/// Runs `cargo xtask timeline`.
///
/// # Errors
/// The example fails, the file is no trace, or the picture cannot be written.
pub fn run(options: &Options) -> Result<ExitCode> {
    let target = paths::target_dir();
    let file = match &options.trace {
        Some(file) => file.clone(),
        None => {
            let file = target.join("timeline.json");
            record(&file)?;
            file
        }
    };
    let text = fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
    let trace: Trace = serde_json::from_str(&text)
        .with_context(|| format!("{} is not a trace", file.display()))?;
    let from = options
        .from
        .unwrap_or_else(|| trace.liveliest(options.length));
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let title = format!("{name}, from {from:.0} µs on");
    let timeline = trace.part(from, options.length, title);
    ensure!(
        !timeline.slices.is_empty(),
        "nothing runs in {} for {} us from {from} us on",
        file.display(),
        options.length
    );
    let out = options.out.clone();
    let out = out.unwrap_or_else(|| target.join("timeline.svg"));
    fs::write(&out, svg(&timeline)?).with_context(|| format!("cannot write {}", out.display()))?;
    println!(
        "{}: {} slices from {from:.0} us on",
        out.display(),
        timeline.slices.len()
    );
    Ok(ExitCode::SUCCESS)
}

/// Runs the example.
fn record(file: &Path) -> Result<()> {
    let mut example = paths::cargo();
    example.args(["run", "--release", "--quiet", "-p", "shinjuku-examples"]);
    example.args(["--example", "timeline", "--"]).arg(file);
    let status = example.status().context("cannot run the example")?;
    ensure!(
        status.success(),
        "the example `timeline` ends with {status}"
    );
    Ok(())
}

impl Trace {
    fn of_phase(&self, phase: &str) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(move |event| event.ph == phase)
    }

    /// Where a request stopped, and where it went on.
    fn resumptions(&self) -> Vec<[(usize, f64); 2]> {
        let ends: HashMap<_, _> = self.of_phase("f").map(|end| (end.id, end)).collect();
        let pair = |start: &Event| {
            let end = ends.get(&start.id)?;
            Some([(start.tid, start.ts), (end.tid, end.ts)])
        };
        self.of_phase("s").filter_map(pair).collect()
    }

    /// When a part of that length begins in which most requests go on on another thread.
    fn liveliest(&self, length: f64) -> f64 {
        let moves = self.resumptions().into_iter();
        let moves = moves.filter(|[from, to]| from.0 != to.0);
        let mut moments: Vec<f64> = moves.map(|[(_, stopped), _]| stopped).collect();
        moments.sort_by(f64::total_cmp);
        let within = |from: f64| {
            let first = moments.partition_point(|&moment| moment < from);
            moments.partition_point(|&moment| moment < from + length) - first
        };
        // A little before the first of them.
        let begins = moments
            .iter()
            .map(|moment| (moment - length / 20.0).max(0.0));
        let best = begins.reduce(|best, from| match within(from) > within(best) {
            true => from,
            false => best,
        });
        best.unwrap_or(0.0)
    }

    /// What is in the picture: the threads that ran anything then, their slices, and the rest.
    fn part(&self, from: f64, length: f64, title: String) -> Timeline {
        let is_within = |moment: f64| (from..from + length).contains(&moment);
        let runs = |slice: &&Event| slice.ts < from + length && slice.ts + slice.dur > from;
        let slices: Vec<_> = self.of_phase("X").filter(runs).collect();
        let mut threads: Vec<_> = slices.iter().map(|slice| slice.tid).collect();
        threads.sort_unstable();
        threads.dedup();
        let lane_of = |thread: usize| threads.iter().position(|&tid| tid == thread);
        let mut classes: Vec<_> = slices.iter().map(|slice| slice.name.clone()).collect();
        classes.sort_unstable();
        classes.dedup();
        let names: HashMap<_, _> = (self.of_phase("M"))
            .filter(|named| named.name == "thread_name")
            .filter_map(|named| Some((named.tid, named.args["name"].as_str()?)))
            .collect();
        let at = |(thread, moment): (usize, f64)| Some((lane_of(thread)?, moment - from));
        let slice = |slice: &&Event| {
            let stop = slice.args["stop"].as_str().unwrap_or_default();
            Some(Slice {
                lane: lane_of(slice.tid)?,
                class: classes.iter().position(|name| *name == slice.name)?,
                from_us: (slice.ts - from).max(0.0),
                to_us: (slice.ts + slice.dur - from).min(length),
                is_preempted: (stop.starts_with("preempted") || stop == "interrupted")
                    && is_within(slice.ts + slice.dur),
            })
        };
        let waits = self
            .of_phase("C")
            .filter(|counter| counter.name == "requests");
        let waits: Vec<_> = waits
            .filter_map(|counter| Some((counter.ts - from, counter.args["waiting"].as_f64()?)))
            .collect();
        // The last one before the part tells how it begins.
        let first = waits
            .iter()
            .rposition(|&(moment, _)| moment <= 0.0)
            .unwrap_or(0);
        let within = waits[first.min(waits.len())..].iter();
        let is_taken = |mark: &&Event| mark.s == "t" && is_within(mark.ts);
        Timeline {
            title,
            length_us: length,
            lanes: (threads.iter())
                .map(|thread| {
                    names
                        .get(thread)
                        .map_or_else(String::new, ToString::to_string)
                })
                .collect(),
            slices: slices.iter().filter_map(slice).collect(),
            resumptions: (self.resumptions().into_iter())
                .filter(|[from, to]| is_within(from.1) && is_within(to.1))
                .filter_map(|[from, to]| Some([at(from)?, at(to)?]))
                .collect(),
            taken: (self.of_phase("i").filter(is_taken))
                .filter_map(|mark| at((mark.tid, mark.ts)))
                .collect(),
            waiting: within
                .filter(|&&(moment, _)| moment < length)
                .map(|&(moment, number)| (moment.max(0.0), number))
                .collect(),
            classes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `Trace::save` writes it: a request goes on on another loop at 1000 us, and in its own at
    /// 100 us.
    const FILE: &str = r#"{"displayTimeUnit":"ns","traceEvents":[
        {"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"shinjuku"}},
        {"ph":"M","pid":1,"tid":0,"name":"thread_name","args":{"name":"loop 0"}},
        {"ph":"M","pid":1,"tid":2,"name":"thread_name","args":{"name":"loop 2"}},
        {"ph":"X","pid":1,"tid":0,"ts":0.000,"dur":100.000,"name":"long","args":{"request":0,"stop":"preempted at a probe"}},
        {"ph":"X","pid":1,"tid":0,"ts":100.000,"dur":880.000,"name":"long","args":{"request":0,"stop":"interrupted"}},
        {"ph":"X","pid":1,"tid":2,"ts":1000.000,"dur":900.000,"name":"long","args":{"request":0,"stop":"finished"}},
        {"ph":"X","pid":1,"tid":0,"ts":990.000,"dur":5.000,"name":"a short one","args":{"request":1,"stop":"finished"}},
        {"ph":"s","pid":1,"tid":0,"ts":100.000,"id":0,"cat":"resumed","name":"resumed"},
        {"ph":"f","bp":"e","pid":1,"tid":0,"ts":100.000,"id":0,"cat":"resumed","name":"resumed"},
        {"ph":"s","pid":1,"tid":0,"ts":980.000,"id":1,"cat":"resumed","name":"resumed"},
        {"ph":"f","bp":"e","pid":1,"tid":2,"ts":1000.000,"id":1,"cat":"resumed","name":"resumed"},
        {"ph":"i","s":"t","pid":1,"tid":2,"ts":1000.000,"name":"taken from loop 0","args":{"request":0}},
        {"ph":"i","s":"p","pid":1,"tid":0,"ts":1001.000,"name":"auto changes a quantum"},
        {"ph":"C","pid":1,"ts":900.000,"name":"requests","args":{"waiting":4,"started":1,"running":1}},
        {"ph":"C","pid":1,"ts":1010.000,"name":"requests","args":{"waiting":2,"started":1,"running":1}}
    ]}"#;

    fn trace() -> Trace {
        serde_json::from_str(FILE).unwrap()
    }

    #[test]
    fn the_part_with_most_movement_is_drawn() {
        let trace = trace();
        let from = trace.liveliest(200.0);
        assert_eq!(from, 970.0);
        let part = trace.part(from, 200.0, "a run".to_owned());
        assert_eq!(part.lanes, ["loop 0", "loop 2"]);
        assert_eq!(part.classes, ["a short one", "long"]);
        let slices: Vec<_> = (part.slices.iter())
            .map(|slice| (slice.lane, slice.class, slice.from_us, slice.to_us))
            .collect();
        assert_eq!(
            slices,
            [(0, 1, 0.0, 10.0), (1, 1, 30.0, 200.0), (0, 0, 20.0, 25.0)]
        );
        let preempted: Vec<_> = part.slices.iter().map(|slice| slice.is_preempted).collect();
        assert_eq!(preempted, [true, false, false]);
        assert_eq!(part.resumptions, [[(0, 10.0), (1, 30.0)]]);
        assert_eq!(part.taken, [(1, 30.0)]);
        assert_eq!(part.waiting, [(0.0, 4.0), (40.0, 2.0)]);
        assert!(svg(&part).unwrap().contains("a short one"));
    }

    #[test]
    fn a_part_in_which_nothing_moves_is_a_part_all_the_same() {
        let trace = trace();
        let part = trace.part(0.0, 50.0, String::new());
        assert_eq!((part.slices.len(), part.lanes.len()), (1, 1));
        assert!(!part.slices[0].is_preempted, "it is only cut there");
        assert!(trace.part(5_000.0, 50.0, String::new()).slices.is_empty());
        let empty = Trace { events: Vec::new() };
        assert_eq!(empty.liveliest(100.0), 0.0);
    }
}
