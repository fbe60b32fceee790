//! The simulated part of the report, and its targets.

use shinjuku_plot::{Figure, Point, Series, Style, Table, XAxis, YAxis};
use shinjuku_sim::fanout::Discipline;
use shinjuku_workload::repeat::Spread;

use super::{
    BY_CLIENTS, CENTRAL, CHOICE, CLIENTS, COUNTERS, JUDGED, Latency, Limit, MANY, MORE_CHOICES,
    ONE_TYPE, Part, SERVERS, SLO_US, Simulated, UNWEIGHTED, WORKERS,
};
use crate::harness::{Goal, Section, Target};
use crate::report::figure;

/// What RackSched compares itself with.
const OTHERS: [&str; 3] = ["random", "round-robin", BY_CLIENTS];
/// The rack's configurations, and where they were simulated.
const CONFIGURATIONS: [(Part, &str); 4] = [
    (Part::Tracking, MORE_CHOICES),
    (Part::Tracking, COUNTERS),
    (Part::Tracking, ONE_TYPE),
    (Part::Balancers, CHOICE),
];
const NOT_SIMULATED: &str = "it was not simulated";

impl Simulated {
    fn limit(&self, part: Part, contender: &str) -> Option<&Limit> {
        let mut limits = self.limits.iter();
        limits.find(|limit| limit.part == part && limit.contender == contender)
    }

    fn latencies(&self, part: Part) -> impl Iterator<Item = &Latency> {
        self.latencies.iter().filter(move |one| one.part == part)
    }

    /// How many times what `base` carries the contender does, seed by seed.
    fn gain(&self, part: Part, contender: &str, base: (Part, &str)) -> Option<Spread> {
        let (one, other) = (self.limit(part, contender)?, self.limit(base.0, base.1)?);
        ratios(&one.load, &other.load)
    }

    /// The same of the configuration that is judged, over whichever of the others carries least.
    fn gain_over_the_least(&self) -> Option<Spread> {
        let gains = OTHERS.map(|base| self.gain(Part::Tracking, JUDGED, (Part::Balancers, base)));
        let gains = gains.into_iter().flatten();
        gains.max_by(|one, other| one.median.total_cmp(&other.median))
    }

    /// A rack's p99 as a multiple of the central queue's: of the load where it is largest.
    fn against_central(&self, part: Part, rack: &'static str) -> Option<Spread> {
        let of = |part, name: &'static str| {
            let all = self.latencies(part);
            all.filter(move |one| one.contender == name)
        };
        let pairs = of(part, rack).zip(of(Part::Balancers, CENTRAL));
        let ratios = pairs.filter_map(|(rack, central)| ratios(&rack.p99_us, &central.p99_us));
        ratios.max_by(|one, other| one.median.total_cmp(&other.median))
    }

    /// What n servers carry, as a share of n times what one does: of the n where it is least.
    fn scale(&self) -> Option<Spread> {
        let of_all = self.limits.iter().filter(|one| one.part == Part::ScaleOut);
        let one = of_all.clone().find(|limit| limit.servers == 1)?;
        let more = of_all.filter(|limit| limit.servers > 1);
        let shares = more.filter_map(|limit| ratios(&limit.load, &one.load));
        shares.min_by(|one, other| one.median.total_cmp(&other.median))
    }
}

fn ratios(one: &[f64], other: &[f64]) -> Option<Spread> {
    let pairs: Vec<_> = one
        .iter()
        .zip(other)
        .map(|(one, other)| one / other)
        .collect();
    Spread::of(&pairs)
}

/// What the simulated racks must reach.
pub fn targets(simulated: Option<&Simulated>) -> Vec<Target> {
    let of = |found: &dyn Fn(&Simulated) -> Option<Spread>| simulated.and_then(found);
    let judge = |name: &str, wanted, figure: Option<Spread>| {
        let name = format!("simulated: {name}");
        match figure {
            Some(figure) => Target::measured(name, wanted, figure),
            None => Target::not_shown(name, wanted, NOT_SIMULATED),
        }
    };
    let gain_over = |base: &'static str| {
        of(&move |simulated| simulated.gain(Part::Tracking, JUDGED, (Part::Balancers, base)))
    };
    let mut targets = vec![
        judge(
            &format!(
                "throughput within the SLO of n servers / (n x one's), {CHOICE} by INT1, the worst n"
            ),
            Goal::AtLeast(0.97),
            of(&Simulated::scale),
        ),
        judge(
            &format!("p99, {JUDGED} / one queue for all workers, the worst load"),
            Goal::AtMost(1.1),
            of(&|simulated| simulated.against_central(Part::Tracking, JUDGED)),
        ),
    ];
    for base in OTHERS {
        let name = format!("throughput within the SLO, {JUDGED} / {base}");
        targets.push(judge(&name, Goal::AtLeast(1.0), gain_over(base)));
    }
    targets.push(judge(
        &format!("throughput within the SLO, {JUDGED} / the least of these (RackSched, its testbed: up to 1.44)"),
        Goal::AtLeast(1.44),
        of(&Simulated::gain_over_the_least),
    ));
    let [fifo, priority, edf, tail_guard] = Discipline::ALL.map(Discipline::name);
    for base in [fifo, priority, edf] {
        let name = format!("load within all SLOs, {tail_guard} / {base}");
        let gain =
            of(&move |simulated| simulated.gain(Part::Fanout, tail_guard, (Part::Fanout, base)));
        targets.push(judge(&name, Goal::AtLeast(1.0), gain));
    }
    targets
}

/// The sections of the report.
pub fn sections(simulated: &Simulated) -> Vec<Section> {
    let latency = |part, heading: &str, name: &str, note: String| {
        latency_section(simulated, part, heading, name, note)
    };
    vec![
        scale_section(simulated),
        comparison_section(simulated),
        latency(
            Part::Balancers,
            "Simulated: ways to choose a server",
            "rack-balancers",
            format!(
                "INT1, {SERVERS} servers of {WORKERS} workers. \"{CENTRAL}\" is no rack: one c-PRE-SQ queue for all {} \
                 workers. In \"{BY_CLIENTS}\" each of {CLIENTS} clients knows what its own replies told. RackSched \
                 (abstract) reports up to 1.44 times the throughput of what it compares with.",
                SERVERS * WORKERS
            ),
        ),
        latency(
            Part::Tracking,
            "Simulated: ways to know the load",
            "rack-tracking",
            format!(
                "{CHOICE} if not said. INT2 goes to the one server that is known, and one request in four anywhere, as \
                 RackSched's published switch does. INT3 is outstanding work; what no switch could know is \"the truth\". Loads are \
                 by class if not said, and each class has one service time here, so INT1 and INT3 order servers alike. \
                 Servers have one queue for both classes: \"{ONE_TYPE}\" is its length. Nothing is lost here: lost \
                 packets make counters drift."
            ),
        ),
        latency(
            Part::Heterogeneous,
            "Simulated: servers of different size",
            "rack-heterogeneous",
            format!(
                "Half of the servers have 4 workers, half have 12; all are drawn, and their load counts, by their workers, \
                 or \"{}\".",
                UNWEIGHTED.trim_start_matches(", ")
            ),
        ),
        latency(
            Part::Reports,
            "Simulated: load that is known late, or never",
            "rack-reports",
            format!("{CHOICE} by INT1."),
        ),
        latency(
            Part::Failure,
            "Simulated: a server that fails",
            "rack-failure",
            "One of the servers fails and comes back. Lost are the requests that it had, and those sent to \
             it until the switch knew."
                .to_owned(),
        ),
        latency(
            Part::RacksOfRacks,
            "Simulated: racks of racks",
            "rack-of-racks",
            format!(
                "{} servers in {} racks, by counters, one seed. The upper switch draws two racks and knows of each what its \
                 switch knows, without delay; Horus' setting, not its protocol.",
                MANY.0, MANY.1
            ),
        ),
        latency(
            Part::Fanout,
            "Simulated: queries that fan out",
            "rack-fanout",
            "100 servers of one worker, fan-outs of 1, 10 and 100 that offer as many parts each, SLOs of 1000 and 1500 us \
             on p99; the p99 is that of queries to all servers within 1000 us, and the highest load meets all SLOs. \
             TailGuard (abstract) reports up to 80 % more load than the other three, with applications of the Tailbench \
             suite."
                .to_owned(),
        ),
    ]
}

/// The rack's configurations beside one queue, and beside what RackSched compares itself with.
fn comparison_section(simulated: &Simulated) -> Section {
    let heading = "Simulated: configurations of a rack";
    let columns = [
        "",
        "judged",
        "p99 / one queue's, the worst load",
        "highest load, %",
    ];
    let columns = columns.map(str::to_owned).into_iter();
    let mut table = Table::new(
        heading,
        columns.chain(OTHERS.map(|base| format!("/ {base}"))),
    );
    let shown = |spread: Option<Spread>| spread.map_or_else(String::new, |one| figure(one.median));
    for (part, name) in CONFIGURATIONS {
        let limit = simulated.limit(part, name);
        let percent = limit.and_then(|limit| {
            let loads: Vec<_> = limit.load.iter().map(|load| 100.0 * load).collect();
            Spread::of(&loads)
        });
        let mut row = vec![
            match name {
                CHOICE => format!("int1, {CHOICE}"),
                _ => name.to_owned(),
            },
            if name == JUDGED { "yes" } else { "" }.to_owned(),
            shown(simulated.against_central(part, name)),
            shown(percent),
        ];
        row.extend(OTHERS.map(|base| shown(simulated.gain(part, name, (Part::Balancers, base)))));
        table.push(row);
    }
    Section {
        heading: heading.to_owned(),
        tables: vec![table],
        notes: vec![format!(
            "{CHOICE} if not said. The targets judge \"{JUDGED}\" alone. RackSched's own configuration is \
             \"int1, {CHOICE}\", where each class has a port and a queue of its own in its servers; these have one queue."
        )],
        ..Section::default()
    }
}

/// Throughput against the number of servers.
fn scale_section(simulated: &Simulated) -> Section {
    let note = format!(
        "{CHOICE} by INT1; the SLO is a p99 of {SLO_US} us over all requests. RackSched (abstract): \"near linearly\". \
         One way to a server takes {} ns, the switch's measured share included; {} requests a run of 4 servers.",
        simulated.network_ns, simulated.requests
    );
    let heading = "Simulated: from one server to twelve";
    let mut section = limit_section(simulated, Part::ScaleOut, heading, &note);
    section.figures.push(scale_figure(simulated, heading));
    let one = simulated.limits.iter().find(|limit| limit.servers == 1);
    if let (Some(one), Some(table)) = (one, section.tables.first_mut()) {
        table.header.push("/ (n x one server's)".to_owned());
        let limits = simulated
            .limits
            .iter()
            .filter(|one| one.part == Part::ScaleOut);
        for (row, limit) in table.rows.iter_mut().zip(limits) {
            let share = ratios(&limit.load, &one.load);
            row.push(share.map_or_else(String::new, |share| figure(share.median)));
        }
    }
    section
}

/// The highest load against the number of servers.
fn scale_figure(simulated: &Simulated, heading: &str) -> Figure {
    let all = simulated.limits.iter();
    let points = all
        .filter(|limit| limit.part == Part::ScaleOut)
        .map(|limit| {
            let percent: Vec<_> = limit.load.iter().map(|load| 100.0 * load).collect();
            let load = Spread::of(&percent);
            Point {
                x: limit.servers as f64,
                y: load.map(|load| load.median),
                spread: load.map(|load| (load.min, load.max)),
            }
        });
    Figure {
        name: "rack-scale-out".to_owned(),
        title: heading.to_owned(),
        x: XAxis::Linear("servers"),
        y: YAxis::Percent,
        y_label: "highest load within the SLO (%)".to_owned(),
        bars: "lowest and highest seed",
        series: vec![Series {
            label: format!("{CHOICE}, int1"),
            style: Style::Contender(0),
            points: points.collect(),
        }],
    }
}

/// Highest loads as a table.
fn limit_section(simulated: &Simulated, part: Part, heading: &str, note: &str) -> Section {
    let columns = ["", "highest load within the SLO, %", "spread"];
    let mut table = Table::new(heading, columns);
    for limit in simulated.limits.iter().filter(|limit| limit.part == part) {
        let percent: Vec<_> = limit.load.iter().map(|load| 100.0 * load).collect();
        if let Some(Spread { median, min, max }) = Spread::of(&percent) {
            let spread = format!("({}..{})", figure(min), figure(max));
            table.push([limit.contender.clone(), figure(median), spread]);
        }
    }
    Section {
        heading: heading.to_owned(),
        tables: vec![table],
        notes: vec![note.to_owned()],
        ..Section::default()
    }
}

/// Latencies as a plot and a table, with highest loads where there are any.
fn latency_section(
    simulated: &Simulated,
    part: Part,
    heading: &str,
    name: &str,
    note: String,
) -> Section {
    let mut contenders: Vec<&str> = Vec::new();
    let mut loads: Vec<f64> = Vec::new();
    for one in simulated.latencies(part) {
        if !contenders.contains(&one.contender.as_str()) {
            contenders.push(&one.contender);
        }
        if !loads.contains(&one.load) {
            loads.push(one.load);
        }
    }
    let columns = loads
        .iter()
        .map(|load| format!("p99 at {:.0} %, us", 100.0 * load));
    let columns = std::iter::once(String::new()).chain(columns);
    let last = ["highest load, %", "lost"].map(str::to_owned);
    let mut table = Table::new(heading, columns.chain(last));
    let mut series = Vec::new();
    for (number, contender) in contenders.into_iter().enumerate() {
        let of_it = || {
            let all = simulated.latencies(part);
            all.filter(move |one| one.contender == contender)
        };
        let mut row = vec![contender.to_owned()];
        row.extend(
            of_it().map(|one| {
                Spread::of(&one.p99_us).map_or_else(String::new, |p99| figure(p99.median))
            }),
        );
        let limit = simulated.limit(part, contender);
        let limit = limit.and_then(|limit| Spread::of(&limit.load));
        row.push(limit.map_or_else(String::new, |load| figure(100.0 * load.median)));
        row.push(of_it().map(|one| one.lost).sum::<u64>().to_string());
        table.push(row);
        let point = |one: &Latency| {
            let p99 = Spread::of(&one.p99_us);
            Point {
                x: 100.0 * one.load,
                y: p99.map(|p99| p99.median),
                spread: p99.map(|p99| (p99.min, p99.max)),
            }
        };
        series.push(Series {
            label: contender.to_owned(),
            style: Style::Contender(number),
            points: of_it().map(point).collect(),
        });
    }
    let figure = Figure {
        name: name.to_owned(),
        title: heading.to_owned(),
        x: XAxis::Load,
        y: YAxis::Logarithmic,
        y_label: match part {
            Part::Fanout => "p99 of queries to all servers (µs)".to_owned(),
            _ => "p99 of all requests (µs)".to_owned(),
        },
        bars: "lowest and highest seed",
        series,
    };
    Section {
        heading: heading.to_owned(),
        // One load makes no line.
        figures: if loads.len() > 1 {
            vec![figure]
        } else {
            Vec::new()
        },
        tables: vec![table],
        notes: vec![note],
        ..Section::default()
    }
}
