//! Starts cargo with the wrapper set, for the target, and in a target directory of its own.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::c_code::CCode;
use crate::compiler::Compiler;
use crate::plan::Plan;
use crate::workspace::{Workspace, cargo};
use crate::wrapper;

/// Below a target directory, where instrumented artifacts go.
const DIRECTORY: &str = "shinjuku";

/// Becomes `cargo subcommand arguments`.
///
/// # Errors
/// If rustc cannot instrument, the plan cannot be made, or cargo cannot be run.
pub fn run(subcommand: &str, mut arguments: Vec<OsString>) -> Result<ExitCode> {
    let compiler = Compiler::ask()?;
    let target_directory = take_option(&mut arguments, "--target-dir").pop();
    let manifest = options_of(&arguments, "--manifest-path");
    let mut asked: Vec<OsString> = vec!["--no-deps".into()];
    asked.extend(
        manifest
            .into_iter()
            .flat_map(|path| ["--manifest-path".into(), path]),
    );
    let workspace = Workspace::ask(&asked)?;
    let directory = target_directory
        .map_or(workspace.target_directory.clone(), PathBuf::from)
        .join(DIRECTORY);
    let directory = std::path::absolute(&directory)
        .with_context(|| format!("{} has no absolute path", directory.display()))?;
    let targets = targets(&arguments, &compiler.host);
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let c_code = CCode::choose(targets[0], &compiler.host);
    if workspace.may_have_c_code() {
        for note in c_code.notes() {
            eprintln!("cargo shinjuku: {note}");
        }
    }
    let plan = Plan::make(&directory, &compiler, workspace.skipped(), c_code)?;

    let mut command = Command::new(cargo());
    command.arg(subcommand);
    // With a target named, cargo keeps what runs in the build apart from what it makes.
    if options_of(&arguments, "--target").is_empty() {
        command.args(["--target", targets[0]]);
    }
    let own = std::env::current_exe().context("cannot find this program")?;
    let inner = inner_wrapper().filter(|inner| Path::new(inner) != own);
    command
        .args(&arguments)
        .env("CARGO_TARGET_DIR", &directory)
        .env("CARGO_BUILD_BUILD_DIR", &directory)
        .env("RUSTC_WRAPPER", own)
        .env(wrapper::PLAN, Plan::file(&directory))
        .env(wrapper::INNER, inner.unwrap_or_default());
    plan.c_code.stand_in(&directory, &targets, &mut command)?;
    if subcommand == "test" {
        command.env("CARGO_ENCODED_RUSTDOCFLAGS", rustdoc_flags(&plan.no_probes));
    }
    let error = command.exec();
    Err(error).context("cannot run cargo")
}

/// What is built for: at least one.
fn targets(arguments: &[OsString], host: &str) -> Vec<String> {
    let mut targets: Vec<_> = (options_of(arguments, "--target").iter())
        .map(|target| target.to_string_lossy().into_owned())
        .collect();
    if targets.is_empty() {
        let by_environment = std::env::var("CARGO_BUILD_TARGET").ok();
        targets.push(by_environment.unwrap_or_else(|| host.to_owned()));
    }
    targets
}

/// The values of an option before `--`, in both spellings.
fn options_of(arguments: &[OsString], option: &str) -> Vec<OsString> {
    take_option(&mut arguments.to_vec(), option)
}

/// Takes the option out of the arguments before `--`, and gives its values.
fn take_option(arguments: &mut Vec<OsString>, option: &str) -> Vec<OsString> {
    let end = (arguments.iter())
        .position(|argument| argument == "--")
        .unwrap_or(arguments.len());
    let behind = arguments.split_off(end);
    let mut values = Vec::new();
    let mut rest = Vec::new();
    let mut words = arguments.drain(..);
    while let Some(word) = words.next() {
        let with_equals = (word.to_str())
            .and_then(|word| word.strip_prefix(option)?.strip_prefix('='))
            .map(OsString::from);
        if word == option {
            values.extend(words.next());
        } else if let Some(value) = with_equals {
            values.push(value);
        } else {
            rest.push(word);
        }
    }
    drop(words);
    rest.extend(behind);
    *arguments = rest;
    values
}

/// Flags for rustdoc, since the programs that it makes of examples are not built through the
/// wrapper.
fn rustdoc_flags(no_probes: &Path) -> OsString {
    const SEPARATOR: &str = "\u{1f}";
    let encoded = std::env::var_os("CARGO_ENCODED_RUSTDOCFLAGS");
    let mut flags = encoded.unwrap_or_else(|| {
        let plain = std::env::var("RUSTDOCFLAGS").unwrap_or_default();
        let words: Vec<_> = plain.split_whitespace().collect();
        words.join(SEPARATOR).into()
    });
    if !flags.is_empty() {
        flags.push(SEPARATOR);
    }
    flags.push(OsString::from_iter([
        OsStr::new("-C"),
        OsStr::new(SEPARATOR),
        OsStr::new("link-arg="),
        no_probes.as_os_str(),
    ]));
    flags
}

/// The wrapper that cargo would use without this program: by the environment, else by the
/// configuration file that is nearest to the working directory.
fn inner_wrapper() -> Option<OsString> {
    let by_environment = ["RUSTC_WRAPPER", "CARGO_BUILD_RUSTC_WRAPPER"]
        .into_iter()
        .find_map(std::env::var_os);
    if let Some(wrapper) = by_environment {
        // An empty value means no wrapper, whatever the files say.
        return Some(wrapper).filter(|wrapper| !wrapper.is_empty());
    }
    let here = std::env::current_dir().ok()?;
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let directories = here.ancestors().map(|parent| parent.join(".cargo"));
    directories
        .chain(home)
        .find_map(|directory| configured_wrapper(&directory))
}

/// `build.rustc-wrapper` of the configuration file in a directory `.cargo`.
fn configured_wrapper(directory: &Path) -> Option<OsString> {
    let text = ["config", "config.toml"]
        .iter()
        .find_map(|name| std::fs::read_to_string(directory.join(name)).ok())?;
    let table: toml::Table = text.parse().ok()?;
    let wrapper = table.get("build")?.get("rustc-wrapper")?.as_str()?;
    // Cargo searches the path for a name; a relative path is relative to the parent of `.cargo`.
    Some(match (wrapper.contains('/'), directory.parent()) {
        (true, Some(parent)) => parent.join(wrapper).into(),
        _ => wrapper.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_in_both_spellings_and_not_behind_two_dashes() {
        let given = [
            "--release",
            "--target-dir",
            "a",
            "--target-dir=b",
            "--",
            "--target-dir",
            "c",
        ];
        let mut arguments: Vec<_> = given.map(OsString::from).into();
        assert_eq!(options_of(&arguments, "--target-dir"), ["a", "b"]);
        assert_eq!(options_of(&arguments, "--target"), [""; 0]);
        assert_eq!(take_option(&mut arguments, "--target-dir"), ["a", "b"]);
        assert_eq!(arguments, ["--release", "--", "--target-dir", "c"]);
    }

    #[test]
    fn a_configured_wrapper_is_found_where_cargo_finds_it() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join(".cargo");
        std::fs::create_dir(&directory).unwrap();
        assert_eq!(configured_wrapper(&directory), None);
        let write = |wrapper: &str| {
            let text = format!("[build]\nrustc-wrapper = \"{wrapper}\"\n");
            std::fs::write(directory.join("config.toml"), text).unwrap();
        };
        write("sccache");
        assert_eq!(configured_wrapper(&directory), Some("sccache".into()));
        write("tools/wrap");
        let expected = parent.path().join("tools/wrap");
        assert_eq!(configured_wrapper(&directory), Some(expected.into()));
    }
}
