//! One self-contained page: plots inlined as SVG, tables, the machine, the notes, and how to read
//! it all.

use anyhow::Result;
use shinjuku_plot::{Figure, Table};

use crate::harness::{Measured, Results, Section, targets};

/// The style sheet of every page.
const STYLE: &str = include_str!("page.css");

/// The page as text.
///
/// # Errors
/// If a figure cannot be drawn.
pub fn page<M: Measured>(results: &Results<M>, sections: &[Section]) -> Result<String> {
    let mut body = format!("<h1>Shinjuku for Rust: {}</h1>\n", escape(M::TITLE));
    body += &facts(results);
    body += &targets(&results.targets).map_or_else(String::new, |all| table(&all));
    body += &list("What to know before reading", &results.notes);
    for section in sections {
        body += &format!("<h2>{}</h2>\n", escape(&section.heading));
        if let Some(words) = &section.introduction {
            body += &format!("<p>{}</p>\n", escape(words));
        }
        if !section.figures.is_empty() {
            body += &drawings(&section.figures)?;
        }
        body += &section.tables.iter().map(table).collect::<String>();
        body += &items(section.notes.iter().chain(&section.details));
    }
    Ok(document(
        &format!("bench {} {}", results.bench, results.stamp),
        &body,
    ))
}

/// A document with this title and body.
pub fn document(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Shinjuku for Rust: {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escape(title),
    )
}

fn facts<M: Measured>(results: &Results<M>) -> String {
    let Results {
        machine, settings, ..
    } = results;
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let commit = results.commit.clone();
    let (repetitions, seconds) = (settings.repetitions, settings.seconds_per_point);
    let mut rows = vec![
        ("Measured", format!("{} UTC", results.stamp)),
        ("Commit", commit.unwrap_or_else(|| "unknown".into())),
        ("Command", settings.command.clone()),
        ("CPU", format!("{}, {} cores", machine.cpu, machine.cores)),
        ("Kernel", machine.kernel.clone()),
        ("Virtual machine", yes(machine.hypervisor)),
        ("FSGSBASE", yes(machine.fsgsbase)),
        ("SCHED_FIFO permitted", yes(machine.sched_fifo)),
        (
            "Repetitions",
            format!("{repetitions} of {seconds} s a point, medians"),
        ),
    ];
    rows.extend(results.measured.facts());
    let rows: String = rows
        .iter()
        .map(|(name, value)| format!("<tr><th>{name}</th><td>{}</td></tr>\n", escape(value)))
        .collect();
    format!("<table class=\"facts\">\n{rows}</table>\n")
}

/// Figures, inlined.
///
/// # Errors
/// If a figure cannot be drawn.
pub fn drawings(figures: &[Figure]) -> Result<String> {
    let mut text = String::from("<div class=\"figures\">\n");
    for figure in figures {
        let svg = shinjuku_plot::svg(figure)?;
        text += &format!(
            "<figure role=\"img\" aria-label=\"{}\">\n{}</figure>\n",
            escape(&figure.title),
            svg.split_once("?>").map_or(svg.as_str(), |(_, rest)| rest),
        );
    }
    text += "</div>\n";
    Ok(text)
}

/// A table with its notes.
fn table(table: &Table) -> String {
    let row = |tag: &str, cells: &[String]| {
        let cells: String = cells
            .iter()
            .map(|cell| format!("<{tag}>{}</{tag}>", escape(cell)))
            .collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = table.rows.iter().map(|cells| row("td", cells)).collect();
    let notes: String = (table.notes.iter())
        .map(|note| format!("<p>{}</p>\n", escape(note)))
        .collect();
    format!(
        "<div class=\"wide\"><table>\n<caption>{}</caption>\n<thead>{}</thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n{notes}",
        escape(&table.title),
        row("th", &table.header),
    )
}

fn list(heading: &str, all: &[String]) -> String {
    match items(all.iter()) {
        none if none.is_empty() => none,
        items => format!("<h2>{heading}</h2>\n{items}"),
    }
}

fn items<'a>(all: impl Iterator<Item = &'a String>) -> String {
    let items: String = all
        .map(|item| format!("<li>{}</li>\n", escape(item)))
        .collect();
    match items.is_empty() {
        true => items,
        false => format!("<ul>\n{items}</ul>\n"),
    }
}

/// Text made safe for element content and quoted attributes.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            _ => safe.push(character),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_names_is_text() {
        assert_eq!(
            escape("<b a=\"1\"> & c"),
            "&lt;b a=&quot;1&quot;&gt; &amp; c"
        );
    }
}
