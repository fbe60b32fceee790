//! One line of the doctor's report.

use serde::Serialize;

/// Something that was looked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked for.
    pub what: &'static str,
    /// Whether it is there.
    pub found: bool,
    /// What exactly was found, or why it counts as missing.
    pub detail: String,
    /// What to do about it. Always there for what is missing; sometimes for what was found.
    pub advice: Option<&'static str>,
}

impl Finding {
    /// It is there, and good as it is.
    pub fn found(what: &'static str, detail: impl Into<String>) -> Self {
        Self {
            what,
            found: true,
            detail: detail.into(),
            advice: None,
        }
    }

    /// It is not there.
    pub fn missing(what: &'static str, detail: impl Into<String>, advice: &'static str) -> Self {
        Self {
            what,
            found: false,
            detail: detail.into(),
            advice: Some(advice),
        }
    }

    /// What is there; or why it is not, with what to do about that.
    pub fn of(
        what: &'static str,
        looked: Result<impl Into<String>, impl Into<String>>,
        advice: &'static str,
    ) -> Self {
        match looked {
            Ok(detail) => Self::found(what, detail),
            Err(why) => Self::missing(what, why, advice),
        }
    }

    /// Adds advice to what was found.
    #[must_use]
    pub fn but(mut self, advice: &'static str) -> Self {
        self.advice = Some(advice);
        self
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = if self.found { "found" } else { "missing" };
        write!(formatter, "{word:8}{}: {}", self.what, self.detail)?;
        if let Some(advice) = self.advice {
            write!(formatter, "\n          advice: {advice}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_whether_and_what_to_do() {
        assert_eq!(
            Finding::found("AVX2", "yes").to_string(),
            "found   AVX2: yes"
        );
        assert_eq!(
            Finding::missing("hugepages", "0 of 2 MiB", "reserve some").to_string(),
            "missing hugepages: 0 of 2 MiB\n          advice: reserve some"
        );
    }
}
