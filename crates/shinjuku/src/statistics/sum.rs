//! Sums of statistics: of one runtime's dispatchers, or of several servers in a process.

use std::ops::AddAssign;

use super::{ClassStatistics, Preemptions, Statistics};

/// Counts and histograms add up, classes by their order. `uptime` is the longest,
/// `dispatcher_occupancy` the mean weighted by uptime, `delivery` the first that is known, and
/// `policy_set_aside` says whether any policy was.
impl AddAssign<&Self> for Statistics {
    fn add_assign(&mut self, other: &Self) {
        for (class, others) in self.classes.iter_mut().zip(&other.classes) {
            *class += others;
        }
        let known = self.classes.len().min(other.classes.len());
        self.classes.extend_from_slice(&other.classes[known..]);
        let (here, there) = (self.uptime.as_secs_f64(), other.uptime.as_secs_f64());
        let busy = here * self.dispatcher_occupancy + there * other.dispatcher_occupancy;
        self.dispatcher_occupancy = busy / (here + there).max(f64::MIN_POSITIVE);
        self.uptime = self.uptime.max(other.uptime);
        self.received += other.received;
        self.returned += other.returned;
        self.refused += other.refused;
        self.lost += other.lost;
        self.waiting += other.waiting;
        self.started += other.started;
        self.running += other.running;
        self.preemptions += other.preemptions;
        self.delivery = self.delivery.or(other.delivery);
        self.workers_blocked += other.workers_blocked;
        self.rescued += other.rescued;
        self.spares_exhausted += other.spares_exhausted;
        self.stalls.computing += other.stalls.computing;
        self.stalls.blocked += other.stalls.blocked;
        self.helped += other.helped;
        self.run_by_dispatcher += other.run_by_dispatcher;
        self.dispatcher_relieved += other.dispatcher_relieved;
        self.policy_set_aside |= other.policy_set_aside;
        self.progress_interventions += other.progress_interventions;
    }
}

impl AddAssign<&Self> for ClassStatistics {
    fn add_assign(&mut self, other: &Self) {
        self.finished += other.finished;
        self.failed += other.failed;
        self.service_nanos += other.service_nanos;
        self.preemptions += other.preemptions;
        self.latency_nanos += &other.latency_nanos;
        self.queue_nanos += &other.queue_nanos;
        self.slowdown_thousandths += &other.slowdown_thousandths;
    }
}

impl AddAssign for Preemptions {
    fn add_assign(&mut self, other: Self) {
        self.requested += other.requested;
        self.by_probe += other.by_probe;
        self.by_compiled_probe += other.by_compiled_probe;
        self.by_interrupt += other.by_interrupt;
        self.at_guard += other.at_guard;
        self.interrupts_sent += other.interrupts_sent;
        self.interrupts_failed += other.interrupts_failed;
        self.late += other.late;
        self.deferred += other.deferred;
        self.migrations += other.migrations;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use shinjuku_net::Refusal;
    use shinjuku_policy::ClassId;

    use super::super::{DispatcherStatistics, Times, WorkerStatistics};
    use super::*;

    fn statistics(finished: u64, latency: u64, classes: &[&str]) -> Statistics {
        let dispatcher = DispatcherStatistics::new(2);
        let worker = Arc::new(WorkerStatistics::new(2));
        let times = Times {
            latency,
            service: 100,
            queue: latency / 2,
        };
        for _ in 0..finished {
            worker.record(ClassId(0), times, false);
        }
        dispatcher.received(finished + 1);
        dispatcher.refused(Refusal::QueueFull);
        dispatcher.gauges(1, 2, 3, 4, finished == 7);
        Statistics::gather(&[worker], &dispatcher, [], classes)
    }

    #[test]
    fn two_dispatchers_are_as_one() {
        let mut sum = statistics(7, 1_000, &["get"]);
        let other = statistics(21, 50_000, &["get", "range"]);
        let uptimes = [sum.uptime, other.uptime];
        sum += &other;
        assert_eq!((sum.received, sum.finished(), sum.in_system()), (30, 28, 0));
        assert_eq!(sum.refused.total(), 2);
        assert_eq!((sum.waiting, sum.started, sum.running), (2, 4, 6));
        assert_eq!(sum.progress_interventions, 8);
        assert!(sum.policy_set_aside);
        assert_eq!(sum.uptime, uptimes[0].max(uptimes[1]));
        let names: Vec<_> = sum
            .classes
            .iter()
            .map(|class| class.name.as_str())
            .collect();
        assert_eq!(names, ["get", "range"]);
        let latency = |quantile| sum.classes[0].latency(quantile).as_nanos();
        assert_eq!(sum.classes[0].service_nanos, 28 * 100);
        assert_eq!(sum.classes[0].queue_nanos.count(), 28);
        assert!(sum.classes[0].queue_time(1.0).as_nanos().abs_diff(25_000) < 250);
        assert!(latency(0.24).abs_diff(1_000) < 10 && latency(0.26).abs_diff(50_000) < 500);
    }

    #[test]
    fn occupancy_is_weighed_by_time() {
        let mut sum = statistics(0, 0, &[]);
        let mut other = sum.clone();
        (sum.uptime, sum.dispatcher_occupancy) = (Duration::from_secs(3), 1.0);
        (other.uptime, other.dispatcher_occupancy) = (Duration::from_secs(1), 0.2);
        sum += &other;
        assert!((sum.dispatcher_occupancy - 0.8).abs() < 1e-9);
        (sum.uptime, other.uptime) = (Duration::ZERO, Duration::ZERO);
        sum += &other;
        assert_eq!(sum.dispatcher_occupancy, 0.0);
    }
}
