//! What runs the closures of a service: this crate's pool in several configurations, rayon, and
//! tokio's `spawn_blocking`.

use std::time::Duration;

use anyhow::{Context, Result};
use shinjuku::{Class, Config, Pool};

use crate::allow_signals;

/// Every closure is of this class: which ones are long is not told.
const CLASS: &str = "request";
/// What a contender may take to end.
const END: Duration = Duration::from_secs(5);

/// What runs the closures, and which closures.
#[derive(Debug, Clone)]
pub struct Contender {
    /// As the report calls it.
    pub name: &'static str,
    /// Whether their code has probes.
    pub probes: bool,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Pool { config: Box<Config>, signals: bool },
    Rayon,
    SpawnBlocking,
}

impl Contender {
    /// rayon's pool, `spawn`.
    pub const RAYON: Self = Self {
        name: "rayon",
        probes: false,
        kind: Kind::Rayon,
    };

    /// tokio's `spawn_blocking`.
    pub const SPAWN_BLOCKING: Self = Self {
        name: "spawn_blocking",
        probes: false,
        kind: Kind::SpawnBlocking,
    };

    /// [`shinjuku::Pool`] with this configuration, on code with probes.
    pub fn pool(name: &'static str, config: Config) -> Self {
        Self {
            name,
            probes: true,
            kind: Kind::Pool {
                config: Box::new(config),
                signals: false,
            },
        }
    }

    /// The same on code without probes; with `signals`, hard preemption is allowed.
    pub fn pool_without_probes(name: &'static str, config: Config, signals: bool) -> Self {
        Self {
            name,
            probes: false,
            kind: Kind::Pool {
                config: Box::new(config),
                signals,
            },
        }
    }

    /// Starts it, on so many cores.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(&self, cores: usize) -> Result<Executor> {
        let started = match &self.kind {
            Kind::Pool { config, signals } => {
                let mut builder = Pool::builder([CLASS]).config((**config).clone());
                if *signals {
                    builder = builder.allow_hard_preemption(allow_signals());
                }
                builder
                    .start()
                    .map_err(anyhow::Error::from)
                    .and_then(|pool| {
                        let class = pool.class(CLASS).context("a pool without its class")?;
                        Ok(Executor::Pool(Box::new(pool), class))
                    })
            }
            Kind::Rayon => (rayon::ThreadPoolBuilder::new().num_threads(cores).build())
                .map(Executor::Rayon)
                .map_err(Into::into),
            Kind::SpawnBlocking => (tokio::runtime::Builder::new_multi_thread())
                .worker_threads(cores)
                .build()
                .map(Executor::SpawnBlocking)
                .map_err(Into::into),
        };
        started.with_context(|| format!("{} does not start", self.name))
    }
}

/// A contender that runs.
#[derive(Debug)]
pub enum Executor {
    /// This crate's.
    Pool(Box<Pool>, Class),
    /// rayon's.
    Rayon(rayon::ThreadPool),
    /// tokio's.
    SpawnBlocking(tokio::runtime::Runtime),
}

impl Executor {
    /// Hands a closure over; no one waits for it.
    pub fn run(&self, closure: impl FnOnce() + Send + 'static) {
        match self {
            Self::Pool(pool, class) => pool.run(*class, closure).detach(),
            Self::Rayon(pool) => pool.spawn(closure),
            Self::SpawnBlocking(runtime) => drop(runtime.spawn_blocking(closure)),
        }
    }

    /// What it chose, in its own words.
    pub fn description(&self) -> Option<String> {
        match self {
            Self::Pool(pool, _) => Some(pool.description()),
            Self::Rayon(_) | Self::SpawnBlocking(_) => None,
        }
    }

    /// Ends it. What still waits does little.
    pub fn end(self) {
        match self {
            // What is unanswered was counted.
            Self::Pool(pool, _) => drop(pool.shutdown(END)),
            Self::Rayon(pool) => drop(pool),
            Self::SpawnBlocking(runtime) => runtime.shutdown_timeout(END),
        }
    }
}
