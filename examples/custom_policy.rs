//! A policy of your own, simulated and then run: the class of short requests goes first. Prints
//! `c-FCFS: short p99 145 us`, `own: short p99 59 us`, and the runtime's description of itself.
use shinjuku::policy::*;
use shinjuku::{PolicyConfig, Runtime, handler_fn};
use shinjuku_sim::{Scenario, Scheduler};

struct ShortFirst(Vec<Task>);

impl Policy for ShortFirst {
    fn arrive(&mut self, task: Task) -> Result<(), Full> {
        self.0.push(task);
        Ok(())
    }
    fn preempted(&mut self, task: Task, _: WorkerId, _: Nanos) {
        self.0.push(task);
    }
    fn returned(&mut self, task: Task, _: WorkerId) {
        self.0.push(task);
    }
    fn next(&mut self, worker: WorkerId, _: Nanos, want: Want) -> Option<Task> {
        let usable = self.0.iter().filter(|task| want.includes(task));
        let first = usable.min_by_key(|task| (task.class, task.arrival))?.id;
        self.remove(first, worker)
    }
    fn remove(&mut self, id: TaskId, _: WorkerId) -> Option<Task> {
        let at = self.0.iter().position(|task| task.id == id)?;
        Some(self.0.swap_remove(at))
    }
    fn waiting(&self, _: WorkerId, want: Want) -> usize {
        self.0.iter().filter(|task| want.includes(task)).count()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn name(&self) -> String {
        "short first".to_owned()
    }
}

fn build(given: &Parameters) -> Result<Box<dyn Policy>, ParameterError> {
    Ok(Box::new(ShortFirst(Vec::with_capacity(given.capacity))))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for scheduler in [
        Scheduler::of(cfcfs::REGISTERED),
        Scheduler::own("own", build),
    ] {
        let run = Scenario::new("mid".parse()?, 0.7, scheduler.clone(), 4).run(1)?;
        println!(
            "{scheduler}: short p99 {:.0} us",
            run.tally.class(0).p99_ns / 1e3
        );
    }
    let builder = Runtime::builder(handler_fn(|n: u64| n)).policy_with("short-first", build);
    let runtime = builder.policy(PolicyConfig::new("short-first")).start()?;
    let answer = runtime.handle().submit(ClassId(0), 42)?.wait()?;
    println!("{} answered {answer}", runtime.description());
    Ok(())
}
