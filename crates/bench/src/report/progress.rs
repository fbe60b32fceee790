//! The progress of a long measurement: a bar with the time left on a terminal, plain lines
//! elsewhere.
//!
//! It draws only when told of a step, never from a thread of its own: a thread that wakes up to
//! draw would disturb what is measured.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

/// Shows how far a measurement of known expected length is.
#[derive(Debug)]
pub struct Progress {
    /// `None` where standard error is no terminal.
    bar: Option<ProgressBar>,
    expected: Duration,
    done: Duration,
    started: Instant,
}

impl Progress {
    /// Starts, with the time all steps together are expected to take.
    pub fn new(expected: Duration) -> Self {
        Self::on(expected, std::io::stderr().is_terminal())
    }

    fn on(expected: Duration, terminal: bool) -> Self {
        let bar = terminal.then(|| {
            // Milliseconds of expected time, not steps, so that the estimate holds where steps
            // differ in length.
            let bar = ProgressBar::new(expected.as_millis().try_into().unwrap_or(u64::MAX));
            if let Ok(style) =
                ProgressStyle::with_template("{bar:30} {percent:>3} %  {eta:>4} left  {wide_msg}")
            {
                bar.set_style(style.progress_chars("=> "));
            }
            bar
        });
        Self {
            bar,
            expected,
            done: Duration::ZERO,
            started: Instant::now(),
        }
    }

    /// Says what is being measured now.
    pub fn begin(&self, step: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(step.to_owned()),
            None => eprintln!("{}", self.line(step)),
        }
    }

    /// Says how far the present step is: on the bar only, since lines would scroll all else away.
    pub fn detail(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.to_owned());
        }
    }

    /// Says that a step is done which was expected to take `expected`.
    pub fn end(&mut self, expected: Duration) {
        self.done += expected;
        if let Some(bar) = &self.bar {
            bar.set_position(self.done.as_millis().try_into().unwrap_or(u64::MAX));
        }
    }

    /// Prints a line without disturbing the bar.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// The plain form: percent done, the time left as far as it can be told, the step.
    fn line(&self, step: &str) -> String {
        let part = self.done.as_secs_f64() / self.expected.as_secs_f64().max(f64::MIN_POSITIVE);
        let percent = (part * 100.0).min(100.0);
        if part <= 0.0 || part >= 1.0 {
            return format!("{percent:3.0} %  {step}");
        }
        let left = self.started.elapsed().mul_f64((1.0 - part) / part);
        format!("{percent:3.0} %  {} left  {step}", HumanDuration(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_lines_tell_how_far_it_is_by_expected_time() {
        let mut progress = Progress::on(Duration::from_secs(40), false);
        assert_eq!(progress.line("first"), "  0 %  first");
        progress.end(Duration::from_secs(10));
        let line = progress.line("second");
        assert!(
            line.starts_with(" 25 %") && line.contains(" left ") && line.ends_with("second"),
            "{line}"
        );
        progress.end(Duration::from_secs(60));
        assert_eq!(progress.line("late"), "100 %  late");
    }
}
