//! Real-time throttling: the kernel takes SCHED_FIFO threads off their cores once they have run for
//! most of a period (by default 0.95 s of every second), for the rest of it. A burst that meets
//! this measures nothing but it.

use std::time::Duration;

use anyhow::{Result, bail};

/// What a burst's real-time threads run beside its arrivals: they start, drain, and look for work
/// before they sleep.
const AROUND: Duration = Duration::from_millis(60);

/// The kernel's bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttling {
    /// Time that real-time threads may run in each period.
    runtime: Duration,
    /// The period.
    period: Duration,
}

impl Throttling {
    /// The bound in force; `None` where there is none, or none can be read.
    pub fn in_force() -> Option<Self> {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok();
        Self::parse(&read("sched_rt_runtime_us")?, &read("sched_rt_period_us")?)
    }

    /// From the texts of the two files. A runtime of -1, or of all the period, is no bound.
    fn parse(runtime: &str, period: &str) -> Option<Self> {
        let micros = |text: &str| text.trim().parse().ok().map(Duration::from_micros);
        let bound = Self {
            runtime: micros(runtime)?,
            period: micros(period)?,
        };
        (bound.runtime < bound.period).then_some(bound)
    }

    /// The longest repetition that no period cuts.
    pub fn longest(&self) -> Duration {
        self.runtime.saturating_sub(AROUND)
    }

    /// How long the cores must be without real-time threads between two bursts, so that what a
    /// period holds of both is within the bound.
    pub fn rest(&self) -> Duration {
        self.period - self.runtime
    }

    /// Refuses repetitions that are too long.
    pub fn check(&self, length: Duration) -> Result<()> {
        if length > self.longest() {
            bail!(
                "--seconds is {}, but the kernel lets SCHED_FIFO threads run for {} s of every {} s only: take at most {}, or lift \
                 the bound with sysctl kernel.sched_rt_runtime_us=-1",
                length.as_secs_f64(),
                self.runtime.as_secs_f64(),
                self.period.as_secs_f64(),
                self.longest().as_secs_f64()
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_bound_leaves_nine_tenths_of_a_second() {
        let usual = Throttling::parse("950000\n", "1000000\n").unwrap();
        assert_eq!(usual.longest(), Duration::from_millis(890));
        assert_eq!(usual.rest(), Duration::from_millis(50));
        assert!(usual.check(Duration::from_millis(890)).is_ok());
        let error = usual.check(Duration::from_millis(1500)).unwrap_err();
        assert!(error.to_string().contains("at most 0.89"), "{error}");
    }

    #[test]
    fn a_bound_below_what_a_burst_takes_leaves_nothing() {
        let tight = Throttling::parse("10000", "1000000").unwrap();
        assert_eq!(tight.longest(), Duration::ZERO);
    }

    #[test]
    fn no_bound_is_none() {
        assert_eq!(Throttling::parse("-1\n", "1000000\n"), None);
        assert_eq!(Throttling::parse("1000000", "1000000"), None);
        assert_eq!(Throttling::parse("", "1000000"), None);
    }
}
