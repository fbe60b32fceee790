//! C and C++ code of packages: clang has the pass that rustc has.
//!
//! Build scripts find a C compiler by the variables that the crate `cc` reads. For the target,
//! these name links to this program in the build's directory, `clang` and `clang++`. Called by such
//! a name, it decides as it does for rustc:
//!
//! ```text
//!   build script ─▶ cc, cmake, configure ─▶ DIRECTORY/clang ... ─┬─ instrumented ─▶ clang ... [flags]
//!                                                                └─ else ─▶ the compiler of before
//! ```
//!
//! The variables alone would not do: where host and target are of one name, `cc` asks for the same
//! ones in a build script that compiles for the build itself. What tells them apart is where cargo
//! has the script put its files.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::ops::RangeInclusive;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::plan::{Plan, Verdict};

/// A probe at the entry of each function.
const FLAGS: [&str; 1] = ["-fsanitize-coverage=func,trace-pc-guard"];
/// The same behind the gate.
const GATE: [&str; 2] = ["-mllvm", "-sanitizer-coverage-gated-trace-callbacks"];

/// Versions of clang that have the gate, and are known to take these flags.
const GATED: RangeInclusive<u32> = 20..=22;
/// Those that have the pass alone: each entry calls, and the callback looks.
const UNGATED: RangeInclusive<u32> = 14..=19;

/// A language, as build scripts know it.
struct Language {
    name: &'static str,
    /// The variable that names its compiler.
    variable: &'static str,
    /// This program's name when it stands for the compiler; clang's own without a version.
    link: &'static str,
    /// What `cc` takes if no variable names one.
    usual: &'static str,
}

const LANGUAGES: [Language; 2] = [
    Language {
        name: "C",
        variable: "CC",
        link: "clang",
        usual: "cc",
    },
    Language {
        name: "C++",
        variable: "CXX",
        link: "clang++",
        usual: "c++",
    },
];

/// The compilers of a build: of each language whose code is instrumented, by its link's name.
#[derive(PartialEq, Eq, Clone, Debug, Default, Serialize, Deserialize)]
pub struct CCode {
    compilers: BTreeMap<String, Compilers>,
    /// Of the other languages, why theirs is not.
    left_out: Vec<String>,
}

/// A language's compilers.
#[derive(PartialEq, Eq, Clone, Debug, Serialize, Deserialize)]
struct Compilers {
    /// Of what is not instrumented: the program, with arguments if a variable has them.
    usual: Vec<String>,
    clang: Clang,
}

/// A clang that is known to have the pass.
#[derive(PartialEq, Eq, Clone, Debug, Serialize, Deserialize)]
struct Clang {
    program: Vec<String>,
    version: u32,
}

impl CCode {
    /// Chooses by the environment, as `cc` would for `target`; `host` is what builds.
    pub fn choose(target: &str, host: &str) -> Self {
        let mut chosen = Self::default();
        for language in &LANGUAGES {
            let named = named_compiler(language, target, host, |name| std::env::var(name).ok());
            match Clang::find(language, named.as_deref(), ask_version) {
                Ok(clang) => {
                    let usual = named.unwrap_or_else(|| vec![language.usual.to_owned()]);
                    let compilers = Compilers { usual, clang };
                    chosen.compilers.insert(language.link.to_owned(), compilers);
                }
                Err(why) => {
                    let name = language.name;
                    chosen
                        .left_out
                        .push(format!("{name} code has no probes: {why}"));
                }
            }
        }
        chosen
    }

    /// What is to be known of it, a line each: what has no probes and why, or none behind the gate.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.left_out.clone();
        let mut clangs = self.compilers.values().map(|compilers| &compilers.clang);
        if let Some(older) = clangs.find(|clang| !clang.has_gate()) {
            let (first, last) = (GATED.start(), GATED.end());
            notes.push(format!(
                "{} has no gate, so each entry of its code is a call: LLVM {first} to {last} have it",
                older.in_words()
            ));
        }
        notes
    }

    /// What compiles it, in words.
    pub fn compilers(&self) -> Vec<String> {
        let compilers = self.compilers.values();
        compilers
            .map(|compilers| compilers.clang.in_words())
            .collect()
    }

    /// Makes the links in a build's directory, and has `command` find them for `targets`.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn stand_in(
        &self,
        directory: &Path,
        targets: &[&str],
        command: &mut Command,
    ) -> Result<()> {
        let own = std::env::current_exe().context("cannot find this program")?;
        for language in &LANGUAGES {
            if !self.compilers.contains_key(language.link) {
                continue;
            }
            let link = directory.join(language.link);
            if std::fs::read_link(&link).ok().as_ref() != Some(&own) {
                let _ = std::fs::remove_file(&link);
                symlink(&own, &link).with_context(|| format!("cannot make {}", link.display()))?;
            }
            for target in targets {
                command.env(format!("{}_{target}", language.variable), &link);
            }
        }
        Ok(())
    }
}

/// The compiler that the environment names for `target`, in the order in which `cc` looks.
fn named_compiler(
    Language { variable, .. }: &Language,
    target: &str,
    host: &str,
    look: impl Fn(&str) -> Option<String>,
) -> Option<Vec<String>> {
    let kind = if target == host { "HOST" } else { "TARGET" };
    let names = [
        format!("{variable}_{target}"),
        format!("{variable}_{}", target.replace(['-', '.'], "_")),
        format!("{kind}_{variable}"),
        (*variable).to_owned(),
    ];
    let value = names.iter().find_map(|name| look(name))?;
    let words: Vec<String> = match Path::new(&value).exists() {
        true => vec![value],
        false => value.split_whitespace().map(str::to_owned).collect(),
    };
    (!words.is_empty()).then_some(words)
}

/// Clang's major version; `None` if the program is not there or no clang.
fn ask_version(program: &[String]) -> Option<u32> {
    let (program, arguments) = program.split_first()?;
    let output = Command::new(program)
        .args(arguments)
        .arg("--version")
        .output()
        .ok()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let (_, version) = said.lines().next()?.split_once("clang version ")?;
    version.split('.').next()?.parse().ok()
}

impl Clang {
    /// The one that the environment names, else the best on the path.
    fn find(
        language: &Language,
        named: Option<&[String]>,
        ask: impl Fn(&[String]) -> Option<u32>,
    ) -> Result<Self, String> {
        let is_known = |version: &u32| GATED.contains(version) || UNGATED.contains(version);
        let (first, last) = (UNGATED.start(), GATED.end());
        let unknown = |program: &[String], version: u32| {
            format!(
                "{} has LLVM {version}, and this cargo-shinjuku knows {first} to {last}",
                program.join(" ")
            )
        };
        if let Some(program) = named {
            return match ask(program) {
                Some(version) if is_known(&version) => Ok(Self {
                    program: program.to_vec(),
                    version,
                }),
                Some(version) => Err(unknown(program, version)),
                None => Err(format!(
                    "{} names {}, which is no clang",
                    language.variable,
                    program.join(" ")
                )),
            };
        }
        let of_version = |version: u32| format!("{}-{version}", language.link);
        let candidates = (GATED.rev().map(of_version))
            .chain([language.link.to_owned()])
            .chain(UNGATED.rev().map(of_version));
        let mut why_not = format!(
            "there is no {} on the path (LLVM {} to {last} has the gate)",
            language.link,
            GATED.start()
        );
        for candidate in candidates {
            let program = vec![candidate];
            match ask(&program) {
                Some(version) if is_known(&version) => return Ok(Self { program, version }),
                Some(version) => why_not = unknown(&program, version),
                None => {}
            }
        }
        Err(why_not)
    }

    fn in_words(&self) -> String {
        format!("{} (LLVM {})", self.program.join(" "), self.version)
    }

    fn has_gate(&self) -> bool {
        GATED.contains(&self.version)
    }

    /// What is added to a command of this compiler's.
    fn added(&self, arguments: &[OsString], no_probes: &Path) -> Vec<OsString> {
        match Step::of(arguments) {
            Step::Compile if self.has_gate() => {
                let flags = FLAGS.iter().chain(&GATE);
                flags.map(OsString::from).collect()
            }
            Step::Compile => FLAGS.map(OsString::from).into(),
            Step::Link => vec![no_probes.into()],
            Step::Other => Vec::new(),
        }
    }
}

/// What a command of a compiler's does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Makes an object of a source.
    Compile,
    /// Makes a program or a shared library, such as those by which `configure` finds out things.
    Link,
    /// Assembles, preprocesses, or answers a question.
    Other,
}

impl Step {
    fn of(arguments: &[OsString]) -> Self {
        const SOURCES: [&str; 6] = ["c", "cc", "cpp", "cxx", "c++", "C"];
        const OBJECTS: [&str; 3] = ["o", "a", "so"];
        let has = |options: &[&str]| {
            arguments
                .iter()
                .any(|one| options.iter().any(|it| one == it))
        };
        let mut is_output = false;
        let mut inputs = Vec::new();
        for argument in arguments {
            let is_option = argument.as_encoded_bytes().starts_with(b"-");
            if !is_output && !is_option {
                inputs.extend(Path::new(argument).extension().and_then(OsStr::to_str));
            }
            is_output = argument == "-o";
        }
        let is_source = inputs.iter().any(|input| SOURCES.contains(input));
        if has(&["-c", "-S"]) {
            return if is_source {
                Self::Compile
            } else {
                Self::Other
            };
        }
        let is_linked = is_source || inputs.iter().any(|input| OBJECTS.contains(input));
        match has(&["-E", "-M", "-MM", "-fsyntax-only"]) {
            false if is_linked => Self::Link,
            _ => Self::Other,
        }
    }
}

/// The link's path, if this process was called by one.
pub fn called_as(program: &OsStr) -> Option<&Path> {
    let path = Path::new(program);
    let is_link = LANGUAGES
        .iter()
        .any(|language| path.file_name() == Some(OsStr::new(language.link)));
    is_link.then_some(path)
}

/// Becomes a C or C++ compiler: clang with the flags added for an instrumented package's code, else
/// the one of before.
///
/// # Errors
/// The plan cannot be read, or the compiler not be run.
pub fn run(link: &Path, arguments: &[OsString]) -> Result<ExitCode> {
    let directory = link.parent().context("a link is in a directory")?;
    let plan = Plan::read(&Plan::file(directory))?;
    let name = link.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let compilers = plan.c_code.compilers.get(name);
    let Compilers { usual, clang } = compilers.context("the plan has no such compiler")?;
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    let [target, out] =
        ["TARGET", "OUT_DIR"].map(|name| std::env::var_os(name).unwrap_or_default());
    let is_for_target = is_for_target(directory, &target, &out);
    let (words, added) = match plan.verdict(&package) {
        Verdict::Instrumented if is_for_target => {
            (&clang.program, clang.added(arguments, &plan.no_probes))
        }
        _ => (usual, Vec::new()),
    };
    let (program, first) = words.split_first().context("a compiler has a name")?;
    let mut command = Command::new(program);
    let error = command.args(first).args(arguments).args(added).exec();
    Err(error).with_context(|| format!("cannot run {program}"))
}

/// Whether a build script whose files go to `out` builds for the target.
fn is_for_target(directory: &Path, target: &OsStr, out: &OsStr) -> bool {
    !target.is_empty() && Path::new(out).starts_with(directory.join(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn found(named: Option<&str>, there: &[(&str, u32)]) -> Result<Clang, String> {
        let named = named.map(words);
        Clang::find(&LANGUAGES[0], named.as_deref(), |program| {
            let program = program.join(" ");
            let mut there = there.iter().filter(|(name, _)| *name == program);
            there.next().map(|(_, version)| *version)
        })
    }

    #[test]
    fn a_clang_with_the_gate_goes_before_others() {
        let there = [("clang", 14), ("clang-21", 21), ("clang-19", 19)];
        let best = found(None, &there).unwrap();
        assert_eq!(
            (best.program.join(" "), best.version),
            ("clang-21".to_owned(), 21)
        );
        assert!(best.has_gate());
        let named = found(Some("clang"), &there).unwrap();
        assert!(!named.has_gate(), "the one that the environment names");
        let older = found(None, &[("clang", 23), ("clang-16", 16)]).unwrap();
        assert_eq!(older.version, 16);
    }

    #[test]
    fn without_a_known_clang_one_line_says_why() {
        for (named, there, says) in [
            (None, &[][..], "there is no clang on the path"),
            (
                None,
                &[("clang", 23)],
                "clang has LLVM 23, and this cargo-shinjuku knows 14 to 22",
            ),
            (None, &[("clang", 7)], "clang has LLVM 7"),
            (
                Some("gcc -m64"),
                &[("clang", 21)],
                "CC names gcc -m64, which is no clang",
            ),
            (
                Some("clang-13"),
                &[("clang-13", 13)],
                "clang-13 has LLVM 13",
            ),
        ] {
            let why = found(named, there).unwrap_err();
            assert!(why.contains(says) && !why.contains('\n'), "{why}");
        }
    }

    #[test]
    fn the_environment_is_looked_at_as_cc_does() {
        let target = "x86_64-unknown-linux-gnu";
        let named = |host: &str, set: &[(&str, &str)]| {
            named_compiler(&LANGUAGES[0], target, host, |name| {
                let mut set = set.iter().filter(|(variable, _)| *variable == name);
                set.next().map(|(_, value)| (*value).to_owned())
            })
        };
        let all = [
            ("CC", "a"),
            ("HOST_CC", "b"),
            ("TARGET_CC", "c"),
            ("CC_x86_64_unknown_linux_gnu", "ccache d -m64"),
        ];
        assert_eq!(named(target, &all), Some(words("ccache d -m64")));
        assert_eq!(named(target, &all[..3]), Some(words("b")));
        assert_eq!(named("other", &all[..3]), Some(words("c")));
        assert_eq!(named(target, &all[..1]), Some(words("a")));
        assert_eq!(named(target, &[("CC", " ")]), None);
        assert_eq!(named(target, &[]), None);
    }

    #[test]
    fn what_compiles_is_told_from_what_links() {
        for (line, step) in [
            ("-O2 -c -o deep.o deep.c", Step::Compile),
            ("-c sum.cc", Step::Compile),
            ("-c jump.S -o jump.o", Step::Other),
            ("-E detect.c", Step::Other),
            ("-o conftest conftest.c -lm", Step::Link),
            ("-shared -o libdeep.so deep.o", Step::Link),
            ("--version", Step::Other),
            ("-v", Step::Other),
        ] {
            let arguments: Vec<_> = words(line).into_iter().map(OsString::from).collect();
            assert_eq!(Step::of(&arguments), step, "{line}");
        }
    }

    #[test]
    fn flags_have_the_gate_where_clang_has_it() {
        let arguments = ["-c", "deep.c"].map(OsString::from);
        let added = |version| {
            let program = words("clang");
            Clang { program, version }.added(&arguments, Path::new("/t/lib.rlib"))
        };
        assert_eq!(added(19), FLAGS.map(OsString::from));
        assert_eq!(added(20), [FLAGS[0], GATE[0], GATE[1]].map(OsString::from));
    }

    #[test]
    fn what_is_built_for_the_build_is_told_by_its_place() {
        let of =
            |out: &str| is_for_target(Path::new("/t/shinjuku"), "x86_64".as_ref(), out.as_ref());
        assert!(of("/t/shinjuku/x86_64/debug/build/sqlite-1/out"));
        assert!(!of("/t/shinjuku/debug/build/sqlite-2/out"));
        assert!(!of(""));
    }

    #[test]
    fn only_the_links_names_make_it_a_compiler() {
        for (name, is) in [
            ("/t/clang", true),
            ("/t/clang++", true),
            ("/b/cargo-shinjuku", false),
        ] {
            assert_eq!(called_as(name.as_ref()).is_some(), is, "{name}");
        }
    }
}
