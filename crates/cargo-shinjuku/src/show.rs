//! `cargo shinjuku show`: which packages are instrumented, and why the others are not.

use std::ffi::OsString;
use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;

use crate::c_code::CCode;
use crate::compiler::Compiler;
use crate::plan::{Plan, Verdict};
use crate::workspace::{Package, Workspace};

/// Prints the list. `arguments` are for `cargo metadata`: features, `--manifest-path`, `--offline`.
///
/// # Errors
/// If rustc cannot instrument, or cargo fails.
pub fn run(arguments: &[OsString]) -> Result<ExitCode> {
    let compiler = Compiler::ask()?;
    let mut asked = arguments.to_vec();
    asked.extend(["--filter-platform".into(), compiler.host.clone().into()]);
    let workspace = Workspace::ask(&asked)?;
    println!("{}, LLVM {}\n", compiler.version, compiler.llvm);
    let c_code = CCode::choose(&compiler.host, &compiler.host);
    let plan = Plan::to_show(workspace.skipped(), c_code);
    print!(
        "{}{}",
        list(&workspace, &plan),
        c_code_list(&workspace, &plan)
    );
    Ok(ExitCode::SUCCESS)
}

/// What there is of C and C++ code; nothing if there is none.
fn c_code_list(workspace: &Workspace, plan: &Plan) -> String {
    let linked = workspace.linked();
    let with: Vec<_> = (workspace.with_c_code().into_iter())
        .filter(|name| linked.contains(name) && plan.verdict(name) == Verdict::Instrumented)
        .collect();
    let mut text = String::new();
    if with.is_empty() {
        return text;
    }
    // Writing to a string does not fail.
    let compilers = plan.c_code.compilers();
    if !compilers.is_empty() {
        let (compilers, with) = (compilers.join(" and "), with.join("\n  "));
        let _ = writeln!(text, "\nC and C++ code of these, by {compilers}:\n  {with}");
    }
    for note in plan.c_code.notes() {
        let _ = writeln!(text, "\n{note}");
    }
    text
}

fn list(workspace: &Workspace, plan: &Plan) -> String {
    let linked = workspace.linked();
    let why_not = |package: &Package| match plan.verdict(&package.name) {
        _ if package.is_proc_macro() => Some("a proc macro".to_owned()),
        _ if !linked.contains(package.name.as_str()) => {
            Some("for build scripts and proc macros only".to_owned())
        }
        Verdict::Instrumented => None,
        verdict => Some(verdict.to_string()),
    };
    let mut packages: Vec<_> = workspace.packages.iter().collect();
    packages.sort_by_key(|package| (&package.name, &package.version));
    let name = |package: &Package| format!("{} {}", package.name, package.version);
    let width = packages
        .iter()
        .map(|one| name(one).len())
        .max()
        .unwrap_or(0);
    let (mut with, mut without) = (String::new(), String::new());
    for package in packages {
        // Writing to a string does not fail.
        let _ = match why_not(package) {
            None => writeln!(with, "  {}", name(package)),
            Some(why) => writeln!(without, "  {:width$}  {why}", name(package)),
        };
    }
    let mut text = format!(
        "Instrumented, a probe at the entry of each function:\n{with}\nLeft out:\n{without}  {:width$}  prebuilt; what is generic or \
         inlined counts to the crate that uses it\n",
        "std"
    );
    for (skipped, by) in plan.skipped() {
        if workspace
            .packages
            .iter()
            .all(|package| package.name != skipped)
        {
            let _ = writeln!(
                text,
                "\nmetadata.shinjuku of {by} skips {skipped}, which is no package here"
            );
        }
    }
    text
}
