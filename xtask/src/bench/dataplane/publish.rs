//! Tables on the terminal; JSON, plots, CSV and a page in a directory.

use std::path::Path;

use anyhow::{Context, Result};
use shinjuku_plot::Figure;

use super::results::Results;
use crate::figures::csv;
use crate::report::html::{STYLE, drawings, escape, list, table};
use crate::report::table::Table;

/// What there is to show of a part.
pub struct Section {
    /// Its heading.
    pub heading: &'static str,
    /// Its tables.
    pub tables: Vec<Table>,
    /// Its plots.
    pub figures: Vec<Figure>,
    /// What to say of them.
    pub notes: Vec<String>,
}

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
        "<h1>Shinjuku for Rust: the dataplane</h1>\n<p>{}; {} UTC, commit {}. What takes one thread was on core {}; of two processes, \
         the server on core {} and the client on core {}. {} repetitions of {} s, medians.</p>\n",
        escape(&summary),
        escape(&results.stamp),
        escape(results.commit.as_deref().unwrap_or("unknown")),
        results.cores[1],
        results.cores[0],
        results.cores[1],
        results.repetitions,
        results.seconds,
    );
    let sections = [
        results.stages.as_ref().map(|part| part.section()),
        results.round_trips.as_ref().map(|part| part.section()),
        results.reply_sizes.as_ref().map(|part| part.section()),
        results.dispatchers.as_ref().map(|part| part.section()),
        results.imbalance.as_ref().map(|part| part.section()),
    ];
    for section in sections.iter().flatten() {
        body += &section.show(directory, &results.machine.cpu)?;
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
    put(&path, &page)?;
    println!("report: {}", path.display());
    Ok(())
}

impl Section {
    /// Prints it, and writes its plots, with the CPU's name; its part of the page.
    fn show(&self, directory: &Path, cpu: &str) -> Result<String> {
        let mut body = format!("<h2>{}</h2>\n", escape(self.heading));
        let mut figures = self.figures.clone();
        for figure in &mut figures {
            figure.title += &format!(" ({cpu})");
        }
        body += &drawings(&figures)?;
        for figure in &figures {
            let path = |ending| directory.join(format!("{}.{ending}", figure.name));
            put(&path("svg"), &shinjuku_plot::svg(figure)?)?;
            put(&path("csv"), &csv(figure))?;
            shinjuku_plot::png(figure, &path("png"))?;
        }
        println!("== {}\n", self.heading);
        for one in &self.tables {
            println!("{one}");
            body += &table(one);
        }
        body += "<ul>\n";
        for note in &self.notes {
            println!("  {note}");
            body += &format!("<li>{}</li>\n", escape(note));
        }
        println!();
        Ok(body + "</ul>\n")
    }
}

fn put(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
