//! Tables on the terminal; JSON, plots and a page in a directory.

use std::path::Path;

use anyhow::{Context, Result};
use shinjuku_loadgen::Mark;

use super::figures::figures;
use super::results::Results;
use super::tables::tables;
use crate::report::html::{STYLE, drawings, escape, list, table};

/// Prints the tables and notes, writes everything else into `directory`, and says where.
///
/// # Errors
/// A file cannot be written.
pub fn publish(results: &Results, directory: &Path) -> Result<()> {
    results.write(&directory.join("results.json"))?;
    println!("{}\n", results.machine.summary());
    let mut body = format!(
        "<h1>Shinjuku for Rust: the key-value server beside redis-server</h1>\n<p>{}; {} UTC, commit {}. Server on core {}, \
         client on core {}; {} repetitions of {} s a point, medians.</p>\n",
        escape(&results.machine.summary()),
        escape(&results.stamp),
        escape(results.commit.as_deref().unwrap_or("unknown")),
        results.server_core,
        results.client_core,
        results.repetitions,
        results.seconds,
    );
    for scenario in &results.scenarios {
        body += &format!("<h2>{}</h2>\n", escape(&scenario.title));
        let mut figures = figures(scenario);
        for figure in &mut figures {
            figure.title += &format!(" ({})", results.machine.cpu);
        }
        body += &drawings(&figures)?;
        for figure in &figures {
            let path = |ending| directory.join(format!("{}.{ending}", figure.name));
            put(&path("svg"), &shinjuku_plot::svg(figure)?)?;
            shinjuku_plot::png(figure, &path("png"))?;
        }
        for one in tables(scenario, results.slo_us) {
            println!("{one}");
            body += &table(&one);
        }
        let told = scenario.descriptions.iter();
        let told: Vec<_> = told.map(|(name, told)| format!("{name}: {told}")).collect();
        body += &list("What the servers said of themselves", &told);
    }
    let marks = Mark::ALL
        .iter()
        .map(|mark| format!("{}: {}", mark.letter(), mark.meaning()));
    let mut notes: Vec<_> = marks.collect();
    notes.extend(results.notes.iter().cloned());
    for note in &notes {
        println!("note: {note}");
    }
    body += &list("Notes", &notes);
    let page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Shinjuku for Rust: bench kv {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escape(&results.stamp),
    );
    let path = directory.join("report.html");
    put(&path, &page)?;
    println!("report: {}", path.display());
    Ok(())
}

fn put(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
