//! The client's side of a point: one thread of `shinjuku-load` on its own core.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::Result;
use core_affinity::CoreId;
use shinjuku_loadgen::{Control, Rates, Settings};

use super::KEYS;
use super::results::{Cell, Kind};
use super::scenario::{CONNECTIONS, Saturation, Scenario};
use super::server::Server;

/// What is the same for all points of a scenario.
pub struct Client<'a> {
    /// The scenario.
    pub scenario: &'a Scenario,
    /// The client's core.
    pub core: CoreId,
    /// How long a point lasts.
    pub seconds: f64,
    /// Ends a point early.
    pub stop: &'a AtomicBool,
}

impl Client<'_> {
    /// What the server does for the scenario's requests if its connections are kept busy.
    ///
    /// # Errors
    /// The server is gone.
    pub fn capacity(&self, server: &mut Server, seed: u64) -> Result<Cell> {
        let kind = Kind::Saturation {
            name: "capacity for the mix".to_owned(),
        };
        let settings = Settings {
            saturate: Some(1),
            ..self.settings(server, &self.scenario.requests)?
        };
        self.measure(server, settings, kind, seed)
    }

    /// A saturation.
    ///
    /// # Errors
    /// The server is gone.
    pub fn saturate(
        &self,
        server: &mut Server,
        saturation: &Saturation,
        seed: u64,
    ) -> Result<Cell> {
        let kind = Kind::Saturation {
            name: saturation.name.to_owned(),
        };
        let settings = Settings {
            saturate: Some(saturation.depth),
            ..self.settings(server, &saturation.requests)?
        };
        self.measure(server, settings, kind, seed)
    }

    /// A load: `share` of the capacity, which is `rate` requests per second.
    ///
    /// # Errors
    /// The server is gone.
    pub fn load(&self, server: &mut Server, share: f64, rate: f64, seed: u64) -> Result<Cell> {
        let settings = Settings {
            rate: Rates::new(vec![rate]),
            ..self.settings(server, &self.scenario.requests)?
        };
        self.measure(server, settings, Kind::Load { share }, seed)
    }

    fn settings(&self, server: &Server, requests: &[&str]) -> Result<Settings> {
        let requests = requests.iter().map(|one| one.parse());
        Ok(Settings {
            target: Some(server.address.to_string()),
            request: requests.collect::<Result<_, _>>()?,
            keys: Some(KEYS),
            connections: Some(CONNECTIONS),
            cores: vec![self.core.id],
            seconds: Some(self.seconds),
            warm_up: Some(self.seconds / 10.0),
            drain: Some(1.0),
            ..Settings::default()
        })
    }

    fn measure(
        &self,
        server: &mut Server,
        settings: Settings,
        kind: Kind,
        seed: u64,
    ) -> Result<Cell> {
        let plan = settings.check()?;
        let control = Control {
            stop: self.stop,
            watch: None,
        };
        let (started, before) = (Instant::now(), server.cpu_seconds()?);
        let measured = plan.measure(plan.loads()[0], seed, &[], &control)?;
        let elapsed = started.elapsed().as_secs_f64();
        let cpu_cores = (server.cpu_seconds()? - before) / elapsed;
        Ok(Cell {
            contender: String::new(),
            kind,
            seed,
            cpu_cores,
            point: measured.point,
        })
    }
}
