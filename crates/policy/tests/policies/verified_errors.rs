//! Wrong policies: each mistake is named, no request is lost, nothing panics.

use std::collections::VecDeque;

use proptest::prelude::*;
use shinjuku_policy::{Full, Nanos, Policy, PolicyError, Task, TaskId, Verified, Want, WorkerId};

use crate::driver::{CAPACITY, Driver, Step, WORKERS, steps};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Mistake {
    None,
    AnswersNoSlot,
    AnswersAbsent,
    AnswersTwice,
    Alters,
    IgnoresWant,
    AnswersNothing,
    Forgets,
    Overcounts,
    Undercounts,
    KeepsRemoved,
    RemovesAnother,
    LosesArrivals,
    LosesPreempted,
    LosesReturned,
    DuplicatesPreempted,
}

/// First come, first served, with a mistake now and then.
struct Wrong {
    queue: VecDeque<Task>,
    last: Option<Task>,
    /// Made in turn, one at each call that could make it.
    mistakes: Vec<Mistake>,
    calls: usize,
}

impl Wrong {
    fn new(mistakes: Vec<Mistake>) -> Self {
        Self {
            queue: VecDeque::new(),
            last: None,
            mistakes,
            calls: 0,
        }
    }

    fn mistake(&mut self) -> Mistake {
        self.calls += 1;
        self.mistakes[self.calls % self.mistakes.len()]
    }

    fn pop(&mut self, want: Want) -> Option<Task> {
        let at = self
            .queue
            .iter()
            .position(|task| task.started || want == Want::Any)?;
        self.queue.remove(at)
    }
}

impl Policy for Wrong {
    fn arrive(&mut self, task: Task) -> Result<(), Full> {
        if self.mistake() != Mistake::LosesArrivals {
            self.queue.push_back(task);
        }
        Ok(())
    }

    fn preempted(&mut self, task: Task, _worker: WorkerId, _now: Nanos) {
        match self.mistake() {
            Mistake::LosesPreempted => {}
            Mistake::DuplicatesPreempted => self.queue.extend([task, task]),
            _ => self.queue.push_back(task),
        }
    }

    fn returned(&mut self, task: Task, _worker: WorkerId) {
        if self.mistake() != Mistake::LosesReturned {
            self.queue.push_front(task);
        }
    }

    fn finished(&mut self, _task: Task, _worker: WorkerId) {}

    fn next(&mut self, _worker: WorkerId, _now: Nanos, want: Want) -> Option<Task> {
        let answer = match self.mistake() {
            Mistake::AnswersNoSlot => self.queue.front().map(|task| Task {
                id: TaskId(u32::MAX),
                ..*task
            }),
            Mistake::AnswersAbsent => {
                let absent = |id: &TaskId| {
                    self.queue.iter().all(|task| task.id != *id)
                        && self.last.is_none_or(|last| last.id != *id)
                };
                let id = (0..CAPACITY as u32).rev().map(TaskId).find(absent)?;
                self.queue.front().map(|task| Task { id, ..*task })
            }
            Mistake::AnswersTwice => self.last.or_else(|| self.pop(want)),
            Mistake::Alters => self.pop(want).map(|task| Task {
                arrival: Nanos(u64::MAX),
                ..task
            }),
            Mistake::IgnoresWant => self.pop(Want::Any),
            Mistake::AnswersNothing => None,
            Mistake::Forgets => {
                self.pop(want);
                None
            }
            _ => self.pop(want),
        };
        self.last = answer.or(self.last);
        answer
    }

    fn remove(&mut self, id: TaskId, _worker: WorkerId) -> Option<Task> {
        match self.mistake() {
            Mistake::KeepsRemoved => None,
            Mistake::RemovesAnother => self.pop(Want::Any).map(|task| Task {
                id: TaskId(99),
                ..task
            }),
            _ => {
                let at = self.queue.iter().position(|task| task.id == id)?;
                self.queue.remove(at)
            }
        }
    }

    fn quantum(&self, _task: &Task) -> Option<Nanos> {
        Some(Nanos(0))
    }

    fn waiting(&self, _worker: WorkerId, want: Want) -> usize {
        if self.mistakes.contains(&Mistake::Overcounts) {
            return usize::MAX;
        }
        if self.mistakes.contains(&Mistake::Undercounts) {
            return 0;
        }
        self.queue
            .iter()
            .filter(|task| task.started || want == Want::Any)
            .count()
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn name(&self) -> String {
        String::from("wrong")
    }
}

fn mistake() -> impl Strategy<Value = Mistake> {
    use Mistake::*;
    prop::sample::select(vec![
        None,
        AnswersNoSlot,
        AnswersAbsent,
        AnswersTwice,
        Alters,
        IgnoresWant,
        AnswersNothing,
        Forgets,
        Overcounts,
        Undercounts,
        KeepsRemoved,
        RemovesAnother,
        LosesArrivals,
        LosesPreempted,
        LosesReturned,
        DuplicatesPreempted,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn nothing_is_lost_whatever_the_policy_does(
        steps in steps(),
        mistakes in prop::collection::vec(mistake(), 1..40),
        sound_calls in 0_usize..60,
        k in 1_u32..4,
    ) {
        let mut script = vec![Mistake::None; sound_calls];
        script.extend(mistakes);
        let policy = Verified::new(Box::new(Wrong::new(script)), CAPACITY).unwrap();
        let mut driver = Driver::new(policy.with_progress_limit(k).unwrap());
        for step in steps {
            // The driver panics if a request is lost, duplicated, altered or not wanted.
            driver.step(step);
            for worker in (0..WORKERS).map(WorkerId) {
                prop_assert!(driver.subject.waiting(worker, Want::Any) <= driver.waiting.len());
            }
        }
        driver.drain();
    }
}

const WORKER: WorkerId = WorkerId(0);

fn task(id: u32) -> Task {
    Task {
        id: TaskId(id),
        class: Default::default(),
        flow: Default::default(),
        arrival: Nanos(u64::from(id)),
        started: false,
    }
}

/// Three requests: 0 is out, 1 waits and has run, 2 waits and has not run. The policy is `Wrong`,
/// which makes `mistake` from now on.
fn three(mistake: Mistake) -> Verified {
    // Three arrivals, two answers, one preemption; `mistake` counts from one.
    let mut script = vec![Mistake::None; 7];
    script.extend([mistake; 1_000]);
    let mut policy = Verified::new(Box::new(Wrong::new(script)), CAPACITY).unwrap();
    for id in [1, 0, 2] {
        policy.arrive(task(id)).unwrap();
    }
    assert_eq!(policy.next(WORKER, Nanos(0), Want::Any), Some(task(1)));
    assert_eq!(policy.next(WORKER, Nanos(0), Want::Any), Some(task(0)));
    policy.preempted(TaskId(1), WORKER, Nanos(0));
    assert_eq!(policy.error(), None);
    policy
}

/// After the mistake, first come first served: 1 has come to wait after 2; 0 goes on.
fn goes_on(mut policy: Verified, waiting: &[u32]) {
    let mut left = Vec::new();
    while let Some(task) = policy.next(WORKER, Nanos(0), Want::Any) {
        left.push(task.id.0);
        policy.finished(task.id, WORKER);
    }
    assert_eq!(left, waiting);
    policy.preempted(TaskId(0), WORKER, Nanos(0));
    let again = policy.next(WORKER, Nanos(0), Want::StartedOnly);
    assert_eq!(
        again,
        Some(Task {
            started: true,
            ..task(0)
        })
    );
    policy.finished(TaskId(0), WORKER);
    assert!(policy.is_empty());
}

#[test]
fn each_wrong_answer_is_named_and_replaced() {
    let worker = WORKER;
    let given = task(2);
    let answered = Task {
        arrival: Nanos(u64::MAX),
        ..given
    };
    let cases = [
        (
            Mistake::AnswersNoSlot,
            PolicyError::Unknown {
                task: TaskId(u32::MAX),
                worker,
            },
        ),
        (
            Mistake::AnswersAbsent,
            PolicyError::Unknown {
                task: TaskId(CAPACITY as u32 - 1),
                worker,
            },
        ),
        (
            Mistake::AnswersTwice,
            PolicyError::NotWaiting {
                task: TaskId(0),
                worker,
            },
        ),
        (Mistake::Alters, PolicyError::Altered { answered, given }),
    ];
    for (mistake, error) in cases {
        let mut policy = three(mistake);
        assert_eq!(
            policy.next(WORKER, Nanos(0), Want::Any),
            Some(given),
            "{mistake:?}"
        );
        assert_eq!(policy.error(), Some(&error), "{mistake:?}");
        policy.finished(given.id, WORKER);
        goes_on(policy, &[1]);
    }
}

#[test]
fn a_fresh_request_is_not_answered_when_started_ones_are_asked_for() {
    let mut policy = three(Mistake::IgnoresWant);
    let started = Task {
        started: true,
        ..task(1)
    };
    assert_eq!(
        policy.next(WORKER, Nanos(0), Want::StartedOnly),
        Some(started)
    );
    let error = PolicyError::NotStarted {
        task: TaskId(2),
        worker: WORKER,
    };
    assert_eq!(policy.error(), Some(&error));
    policy.finished(started.id, WORKER);
    goes_on(policy, &[2]);
}

#[test]
fn a_lost_request_is_missed_when_the_policy_has_nothing() {
    let mut policy = three(Mistake::Forgets);
    // It forgets one of two, and answers nothing.
    assert_eq!(policy.next(WORKER, Nanos(0), Want::Any), Some(task(2)));
    let error = PolicyError::Miscounted {
        claimed: 1,
        waiting: 2,
    };
    assert_eq!(policy.error(), Some(&error));
    policy.finished(TaskId(2), WORKER);
    goes_on(policy, &[1]);
}

#[test]
fn a_request_that_is_not_removed_is_taken_all_the_same() {
    for (mistake, answered) in [
        (Mistake::KeepsRemoved, None),
        (
            Mistake::RemovesAnother,
            Some(Task {
                id: TaskId(99),
                ..task(2)
            }),
        ),
    ] {
        let mut policy = three(mistake);
        assert_eq!(policy.take_fresh(WORKER), Some(task(2)));
        let error = PolicyError::NotRemoved {
            task: TaskId(2),
            answered,
        };
        assert_eq!(policy.error(), Some(&error));
        policy.finished(TaskId(2), WORKER);
        goes_on(policy, &[1]);
    }
}

#[test]
fn silence_is_an_error_after_some_time() {
    // It says that two wait, and answers nothing, though worker 0 is busy.
    let mut policy = three(Mistake::AnswersNothing);
    for poll in 0..100 {
        assert_eq!(
            policy.next(WORKER, Nanos::from_micros(poll), Want::Any),
            None
        );
    }
    assert_eq!(policy.error(), None, "only 100 us");
    let now = Nanos::from_millis(10);
    assert_eq!(policy.next(WORKER, now, Want::Any), Some(task(2)));
    let error = PolicyError::Stalled {
        worker: WORKER,
        want: Want::Any,
        waiting: 2,
        lasted: now,
    };
    assert_eq!(policy.error(), Some(&error));
    policy.finished(TaskId(2), WORKER);
    goes_on(policy, &[1]);
}

#[test]
fn silence_is_an_error_when_no_worker_has_anything() {
    // It always says that it can serve no request. Two arrivals, 100 empty answers, one sound
    // answer, then none.
    let mut script = vec![Mistake::Undercounts, Mistake::None, Mistake::None];
    script.extend([Mistake::AnswersNothing; 100]);
    script.push(Mistake::None);
    script.extend([Mistake::AnswersNothing; 1_000]);
    let mut policy = Verified::new(Box::new(Wrong::new(script)), CAPACITY).unwrap();
    policy.arrive(task(0)).unwrap();
    policy.arrive(task(1)).unwrap();
    let next = |policy: &mut Verified, micros| {
        let answer = policy.next(WORKER, Nanos::from_micros(micros), Want::Any);
        answer.map(|task| task.id.0)
    };
    for poll in 0..100 {
        assert_eq!(next(&mut policy, 90 * poll), None);
    }
    assert_eq!(next(&mut policy, 9_000), Some(0));
    policy.finished(TaskId(0), WORKER);
    // The answer ended the silence; a new one begins.
    for poll in 0..100 {
        assert_eq!(next(&mut policy, 9_500 + 90 * poll), None);
    }
    assert_eq!(policy.error(), None);
    assert_eq!(next(&mut policy, 19_500), Some(1));
    let lasted = Nanos::from_millis(10);
    let error = PolicyError::Stalled {
        worker: WORKER,
        want: Want::Any,
        waiting: 1,
        lasted,
    };
    assert_eq!(policy.error(), Some(&error));
}

#[test]
fn what_was_returned_keeps_its_place_after_a_failure() {
    let mut policy = three(Mistake::AnswersTwice);
    policy.returned(TaskId(0), WORKER);
    assert_eq!(policy.len(), 3);
    // The policy answers 0 and then 0 again; 0 had come before 2, and 2 before 1 came back.
    let mut order = Vec::new();
    while let Some(task) = policy.next(WORKER, Nanos(0), Want::Any) {
        order.push(task.id.0);
    }
    assert_eq!(order, [0, 2, 1]);
    let error = PolicyError::NotWaiting {
        task: TaskId(0),
        worker: WORKER,
    };
    assert_eq!(policy.error(), Some(&error));
}

#[test]
fn errors_say_what_was_wrong() {
    let error = PolicyError::NotWaiting {
        task: TaskId(4),
        worker: WorkerId(1),
    };
    assert_eq!(
        error.to_string(),
        "answered task 4 for worker 1: it is at a worker already"
    );
}

#[test]
fn a_failed_policy_is_not_called_again() {
    let mut policy = three(Mistake::AnswersTwice);
    policy.next(WORKER, Nanos(0), Want::Any);
    let first = *policy.error().expect("answered twice");
    // `Wrong` would go on answering the same.
    let mut driver = Driver::new(policy);
    driver.waiting.insert(
        TaskId(1),
        Task {
            started: true,
            ..task(1)
        },
    );
    driver.out.insert(TaskId(0), (task(0), WORKER));
    driver.out.insert(TaskId(2), (task(2), WORKER));
    for _ in 0..50 {
        driver.step(Step::Arrive { class: 0, flow: 0 });
        driver.step(Step::Next {
            worker: 0,
            want: Want::Any,
        });
        driver.step(Step::Preempt { pick: 1 });
        driver.step(Step::Finish { pick: 0 });
    }
    assert_eq!(driver.subject.error(), Some(&first));
    driver.drain();
}
