//! What is learnt from measured service times, where it was not given: the SLO of a class, and
//! whether its preempted requests go to the tail or to the head of their queue.
//!
//! [`Verified`](crate::Verified) has the [`Learner`], counts every request's service time, and
//! tells the policy what was learnt ([`Policy::set_slo`](crate::Policy::set_slo),
//! [`Policy::set_requeue`](crate::Policy::set_requeue)). So the runtime and the simulator learn
//! alike. What a user has given is never learnt.
//!
//! # The SLO
//!
//! Shinjuku (NSDI 2019, section 3.4) sets a class's SLO to the 99th percentile of its latency when
//! it is served alone. A server that has all classes at once cannot see that, so it is estimated,
//! for a load of 0.7 on `k` workers:
//!
//! ```text
//!   SLO = p99(S) + 14 / k * E[S] * (1 + min(C2, 1)) / 2
//! ```
//!
//! The second term is the 99th percentile of the wait in an M/G/1 queue. There a share of 0.7
//! waits, in the mean for (1 + C2) / 2 / 0.3 mean service times, and ln(70) / 0.3 = 14. C2 is the
//! squared coefficient of variation. Where it is above 1, requests are preempted, and then they
//! wait as exponential ones do. With several workers the term is somewhat too long.
//!
//! Before a class has finished some requests it has the least SLO given to any class, or 1 ms.
//!
//! # Tail or head
//!
//! The paper's rule of thumb: the tail for heavy-tailed and multi-modal service times, the head for
//! light-tailed ones. Here a tail is heavy if there is a time after which a request that still runs
//! is expected to go on for longer than a fresh one ([`ServiceTimes::has_heavy_tail`]). So who is
//! preempted goes behind requests that are expected to be shorter, and before requests that are
//! not. Of a single queue, all requests count together.
//!
//! The tail is the safe choice, and so the first one. The head is chosen after [`HEAD_AFTER`]
//! requests. A request that is preempted counts before it has finished, whenever it has run for
//! twice as long as any before: one that never ends cannot stay at the head of its queue.
//!
//! # Slowly
//!
//! The estimates are made when the number of requests has doubled, and then every [`LOOK_EVERY`]
//! requests. An SLO changes if the estimate differs by more than a quarter, and then by a factor of
//! two at most; tail and head have different thresholds. All counts are halved at [`REMEMBERED`]
//! requests.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::{ClassId, Nanos, Parameters, Registered, Requeue, ServiceTimes};

/// The SLO of a class of which nothing is known, unless another class was given a shorter one.
pub const FIRST_SLO: Nanos = Nanos::from_millis(1);
/// Requests after which preempted ones may go to the head.
pub const HEAD_AFTER: u64 = 4096;
/// Requests between two estimates.
pub const LOOK_EVERY: u64 = 1024;
/// The counts are halved when so many requests are counted.
pub const REMEMBERED: u64 = 1 << 15;

/// Requests before the first estimate.
const FIRST_LOOK: u64 = 16;
/// 99th percentile of the wait, in mean service times, at a load of 0.7 on one worker.
const WAIT: f64 = 14.0;
/// An SLO that differs by less, in proportion, stays as it is.
const WORTH_CHANGING: f64 = 1.25;
/// The most by which an SLO changes at a time.
const MOST_CHANGE: f64 = 2.0;
/// By how much longer than a fresh request one has to go on for the tail to be chosen, and to be
/// kept.
const HEAVY: f64 = 0.5;
const LIGHT: f64 = 0.2;

/// What was learnt from the requests of a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Lesson {
    /// The class; `None`: all classes together, since the policy has one queue.
    pub class: Option<ClassId>,
    /// The SLO in force; `None`: it is not learnt.
    pub slo: Option<Nanos>,
    /// The place for preempted requests that is in force; `None`: it is not learnt.
    pub requeue: Option<Requeue>,
}

/// Learns what was not given. See the [module](self).
#[derive(Clone, Debug)]
pub struct Learner {
    /// By class: which of the profiles counts its requests. A class beyond the last counts
    /// as the last.
    of_class: Box<[Option<u16>]>,
    profiles: Box<[Profile]>,
    workers: usize,
}

/// The requests from which something is learnt together.
#[derive(Clone, Debug)]
struct Profile {
    lesson: Lesson,
    times: ServiceTimes,
    /// Requests until the next estimate.
    wait: u64,
    /// Whether the SLO was estimated before.
    has_estimate: bool,
    /// The longest time that was counted.
    longest: Nanos,
}

impl Learner {
    /// What is to be learnt for `policy` where `parameters` leave it open. `None`: nothing.
    #[must_use]
    pub fn new(policy: Registered, parameters: &Parameters) -> Option<Self> {
        let mut profiles: Vec<Profile> = Vec::new();
        let mut of_class = Vec::with_capacity(parameters.classes.len());
        for (class, own) in (0..).map(ClassId).zip(&parameters.classes) {
            let slo = policy.needs_slo && parameters.learns_slo(own);
            let requeue = policy.requeues && parameters.learns_requeue(own);
            if !(slo || requeue) || parameters.best_effort.classes.contains(&class) {
                of_class.push(None);
                continue;
            }
            if policy.by_class || profiles.is_empty() {
                profiles.push(Profile::new(Lesson {
                    class: policy.by_class.then_some(class),
                    slo: slo.then(|| parameters.first_slo()),
                    requeue: requeue.then_some(Requeue::Tail),
                }));
            }
            of_class.push(u16::try_from(profiles.len() - 1).ok());
        }
        (!profiles.is_empty()).then(|| Self {
            of_class: of_class.into(),
            profiles: profiles.into(),
            workers: parameters.workers.max(1),
        })
    }

    /// What is in force, for each class of which anything is learnt.
    pub fn lessons(&self) -> impl ExactSizeIterator<Item = Lesson> + '_ {
        self.profiles.iter().map(|profile| profile.lesson)
    }

    /// Whether all requests are in one queue, and preempted ones go to its head. Then a preempted
    /// request is next again, and preempting gains nothing.
    #[must_use]
    pub fn is_first_come(&self) -> bool {
        let lesson = self.profiles[0].lesson;
        lesson.class.is_none() && lesson.requeue == Some(Requeue::Head)
    }

    /// A request of `class` has finished and ran for `ran` in all. Gives what is learnt if that has
    /// changed.
    #[inline]
    pub fn finished(&mut self, class: ClassId, ran: Nanos) -> Option<Lesson> {
        let workers = self.workers;
        let profile = self.profile(class)?;
        profile.count(ran);
        profile.wait = profile.wait.saturating_sub(1);
        match profile.wait {
            0 => profile.look(workers),
            _ => None,
        }
    }

    /// A request of `class` was preempted, and has run for `ran` so far. Gives what is learnt if
    /// that has changed. If the request counts, it counts again when it has finished.
    #[inline]
    pub fn preempted(&mut self, class: ClassId, ran: Nanos) -> Option<Lesson> {
        let workers = self.workers;
        let profile = self.profile(class)?;
        if ran.0 / 2 < profile.longest.0 || profile.times.count() == 0 {
            return None;
        }
        profile.count(ran);
        profile.look(workers)
    }

    #[inline]
    fn profile(&mut self, class: ClassId) -> Option<&mut Profile> {
        let class = usize::from(class.0).min(self.of_class.len() - 1);
        let profile = self.of_class[class]?;
        self.profiles.get_mut(usize::from(profile))
    }
}

impl Profile {
    fn new(lesson: Lesson) -> Self {
        Self {
            lesson,
            times: ServiceTimes::new(),
            wait: FIRST_LOOK,
            has_estimate: false,
            longest: Nanos(0),
        }
    }

    #[inline]
    fn count(&mut self, ran: Nanos) {
        self.times.add(ran);
        self.longest = self.longest.max(ran);
    }

    /// Makes the estimates. Gives the lesson if it has changed.
    #[cold]
    fn look(&mut self, workers: usize) -> Option<Lesson> {
        let before = self.lesson;
        self.wait = self.times.count().clamp(FIRST_LOOK, LOOK_EVERY);
        if let Some(slo) = self.lesson.slo {
            self.lesson.slo = Some(self.next_slo(slo, workers));
            self.has_estimate = true;
        }
        if let Some(requeue) = self.lesson.requeue {
            self.lesson.requeue = Some(self.next_requeue(requeue));
        }
        if self.times.count() >= REMEMBERED {
            self.times.fade();
            self.longest = Nanos(self.times.longest_ns() as u64);
        }
        (self.lesson != before).then_some(self.lesson)
    }

    fn next_slo(&self, slo: Nanos, workers: usize) -> Nanos {
        let times = &self.times;
        let variation = times.squared_variation().min(1.0);
        let wait = WAIT / workers as f64 * times.mean_ns() * (1.0 + variation) / 2.0;
        let estimate = (times.p99_ns() + wait).max(1.0);
        let old = slo.0 as f64;
        if !self.has_estimate {
            Nanos(estimate as u64)
        } else if (old / WORTH_CHANGING..old * WORTH_CHANGING).contains(&estimate) {
            slo
        } else {
            Nanos(
                estimate
                    .clamp(old / MOST_CHANGE, old * MOST_CHANGE)
                    .max(1.0) as u64,
            )
        }
    }

    fn next_requeue(&self, requeue: Requeue) -> Requeue {
        let times = &self.times;
        match requeue {
            Requeue::Tail if times.count() >= HEAD_AFTER && !times.has_heavy_tail(LIGHT) => {
                Requeue::Head
            }
            Requeue::Head if times.has_heavy_tail(HEAVY) => Requeue::Tail,
            as_before => as_before,
        }
    }
}
