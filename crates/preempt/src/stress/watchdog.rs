//! Notices when a context gets nowhere: a wake-up that was lost, a lock that nobody gives back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Config;
use super::world::World;

/// Sees to it that every context gets on.
pub(super) struct Watchdog {
    world: Arc<World>,
    patience: Duration,
    seen: Vec<(u64, Instant)>,
}

impl Watchdog {
    pub(super) fn new(config: &Config, world: &Arc<World>) -> Self {
        Self {
            world: Arc::clone(world),
            patience: config.patience,
            seen: vec![(0, Instant::now()); config.contexts],
        }
    }

    /// Whether some context finished no operation for longer than it may.
    pub(super) fn sees_a_hang(&mut self) -> bool {
        let now = Instant::now();
        for (seen, progress) in self.seen.iter_mut().zip(&self.world.progress) {
            let progress = progress.load(Ordering::Relaxed);
            if seen.0 != progress {
                *seen = (progress, now);
            }
        }
        self.seen
            .iter()
            .any(|(_, since)| now.duration_since(*since) > self.patience)
    }
}
