//! The rustc wrapper: adds to each crate's command the arguments that the plan has decided on.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::compiler::{CALLBACK_FLAGS, FLAGS};
use crate::plan::{Plan, Verdict};

/// The environment variable that names the plan's file to the wrapper.
pub const PLAN: &str = "CARGO_SHINJUKU_PLAN";
/// The environment variable that names the user's own wrapper, which then runs rustc.
pub const INNER: &str = "CARGO_SHINJUKU_INNER_WRAPPER";

/// The plan, if this process is a build's wrapper.
pub fn plan_of_this_build() -> Option<Result<Plan>> {
    let file = std::env::var_os(PLAN)?;
    Some(Plan::read(Path::new(&file)))
}

/// Becomes rustc, or the user's own wrapper. `command` is rustc with its arguments, perhaps with a
/// workspace's wrapper before it.
///
/// # Errors
/// If that program cannot be run.
pub fn run(plan: &Plan, command: &[OsString]) -> Result<ExitCode> {
    let package = std::env::var("CARGO_PKG_NAME").ok();
    let added = added(plan, package.as_deref(), command);
    let inner = std::env::var_os(INNER).filter(|inner| !inner.is_empty());
    let mut words = inner.iter().chain(command).chain(&added);
    let program = words.next().context("a wrapper takes a command")?;
    let error = Command::new(program).args(words).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

/// The arguments that the plan adds to a command of cargo's for `package`.
fn added(plan: &Plan, package: Option<&str>, command: &[OsString]) -> Vec<OsString> {
    let Some(unit) = Unit::of(command) else {
        return Vec::new();
    };
    let Some(package) = package else {
        return Vec::new();
    };
    let mut added: Vec<OsString> = Vec::new();
    match plan.verdict(package) {
        Verdict::Instrumented => added.extend(FLAGS.map(OsString::from)),
        Verdict::Runtime { answers, is_called } => {
            if answers {
                added.extend(["--cfg", "feature=\"compiled-probes\""].map(OsString::from));
            }
            if is_called {
                added.extend(CALLBACK_FLAGS.map(OsString::from));
            }
        }
        Verdict::Skipped(_) => {}
    }
    if unit.is_linked {
        let mut argument = OsString::from("link-arg=");
        argument.push(&plan.no_probes);
        added.extend([OsString::from("-C"), argument]);
    }
    added
}

/// A crate that is compiled for the target.
#[derive(PartialEq, Eq, Debug)]
struct Unit {
    /// Whether it becomes a program or a shared library.
    is_linked: bool,
}

impl Unit {
    /// `None` for build scripts, proc macros and crates that only they use, and for questions to
    /// rustc.
    fn of(command: &[OsString]) -> Option<Self> {
        let value_of = |option: &str| {
            let with_equals = format!("{option}=");
            let mut words = command.iter().filter_map(|word| word.to_str());
            let mut values = Vec::new();
            while let Some(word) = words.next() {
                if word == option {
                    values.extend(words.next());
                } else {
                    values.extend(word.strip_prefix(&with_equals));
                }
            }
            values
        };
        // Given a target, cargo passes it on for all crates but those that run in the build.
        let is_for_target = !value_of("--target").is_empty();
        // `___` is the crate's name in cargo's questions.
        let is_a_crate = value_of("--crate-name").iter().any(|name| *name != "___");
        let types = value_of("--crate-type");
        if !is_for_target || !is_a_crate || types.contains(&"proc-macro") {
            return None;
        }
        let linked_types = ["bin", "dylib", "cdylib"];
        let is_test = command.iter().any(|word| word == OsStr::new("--test"));
        Some(Self {
            is_linked: is_test || types.iter().any(|one| linked_types.contains(one)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::c_code::CCode;

    fn unit(command: &str) -> Option<Unit> {
        let command: Vec<_> = command.split_whitespace().map(OsString::from).collect();
        Unit::of(&command)
    }

    #[test]
    fn crates_for_the_target_are_told_from_those_that_run_in_the_build() {
        let target = "--target x86_64-unknown-linux-gnu";
        let library = format!("rustc --crate-name redb src/lib.rs --crate-type lib {target}");
        let of = |is_linked| Some(Unit { is_linked });
        assert_eq!(unit(&library), of(false));
        assert_eq!(unit(&format!("clippy-driver {library}")), of(false));
        assert_eq!(
            unit("rustc --crate-name app --crate-type=bin --target=x86_64-unknown-linux-gnu"),
            of(true)
        );
        assert_eq!(
            unit(&format!("rustc --crate-name redb --test {target}")),
            of(true)
        );
        for not_ours in [
            "rustc -vV".to_owned(),
            "rustc --crate-name build_script_build --crate-type bin".to_owned(),
            format!("rustc --crate-name serde_derive --crate-type proc-macro {target}"),
            format!("rustc - --crate-name ___ --crate-type bin --print=file-names {target}"),
        ] {
            assert_eq!(unit(&not_ours), None, "{not_ours}");
        }
    }

    #[test]
    fn each_package_gets_what_the_plan_says() {
        let skipped = [("sha2".to_owned(), "app".to_owned())];
        let mut plan = Plan::to_show(skipped.into(), CCode::default());
        plan.no_probes = "/t/lib.rlib".into();
        let command = |types: &str| {
            [
                "rustc",
                "--crate-name",
                "x",
                "--target",
                "t",
                "--crate-type",
                types,
            ]
            .map(OsString::from)
        };
        let library = |package| added(&plan, Some(package), &command("lib"));
        assert_eq!(library("redb"), FLAGS.map(OsString::from));
        assert_eq!(library("shinjuku").len(), 2, "the feature");
        assert_eq!(
            library("shinjuku-preempt")[2..],
            CALLBACK_FLAGS.map(OsString::from)
        );
        assert!(library("shinjuku-net").is_empty() && library("sha2").is_empty());
        let program = added(&plan, Some("sha2"), &command("bin"));
        assert_eq!(program, ["-C", "link-arg=/t/lib.rlib"].map(OsString::from));
    }
}
