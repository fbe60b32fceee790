//! Which packages are instrumented, and why the others are not.
//!
//! The plan of a build is a file in the build's own target directory, where the wrapper reads it.
//! Cargo knows nothing of the flags that a wrapper adds, so it would reuse artifacts of another
//! plan. So the directory is not that of plain builds, and is emptied when the plan changes.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::c_code::CCode;
use crate::compiler::{CALLBACK_FLAGS, Compiler, FLAGS};

/// The runtime's own packages. A probe within them would stop the code that answers probes.
const RUNTIME: [&str; 10] = [
    "dune-sys",
    "shinjuku",
    "shinjuku-dataplane",
    "shinjuku-dpdk-sys",
    "shinjuku-macros",
    "shinjuku-net",
    "shinjuku-policy",
    "shinjuku-preempt",
    "shinjuku-tower",
    "shinjuku-xdp-sys",
];

/// Packages whose feature `compiled-probes` makes the runtime answer.
const ANSWERING: [&str; 2] = ["shinjuku", "shinjuku-preempt"];

/// The package that has what entries call.
const CALLED: &str = "shinjuku-preempt";

const FILE: &str = "plan.json";

/// The decisions for a build.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The version of `cargo-shinjuku`.
    version: String,
    flags: Vec<String>,
    /// Packages to skip, each with the owner of the manifest that says so.
    skipped: BTreeMap<String, String>,
    /// How C and C++ code is compiled.
    pub c_code: CCode,
    /// The library for programs without the runtime.
    pub no_probes: PathBuf,
}

/// What happens to a package.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict<'a> {
    /// It gets probes.
    Instrumented,
    /// It is the runtime's, and gets no probes.
    Runtime {
        /// Whether its feature `compiled-probes` is turned on.
        answers: bool,
        /// Whether it has what entries call.
        is_called: bool,
    },
    /// This package's manifest says to skip it.
    Skipped(&'a str),
}

impl fmt::Display for Verdict<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instrumented => formatter.write_str("instrumented"),
            Self::Runtime { .. } => formatter.write_str("the runtime's own"),
            Self::Skipped(by) => write!(formatter, "skipped by metadata.shinjuku of {by}"),
        }
    }
}

impl Plan {
    /// Makes the plan of a build in `directory`, the library included. If another plan's artifacts
    /// are there, removes them.
    ///
    /// # Errors
    /// If the directory cannot be written, or the library cannot be compiled.
    pub fn make(
        directory: &Path,
        compiler: &Compiler,
        skipped: BTreeMap<String, String>,
        c_code: CCode,
    ) -> Result<Self> {
        let no_probes = directory.join("libshinjuku_no_probes.rlib");
        let plan = Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            flags: (FLAGS.iter().chain(&CALLBACK_FLAGS))
                .map(|flag| (*flag).to_owned())
                .collect(),
            skipped,
            c_code,
            no_probes,
        };
        let file = directory.join(FILE);
        let is_the_same = Self::read(&file).is_ok_and(|before| before == plan);
        if file.exists() && !is_the_same {
            eprintln!("cargo shinjuku: another plan than before, so everything is built anew");
            fs::remove_dir_all(directory)
                .with_context(|| format!("cannot remove {}", directory.display()))?;
        }
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        compiler.make_no_probes(&plan.no_probes)?;
        if !is_the_same {
            let text = serde_json::to_string_pretty(&plan)?;
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(plan)
    }

    /// A plan that only says what would be: nothing is written.
    pub fn to_show(skipped: BTreeMap<String, String>, c_code: CCode) -> Self {
        Self {
            version: String::new(),
            flags: Vec::new(),
            skipped,
            c_code,
            no_probes: PathBuf::new(),
        }
    }

    /// The plan's file in a build's directory.
    pub fn file(directory: &Path) -> PathBuf {
        directory.join(FILE)
    }

    /// Reads a plan.
    ///
    /// # Errors
    /// If it is not there or not understood.
    pub fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file)
            .with_context(|| format!("cannot read the plan {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no plan", file.display()))
    }

    /// What happens to a package.
    pub fn verdict(&self, package: &str) -> Verdict<'_> {
        if RUNTIME.contains(&package) {
            let answers = ANSWERING.contains(&package);
            let is_called = package == CALLED;
            return Verdict::Runtime { answers, is_called };
        }
        match self.skipped.get(package) {
            Some(by) => Verdict::Skipped(by),
            None => Verdict::Instrumented,
        }
    }

    /// The packages to skip, each with the owner of the manifest that says so.
    pub fn skipped(&self) -> impl Iterator<Item = (&str, &str)> {
        (self.skipped.iter()).map(|(name, by)| (name.as_str(), by.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_is_left_out_whatever_manifests_say() {
        let skipped = [("shinjuku", "app"), ("sha2", "app")];
        let skipped = skipped.map(|(name, by)| (name.to_owned(), by.to_owned()));
        let plan = Plan::to_show(skipped.into(), CCode::default());
        let runtime = |answers, is_called| Verdict::Runtime { answers, is_called };
        assert_eq!(plan.verdict("shinjuku"), runtime(true, false));
        assert_eq!(plan.verdict("shinjuku-preempt"), runtime(true, true));
        assert_eq!(plan.verdict("shinjuku-net"), runtime(false, false));
        assert_eq!(plan.verdict("sha2"), Verdict::Skipped("app"));
        assert_eq!(plan.verdict("shinjuku-kv"), Verdict::Instrumented);
    }
}
