//! How priority elevation is shown: beside what the slides say.

use anyhow::{Result, ensure};
use shinjuku_loadgen::Mark;
use shinjuku_plot::{Figure, Series, Table, XAxis, YAxis};
use shinjuku_workload::repeat::Spread;

use super::Elevate;
use super::csv;
use super::delay::Delay;
use super::networked::{OPEN, RATE, Served, TABLES};
use super::overhead::Overhead;
use super::preemptive::{PREEMPTIVE, WITHOUT};
use crate::harness::{Comparison, Goal, Measured, Runs, Section, Target, comparisons};
use crate::report::{BARS, cells, or_dash, point};

/// How far the dedicated pattern's figures may be from the slides', as a ratio of the durations.
const DEDICATED: Goal = Goal::AtMost(1.3);
/// The long requests' service time, us: what a short one's latency is compared with.
const LONG_US: f64 = 500.0;
const NOT_THERE: &str = "no repetition has it";
const DASH: &str = "A dash: every repetition failed, or the server did not keep up or lost requests. Those given up \
     count with their age, so that a latency would tell how long it was measured. Medians are of the other repetitions.";

impl Measured for Elevate {
    const BENCH: &'static str = "elevate";
    const TITLE: &'static str = "priority elevation";
    const DIRECTORY: &'static str = "bench-elevate";

    fn check(&self) -> Result<()> {
        for row in &self.delays {
            ensure!(
                row.why_not.is_none() || row.runs.runs.is_empty(),
                "{}: it has figures, and a reason why there are none",
                row.entity
            );
        }
        Ok(())
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![("Kept for ordinary threads", self.reserve.clone())]
    }

    fn targets(&self) -> Vec<Target> {
        let dedicated = self
            .delays
            .iter()
            .filter(|row| row.runs.name == "dedicated");
        let mut targets: Vec<_> = dedicated.map(dedicated_target).collect();
        targets.extend(self.tables_compared().1);
        targets.extend(self.loads.last().into_iter().flat_map(|load| {
            let p99 = |name: &str| Runs::named(&load.short, name)?.spread(|served| served.p99_us);
            let judge = |contender: &str, goal| {
                let rate = load.rate;
                let name = format!("short requests' p99 at {rate:.0} requests/s, us: {contender}");
                Target::judged(name, goal, p99(contender), NOT_THERE)
            };
            let preemptive = judge(PREEMPTIVE, Goal::AtMost(LONG_US));
            let preemptive = match Runs::named(&load.short, PREEMPTIVE) {
                Some(own) => preemptive.needs_most_of(own, |served| served.p99_us),
                None => preemptive,
            };
            [judge(WITHOUT, Goal::AtLeast(LONG_US)), preemptive]
        }));
        targets
    }

    fn sections(&self) -> Vec<Section> {
        vec![
            self.delay_section(),
            self.overhead_section(),
            self.slice_section(),
            self.table_section(),
            self.load_section(),
            self.noticing_section(),
        ]
    }

    fn csv(&self) -> Vec<(&'static str, String)> {
        vec![
            ("durations.csv", csv::durations(&self.delays)),
            ("orders.csv", csv::orders(&self.tables)),
            ("noticing.csv", csv::noticing(&self.noticing)),
        ]
    }
}

/// In how many repetitions the client has which warnings.
fn marked(runs: &Runs<Served>, what: &str) -> Vec<String> {
    let note = |mark: Mark| {
        let marked = |served: &&Served| served.marks.contains(&mark);
        let (count, all) = (runs.measured().filter(marked).count(), runs.runs.len());
        let meaning = mark.meaning();
        (count > 0).then(|| format!("{what}: in {count} of {all} repetitions: {meaning}"))
    };
    Mark::ALL.into_iter().filter_map(note).collect()
}

fn dedicated_target(row: &Delay) -> Target {
    let name = format!(
        "{}, dedicated: duration / the slides', or the inverse",
        row.entity
    );
    let ratio = |turns: &super::turns::Turns| {
        let ratio = turns.duration_us? / row.slides[0];
        Some(ratio.max(1.0 / ratio))
    };
    let why = row.why_not.as_deref().unwrap_or(NOT_THERE);
    Target::judged(name, DEDICATED, row.runs.spread(ratio), why).needs_most_of(&row.runs, ratio)
}

impl Elevate {
    fn delay_section(&self) -> Section {
        let mut table = Table::new(
            "two busy loops, switched every 5 us; us, medians of medians",
            [
                "entity", "pattern", "turns", "duration", "", "slides", "interval", "", "slides",
                "added",
            ],
        );
        for row in &self.delays {
            let [duration, durations] = cells(row.runs.spread(|turns| turns.duration_us));
            let [interval, intervals] = cells(row.runs.spread(|turns| turns.interval_us));
            let [slides, waits] = row.slides.map(|slides| slides.to_string());
            table.push([
                row.entity.clone(),
                row.runs.name.clone(),
                or_dash(row.runs.median(|turns| Some(turns.turns as f64))),
                duration,
                durations,
                slides,
                interval,
                intervals,
                waits,
                or_dash(row.runs.median(|turns| turns.added_us)),
            ]);
            let why = row.why_not.as_ref();
            let note = why.map(|why| format!("{} {}: {why}", row.entity, row.runs.name));
            table.notes.extend(note);
        }
        Section {
            introduction: Some(
                "Duration: how long a loop runs once it is scheduled. Interval: how long it then waits. In the shared \
                 pattern the scheduler's own time is in the intervals; in the dedicated one it costs a core."
                    .to_owned(),
            ),
            ..Section::new("Delay", [table])
        }
        .notes([
            "Turns: how often the first loop was off its core. Below a tenth of the turns that fit, a repetition has \
             neither duration nor interval. A dash: no repetition has it.",
            "vCPUs: threads of this process in guest mode under /dev/kvm; the slides have QEMU's.",
            "Added: in the shared pattern the scheduler makes each slot longer by what its own sleep takes, which it \
             measures at the start. So the duration there comes near the period by design, and the interval has \
             the price. The slides do not say that theirs does so.",
        ])
    }

    fn overhead_section(&self) -> Section {
        let patterns = ["shared", "dedicated"];
        let mut table = Table::new(
            "A's share of what it does alone, beside a busy loop (0.5 is best)",
            ["period us", "shared", "", "dedicated", ""],
        );
        let share = |one: &Overhead, pattern| Spread::of(&one.shares(pattern));
        for one in &self.overheads {
            let [shared, dedicated] = patterns.map(|pattern| cells(share(one, pattern)));
            let row = [
                vec![one.period_us.to_string()],
                shared.to_vec(),
                dedicated.to_vec(),
            ];
            table.push(row.concat());
        }
        let percent = |spread: Spread| Spread {
            median: 100.0 * spread.median,
            min: 100.0 * spread.min,
            max: 100.0 * spread.max,
        };
        let series = patterns.iter().enumerate().map(|(number, pattern)| {
            let points = self.overheads.iter().map(|one| {
                let share = share(one, pattern).map(percent);
                point(one.period_us as f64, share)
            });
            Series::contender(number, *pattern, points.collect())
        });
        let drawn = self.drawn(Figure {
            name: "overhead".to_owned(),
            title: "A computing process beside a busy loop".to_owned(),
            x: XAxis::Logarithmic("switching period (µs)"),
            y: YAxis::Percent,
            y_label: "A's share of the core (%, 50 is best)".to_owned(),
            bars: BARS,
            series: series.collect(),
        });
        let section = Section::new("CPU overhead", [table]);
        section.figures(drawn).notes([
            "The slides: 0.5 is the best; the gap is the cost of switching, and a shorter period costs more.",
            "In the shared pattern each period is longer by what the first table has as added: what is left for A is \
             more than with slots as long as the period.",
        ])
    }

    fn slice_section(&self) -> Section {
        let mut table = Table::new(
            format!("A: a server that polls; B: a busy loop. Latency at {RATE:.0} requests/s"),
            [
                "slice us",
                "mean us",
                "",
                "p99 us",
                "",
                "saturated requests/s",
                "",
            ],
        );
        let (mut means, mut tails, mut throughput) = (Vec::new(), Vec::new(), Vec::new());
        for slice in &self.slices {
            for runs in &slice.runs {
                let what = format!("{} us, {}", slice.slice_us, runs.name);
                table.notes.extend(marked(runs, &what));
            }
            let of = |name: &str, value: fn(&Served) -> Option<f64>| {
                Runs::named(&slice.runs, name).and_then(|runs| runs.spread(value))
            };
            let mean = of(OPEN, |served| served.mean_us);
            let p99 = of(OPEN, |served| served.p99_us);
            let rate = of("saturated", |served| Some(served.throughput_rps));
            let cells = [mean, p99, rate].map(|spread| cells(spread).to_vec());
            table.push([vec![slice.slice_us.to_string()], cells.concat()].concat());
            let x = slice.slice_us as f64;
            means.push(point(x, mean));
            tails.push(point(x, p99));
            throughput.push(point(x, rate));
        }
        let x = XAxis::Logarithmic("slice (µs)");
        let latency = Figure {
            name: "slice-latency".to_owned(),
            title: "A server beside a busy loop: latency".to_owned(),
            x,
            y: YAxis::Logarithmic,
            y_label: "latency (µs, log)".to_owned(),
            bars: BARS,
            series: vec![
                Series::contender(0, "mean", means),
                Series::contender(1, "p99", tails),
            ],
        };
        let throughput = Figure {
            name: "slice-throughput".to_owned(),
            title: "A server beside a busy loop: throughput".to_owned(),
            y_label: "requests/s, saturated (log)".to_owned(),
            series: vec![Series::contender(0, "throughput", throughput)],
            ..latency.clone()
        };
        let figures = [latency, throughput];
        let drawn = figures.into_iter().flat_map(|one| self.drawn(one));
        let section = Section::new("Time slices", [table]);
        section.figures(drawn).notes([
            "The slides: a shorter period leads to lower latency; too short a one leads to low throughput, because of \
             the CPU overhead.",
            DASH,
            "The pattern is shared: each slot is longer than the slice by what the first table has as added.",
        ])
    }

    /// The second table over the first: the slides say that it is always better.
    fn tables_compared(&self) -> (Comparison, Option<Target>) {
        let of = |name: &str| {
            let runs = Runs::named(&self.tables, name).cloned();
            runs.unwrap_or_else(|| Runs::new(name))
        };
        let [first, second] = TABLES.map(of);
        let goal = Some(Goal::AtMost(1.0));
        second.judge(&first, "mean latency of the server", goal, |served| {
            served.mean_us
        })
    }

    fn table_section(&self) -> Section {
        let mut table = Table::new(
            format!("A: the server, half of the slots of 100 us; {RATE:.0} requests/s"),
            ["order", "mean us", "", "p99 us", ""],
        );
        for runs in &self.tables {
            table.notes.extend(marked(runs, &runs.name));
            let mean = cells(runs.spread(|served| served.mean_us)).to_vec();
            let p99 = cells(runs.spread(|served| served.p99_us)).to_vec();
            table.push([vec![runs.name.clone()], mean, p99].concat());
        }
        let compared = comparisons(&[self.tables_compared().0]);
        Section::new("Tables", [table].into_iter().chain(compared)).notes([
            "The slides: A-B-A-C is constantly better, since a request waits for one slot of another at most.",
            DASH,
        ])
    }

    fn load_section(&self) -> Section {
        let contenders = [WITHOUT, PREEMPTIVE];
        let mut table = Table::new(
            "99.5 % of the requests take 0.5 us, 0.5 % take 500 us; us",
            [
                "requests/s",
                "server",
                "short, p50",
                "p99",
                "",
                "long, p50",
                "p99",
            ],
        );
        let spread = |runs: &[Runs<Served>], name, value: fn(&Served) -> Option<f64>| {
            Runs::named(runs, name)?.spread(value)
        };
        let median = |runs: &[Runs<Served>], name, value: fn(&Served) -> Option<f64>| {
            or_dash(Runs::named(runs, name).and_then(|runs| runs.median(value)))
        };
        let (p50, p99) = (
            |served: &Served| served.p50_us,
            |served: &Served| served.p99_us,
        );
        for load in &self.loads {
            for runs in &load.short {
                let what = format!("{:.0} requests/s, {}", load.rate, runs.name);
                table.notes.extend(marked(runs, &what));
            }
            for name in contenders {
                let [tail, tails] = cells(spread(&load.short, name, p99));
                table.push([
                    format!("{:.0}", load.rate),
                    name.to_owned(),
                    median(&load.short, name, p50),
                    tail,
                    tails,
                    median(&load.long, name, p50),
                    median(&load.long, name, p99),
                ]);
            }
        }
        let series = contenders.iter().enumerate().map(|(number, name)| {
            let points = self.loads.iter();
            let points = points.map(|load| point(load.rate, spread(&load.short, name, p99)));
            Series::contender(number, *name, points.collect())
        });
        let drawn = self.drawn(Figure {
            name: "preemptive".to_owned(),
            title: "Short requests of the preemptive server".to_owned(),
            x: XAxis::Linear("requests/s"),
            y: YAxis::Logarithmic,
            y_label: "p99 latency (µs, log)".to_owned(),
            bars: BARS,
            series: series.collect(),
        });
        let section = Section::new("The preemptive server", [table]);
        section.figures(drawn).notes([
            "The slides: without preemption the latency goes higher than 500 us, with it lower.",
            DASH,
        ])
    }

    fn noticing_section(&self) -> Section {
        let mut table = Table::new(
            "noticing that one sleeps",
            ["way", "us", "", "what it tells"],
        );
        for row in &self.noticing {
            let price = cells(row.micros.spread(|micros| Some(*micros))).to_vec();
            let name = vec![row.micros.name.clone()];
            table.push([name, price, vec![row.tells.clone()]].concat());
        }
        Section::new("Noticing a sleep", [table]).notes([
            "A reading is paid for with each look. The last two rows are paid for when one sleeps: their difference is \
             the sentinel's price.",
        ])
    }

    /// A figure with points; one that was not measured is not drawn.
    fn drawn(&self, figure: Figure) -> Option<Figure> {
        let mut points = figure.series.iter().flat_map(|series| &series.points);
        points.any(|point| point.y.is_some()).then_some(figure)
    }
}

#[cfg(test)]
mod tests {
    use super::super::networked::Slice;
    use super::super::noticing::Row;
    use super::super::preemptive::Load;
    use super::super::turns::Turns;
    use super::*;
    use crate::harness::Verdict;

    fn runs<T>(name: &str, runs: impl IntoIterator<Item = T>) -> Runs<T> {
        Runs::of(name, runs.into_iter().map(Some))
    }

    fn served(us: f64) -> Served {
        Served {
            mean_us: Some(us),
            p50_us: Some(us / 2.0),
            p99_us: Some(2.0 * us),
            throughput_rps: 1000.0 * us,
            marks: Vec::new(),
        }
    }

    fn measured() -> Elevate {
        let turns = |duration| Turns {
            turns: 100,
            duration_us: Some(duration),
            interval_us: Some(duration),
            added_us: Some(12.5),
        };
        let delay = |entity: &str, why_not: Option<&str>| Delay {
            entity: entity.to_owned(),
            slides: [5.0, 5.0],
            runs: match why_not {
                None => runs("dedicated", [turns(5.0), turns(5.5)]),
                Some(_) => Runs::new("dedicated"),
            },
            why_not: why_not.map(str::to_owned),
        };
        let short = |without, preemptive| {
            vec![
                runs(WITHOUT, [served(without)]),
                runs(PREEMPTIVE, [served(preemptive)]),
            ]
        };
        Elevate {
            reserve: "nothing".to_owned(),
            delays: vec![delay("process", None), delay("vCPU", Some("no /dev/kvm"))],
            overheads: vec![Overhead {
                period_us: 5,
                events: vec![
                    runs("alone", [100, 200]),
                    runs("shared", [30, 60]),
                    runs("dedicated", [45, 100]),
                ],
            }],
            slices: vec![Slice {
                slice_us: 100,
                runs: vec![runs(OPEN, [served(70.0)]), runs("saturated", [served(9.0)])],
            }],
            tables: vec![
                runs(TABLES[0], [served(100.0), served(120.0)]),
                runs(TABLES[1], [served(50.0), served(90.0)]),
            ],
            loads: vec![Load {
                rate: 1e4,
                short: short(400.0, 40.0),
                long: short(600.0, 900.0),
            }],
            noticing: vec![Row {
                tells: "the state, asleep or not".to_owned(),
                micros: runs("one reading", [2.5, 3.5]),
            }],
        }
    }

    #[test]
    fn the_slides_claims_are_the_targets() {
        let verdicts: Vec<_> = measured()
            .targets()
            .iter()
            .map(|target| target.verdict)
            .collect();
        let expected = [
            Verdict::Met,
            Verdict::NotShown,
            Verdict::Met,
            Verdict::Met,
            Verdict::Met,
        ];
        assert_eq!(verdicts, expected);
        // Turns that interrupts have cut in two are no five microseconds.
        let mut cut = measured();
        let turns = |duration_us| {
            Some(Turns {
                turns: 100,
                duration_us,
                interval_us: Some(5.0),
                added_us: None,
            })
        };
        cut.delays[0].runs.runs = vec![turns(Some(2.6))];
        assert_eq!(cut.targets()[0].verdict, Verdict::Missed);
        // Nor are a few turns in one of three repetitions.
        cut.delays[0].runs.runs = vec![turns(Some(5.0)), turns(None), None];
        assert_eq!(cut.targets()[0].verdict, Verdict::Missed);
    }

    #[test]
    fn a_server_that_saturates_misses_its_targets_and_is_noted() {
        let saturated = || Served {
            mean_us: None,
            p50_us: None,
            p99_us: None,
            throughput_rps: 900.0,
            marks: vec![Mark::Saturated],
        };
        let mut measured = measured();
        measured.tables[1] = runs(TABLES[1], [saturated(), saturated(), served(50.0)]);
        measured.loads[0].short[1] = runs(PREEMPTIVE, [saturated(), saturated(), served(40.0)]);
        let targets = measured.targets();
        assert_eq!(targets[2].verdict, Verdict::Missed, "{targets:?}");
        assert_eq!(targets[4].verdict, Verdict::Missed, "{targets:?}");
        for section in [measured.table_section(), measured.load_section()] {
            let note = &section.tables[0].notes[0];
            assert!(
                note.contains("in 2 of 3 repetitions: the server did not"),
                "{note}"
            );
        }
        measured.slices[0].runs = vec![runs(OPEN, [saturated()]), runs("saturated", [served(9.0)])];
        let slices = &measured.slice_section().tables[0];
        assert_eq!(slices.rows[0][1..5], ["-", "", "-", ""]);
        assert_ne!(slices.rows[0][5], "-");
    }

    #[test]
    fn shares_are_of_the_same_repetition_and_everything_is_shown() {
        let measured = measured();
        measured.check().unwrap();
        assert_eq!(measured.overheads[0].shares("shared"), [0.3, 0.3]);
        assert_eq!(measured.overheads[0].shares("dedicated"), [0.45, 0.5]);
        let sections = measured.sections();
        let drawn: usize = sections.iter().map(|section| section.figures.len()).sum();
        assert_eq!(drawn, 4);
        assert!(sections[0].tables[0].notes[0].contains("no /dev/kvm"));
        let text = serde_json::to_string(&measured).unwrap();
        assert_eq!(serde_json::from_str::<Elevate>(&text).unwrap(), measured);
    }

    #[test]
    fn each_table_without_a_plot_has_a_file_with_its_rows() {
        let files = measured().csv();
        let lines = |name: &str| {
            let (_, text) = files.iter().find(|(file, _)| *file == name).unwrap();
            let columns = text.lines().next().unwrap().split(',').count();
            (columns, text.lines().skip(1).collect::<Vec<_>>())
        };
        let (columns, durations) = lines("durations.csv");
        let expected = [
            "process,dedicated,100,5.25,5,5.5,5,5.25,5,5.5,5,12.5,",
            "vCPU,dedicated,,,,,5,,,,5,,no /dev/kvm",
        ];
        assert_eq!(durations, expected);
        assert_eq!(columns, expected[0].split(',').count());
        let (_, orders) = lines("orders.csv");
        let expected = [
            format!("{},110,100,120,220,200,240", TABLES[0]),
            format!("{},70,50,90,140,100,180", TABLES[1]),
        ];
        assert_eq!(orders, expected);
        let (_, noticing) = lines("noticing.csv");
        assert_eq!(
            noticing,
            ["one reading,3,2.5,3.5,\"the state, asleep or not\""]
        );
    }

    #[test]
    fn without_figures_nothing_is_claimed() {
        let nothing = Elevate::default();
        assert!(nothing.sections().iter().all(|one| one.figures.is_empty()));
        let shown = |target: &Target| target.verdict != Verdict::NotShown;
        assert!(!nothing.targets().iter().any(shown));
    }
}
