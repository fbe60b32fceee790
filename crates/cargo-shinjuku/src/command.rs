//! Starts cargo with the wrapper set, for the target, and in a target directory of its own.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::c_code::CCode;
use crate::compiler::Compiler;
use crate::configuration;
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
    let named = named_targets(&arguments);
    let targets = match &named[..] {
        [] => vec![&*compiler.host],
        named => named
            .iter()
            .map(|target| triple(target, &compiler.host))
            .collect(),
    };
    let c_code = CCode::choose(targets[0], &compiler.host);
    if workspace.may_have_c_code() {
        for note in c_code.notes() {
            eprintln!("cargo shinjuku: {note}");
        }
    }
    let plan = Plan::make(&directory, &compiler, workspace.skipped(), c_code)?;

    let mut command = Command::new(cargo());
    command.arg(subcommand);
    // With a target named, here or in its configuration, cargo keeps what runs in the build apart
    // from what it makes.
    if named.is_empty() {
        command.args(["--target", targets[0]]);
    }
    let own = std::env::current_exe().context("cannot find this program")?;
    let inner = configuration::wrapper().filter(|inner| Path::new(inner) != own);
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

/// What cargo is told to build for: by arguments, else by the environment, else by its
/// configuration. Nothing: for this machine.
fn named_targets(arguments: &[OsString]) -> Vec<String> {
    let targets = options_of(arguments, "--target");
    if !targets.is_empty() {
        let targets = targets.iter();
        return targets
            .map(|target| target.to_string_lossy().into_owned())
            .collect();
    }
    let settings = options_of(arguments, "--config");
    let settings: Vec<_> = settings.iter().map(|one| one.to_string_lossy()).collect();
    configuration::targets(settings.iter().map(|one| &**one))
}

/// The triple that cargo takes the name of a target for.
fn triple<'a>(target: &'a str, host: &'a str) -> &'a str {
    match target {
        "host-tuple" => host,
        target => target,
    }
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
}
