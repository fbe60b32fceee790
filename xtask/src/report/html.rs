//! One self-contained page: plots inlined as SVG, tables, the machine, the notes, and how to read
//! it all.

use super::results::{BASELINE, Results, SATURATION_THROUGHPUT, SLOWER};
use super::summary;
use super::table::Table;
use shinjuku_plot::Figure;

use anyhow::Result;

pub(crate) const STYLE: &str = include_str!("page.css");

/// The page as text.
///
/// # Errors
/// If a figure cannot be drawn.
pub fn page(
    results: &Results,
    mixes: &[(String, Vec<Figure>)],
    sweep: &[Figure],
) -> Result<String> {
    let mut body = String::new();
    body += "<h1>Shinjuku for Rust: bench report</h1>\n";
    body += &machine(results);
    body += &list("What to know before reading", &results.notes);
    body += &how_to_read();
    for (mix, figures) in mixes {
        body += &format!("<h2>{}</h2>\n", escape(mix));
        if let Some(words) = results.mixes.get(mix) {
            body += &format!("<p>{}</p>\n", escape(words));
        }
        body += &drawings(figures)?;
        for t in summary::mix_tables(results, mix) {
            body += &table(&t);
        }
    }
    if !sweep.is_empty() {
        body += "<h2>Quantum</h2>\n<p>After figure 7a of the Shinjuku paper (NSDI'19, section 4.3), where every shorter \
                 interval is better, down to 5 µs, on half 1 µs and half 100 µs under c-PRE-MQ. Mix and policy here are \
                 ours, and dearer preemptions: below some quantum they cost more than they free.</p>\n";
        body += &drawings(sweep)?;
    }
    body += "<h2>Costs and checks</h2>\n";
    for t in summary::other_tables(results) {
        body += &table(&t);
    }
    body += &list("What the costs are", &cost_notes(results));
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Shinjuku for Rust: bench {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escape(&results.stamp),
    ))
}

fn machine(results: &Results) -> String {
    let settings = &results.settings;
    let machine = &results.machine;
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let rows = [
        ("Measured", format!("{} UTC", results.stamp)),
        (
            "Commit",
            results.commit.clone().unwrap_or_else(|| "unknown".into()),
        ),
        ("Command", settings.command.clone()),
        ("CPU", format!("{}, {} cores", machine.cpu, machine.cores)),
        (
            "Floor of every p99 by this host's stalls",
            results.stalls.as_ref().map_or_else(
                || "not watched".to_owned(),
                |stalls| format!("{} µs", summary::figure(stalls.p99_us)),
            ),
        ),
        ("Kernel", machine.kernel.clone()),
        ("Virtual machine", yes(machine.hypervisor)),
        ("FSGSBASE", yes(machine.fsgsbase)),
        ("SCHED_FIFO permitted", yes(machine.sched_fifo)),
        ("Scheduling of measured threads", settings.scheduler.clone()),
        ("Workers", settings.workers.to_string()),
        (
            "Repetitions",
            format!(
                "{} of {} s a point",
                settings.repetitions, settings.seconds_per_point
            ),
        ),
    ];
    let rows: String = rows
        .iter()
        .map(|(name, value)| format!("<tr><th>{name}</th><td>{}</td></tr>\n", escape(value)))
        .collect();
    format!("<table class=\"facts\">\n{rows}</table>\n")
}

fn cost_notes(results: &Results) -> Vec<String> {
    let notes = results.cost_details.iter();
    notes
        .map(|(name, detail)| format!("{name}: {}", detail.note))
        .collect()
}

fn how_to_read() -> String {
    let saturation = 100.0 * SATURATION_THROUGHPUT;
    list(
        "How to read it",
        &[
            "Latency is sojourn time: from the moment a request was meant to arrive to its end, in an open loop. A slow \
             system does not slow its own arrivals."
                .to_owned(),
            "Load is the share of the workers' capacity that is offered. All contenders get the same arrivals and service \
             times, on the same cores, in turns."
                .to_owned(),
            "Every value is the median over the repetitions; bars and the spread columns give the lowest and the highest \
             of them. A difference smaller than the spread is none."
                .to_owned(),
            format!(
                "Ratios are taken within this run, against {BASELINE}: first come, first served, never preempted. Absolute \
                 times belong to this machine; ratios travel better."
            ),
            format!(
                "A point where requests were refused, or less than {saturation} % of the offered load was answered (and less by \
                 more than its counting noise), in all or of one class, is saturated: its latency grows with the length of the \
                 experiment, so it has no percentile."
            ),
            format!(
                "A point marked with * did not get the work it was to measure: the time that long requests ran, less the price of \
                 their preemptions, is more than {SLOWER} times the work in them as calibrated. Its latency has something in it \
                 that is not the policy's: a slower CPU, or a work loop that suffers from preemption."
            ),
            "The line and the row of this host's stalls are a floor: of requests that arrive at random moments and wait for nothing \
             but the end of a stall they arrive in, of the dispatcher's core or their worker's, 1 % wait for longer. Stalls are \
             what a thread with the measured threads' priority misses of the time-stamp counter. A p99 near it tells of the host."
                .to_owned(),
            "d-FCFS and work stealing are the policies of IX and ZygOS without those systems' costs."
                .to_owned(),
        ],
    )
}

pub(crate) fn drawings(figures: &[Figure]) -> Result<String> {
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

pub(crate) fn table(table: &Table) -> String {
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

pub(crate) fn list(heading: &str, items: &[String]) -> String {
    if items.is_empty() {
        return String::new();
    }
    let items: String = items
        .iter()
        .map(|item| format!("<li>{}</li>\n", escape(item)))
        .collect();
    format!("<h2>{heading}</h2>\n<ul>\n{items}</ul>\n")
}

/// Text made safe for element content and quoted attributes.
pub(crate) fn escape(text: &str) -> String {
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
