//! The format of results.json, and what a bench has to say for its part of it.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use shinjuku_plot::{Figure, Table};

use super::options::Settings;
use super::target::Target;
use crate::machine::Machine;

/// The version of the schema written by this code.
pub const SCHEMA: u32 = 3;

/// What a bench measured: its part of results.json and of the report.
pub trait Measured: Serialize + DeserializeOwned {
    /// The bench's name in results.json.
    const BENCH: &'static str;
    /// What its page is about.
    const TITLE: &'static str;
    /// Where its results go in Cargo's target directory.
    const DIRECTORY: &'static str;
    /// Whether its plots show this machine, whose name is then in their titles.
    const DRAWS_THIS_MACHINE: bool = true;

    /// Checks what the types cannot.
    ///
    /// # Errors
    /// If something contradicts itself; the message names the entry.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// What a reader should know of the run besides settings and machine.
    fn facts(&self) -> Vec<(&'static str, String)>;

    /// The targets, each with its verdict.
    fn targets(&self) -> Vec<Target>;

    /// The parts of the report, in reading order.
    fn sections(&self) -> Vec<Section>;

    /// Files of comma-separated values: name and content.
    fn csv(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// A part of a report.
#[derive(Debug, Clone, Default)]
pub struct Section {
    pub heading: String,
    /// What to say before everything else, on the page only.
    pub introduction: Option<String>,
    pub figures: Vec<Figure>,
    pub tables: Vec<Table>,
    /// What to say of them.
    pub notes: Vec<String>,
    /// What to say of them on the page only.
    pub details: Vec<String>,
}

impl Section {
    /// One of these tables alone.
    pub fn new(heading: impl Into<String>, tables: impl IntoIterator<Item = Table>) -> Self {
        Self {
            heading: heading.into(),
            tables: tables.into_iter().collect(),
            ..Self::default()
        }
    }

    /// With these figures.
    pub fn figures(mut self, figures: impl IntoIterator<Item = Figure>) -> Self {
        self.figures.extend(figures);
        self
    }

    /// With these notes behind the others.
    pub fn notes(mut self, notes: impl IntoIterator<Item: Into<String>>) -> Self {
        self.notes.extend(notes.into_iter().map(Into::into));
        self
    }
}

/// Everything that one bench measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results<M> {
    /// Version of this schema, [`SCHEMA`].
    pub schema: u32,
    /// Which bench, [`Measured::BENCH`].
    pub bench: String,
    /// When it started, UTC, `YYYYMMDD-HHMMSS`.
    pub stamp: String,
    /// The commit measured, with `-dirty` behind it if files had changed.
    pub commit: Option<String>,
    pub machine: Machine,
    pub settings: Settings,
    /// What a reader must know to judge the figures: limits met, mechanisms refused, contenders
    /// left out.
    pub notes: Vec<String>,
    /// What had to be reached, and whether it was.
    pub targets: Vec<Target>,
    #[serde(flatten)]
    pub measured: M,
}

impl<M: Measured> Results<M> {
    /// Reads and checks a `results.json`.
    ///
    /// # Errors
    /// If the file cannot be read, is no results file of this bench and schema, or contradicts
    /// itself.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let results: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is not a results.json", path.display()))?;
        let contradicts = || format!("{} contradicts itself", path.display());
        results.check().with_context(contradicts)?;
        Ok(results)
    }

    /// Writes a `results.json`, then checks what it wrote: a contradiction is to be reported, not
    /// to cost the measurement.
    ///
    /// # Errors
    /// If the file cannot be written or the results contradict themselves.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        self.check()
            .with_context(|| format!("the results in {} contradict themselves", path.display()))
    }

    /// Checks what the types cannot: the schema's version, the bench, and what was measured.
    ///
    /// # Errors
    /// If something is wrong; the message names the entry.
    pub fn check(&self) -> Result<()> {
        ensure!(
            self.schema == SCHEMA,
            "schema {} is not the one this program reads ({SCHEMA})",
            self.schema
        );
        ensure!(
            self.bench == M::BENCH,
            "these are results of {}, not of {}",
            self.bench,
            M::BENCH
        );
        self.measured.check()
    }
}
