//! Rules for all of the workspace's error types, checked on their source text.
#![allow(missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};

/// The directories with all code.
const HOMES: [&str; 5] = ["crates", "dune-sys", "examples", "benches", "xtask"];

/// Programs print an error and then its sources, so a cause that is in the text must not be a
/// source as well.
#[test]
fn no_cause_is_told_twice() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for home in HOMES {
        find_sources(&root.join(home), &mut files);
    }
    let mut seen = 0;
    let mut twice = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        // The text before the first belongs to no error.
        for error in text.split("#[error(").skip(1) {
            seen += 1;
            let Some((message, rest)) = error.split_once(")]") else {
                panic!("{}: {error}", file.display());
            };
            let fields = rest.split("\n}").next().unwrap_or(rest);
            let is_shown = ["{source", "{cause", "{error", "{0"]
                .iter()
                .any(|place| message.contains(place));
            let is_handed_on = ["#[from]", "#[source]", "source: "]
                .iter()
                .any(|mark| fields.contains(mark));
            if is_shown && is_handed_on {
                twice.push(format!("{}: {}", file.display(), message.trim()));
            }
        }
    }
    assert!(seen > 100, "only {seen} errors were found");
    assert!(twice.is_empty(), "{}", twice.join("\n"));
}

/// All Rust files in and below `directory`.
fn find_sources(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find_sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
