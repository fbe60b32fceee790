//! The command-line options that the example servers share, and the resulting configuration.

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::Error;
use shinjuku::{ClassConfig, Config, ConfigError, MechanismKind};

/// Changes to a server's configuration.
#[derive(Args, Clone, Debug, Default)]
pub struct RuntimeOptions {
    /// The configuration in TOML (the keys are those of `shinjuku::Config`); the options below take
    /// precedence.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Worker threads [default: one for each core but the dispatcher's].
    #[arg(long)]
    pub workers: Option<usize>,
    /// How requests are preempted: auto, none, probe, compiled-probe, signal, escalation, guest or
    /// dune [default: auto].
    #[arg(long, visible_alias = "preemption", value_parser = mechanism)]
    pub mechanism: Option<MechanismKind>,
    /// How long a request may run while others wait, in microseconds [default: 5].
    #[arg(long, value_name = "US")]
    pub quantum_us: Option<f64>,
}

impl RuntimeOptions {
    /// The file's configuration, or the default with the request classes `classes`, changed by the
    /// options.
    ///
    /// # Errors
    /// [`ConfigError`] if the file cannot be read, or is no configuration. The runtime checks
    /// values when it starts.
    pub fn config(&self, classes: &[&str]) -> Result<Config, ConfigError> {
        let mut config = match &self.config {
            Some(path) => Config::from_file(path)?,
            None => Config::default().class(classes.iter().copied().map(ClassConfig::new)),
        };
        config.workers = self.workers.or(config.workers);
        if let Some(mechanism) = self.mechanism {
            config.preemption.mechanism = mechanism;
        }
        if let Some(quantum) = self.quantum_us {
            config.policy.quantum_us = quantum;
        }
        Ok(config)
    }
}

/// Reads one of the names that the configuration file uses.
fn mechanism(name: &str) -> Result<MechanismKind, Error> {
    MechanismKind::deserialize(name.into_deserializer())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: RuntimeOptions,
    }

    fn options(arguments: &[&str]) -> Result<RuntimeOptions, clap::Error> {
        let line = Line::try_parse_from([&["server"], arguments].concat());
        line.map(|line| line.options)
    }

    #[test]
    fn options_go_before_the_file_and_the_file_before_the_default() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "workers = 3\n[policy]\nquantum_us = 7\n").unwrap();
        let path = file.path().to_str().unwrap();
        let config = options(&[
            "--config",
            path,
            "--quantum-us",
            "9.5",
            "--mechanism",
            "escalation",
        ])
        .unwrap();
        let config = config.config(&["ignored"]).unwrap();
        assert_eq!(config.workers, Some(3));
        assert_eq!(config.policy.quantum_us, 9.5);
        assert_eq!(config.preemption.mechanism, MechanismKind::Escalation);
        assert_eq!(config.class, Config::default().class);

        let config = options(&["--workers", "2"])
            .unwrap()
            .config(&["a", "b"])
            .unwrap();
        let names: Vec<_> = config
            .class
            .iter()
            .map(|class| class.name.as_str())
            .collect();
        assert_eq!((config.workers, names), (Some(2), vec!["a", "b"]));
        assert_eq!(config.preemption, Config::default().preemption);
    }

    #[test]
    fn mistakes_are_named() {
        let error = options(&["--mechanism", "hope"]).unwrap_err().to_string();
        assert!(
            error.contains("hope") && error.contains("escalation"),
            "{error}"
        );
        let missing = options(&["--config", "/no/such/file.toml"]).unwrap();
        assert!(
            missing
                .config(&[])
                .unwrap_err()
                .to_string()
                .contains("/no/such/file.toml")
        );
    }
}
