//! The floor under the quantum: no more preemption than is worth its cost.
//!
//! A preemption costs the worker time. Under a policy's quantum alone a dear mechanism would eat
//! what it is to save. So `Auto` keeps, for each mechanism, a floor that the quantum in force never
//! goes below:
//!
//! - ten times the mechanism's measured cost at the least;
//! - more when the last 10 ms show that preemption took more than 10 % of the workers' time, or
//!   more than half of what would idle without it. At overload nothing idles, the floor rises
//!   without bound, and the policy turns into first come, first served, which is the best there;
//! - more when requests that were preempted turn out to have had little left to do, less than ten
//!   times the cost on average: then the others gained less by overtaking than all lose. After that
//!   the floor stays up for a while, 0.1 s at first and twice as long each time, up to 10 s, before
//!   it tries again.

use shinjuku_policy::Nanos;

/// How often the floor is looked at again.
pub(crate) const PERIOD: Nanos = Nanos::from_millis(10);

/// Quantum over cost at the least, and what a preempted request must have left to be worth it.
const COST_MULTIPLE: u64 = 10;
/// Preemption's share of the workers' time at the most.
const LARGEST_SHARE: f64 = 0.10;
/// Preemption's share of what would idle without it at the most.
const SHARE_OF_IDLE: f64 = 0.5;
/// Beyond that nothing is ever preempted.
const HIGHEST: u64 = 1_000_000_000;
/// So many preempted requests are judged together.
const SAMPLE: u64 = 16;
const SHORTEST_HOLD: u64 = 100_000_000;
const LONGEST_HOLD: u64 = 10_000_000_000;

/// The floor for one mechanism.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuantumFloor {
    /// Worker time that one preemption takes; 0: a floor that stays at 0.
    cost: Nanos,
    current: u64,
    /// What preempted requests had left: sum and number.
    left: u64,
    judged: u64,
    hold: u64,
    hold_until: Nanos,
}

/// What a period showed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Period {
    /// Its length, times the number of workers.
    pub(crate) worker_time: Nanos,
    /// How much of that the workers were without a request.
    pub(crate) idle: Nanos,
    /// Preemptions by this mechanism.
    pub(crate) preemptions: u64,
}

impl QuantumFloor {
    /// No floor: the policy's quantum holds.
    pub(crate) const NONE: Self = Self::at_cost(Nanos(0));

    pub(crate) const fn at_cost(cost: Nanos) -> Self {
        let current = cost.0 * COST_MULTIPLE;
        Self {
            cost,
            current,
            left: 0,
            judged: 0,
            hold: SHORTEST_HOLD,
            hold_until: Nanos(0),
        }
    }

    /// The quantum in force where the policy says `quantum`.
    pub(crate) fn raise(&self, quantum: Nanos) -> Nanos {
        Nanos(quantum.0.max(self.current))
    }

    /// A request that this mechanism preempted has finished, having run for `left` after its first
    /// preemption.
    pub(crate) fn judge(&mut self, left: Nanos, now: Nanos) {
        if self.cost.0 == 0 {
            return;
        }
        self.left += left.0;
        self.judged += 1;
        if self.judged < SAMPLE {
            return;
        }
        let worth_it = self.left / self.judged >= self.cost.0 * COST_MULTIPLE;
        (self.left, self.judged) = (0, 0);
        if worth_it {
            self.hold = SHORTEST_HOLD;
        } else if now >= self.hold_until {
            self.current = (self.current * 2).min(HIGHEST);
            self.hold_until = Nanos(now.0 + self.hold);
            self.hold = (self.hold * 2).min(LONGEST_HOLD);
        }
    }

    /// Adapts to what the last period showed.
    pub(crate) fn adapt(&mut self, period: Period, now: Nanos) {
        if self.cost.0 == 0 || period.worker_time.0 == 0 {
            return;
        }
        let whole = period.worker_time.0 as f64;
        let spent = (period.preemptions * self.cost.0) as f64 / whole;
        let idle = period.idle.0 as f64 / whole;
        let allowed = LARGEST_SHARE.min(SHARE_OF_IDLE * (idle + spent));
        // Preemptions go about with the inverse of the quantum. Up at once, down by halves at most.
        let factor = if spent <= 0.0 {
            0.5
        } else {
            (spent / allowed.max(1e-6)).clamp(0.5, 16.0)
        };
        if factor < 1.0 && now < self.hold_until {
            return;
        }
        let lowest = self.cost.0 * COST_MULTIPLE;
        self.current = ((self.current as f64 * factor) as u64).clamp(lowest, HIGHEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: Nanos = Nanos(7_000);

    fn period(idle_share: f64, preemptions: u64) -> Period {
        Period {
            worker_time: PERIOD,
            idle: Nanos((PERIOD.0 as f64 * idle_share) as u64),
            preemptions,
        }
    }

    #[test]
    fn never_below_ten_times_the_cost() {
        let mut floor = QuantumFloor::at_cost(COST);
        for _ in 0..10 {
            floor.adapt(period(0.9, 0), Nanos(0));
        }
        assert_eq!(floor.raise(Nanos(5_000)), Nanos(70_000));
        assert_eq!(floor.raise(Nanos(200_000)), Nanos(200_000));
    }

    #[test]
    fn rises_when_nothing_idles_and_falls_again() {
        let mut floor = QuantumFloor::at_cost(COST);
        // 140 preemptions of 7 us in 10 ms are 9.8 %, but nothing idles.
        floor.adapt(period(0.0, 140), Nanos(0));
        let risen = floor.raise(Nanos(0));
        assert!(risen > Nanos(130_000), "{risen:?}");
        for _ in 0..40 {
            floor.adapt(period(0.0, 10), Nanos(0));
        }
        assert!(floor.raise(Nanos(0)) > risen);
        for _ in 0..40 {
            floor.adapt(period(0.8, 0), Nanos(0));
        }
        assert_eq!(floor.raise(Nanos(0)), Nanos(70_000));
    }

    #[test]
    fn settles_where_the_share_is_allowed() {
        // A worker with 30 % idle and as many preemptions as the quantum allows in the busy time.
        let mut floor = QuantumFloor::at_cost(COST);
        let mut spent = 0.0;
        for _ in 0..200 {
            let quantum = floor.raise(Nanos(0)).0;
            let preemptions = PERIOD.0 * 6 / 10 / quantum;
            spent = (preemptions * COST.0) as f64 / PERIOD.0 as f64;
            floor.adapt(period(0.4 - spent, preemptions), Nanos(0));
        }
        assert!(spent <= 0.12, "{spent}");
    }

    #[test]
    fn without_cost_there_is_no_floor() {
        let mut floor = QuantumFloor::NONE;
        floor.adapt(period(0.0, 1_000_000), Nanos(0));
        assert_eq!(floor.raise(Nanos(3)), Nanos(3));
    }

    #[test]
    fn stays_up_for_a_while_when_the_preempted_had_little_left() {
        let mut floor = QuantumFloor::at_cost(COST);
        for _ in 0..SAMPLE {
            floor.judge(Nanos(30_000), Nanos(0));
        }
        assert_eq!(floor.raise(Nanos(0)), Nanos(140_000));
        floor.adapt(period(0.8, 0), Nanos(50_000_000));
        assert_eq!(floor.raise(Nanos(0)), Nanos(140_000), "held for 100 ms");
        floor.adapt(period(0.8, 0), Nanos(100_000_000));
        assert_eq!(floor.raise(Nanos(0)), Nanos(70_000), "then it tries again");
        for _ in 0..SAMPLE {
            floor.judge(Nanos(30_000), Nanos(101_000_000));
        }
        floor.adapt(period(0.8, 0), Nanos(300_000_000));
        assert_eq!(
            floor.raise(Nanos(0)),
            Nanos(140_000),
            "held twice as long now"
        );
    }

    #[test]
    fn long_requests_are_worth_preempting() {
        let mut floor = QuantumFloor::at_cost(COST);
        for _ in 0..10 * SAMPLE {
            floor.judge(Nanos(430_000), Nanos(0));
        }
        assert_eq!(floor.raise(Nanos(0)), Nanos(70_000));
    }
}
