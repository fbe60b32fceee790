//! Test binaries that run in the guest, and what they need of the system to start.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use shinjuku_bench::paths;

/// A test binary.
#[derive(Debug)]
pub struct Suite {
    /// The test target's name.
    pub name: String,
    /// The binary on this machine.
    pub binary: PathBuf,
}

/// Test targets outside of crates/preempt, with their packages.
const ELSEWHERE: [(&str, &str); 1] = [("rack", "shinjuku-rack")];

/// Builds the test targets `wanted`, of crates/preempt or `ELSEWHERE`; without any, those of
/// crates/preempt whose name begins with `guest`, and `more`.
///
/// # Errors
/// If there are none, or they do not build.
pub fn build(wanted: &[String], more: &[&str]) -> Result<Vec<Suite>> {
    let names = if wanted.is_empty() {
        let mut names = guest_targets(&paths::workspace_root().join("crates/preempt/tests"))?;
        names.extend(more.iter().map(|name| (*name).to_owned()));
        names
    } else {
        wanted.to_vec()
    };
    names.iter().map(|name| build_one(name)).collect()
}

fn guest_targets(directory: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in
        std::fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))?
    {
        let path = entry?.path();
        let is_target = path.extension().is_some_and(|extension| extension == "rs")
            || path.join("main.rs").is_file();
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        names.extend(
            stem.filter(|stem| is_target && stem.starts_with("guest"))
                .map(str::to_owned),
        );
    }
    names.sort();
    ensure!(
        !names.is_empty(),
        "there is no test target guest* in {}: name one with --test",
        directory.display()
    );
    Ok(names)
}

fn build_one(name: &str) -> Result<Suite> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let elsewhere = ELSEWHERE.iter().find(|(target, _)| *target == name);
    let package = match elsewhere {
        Some((_, package)) => vec!["--package", package],
        None => vec!["--package", "shinjuku-preempt", "--features", "kvm,stress"],
    };
    let output = Command::new(cargo)
        // Emulators are slow; unoptimised code is tested on this machine.
        .args(["test", "--release", "--no-run", "--test", name])
        .args(package)
        .arg("--message-format=json-render-diagnostics")
        .current_dir(paths::workspace_root())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cargo does not start")?;
    ensure!(
        output.status.success(),
        "the test target {name} does not build"
    );
    let messages = String::from_utf8_lossy(&output.stdout);
    let Some(binary) = executable(&messages, name) else {
        bail!("cargo built no executable for the test target {name}");
    };
    Ok(Suite {
        name: name.to_owned(),
        binary,
    })
}

/// The part of cargo's messages that matters here.
#[derive(Deserialize)]
struct Message {
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .filter(|message| {
            message
                .target
                .as_ref()
                .is_some_and(|target| target.name == name)
        })
        .find_map(|message| message.executable)
}

/// The shared libraries of `binary`, and the program that loads them.
///
/// # Errors
/// If `ldd` cannot tell.
pub fn libraries(binary: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd")
        .arg(binary)
        .stdin(Stdio::null())
        .output()
        .context("ldd does not start")?;
    ensure!(
        output.status.success(),
        "ldd cannot read {}",
        binary.display()
    );
    Ok(paths_in(&String::from_utf8_lossy(&output.stdout)))
}

/// Lines are `name => /path (address)`, `/path (address)`, or of the vdso, which has no path.
fn paths_in(text: &str) -> Vec<PathBuf> {
    text.lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_the_targets_own() {
        let messages = concat!(
            "{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"shinjuku_preempt\"},\"executable\":null}\n",
            "{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"other\"},\"executable\":\"/t/other-1\"}\n",
            "{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"guest\"},\"executable\":\"/t/guest-1\"}\n",
            "{\"reason\":\"build-finished\",\"success\":true}\n",
        );
        assert_eq!(
            executable(messages, "guest"),
            Some(PathBuf::from("/t/guest-1"))
        );
        assert_eq!(executable(messages, "none"), None);
    }

    #[test]
    fn libraries_are_read_from_ldd() {
        let text = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        assert_eq!(
            paths_in(text),
            [
                PathBuf::from("/lib/x86_64-linux-gnu/libc.so.6"),
                PathBuf::from("/lib64/ld-linux-x86-64.so.2")
            ]
        );
        assert!(paths_in("\tstatically linked\n").is_empty());
    }

    #[test]
    fn guest_suites_are_found_by_name() {
        let directory = tempfile::tempdir().unwrap();
        assert!(guest_targets(directory.path()).is_err());
        for name in ["contexts.rs", "guest.rs", "guest_signals.rs"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        std::fs::create_dir(directory.path().join("guest_storm")).unwrap();
        std::fs::write(directory.path().join("guest_storm/main.rs"), "").unwrap();
        std::fs::create_dir(directory.path().join("guest_parts")).unwrap();
        let names = guest_targets(directory.path()).unwrap();
        assert_eq!(names, ["guest", "guest_signals", "guest_storm"]);
    }
}
