//! Runs operations in requests that are preempted at function entries, over and over, and compares
//! each result with what the operation gives undisturbed.
//!
//! Arguments: the mechanism, how many preemptions at entries are wanted, and the seconds that it
//! may take. With the mechanism `lock` one worker runs requests that all want one lock, until so
//! many entries are passed by. Prints the counts on the last line.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use shinjuku::policy::ClassId;
use shinjuku::{Config, HardPreemption, LayoutKind, MechanismKind, Runtime, handler_fn};
use shinjuku_preempt::CompiledProbes;

const SEEDS: u64 = 64;
const OUTSTANDING: usize = 24;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mechanism, wanted, seconds] = &arguments[..] else {
        return Err("usage: MECHANISM PREEMPTIONS SECONDS".into());
    };
    let wanted: u64 = wanted.parse()?;
    let limit = Duration::from_secs(seconds.parse()?);
    let mechanism = match mechanism.as_str() {
        "compiled-probe" => MechanismKind::CompiledProbe,
        "escalation" => MechanismKind::Escalation,
        "inline" | "lock" => MechanismKind::Escalation,
        other => return Err(format!("no mechanism of this test: {other}").into()),
    };
    // The operations' own panics are caught.
    std::panic::set_hook(Box::new(|info| {
        if info.payload().downcast_ref::<u64>().is_none() {
            eprintln!("{info}");
        }
    }));
    let is_lock = arguments[0] == "lock";
    let operate = if is_lock { ordinary::locked } else { ordinary::operate };
    let undisturbed: Vec<u64> = (0..SEEDS).map(operate).collect();

    let workers = if is_lock { 1 } else { 2 };
    let mut config = Config::default().workers(workers).contexts(64).strict(true);
    config.cores.share = true;
    config.layout = LayoutKind::Threads;
    if arguments[0] == "inline" {
        config.layout = LayoutKind::Inline;
        config.workers = None;
    }
    config.preemption.mechanism = mechanism;
    let runtime = Runtime::builder(handler_fn(operate))
        .config(config)
        // SAFETY: the operations rely on nothing that the token's contract excludes.
        .allow_hard_preemption(unsafe { HardPreemption::allow() })
        .start()?;
    println!("{}", runtime.description());

    let (start, handle) = (Instant::now(), runtime.handle());
    let mut tickets = VecDeque::new();
    let (mut done, mut wrong, mut next) = (0u64, 0u64, 0);
    let has_enough = || match is_lock {
        true => CompiledProbes::entries_passed_by() as u64 >= wanted,
        false => runtime.statistics().preemptions.by_compiled_probe >= wanted,
    };
    while (done == 0 || !has_enough()) && start.elapsed() < limit {
        while tickets.len() < OUTSTANDING {
            tickets.push_back((next, handle.submit(ClassId(0), next)?));
            next = (next + 1) % SEEDS;
        }
        for (seed, ticket) in tickets.drain(..OUTSTANDING / 2) {
            done += 1;
            wrong += u64::from(ticket.wait()? != undisturbed[seed as usize]);
        }
    }
    for (seed, ticket) in tickets {
        done += 1;
        wrong += u64::from(ticket.wait()? != undisturbed[seed as usize]);
    }
    let report = runtime.shutdown(Duration::from_secs(10));
    let preemptions = report
        .statistics
        .as_ref()
        .ok_or("no statistics")?
        .preemptions;
    println!("{report}");
    println!(
        "clean {} done {done} wrong {wrong} compiled {} interrupt {} migrated {} outstanding {} passed_by {}",
        u64::from(report.is_clean()),
        preemptions.by_compiled_probe,
        preemptions.by_interrupt,
        preemptions.migrations,
        CompiledProbes::outstanding(),
        CompiledProbes::entries_passed_by(),
    );
    Ok(())
}
