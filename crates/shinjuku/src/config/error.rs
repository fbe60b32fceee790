//! What can be wrong with a configuration.

use std::fmt;
use std::path::{Path, PathBuf};

/// A configuration that cannot be used. The message names the value, the place, the reason and the
/// remedy, so the error has no `source`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("configuration file {} cannot be read: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// Not TOML, an unknown key, or a value of the wrong type.
    #[error("{}: {message}", Place { file, line, column, key })]
    Syntax {
        /// The file; `None` if the text did not come from one.
        file: Option<PathBuf>,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// Dotted path of the key or table, where it is known.
        key: Option<String>,
        /// What is wrong.
        message: String,
    },
    /// A value that is out of range or does not go with the others.
    #[error("`{key}` is {value}, but must be {allowed}: {advice}")]
    Invalid {
        /// Dotted path of the key; classes with their number and name.
        key: String,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
        /// What to do about it.
        advice: String,
    },
    /// The kernel does not tell which cores may be used.
    #[error(
        "the cores that this thread may run on cannot be read: {cause}; machines with more than 1024 cores are not \
         supported"
    )]
    Cores {
        /// The system's error.
        cause: std::io::Error,
    },
    /// The policy does not take its parameters. Of a policy of this project
    /// [`Config::validate`](super::Config::validate) finds that first.
    #[error("`policy`: {0}")]
    Policy(shinjuku_policy::ParameterError),
}

impl From<shinjuku_policy::ParameterError> for ConfigError {
    fn from(cause: shinjuku_policy::ParameterError) -> Self {
        Self::Policy(cause)
    }
}

impl ConfigError {
    pub(crate) fn invalid(
        key: impl Into<String>,
        value: impl fmt::Display,
        allowed: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::Invalid {
            key: key.into(),
            value: value.to_string(),
            allowed: allowed.into(),
            advice: advice.into(),
        }
    }

    pub(super) fn syntax(file: Option<&Path>, text: &str, mut error: toml::de::Error) -> Self {
        let start = error.span().map_or(0, |span| span.start);
        let before = text.get(..start).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let message = in_words(error.message());
        // Without its input, the error's text ends with the key, which it tells in no other way.
        error.set_input(None);
        let shown = error.to_string();
        let key = shown
            .trim_end()
            .rsplit_once("\nin `")
            .and_then(|(_, key)| key.strip_suffix('`'));
        Self::Syntax {
            file: file.map(Path::to_owned),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            key: key.map(str::to_owned),
            message,
        }
    }
}

/// Names what is expected as TOML does, not as Rust does.
fn in_words(message: &str) -> String {
    [
        ("expected usize", "a whole number, 0 or more"),
        ("expected u32", "a whole number, 0 to 4294967295"),
        ("expected i32", "a whole number"),
        ("expected f64", "a number"),
        ("expected a sequence", "a list"),
        ("expected a boolean", "true or false"),
    ]
    .iter()
    .find_map(|(rust, words)| Some(format!("{}expected {words}", message.strip_suffix(rust)?)))
    .unwrap_or_else(|| message.to_owned())
}

/// `server.toml, line 3, column 9, in `policy.kind``
struct Place<'a> {
    file: &'a Option<PathBuf>,
    line: &'a usize,
    column: &'a usize,
    key: &'a Option<String>,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.file {
            Some(file) => write!(formatter, "{}", file.display())?,
            None => formatter.write_str("configuration")?,
        }
        write!(formatter, ", line {}, column {}", self.line, self.column)?;
        match self.key {
            Some(key) => write!(formatter, ", in `{key}`"),
            None => Ok(()),
        }
    }
}
