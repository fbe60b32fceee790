//! What is asked for on the command line.

use std::path::PathBuf;

use clap::Args;

/// The parts, a file each.
const PARTS: [&str; 5] = [
    "stages",
    "round-trips",
    "reply-sizes",
    "dispatchers",
    "imbalance",
];

/// Options of `cargo xtask bench dataplane`.
#[derive(Debug, Args)]
pub struct Options {
    /// Fewer repetitions and sizes: within two minutes.
    #[arg(long)]
    pub(super) quick: bool,
    /// Only this part (may be given several times).
    #[arg(long, value_name = "PART", value_parser = PARTS)]
    only: Vec<String>,
    /// Repetitions of each figure [default: 7, quick 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    repetitions: Option<u32>,
    /// Seconds of one repetition [default: 0.5, quick 0.3].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<f64>,
    /// Also write results.json here.
    #[arg(long, value_name = "PATH")]
    pub(super) json: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let valid = |seconds: &f64| (0.05..=10.0).contains(seconds);
    let seconds = text.parse().ok().filter(valid);
    seconds.ok_or_else(|| "it must lie between 0.05 and 10".to_owned())
}

impl Options {
    pub(super) fn repetitions(&self) -> u32 {
        self.repetitions.unwrap_or(if self.quick { 3 } else { 7 })
    }

    pub(super) fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(if self.quick { 0.3 } else { 0.5 })
    }

    pub(super) fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|one| one == part)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn options(line: &str) -> Result<Options, String> {
        let line = Line::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        Ok(line.options)
    }

    #[test]
    fn all_parts_are_wanted_unless_some_are_named() {
        assert!(
            PARTS
                .iter()
                .all(|part| options("dataplane").unwrap().wants(part))
        );
        let only = options("dataplane --only stages --only imbalance").unwrap();
        let wanted: Vec<_> = PARTS.into_iter().filter(|part| only.wants(part)).collect();
        assert_eq!(wanted, ["stages", "imbalance"]);
    }

    #[test]
    fn wrong_options_are_refused_in_words() {
        for (line, words) in [
            ("dataplane --only everything", "round-trips"),
            ("dataplane --seconds 0", "between 0.05 and 10"),
            ("dataplane --repetitions 0", "1..=100"),
        ] {
            let error = options(line).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
