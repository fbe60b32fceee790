//! How the items are shown: a section a document, with plots, and our numbers beside the
//! document's.

use shinjuku_plot::Table;

use super::verdict::NEAR;
use super::{Judged, Paper, Reproduced, Verdict};
use crate::harness::{Measured, Section, Target, distinct};
use crate::report::figure;

impl Measured for Paper {
    const BENCH: &'static str = "paper";
    const TITLE: &'static str = "the papers, item by item";
    const DIRECTORY: &'static str = "paper";
    const DRAWS_THIS_MACHINE: bool = false;

    fn facts(&self) -> Vec<(&'static str, String)> {
        let near = format!(
            "within {:.0} % of the document's, where an item has no other share",
            100.0 * NEAR
        );
        vec![("Agrees", near)]
    }

    fn targets(&self) -> Vec<Target> {
        let targets = |item: &Reproduced| -> Vec<Target> {
            let all = item.checks.iter();
            all.flat_map(|check| check.targets(&item.name)).collect()
        };
        self.items.iter().flat_map(targets).collect()
    }

    fn sections(&self) -> Vec<Section> {
        let documents = distinct(self.items.iter().map(|item| item.document.as_str()));
        documents.into_iter().map(|one| self.section(one)).collect()
    }

    fn csv(&self) -> Vec<(&'static str, String)> {
        let mut text = String::from("item,document,place,what,paper,ours,verdict,why_not\n");
        for item in &self.items {
            text += &item
                .checks
                .iter()
                .map(|check| line(item, check))
                .collect::<String>();
            if item.checks.is_empty() {
                let missing = Judged {
                    what: String::new(),
                    paper: None,
                    ours: None,
                    wanted: Vec::new(),
                    verdict: Verdict::CannotRun,
                    why_not: Some(item.how.clone()),
                };
                text += &line(item, &missing);
            }
        }
        vec![("items.csv", text)]
    }
}

/// A line of items.csv.
fn line(item: &Reproduced, check: &Judged) -> String {
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let cells = [
        item.name.clone(),
        item.document.clone(),
        quoted(&item.place),
        quoted(&check.what),
        number(check.paper),
        number(check.ours),
        check.verdict.to_string(),
        quoted(check.why_not.as_deref().unwrap_or_default()),
    ];
    cells.join(",") + "\n"
}

impl Paper {
    fn section(&self, document: &str) -> Section {
        let items = || self.items.iter().filter(|item| item.document == document);
        let mut table = Table::new(
            "our number beside the document's",
            ["item", "number", "document", "ours", "verdict"],
        );
        for item in items() {
            for check in &item.checks {
                table.push(row(item, check));
            }
        }
        let missing = items().filter(|item| item.checks.is_empty());
        let figures = self.figures.iter().filter(|(of, _)| of == document);
        Section {
            heading: document.to_owned(),
            figures: figures.map(|(_, figure)| figure.clone()).collect(),
            tables: (!table.rows.is_empty())
                .then_some(table)
                .into_iter()
                .collect(),
            notes: missing
                .map(|item| format!("{}: cannot be run here; {}", item.name, item.how))
                .collect(),
            details: items().map(detail).collect(),
            ..Section::default()
        }
    }
}

fn row(item: &Reproduced, check: &Judged) -> [String; 5] {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), figure);
    [
        item.name.clone(),
        check.what.clone(),
        number(check.paper),
        number(check.ours),
        match &check.why_not {
            Some(why) => format!("{}: {why}", check.verdict),
            None => check.verdict.to_string(),
        },
    ]
}

/// What the document says, what is ours, and what was found.
fn detail(item: &Reproduced) -> String {
    let mut text = format!(
        "{}, {}: {} [{}]",
        item.name, item.place, item.claim, item.how
    );
    if !item.ours.is_empty() {
        text += &format!(" Our choice: {}", item.ours);
    }
    if let Some(found) = &item.found {
        text += &format!(" Found: {found}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_every_item_with_its_verdict() {
        let item = |name: &str, checks| Reproduced {
            name: name.to_owned(),
            document: "D".to_owned(),
            place: "section 1".to_owned(),
            claim: "five times".to_owned(),
            ours: "sixteen".to_owned(),
            how: "simulated".to_owned(),
            found: Some("4".to_owned()),
            checks,
        };
        let judged = Judged {
            what: "gain, \"times\"".to_owned(),
            paper: Some(5.0),
            ours: Some(4.0),
            wanted: vec![crate::harness::Goal::AtLeast(4.5)],
            verdict: Verdict::Worse,
            why_not: None,
        };
        let paper = Paper {
            items: vec![item("a", vec![judged]), item("b", Vec::new())],
            figures: Vec::new(),
        };
        let [section] = &paper.sections()[..] else {
            panic!("one document");
        };
        let cells = ["a", "gain, \"times\"", "5.00", "4.00", "worse"];
        assert_eq!(section.tables[0].rows, [cells]);
        assert!(section.notes[0].starts_with("b: cannot be run here; "));
        assert_eq!(section.details.len(), 2);
        assert!(section.details[0].ends_with("Our choice: sixteen Found: 4"));
        let (_, csv) = &paper.csv()[0];
        let lines: Vec<_> = csv.lines().skip(1).collect();
        let judged = "a,D,\"section 1\",\"gain, \"\"times\"\"\",5,4,worse,\"\"";
        let missing = "b,D,\"section 1\",\"\",,,cannot be run here,\"simulated\"";
        assert_eq!(lines, [judged, missing]);
        let targets = paper.targets();
        assert_eq!(targets.len(), 1);
        assert!(!crate::harness::passes(&targets, true));
        let json = serde_json::to_string(&paper).unwrap();
        let read: Paper = serde_json::from_str(&json).unwrap();
        assert_eq!(read.items, paper.items);
    }
}
