//! A plan's text, and errors that name a place in it.

use std::ops::Range;
use std::path::Path;

use toml::Spanned;

use super::many::Many;
use crate::SimError;

/// A plan's text, to locate errors in it.
pub(super) struct Source<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// An error at a place of the text.
    pub(super) fn error(&self, span: Range<usize>, what: impl ToString) -> SimError {
        let start = span.start.min(self.text.len());
        let before = &self.text[..start];
        let line = before.matches('\n').count() + 1;
        SimError::Plan {
            path: self.path.to_owned(),
            line,
            key: self.key(start),
            what: what.to_string(),
        }
    }

    /// The key whose value (or which itself) is at `start`: what stands before the last `=` up to
    /// there, or else the line.
    fn key(&self, start: usize) -> String {
        let line_start = self.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = self.text[start..]
            .find('\n')
            .map_or(self.text.len(), |at| start + at);
        let line = &self.text[line_start..line_end];
        let before = &self.text[..start];
        let assignment = if line.contains('=') {
            line
        } else {
            // Inside a list over several lines, the key is further up.
            before.rfind('=').map_or(line, |at| {
                let from = before[..at].rfind('\n').map_or(0, |at| at + 1);
                &before[from..=at]
            })
        };
        let assignment = if assignment.trim_start().starts_with('{') {
            // A table of a list, on a line of its own: the field around the place.
            let from = self.text[line_start..start].rfind(['{', ',']);
            &line[from.map_or(0, |at| at + 1)..]
        } else {
            assignment
        };
        let key = assignment.split('=').next().unwrap_or(assignment);
        key.trim().trim_matches(['[', ']', '"']).to_owned()
    }

    /// The value, if it holds.
    pub(super) fn check<T: Copy + ToString>(
        &self,
        value: &Spanned<T>,
        holds: impl Fn(T) -> bool,
        expected: &str,
    ) -> Result<T, SimError> {
        let given = *value.get_ref();
        if holds(given) {
            return Ok(given);
        }
        Err(self.error(
            value.span(),
            format!("it is {}: {expected}", given.to_string()),
        ))
    }

    /// The values, if there are any and all hold.
    pub(super) fn check_all<T: Copy + ToString>(
        &self,
        values: &Spanned<Many<T>>,
        holds: impl Fn(T) -> bool,
        expected: &str,
    ) -> Result<Vec<T>, SimError> {
        self.not_empty(values)?;
        for value in &values.get_ref().0 {
            if !holds(*value) {
                let what = format!("it is {}: {expected}", value.to_string());
                return Err(self.error(values.span(), what));
            }
        }
        Ok(values.get_ref().0.clone())
    }

    pub(super) fn not_empty<T>(&self, values: &Spanned<Many<T>>) -> Result<(), SimError> {
        if values.get_ref().0.is_empty() {
            return Err(self.error(values.span(), "the list is empty: give at least one value"));
        }
        Ok(())
    }

    /// Microseconds, zero or more, in ns.
    pub(super) fn micros(&self, value: &Option<Spanned<f64>>) -> Result<u64, SimError> {
        let Some(value) = value else { return Ok(0) };
        let holds = |us: f64| (0.0..=1e12).contains(&us);
        let us = self.check(value, holds, "it must lie between 0 and 1e12 us")?;
        Ok((us * 1_000.0).round() as u64)
    }
}
