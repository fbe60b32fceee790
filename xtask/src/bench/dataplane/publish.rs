//! Tables on the terminal; JSON, plots and a page in a directory.

use std::path::Path;

use anyhow::{Context, Result};

use super::results::Results;
use crate::report::html::{STYLE, escape, list, table};
use crate::report::table::Table;

/// Prints the tables and notes, writes everything else into `directory`, and says where.
///
/// # Errors
/// A file cannot be written.
pub fn publish(results: &Results, directory: &Path) -> Result<()> {
    results.write(&directory.join("results.json"))?;
    let dpdk = match &results.dpdk {
        Some(version) => format!("DPDK {version}"),
        None => "without DPDK".to_owned(),
    };
    let summary = format!("{}; {dpdk}", results.machine.summary());
    println!("{summary}\n");
    let mut body = format!(
        "<h1>Shinjuku for Rust: the dataplane</h1>\n<p>{}; {} UTC, commit {}. One thread: on core {}. Two: server on core {}, client \
         on core {}. {} repetitions of {} s, medians.</p>\n",
        escape(&summary),
        escape(&results.stamp),
        escape(results.commit.as_deref().unwrap_or("unknown")),
        results.cores[1],
        results.cores[0],
        results.cores[1],
        results.repetitions,
        results.seconds,
    );
    if let Some(stages) = &results.stages {
        body += &section(
            "One thread, stage by stage",
            &[stages.table()],
            &stages.notes(),
        );
    }
    for note in &results.notes {
        println!("note: {note}");
    }
    body += &list("Notes", &results.notes);
    let page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Shinjuku for Rust: bench dataplane {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escape(&results.stamp),
    );
    let path = directory.join("report.html");
    std::fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    println!("report: {}", path.display());
    Ok(())
}

/// Prints a part; its part of the page.
fn section(heading: &str, tables: &[Table], notes: &[String]) -> String {
    let mut body = format!("<h2>{}</h2>\n", escape(heading));
    for one in tables {
        println!("{one}");
        body += &table(one);
    }
    body += "<ul>\n";
    for note in notes {
        println!("  {note}");
        body += &format!("<li>{}</li>\n", escape(note));
    }
    println!();
    body + "</ul>\n"
}
