//! What neither rustfmt nor cargo sees to: comments and prose are at most 100 columns wide, modules
//! have one style, errors tell a cause once, links lead somewhere, tests that skip themselves say
//! so to the runner, the bench measures a build without the features of tests, and packages have
//! what a registry shows.
//!
//! Code, drawings, rows of tables, and words that cannot be broken are as wide as they must be.
#![allow(missing_docs)]

use std::path::{Path, PathBuf};

const WIDTH: usize = 100;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The repository's files with this extension.
fn sources(extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    find(root(), extension, &mut found);
    assert!(found.len() > 10, "the sources are found");
    found
}

fn find(directory: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_symlink() || name.starts_with('.') || name == "target" {
            continue;
        }
        if path.is_dir() {
            find(&path, extension, found);
        } else if path.extension().is_some_and(|its| its == extension) {
            found.push(path);
        }
    }
}

/// The prose of a line: all of it in Markdown, a comment in Rust.
fn prose(line: &str, is_markdown: bool) -> Option<&str> {
    let text = line.trim_start();
    if is_markdown {
        return Some(text);
    }
    let text = text.strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']).trim_start())
}

fn may_be_wide(prose: &str) -> bool {
    let is_table_or_heading = prose.starts_with(['|', '#']);
    let is_code_span = prose.starts_with('`') && prose.ends_with('`');
    let is_short_of_words = prose.split_whitespace().count() < 3;
    is_table_or_heading || is_code_span || is_short_of_words || prose.contains("---")
}

#[test]
fn comments_and_prose_are_at_most_a_hundred_columns_wide() {
    let mut wide = Vec::new();
    for file in [sources("rs"), sources("md")].concat() {
        let is_markdown = file.extension().is_some_and(|extension| extension == "md");
        let text = std::fs::read_to_string(&file).unwrap();
        let mut is_code = false;
        for (number, line) in (1..).zip(text.lines()) {
            let Some(prose) = prose(line, is_markdown) else {
                continue;
            };
            is_code ^= prose.starts_with("```");
            if line.chars().count() > WIDTH && !is_code && !may_be_wide(prose) {
                let place = file.strip_prefix(root()).unwrap().display();
                wide.push(format!("{place}:{number}"));
            }
        }
    }
    assert!(wide.is_empty(), "wider than {WIDTH}: {}", wide.join(", "));
}

/// One module style: a module that has parts is a folder, and `mod.rs` is its front page.
#[test]
fn a_module_with_parts_has_its_front_page_in_its_folder() {
    let beside = sources("rs")
        .iter()
        .filter(|file| file.with_extension("").is_dir())
        .map(|file| file.strip_prefix(root()).unwrap().display().to_string())
        .collect::<Vec<_>>();
    assert!(
        beside.is_empty(),
        "beside their folder: {}",
        beside.join(", ")
    );
}

/// Programs print an error and then its sources, so a cause that is in the text must not be a
/// source as well.
#[test]
fn no_cause_is_told_twice() {
    let (mut seen, mut twice) = (0, Vec::new());
    for path in sources("rs") {
        let text = std::fs::read_to_string(&path).unwrap();
        if text.contains("#[error(") {
            let file = syn::parse_file(&text).unwrap();
            for (message, fields) in messages(&file.items) {
                seen += 1;
                let mut fields = fields.iter().enumerate();
                if fields.any(|(number, field)| is_source(field) && shows(&message, number, field))
                {
                    twice.push(format!("{}: {message}", path.display()));
                }
            }
        }
    }
    assert!(seen > 100, "only {seen} errors were found");
    assert!(twice.is_empty(), "{}", twice.join("\n"));
}

/// The messages of all errors in and below `items`, each with the fields that it is made of.
fn messages(items: &[syn::Item]) -> Vec<(String, syn::Fields)> {
    let message = |attributes: &[syn::Attribute]| {
        let mut errors = (attributes.iter()).filter(|attribute| attribute.path().is_ident("error"));
        let tokens = errors.next()?.meta.require_list().ok()?.tokens.clone();
        // A message is a string, and what it is made of may follow; or `transparent`.
        let string: syn::LitStr = syn::parse2(tokens.into_iter().next()?.into()).ok()?;
        Some(string.value())
    };
    let mut found = Vec::new();
    for item in items {
        match item {
            syn::Item::Mod(module) => {
                found.extend(messages(
                    module.content.as_ref().map_or(&[], |(_, items)| items),
                ));
            }
            syn::Item::Struct(error) => {
                let fields = error.fields.clone();
                found.extend(message(&error.attrs).map(|message| (message, fields)));
            }
            syn::Item::Enum(errors) => {
                let one =
                    |error: &syn::Variant| Some((message(&error.attrs)?, error.fields.clone()));
                found.extend(errors.variants.iter().filter_map(one));
            }
            _ => {}
        }
    }
    found
}

/// Whether thiserror takes a field for the error's source.
fn is_source(field: &syn::Field) -> bool {
    let is_marked = (field.attrs.iter()).any(|attribute| {
        ["from", "source"]
            .iter()
            .any(|name| attribute.path().is_ident(name))
    });
    is_marked || (field.ident.as_ref()).is_some_and(|name| name == "source")
}

/// Whether a message has a field's text in it.
fn shows(message: &str, number: usize, field: &syn::Field) -> bool {
    let name = (field.ident.as_ref()).map_or(number.to_string(), ToString::to_string);
    [format!("{{{name}}}"), format!("{{{name}:")]
        .iter()
        .any(|place| message.contains(place))
}

/// The bench is linked into this package. A feature that one of its dependencies turns on is in the
/// bench's build, too: of `shinjuku-preempt` only those may be that users can have.
/// What a line prints, or the text that a call on the line before prints.
fn printed(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let text = match line.split_once("println!(") {
        Some((_, text)) => text,
        None => line,
    };
    text.strip_prefix('"')
        .map(|text| text.trim_start_matches("\\n"))
}

/// The runner counts `SKIPPED <test>: <reason>` alone.
#[test]
fn tests_that_skip_themselves_say_so_as_the_runner_reads_it() {
    let is_counted = |said: &str| {
        let named = said.strip_prefix("SKIPPED ");
        named.is_some_and(|named| named.contains(": "))
    };
    let mut uncounted = Vec::new();
    for file in sources("rs") {
        let text = std::fs::read_to_string(&file).unwrap();
        let is_of_tests = file.to_string_lossy().contains("/tests");
        let tests = match text.split_once("#[cfg(test)]") {
            _ if is_of_tests => text.as_str(),
            Some((_, tests)) => tests,
            None => continue,
        };
        for line in tests.lines() {
            let said = printed(line).unwrap_or_default();
            let says_skipped = ["skipped:", "skipped "].iter().any(|start| {
                let beginning = said.get(..start.len()).unwrap_or_default();
                beginning.eq_ignore_ascii_case(start)
            });
            if says_skipped && !is_counted(said) {
                uncounted.push(format!("{}: {said}", file.display()));
            }
        }
    }
    assert!(uncounted.is_empty(), "{}", uncounted.join("\n"));
}

#[test]
fn the_bench_measures_a_build_that_users_can_have() {
    let output = shinjuku_bench::paths::cargo()
        .args([
            "tree",
            "--offline",
            "--package",
            "xtask",
            "--invert",
            "shinjuku-preempt",
        ])
        .args(["--edges", "normal,features", "--prefix", "none"])
        .output()
        .unwrap();
    let tree = String::from_utf8_lossy(&output.stdout);
    let features: Vec<_> = (tree.lines())
        .filter_map(|line| line.strip_prefix("shinjuku-preempt feature \""))
        .filter_map(|line| line.split_once('"'))
        .map(|(feature, _)| feature)
        .collect();
    assert!(features.contains(&"default"), "{output:?}");
    for of_tests in ["stress", "fault-injection"] {
        assert!(!features.contains(&of_tests), "{of_tests} is on: {tree}");
    }
}

/// The anchor that forges make of each heading.
fn anchors(page: &str) -> Vec<String> {
    let prose = page.split("```").step_by(2).flat_map(str::lines);
    let headings = prose.filter_map(|line| Some(line.strip_prefix('#')?.split_once(' ')?.1));
    let anchor = |heading: &str| {
        let kept = |letter: &char| letter.is_alphanumeric() || " -_".contains(*letter);
        let letters = heading.chars().filter(kept);
        letters.collect::<String>().to_lowercase().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

/// On a forge; `guide` in the crate `shinjuku` has the same test for the documentation.
#[test]
fn links_between_files_lead_to_files_and_headings() {
    let (mut seen, mut dead) = (0, Vec::new());
    for file in &sources("md") {
        let page = std::fs::read_to_string(file).unwrap();
        let prose = page.split("```").step_by(2);
        let links = prose.flat_map(|prose| prose.split("](").skip(1));
        for target in links.filter_map(|link| Some(link.split_once(')')?.0)) {
            if target.contains("://") {
                continue;
            }
            seen += 1;
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let linked = match path {
                "" => file.clone(),
                _ => file.parent().unwrap().join(path),
            };
            let has_anchor = || {
                let page = std::fs::read_to_string(&linked).unwrap_or_default();
                anchors(&page).iter().any(|heading| heading == anchor)
            };
            if !linked.exists() || !anchor.is_empty() && !has_anchor() {
                let place = file.strip_prefix(root()).unwrap().display();
                dead.push(format!("{place}: {target}"));
            }
        }
    }
    assert!(seen > 80, "only {seen} links were found");
    assert!(dead.is_empty(), "dead: {}", dead.join(", "));
}

#[test]
fn packages_have_what_a_registry_shows() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folders = std::fs::read_dir(root.join("crates")).unwrap();
    let folders = folders.map(|folder| folder.unwrap().path());
    let mut published = 0;
    for folder in folders.chain([root.join("dune-sys")]) {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        if manifest.contains("publish = false") {
            continue;
        }
        published += 1;
        let folder_name = folder.display();
        for key in [
            "description",
            "license",
            "readme",
            "documentation",
            "keywords",
            "categories",
        ] {
            let has_key = manifest.lines().any(|line| line.starts_with(key));
            assert!(has_key, "{folder_name}: no {key}");
        }
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let text = std::fs::read_to_string(folder.join(licence)).unwrap_or_default();
            let ours = std::fs::read_to_string(root.join(licence)).unwrap();
            assert_eq!(text, ours, "{folder_name}: {licence}");
        }
    }
    assert!(published > 15, "only {published} packages were found");
}

#[test]
fn every_feature_of_the_runtime_stands_in_its_documentation() {
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .join("crates/shinjuku");
    let manifest = std::fs::read_to_string(runtime.join("Cargo.toml")).unwrap();
    let documentation = std::fs::read_to_string(runtime.join("src/lib.rs")).unwrap();
    let (_, features) = manifest.split_once("[features]").unwrap();
    let (features, _) = features.split_once("\n[").unwrap();
    let features: Vec<_> = (features.lines())
        .filter_map(|line| Some(line.split_once(" = [")?.0))
        .filter(|feature| *feature != "stub-workers")
        .collect();
    assert!(features.len() > 5, "{features:?}");
    for feature in features {
        let row = format!("//! | `{feature}` |");
        assert!(documentation.contains(&row), "no row for {feature}");
    }
}
