//! `shinjuku-load`: reads options and plan, measures, writes the results.

#![forbid(unsafe_code)]

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use shinjuku_loadgen::report::{self, Report, SCHEMA};
use shinjuku_loadgen::{Control, Load, Plan, Progress, Settings};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Open-loop load for RESP servers (Redis and its like) and for UDP servers in Shinjuku's and
/// RackSched's formats.
///
/// Requests are due at moments drawn ahead, whatever the server does, and latency counts from the
/// intended moment. Threads never sleep while load runs.
#[derive(Parser)]
#[command(
    name = "shinjuku-load",
    version,
    after_help = "Examples:\n  \
        shinjuku-load --request 'GET key:{uniform}' --rate 20k\n  \
        shinjuku-load -r 'get:99.5:GET key:{zipf}' -r 'scan:0.5:SCAN 0 COUNT 5000' --rate 5k..50k/10 --repetitions 3\n  \
        shinjuku-load -r 'SET key:{sequential} {value:64}' --saturate 16 --requests 100000   (fills the store)\n  \
        shinjuku-load --protocol shinjuku --target 127.0.0.1:9000 --mix hi --rate 100k\n  \
        shinjuku-load --protocol shinjuku --target 10.0.0.1:9000 --mix hi --rate 100k --transport xdp --interface eth1 \
            --address 10.0.0.2/24"
)]
struct Arguments {
    /// A plan: a TOML file with the same settings; options given here go before it
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// Write all figures as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    json: Option<PathBuf>,
    /// Write all figures as CSV
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    csv: Option<PathBuf>,
    /// Write all latencies as a HdrHistogram log
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    hdr: Option<PathBuf>,
    /// Draw latency and slowdown against throughput, as SVG and PNG, into this directory
    #[arg(long, value_name = "DIRECTORY", help_heading = "Output")]
    plot: Option<PathBuf>,
}

fn main() -> ExitCode {
    match work(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shinjuku-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn work(arguments: Arguments) -> Result<()> {
    let settings = match &arguments.plan {
        Some(path) => arguments.settings.or(Settings::read(path)?),
        None => arguments.settings,
    };
    let target = settings.target.clone();
    let plan = settings.check()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The first signal ends the run, whose results so far are written; the second ends the
        // process.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let live = std::io::stderr().is_terminal();
    let (unloaded, measured) = measure(&plan, &stop, live)?;
    let report = Report {
        schema: SCHEMA,
        command: std::env::args().collect::<Vec<_>>().join(" "),
        target: target.unwrap_or_else(|| plan.target().to_string()),
        transport: plan.transport(),
        unloaded_us: unloaded.iter().map(|ns| ns.map(|ns| ns / 1e3)).collect(),
        points: measured.iter().map(|one| one.point.clone()).collect(),
    };
    print!("{}", report::table(&report));
    if let Some(path) = &arguments.json {
        write(path, &serde_json::to_vec_pretty(&report)?)?;
    }
    if let Some(path) = &arguments.csv {
        write(path, report::csv(&report).as_bytes())?;
    }
    if let Some(path) = &arguments.hdr {
        write(path, &report::hdr_log(plan.classes(), &measured)?)?;
    }
    if let Some(directory) = &arguments.plot {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        for figure in report::plots(&report) {
            let path = |ending| directory.join(format!("{}.{ending}", figure.name));
            write(&path("svg"), shinjuku_plot::svg(&figure)?.as_bytes())?;
            shinjuku_plot::png(&figure, &path("png"))?;
        }
    }
    for point in &report.points {
        if let Some(fates) = point.all.none_answered() {
            let load = load_name(point.load);
            bail!(
                "at {load} {fates}; does the server listen on {}?",
                report.target
            );
        }
    }
    Ok(())
}

/// Measures all loads of all repetitions, repetition by repetition, so that a drift of the machine
/// affects all loads alike.
fn measure(
    plan: &Plan,
    stop: &AtomicBool,
    live: bool,
) -> Result<(Vec<Option<f64>>, Vec<shinjuku_loadgen::Measurement>)> {
    let quiet = Control { stop, watch: None };
    let unloaded = if plan.wants_unloaded() {
        plan.unloaded_ns(&quiet)?
    } else {
        Vec::new()
    };
    let mut measured = Vec::new();
    for seed in plan.seeds() {
        for &load in plan.loads() {
            let line = |progress: Progress| show(load, progress);
            let control = Control {
                stop,
                watch: live.then_some(&line),
            };
            let one = plan.measure(load, seed, &unloaded, &control)?;
            if live {
                eprint!("\r\x1b[K");
            }
            let interrupted = stop.load(Relaxed);
            // Interrupted before the first request that counts, a load has no results.
            if !interrupted || one.point.all.due > 0 {
                measured.push(one);
            }
            if interrupted {
                ensure!(
                    !measured.is_empty(),
                    "interrupted before anything was measured"
                );
                eprintln!("shinjuku-load: interrupted; this is what was measured until then");
                return Ok((unloaded, measured));
            }
        }
    }
    Ok((unloaded, measured))
}

fn load_name(load: Load) -> String {
    match load {
        Load::Rate(rate) => format!("{rate:.0}/s"),
        Load::Saturate(depth) => format!("saturating x{depth}"),
    }
}

/// The live line.
fn show(load: Load, progress: Progress) {
    let Progress {
        elapsed,
        sent,
        received,
        failed,
    } = progress;
    eprint!(
        "\r\x1b[K{}  {:.1} s  sent {sent}  received {received}  under setup {}  failed {failed}",
        load_name(load),
        elapsed.as_secs_f64(),
        sent.saturating_sub(received),
    );
    let _ = std::io::stderr().flush();
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    std::fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}
