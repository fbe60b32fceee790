//! The compiler: whether its LLVM has the pass, the flags that turn the pass on, and the library
//! for programs without the runtime.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// Flags of an instrumented crate: a probe at the entry of each function, behind the gate.
pub const FLAGS: [&str; 8] = [
    "-C",
    "passes=sancov-module",
    "-C",
    "llvm-args=-sanitizer-coverage-level=1",
    "-C",
    "llvm-args=-sanitizer-coverage-trace-pc-guard",
    "-C",
    "llvm-args=-sanitizer-coverage-gated-trace-callbacks",
];

/// Flags of the crate that has what entries call. Optimised, it has its own copies of what it uses
/// of `core`, or none. Without, rustc takes the copies that a dependency has, and these are
/// instrumented: what an entry calls would call itself without end.
pub const CALLBACK_FLAGS: [&str; 2] = ["-C", "opt-level=3"];

/// Versions of LLVM whose pass takes these flags. The gate came with the first of them.
const KNOWN: RangeInclusive<u32> = 20..=22;

/// A compiler, as `rustc -vV` describes it.
#[derive(Debug)]
pub struct Compiler {
    program: OsString,
    /// The first line: version and date.
    pub version: String,
    /// The triple of the machine that it runs on.
    pub host: String,
    /// LLVM's major version.
    pub llvm: u32,
}

impl Compiler {
    /// Asks the rustc that cargo will use.
    ///
    /// # Errors
    /// If there is none, or if its LLVM is not one that is known to have the pass.
    pub fn ask() -> Result<Self> {
        let program = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let output = Command::new(&program)
            .arg("-vV")
            .output()
            .with_context(|| format!("cannot run {}", program.display()))?;
        ensure!(
            output.status.success(),
            "`{} -vV` failed: {}",
            program.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Self::parse(program, &String::from_utf8_lossy(&output.stdout))
    }

    fn parse(program: OsString, said: &str) -> Result<Self> {
        let version = said.lines().next().unwrap_or("an unknown rustc").to_owned();
        let line = |key: &str| said.lines().find_map(|line| line.strip_prefix(key));
        let Some(llvm) = line("LLVM version: ") else {
            bail!(
                "{version} does not say which LLVM it has. Compiled probes are a pass of LLVM's, so they take a rustc \
                 that generates code by LLVM"
            );
        };
        let major = llvm.split('.').next().and_then(|major| major.parse().ok());
        let Some(major) = major else {
            bail!("{version} has an LLVM of version `{llvm}`, which is not understood");
        };
        ensure!(
            major >= *KNOWN.start(),
            "{version} has LLVM {llvm}, whose coverage pass has no gate: every function entry would be a call. Take Rust \
             1.87 or later, which have LLVM {}",
            KNOWN.start()
        );
        ensure!(
            major <= *KNOWN.end(),
            "{version} has LLVM {llvm}, which this cargo-shinjuku does not know: LLVM does not promise that its passes' \
             flags stay. Take a later cargo-shinjuku, or a Rust with LLVM {} to {}",
            KNOWN.start(),
            KNOWN.end()
        );
        let host = line("host: ").context("`rustc -vV` does not say its host")?;
        Ok(Self {
            program,
            host: host.to_owned(),
            version,
            llvm: major,
        })
    }

    /// Compiles the library for programs without the runtime, unless it is there.
    ///
    /// # Errors
    /// If rustc fails, or the directory cannot be written.
    pub fn make_no_probes(&self, library: &Path) -> Result<()> {
        if library.exists() {
            return Ok(());
        }
        let source = library.with_extension("rs");
        std::fs::write(&source, include_str!("no_probes.rs"))
            .with_context(|| format!("cannot write {}", source.display()))?;
        // The file is written under another name and renamed, so that a build that runs meanwhile
        // finds the whole file or none.
        let unfinished = library.with_extension(std::process::id().to_string());
        let status = Command::new(&self.program)
            .args(["--crate-type=rlib", "--crate-name=shinjuku_no_probes"])
            .args(["--edition=2024", "-Copt-level=3", "-Cpanic=abort", "-o"])
            .args([&unfinished, &source])
            .status()
            .with_context(|| format!("cannot run {}", self.program.display()))?;
        ensure!(status.success(), "{} does not compile", source.display());
        std::fs::rename(&unfinished, library)
            .with_context(|| format!("cannot write {}", library.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(llvm: &str) -> Result<Compiler> {
        let said = format!(
            "rustc 1.95.0 (59807616e 2026-04-14)\nbinary: rustc\nhost: x86_64-unknown-linux-gnu\n{llvm}"
        );
        Compiler::parse("rustc".into(), &said)
    }

    #[test]
    fn a_known_llvm_is_taken() {
        let compiler = asked("LLVM version: 22.1.2\n").unwrap();
        assert_eq!(compiler.llvm, 22);
        assert_eq!(compiler.host, "x86_64-unknown-linux-gnu");
        assert_eq!(compiler.version, "rustc 1.95.0 (59807616e 2026-04-14)");
    }

    #[test]
    fn any_other_is_refused_in_words() {
        for (llvm, says) in [
            ("LLVM version: 19.1.7\n", "has no gate"),
            ("LLVM version: 23.1.0\n", "does not know"),
            ("LLVM version: main\n", "not understood"),
            ("", "does not say which LLVM"),
        ] {
            let error = asked(llvm).unwrap_err().to_string();
            assert!(error.contains(says), "{llvm}: {error}");
            assert!(error.contains("rustc 1.95.0"), "{error}");
        }
    }
}
