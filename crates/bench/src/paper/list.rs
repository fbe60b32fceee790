//! `docs/paper.toml`: what the documents claim, each claim once, with its place, and how far a run
//! of ours is held to it.
//!
//! The documents' texts are not in the repository. So a place is checked against the headings that
//! the list itself has of each document, and these against the texts on machines that have them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use shinjuku_plot::Table;

use super::reading::Reading;
use crate::harness::Goal;

/// The list, as it was when this program was built.
const LIST: &str = include_str!("../../../../docs/paper.toml");

/// All documents, and all that is claimed in them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// By the name that items have for them.
    #[serde(rename = "document")]
    pub documents: BTreeMap<String, Document>,
    /// What measured items are read from.
    #[serde(rename = "command")]
    pub commands: BTreeMap<String, Command>,
    /// In reading order, those of one document together.
    #[serde(rename = "item")]
    pub items: Vec<Item>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// What it is called here.
    pub name: String,
    /// Its authors, its title, and where it was published.
    pub reference: String,
    /// Its sections or slides, with their headings.
    pub places: BTreeMap<String, String>,
}

/// A command that measures.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// Arguments of `cargo xtask`.
    pub line: Vec<String>,
    /// About how many seconds it takes by its plan: with `--quick`, by default, with `--full`.
    pub seconds: [u64; 3],
}

/// A table, a figure or a claim.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// What to call it on the command line.
    pub name: String,
    /// The document that claims it.
    pub document: String,
    /// Where: a key of the document's `places`.
    pub place: String,
    /// What is claimed, in our words, with the numbers and parameters of the text.
    pub claim: String,
    /// What of the set-up the document does not say, and what is otherwise different here.
    #[serde(default)]
    pub ours: String,
    /// How it is reproduced.
    pub run: Run,
    /// What is read from that, and what it is held to.
    #[serde(default, rename = "check")]
    pub checks: Vec<Check>,
}

/// How an item is reproduced.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Run {
    /// Simulated: a figure of `cargo xtask figures`.
    Figure(String),
    /// Measured: one of the list's commands, which writes a results.json.
    Command(String),
    /// Not reproduced, and why.
    Missing(String),
}

/// A number that a run gives, and what it should be.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// What the number is, with its unit.
    pub what: String,
    pub reads: Reading,
    pub paper: Option<f64>,
    /// How far from the document's it may be, as a share; without, it stands beside the
    /// document's and is not held to it.
    pub within: Option<f64>,
    /// Which difference is an improvement; without, none is.
    pub better: Option<Better>,
    /// The least that it must be, whatever the document's.
    pub at_least: Option<f64>,
    /// The most that it may be.
    pub at_most: Option<f64>,
}

/// Which way a number improves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// The more the better.
    More,
    /// The less the better.
    Less,
}

impl Check {
    /// What `--check` holds the number to.
    pub fn goals(&self) -> Vec<Goal> {
        let near = self.paper.zip(self.within);
        let least = near.filter(|_| self.better != Some(Better::Less));
        let most = near.filter(|_| self.better != Some(Better::More));
        [
            self.at_least.map(Goal::AtLeast),
            self.at_most.map(Goal::AtMost),
            least.map(|(paper, within)| Goal::AtLeast(paper * (1.0 - within))),
            most.map(|(paper, within)| Goal::AtMost(paper * (1.0 + within))),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

impl List {
    /// The project's list.
    ///
    /// # Errors
    /// If it is no such list.
    pub fn read() -> Result<Self> {
        toml::from_str(LIST).context("docs/paper.toml")
    }

    /// The command of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn command(&self, name: &str) -> Result<&Command> {
        let command = self.commands.get(name);
        command.with_context(|| format!("docs/paper.toml has no command {name:?}"))
    }

    /// What reproduces an item alone, or why nothing does.
    pub fn words(&self, run: &Run) -> String {
        match run {
            Run::Figure(name) => format!("simulated: `figures --only {name}`"),
            Run::Command(name) => {
                let line = self
                    .commands
                    .get(name)
                    .map(|command| command.line.join(" "));
                format!("measured: `{}`", line.unwrap_or_default())
            }
            Run::Missing(why) => why.clone(),
        }
    }

    /// The items to run: all, or those of these names.
    ///
    /// # Errors
    /// There is no item of a name.
    pub fn chosen(&self, names: &[String]) -> Result<Vec<&Item>> {
        for name in names {
            let known = self.items.iter().any(|item| item.name == *name);
            ensure!(known, "docs/paper.toml has no item {name:?}");
        }
        let wanted = |item: &&Item| names.is_empty() || names.contains(&item.name);
        Ok(self.items.iter().filter(wanted).collect())
    }

    /// What was reproduced and how far, as Markdown: a line an item.
    pub fn table(&self) -> String {
        let mut text = String::from("| item | place | how | held to |\n|---|---|---|---|\n");
        for item in &self.items {
            let goals = item.checks.iter().flat_map(|check| {
                let goals = check.goals().into_iter();
                goals.map(|goal| format!("{}: {goal}", check.what))
            });
            let held = goals.collect::<Vec<_>>().join("; ");
            let held = match (&item.run, held.is_empty()) {
                (Run::Missing(_), _) => "not reproduced",
                (_, true) => "nothing: it stands beside",
                _ => &held,
            };
            let document = &self.documents[&item.document].name;
            let row = [
                format!("`{}`", item.name),
                format!("{document}, {}", item.place),
                self.words(&item.run),
                held.to_owned(),
            ];
            text += &format!("| {} |\n", row.join(" | "));
        }
        text
    }

    /// The list on a terminal, with the seconds that each item takes alone: with `--quick`, by
    /// default, with `--full`.
    pub fn names(&self, seconds: impl Fn(&Run) -> [u64; 3]) -> Table {
        let header = ["name", "quick, s", "default, s", "full, s", "how"];
        let mut table = Table::new("items", header);
        for item in &self.items {
            let [quick, default, full] = seconds(&item.run).map(|seconds| seconds.to_string());
            let how = self.words(&item.run);
            table.push([item.name.clone(), quick, default, full, how]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;
    use std::{env, fs, io};

    use super::*;

    /// A text's letters and digits: case, punctuation, white space and which of Unicode's two signs
    /// of a micro it has make no difference.
    fn letters(text: &str) -> String {
        let letters = text.chars().filter(|letter| letter.is_alphanumeric());
        let letters = letters.flat_map(char::to_lowercase);
        letters
            .map(|letter| if letter == 'µ' { 'μ' } else { letter })
            .collect()
    }

    /// Whether a place stands in a document's text: a section's number and heading are a line, a
    /// slide's title begins a line that its number ends, and all else is within a line.
    fn stands(text: &str, place: &str, heading: &str) -> bool {
        let heading = letters(heading);
        let is_there = |line: &str| match place.split_once(' ') {
            Some(("section", number)) => line
                .split_once(' ')
                .is_some_and(|(first, rest)| first == number && letters(rest) == heading),
            Some(("slide", number)) => {
                let last = line.split_whitespace().last();
                last == Some(number) && letters(line).starts_with(&heading)
            }
            _ => letters(line).contains(&heading),
        };
        text.lines().any(is_there)
    }

    /// The documents' texts, where this machine has them: in `SHINJUKU_DOCUMENTS`, or beside the
    /// workspace.
    fn texts() -> io::Result<Vec<String>> {
        let beside = || crate::paths::workspace_root().join("../shared/seeds");
        let directory = env::var_os("SHINJUKU_DOCUMENTS").map_or_else(beside, PathBuf::from);
        let files = fs::read_dir(directory)?.map(|file| Ok(file?.path()));
        let files: Vec<_> = files.collect::<io::Result<_>>()?;
        let is_text = |path: &&PathBuf| path.extension().is_some_and(|end| end == "txt");
        files
            .iter()
            .filter(is_text)
            .map(fs::read_to_string)
            .collect()
    }

    #[test]
    fn places_stand_in_the_documents() {
        let texts = match texts() {
            Ok(texts) => texts,
            Err(error) => {
                println!("SKIPPED places_stand_in_the_documents: no texts are there: {error}");
                return;
            }
        };
        for Document { name, places, .. } in List::read().unwrap().documents.values() {
            let missing = |text: &String| {
                let mut missing = places.clone();
                missing.retain(|place, heading| !stands(text, place, heading));
                missing
            };
            let fewest = texts.iter().map(missing).min_by_key(BTreeMap::len);
            assert_eq!(fewest, Some(BTreeMap::new()), "{name}");
        }
    }

    #[test]
    fn a_place_stands_where_number_and_heading_do() {
        let text = "3.2 Fast  Preemption\nLatency vs Load, 10\u{b5}s Fixed 99 th 9\nUse Case: x\n";
        for (place, heading, is_there) in [
            ("section 3.2", "Fast preemption", true),
            ("section 3.3", "Fast preemption", false),
            ("section 3.2", "Preemption", false),
            ("slide 9", "Latency vs Load – 10\u{3bc}s", true),
            ("slide 9", "Fixed", false),
            ("slide 10", "Latency vs Load – 10\u{3bc}s", false),
            ("use case", "Use Case: X", true),
            ("use case", "Use Case: Y", false),
        ] {
            assert_eq!(stands(text, place, heading), is_there, "{place} {heading}");
        }
    }

    /// What a document's number is of, where it would be the same claim in two items: its unit, or
    /// all that is said of it.
    fn unit(what: &str) -> String {
        let last = what.rsplit(", ").next().unwrap_or(what);
        let is_unit = ["ns", "us", "ms", "%", "Gb/s"].contains(&last);
        letters(if is_unit { last } else { what })
    }

    /// An item may read a number in several ways, and another may measure what one simulates.
    #[test]
    fn no_number_is_claimed_or_read_in_two_items() {
        let list = List::read().unwrap();
        let (mut claimed, mut read) = (BTreeMap::new(), BTreeMap::new());
        for item in &list.items {
            let is_simulated = matches!(item.run, Run::Figure(_));
            for check in &item.checks {
                let reads = format!("{:?} {:?}", item.run, check.reads);
                let other = read.insert(reads, &item.name);
                assert_eq!(other, None, "{}: {}", item.name, check.what);
                let Some(paper) = check.paper else { continue };
                let place = (&item.document, &item.place, is_simulated);
                let number = (place, paper.to_string(), unit(&check.what));
                let other = claimed.insert(number, &item.name);
                let is_own = other.is_none_or(|other| *other == item.name);
                assert!(is_own, "{}, {other:?}: {}", item.name, check.what);
            }
        }
    }

    #[test]
    fn nothing_is_without_a_source_and_no_claim_is_there_twice() {
        let list = List::read().unwrap();
        let (mut names, mut claims) = (BTreeSet::new(), BTreeSet::new());
        for item in &list.items {
            let name = &item.name;
            let document = list.documents.get(&item.document);
            let document = document.unwrap_or_else(|| panic!("{name}: {}", item.document));
            let is_there = document.places.contains_key(&item.place);
            assert!(is_there, "{name}: {}", item.place);
            assert!(item.claim.split_whitespace().count() > 4, "{name}");
            assert!(names.insert(name), "{name} is there twice");
            assert!(
                claims.insert(letters(&item.claim)),
                "{name}: its claim is there twice"
            );
        }
        let used: BTreeSet<_> = list.items.iter().map(|item| &item.document).collect();
        let known: BTreeSet<_> = list.documents.keys().collect();
        assert_eq!(used, known);
    }

    #[test]
    fn what_runs_is_read_and_every_number_is_compared() {
        for item in List::read().unwrap().items {
            let runs = !matches!(item.run, Run::Missing(_));
            assert_eq!(runs, !item.checks.is_empty(), "{}", item.name);
            for check in item.checks {
                let compared = check.paper.is_some() || !check.goals().is_empty();
                assert!(compared, "{}: {}", item.name, check.what);
                let held = check.within.is_none() || check.paper.is_some();
                assert!(held, "{}: within of no number", item.name);
            }
        }
    }

    #[test]
    fn every_command_is_there_and_read() {
        let list = List::read().unwrap();
        let read = |name: &String| {
            let mut items = list.items.iter();
            items.any(|item| item.run == Run::Command(name.clone()))
        };
        for item in &list.items {
            if let Run::Command(name) = &item.run {
                assert!(list.command(name).is_ok(), "{}: {name}", item.name);
            }
        }
        for (name, command) in &list.commands {
            assert!(read(name), "{name}");
            assert!(
                command.seconds.is_sorted() && command.seconds[0] > 0,
                "{name}"
            );
        }
    }

    #[test]
    fn the_manual_has_the_table_of_what_was_reproduced() {
        let manual = include_str!("../../../../docs/results.md");
        let table = List::read().unwrap().table();
        assert!(
            manual.contains(&table),
            "docs/results.md should have\n{table}"
        );
    }

    #[test]
    fn a_number_is_held_to_the_side_that_is_worse() {
        let check = |better| Check {
            what: "gain".to_owned(),
            reads: Reading::Value {
                line: "a".to_owned(),
                at: 1.0,
            },
            paper: Some(4.0),
            within: Some(0.25),
            better,
            at_least: None,
            at_most: None,
        };
        let (least, most) = (Goal::AtLeast(3.0), Goal::AtMost(5.0));
        assert_eq!(check(Some(Better::More)).goals(), [least]);
        assert_eq!(check(Some(Better::Less)).goals(), [most]);
        assert_eq!(check(None).goals(), [least, most]);
        let beside = Check {
            within: None,
            ..check(None)
        };
        assert_eq!(beside.goals(), []);
    }

    #[test]
    fn an_item_that_is_not_there_is_an_error() {
        let list = List::read().unwrap();
        let first = list.items[0].name.clone();
        let chosen = list.chosen(std::slice::from_ref(&first)).unwrap();
        assert_eq!(chosen[0].name, first);
        let error = list.chosen(&["none".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("none"), "{error}");
    }
}
