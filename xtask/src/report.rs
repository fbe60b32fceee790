//! Presents measurements: tables on the terminal, and a directory with JSON, CSV, plots and one
//! page.
//!
//! `cargo xtask bench` measures, fills in [`results::Results`] and calls [`publish`].
//! `cargo xtask report` does the same with a `results.json` measured before.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

pub mod csv;
pub mod figures;
pub mod html;
pub mod progress;
pub mod results;
pub mod stamp;
pub mod summary;
pub mod table;

use results::Results;

/// Arguments of `cargo xtask report`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The results.json to present.
    results: PathBuf,
    /// Where to write; by default beside the results.json.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Runs `cargo xtask report`.
///
/// # Errors
/// If the results cannot be read or the report cannot be written.
pub fn run(options: &Options) -> Result<ExitCode> {
    let results = Results::read(&options.results)?;
    let beside = || options.results.parent().unwrap_or(Path::new("")).to_owned();
    let directory = options.out.clone().unwrap_or_else(beside);
    publish(&results, &directory)?;
    Ok(ExitCode::SUCCESS)
}

/// The directory for results measured at `stamp`: `bench/<stamp>` in Cargo's target directory.
pub fn directory(stamp: &str) -> PathBuf {
    crate::paths::target_dir().join("bench").join(stamp)
}

/// Prints the tables and notes, writes everything else into `directory`, and says where.
///
/// # Errors
/// If the results contradict themselves ([`Results::check`]) or a file cannot be written.
pub fn publish(results: &Results, directory: &Path) -> Result<()> {
    write(results, directory)?;
    println!("{}\n", results.machine.summary());
    for table in summary::tables(results) {
        println!("{table}");
    }
    for note in &results.notes {
        println!("note: {note}");
    }
    println!("report: {}", directory.join("report.html").display());
    Ok(())
}

/// Writes `results.json`, `runs.csv`, `quantum_sweep.csv`, `costs.csv`, every plot as SVG and PNG,
/// and `report.html`.
///
/// # Errors
/// If the results contradict themselves ([`Results::check`]) or a file cannot be written.
pub fn write(results: &Results, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    results.write(&directory.join("results.json"))?;
    put(directory, "runs.csv", &csv::runs(&results.runs))?;
    put(
        directory,
        "quantum_sweep.csv",
        &csv::runs(&results.quantum_sweep),
    )?;
    put(directory, "costs.csv", &csv::costs(results))?;

    let mixes: Vec<_> = results
        .mix_names()
        .into_iter()
        .map(|mix| (mix.to_owned(), figures::of_mix(results, mix)))
        .collect();
    let sweep = figures::of_sweep(results);
    for figure in mixes.iter().flat_map(|(_, figures)| figures).chain(&sweep) {
        put(
            directory,
            &format!("{}.svg", figure.name),
            &shinjuku_plot::svg(figure)?,
        )?;
        shinjuku_plot::png(figure, &directory.join(format!("{}.png", figure.name)))?;
    }
    put(
        directory,
        "report.html",
        &html::page(results, &mixes, &sweep)?,
    )
}

fn put(directory: &Path, name: &str, text: &str) -> Result<()> {
    let path = directory.join(name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}
