//! What other people's crates we depend on: under which licences, and how many.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::path::Path;

use spdx::{Expression, ParseMode};

/// As many crates as the default features of `shinjuku` may pull, its own included.
const MOST_CRATES: usize = 40;
/// Crates that build scripts take to compile C, or to find what was compiled.
const FOR_C: [&str; 5] = ["bindgen", "cc", "cmake", "nasm-rs", "pkg-config"];
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Packages, by name and version, with their licence.
fn packages(arguments: &[&str]) -> BTreeMap<String, String> {
    let output = shinjuku_bench::paths::cargo()
        .args(["tree", "--locked", "--target", TARGET, "--prefix", "none"])
        .args(["--format", "{p}|{l}"])
        .args(arguments)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let package = |line: &str| {
        let (package, licence) = line.trim_end_matches(" (*)").split_once('|')?;
        let name: Vec<_> = package.split(' ').take(2).collect();
        Some((name.join(" "), licence.to_owned()))
    };
    let packages: BTreeMap<_, _> = told.lines().filter_map(package).collect();
    assert!(packages.len() > 10, "{output:?}");
    packages
}

/// The licences that `deny.toml` allows, which `cargo deny` reads as well.
fn allowed() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = std::fs::read_to_string(root.join("deny.toml")).unwrap();
    let (_, licences) = text.split_once("[licenses]").unwrap();
    let (_, list) = licences.split_once("allow = [").unwrap();
    let (list, _) = list.split_once("\n]").unwrap();
    let entry = |line: &str| {
        line.trim()
            .strip_prefix('"')?
            .strip_suffix("\",")
            .map(str::to_owned)
    };
    list.lines().filter_map(entry).collect()
}

#[test]
fn every_dependency_has_a_licence_that_is_allowed() {
    let allowed = allowed();
    assert!(
        allowed.iter().any(|licence| licence == "MIT"),
        "{allowed:?}"
    );
    let is_allowed = |licence: &String| {
        let expression = Expression::parse_mode(licence, ParseMode::LAX);
        expression.is_ok_and(|expression| {
            // An exception only allows more.
            expression.evaluate(|one| {
                let id = one.license.id();
                id.is_some_and(|id| allowed.iter().any(|name| name == id.name))
            })
        })
    };
    let packages = packages(&["--workspace", "--all-features", "--edges", "all"]);
    let others = packages.iter().filter(|(_, licence)| !is_allowed(licence));
    let others: Vec<_> = others.collect();
    assert!(
        others.is_empty(),
        "deny.toml does not allow the licences of {others:?}: choose other crates, or allow them"
    );
}

#[test]
fn the_default_features_pull_few_crates_and_no_c_compiler() {
    let packages = packages(&["--package", "shinjuku", "--edges", "normal,build"]);
    let names: Vec<_> = packages
        .keys()
        .filter_map(|package| package.split(' ').next())
        .collect();
    assert!(names.contains(&"shinjuku-preempt"), "{names:?}");
    assert!(
        names.len() <= MOST_CRATES,
        "{} crates, of which {MOST_CRATES} are allowed: {names:?}",
        names.len()
    );
    let for_c: Vec<_> = names.iter().filter(|name| FOR_C.contains(name)).collect();
    assert!(
        for_c.is_empty(),
        "{for_c:?} are for build scripts that compile C"
    );
}
