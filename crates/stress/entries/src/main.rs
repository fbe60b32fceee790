//! What `cargo xtask stress entries` runs: operations in requests that are preempted at function
//! entries, over and over. Each result is compared with what the operation gives undisturbed.
//!
//! Arguments: the layout (or `pool`, `two-runtimes` side by side, or `kernel-threads` as contexts),
//! the mechanism, how many preemptions at entries are wanted of each runtime, and the seconds that
//! it may take. Built with faults, also a defence that is removed. Progress goes to standard error
//! every five seconds. The counts are the last line on standard output. It ends in success if all
//! was right and there were enough.

use std::collections::VecDeque;
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use shinjuku::policy::ClassId;
use shinjuku::{
    Config, ContextKind, CoresConfig, HardPreemption, LayoutKind, MechanismKind, Pool,
    PreemptionConfig, Runtime, ShutdownReport, handler_fn, without_preemption,
};
use shinjuku_preempt::{CompiledProbes, preemptions};
use shinjuku_stress_entries::{operate, operate_alone};

const SEEDS: u64 = 64;
const OUTSTANDING: usize = 24;
const PROGRESS: Duration = Duration::from_secs(5);
/// What has started may take so long at the end.
const DRAIN: Duration = Duration::from_secs(30);

/// How many preemptions at entries are enough, and when it is over without them.
#[derive(Clone, Copy)]
struct Bound {
    wanted: u64,
    limit: Duration,
}

#[derive(Default)]
struct Counts {
    done: u64,
    wrong: u64,
}

/// What one runtime did.
type Run = (Counts, ShutdownReport);

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [layout, mechanism, wanted, seconds, without @ ..] = &arguments[..] else {
        return Err(
            "usage: LAYOUT|pool|two-runtimes|kernel-threads MECHANISM PREEMPTIONS SECONDS [WITHOUT]".into(),
        );
    };
    for defence in without {
        take_out(defence)?;
    }
    let bound = Bound {
        wanted: wanted.parse()?,
        limit: Duration::from_secs(seconds.parse()?),
    };
    // The operations' own panics are caught.
    std::panic::set_hook(Box::new(|info| {
        if info.payload().downcast_ref::<u64>().is_none() {
            eprintln!("{info}");
        }
    }));
    let config = config(layout, mechanism)?;
    let runs = match layout.as_str() {
        "pool" => vec![in_a_pool(config, bound)?],
        "two-runtimes" => in_two_runtimes(&config, bound)?,
        _ => vec![in_a_runtime(config, bound)?],
    };
    let (mut is_clean, mut enough) = (true, true);
    let (mut done, mut wrong) = (0, 0);
    let (mut compiled, mut interrupt, mut migrated) = (0, 0, 0);
    for (counts, report) in &runs {
        println!("{report}");
        let preemptions = (report.statistics.as_ref().ok_or("no statistics")?).preemptions;
        is_clean &= report.is_clean();
        enough &= preemptions.by_compiled_probe >= bound.wanted;
        done += counts.done;
        wrong += counts.wrong;
        compiled += preemptions.by_compiled_probe;
        interrupt += preemptions.by_interrupt;
        migrated += preemptions.migrations;
    }
    let outstanding = CompiledProbes::outstanding();
    println!(
        "clean {} done {done} wrong {wrong} compiled {compiled} interrupt {interrupt} migrated {migrated} \
         outstanding {outstanding}",
        u64::from(is_clean),
    );
    let is_right = is_clean && wrong == 0 && outstanding == 0;
    Ok(match is_right && enough {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Removes a defence, to see that its absence is found.
#[cfg(feature = "fault-injection")]
fn take_out(defence: &str) -> Result<(), Box<dyn Error>> {
    use shinjuku_preempt::fault;
    let all = fault::Defence::ALL;
    let found = all.iter().find(|(name, _)| *name == defence);
    let (_, found) = found.ok_or("there is no such defence")?;
    fault::take_out(*found);
    Ok(())
}

#[cfg(not(feature = "fault-injection"))]
fn take_out(defence: &str) -> Result<(), Box<dyn Error>> {
    Err(format!("built without faults, so {defence} stays").into())
}

/// A request: operations that are preempted, and some that must not be. Where those were, the
/// result is another one.
fn serve(seed: u64) -> u64 {
    let result = operate(seed);
    let was_left_alone = without_preemption(|| {
        let before = preemptions();
        std::hint::black_box(operate_alone(seed));
        preemptions() == before
    });
    match was_left_alone {
        true => result,
        false => !result,
    }
}

/// A value of the configuration's, by the name that it has in files.
fn config(layout: &str, mechanism: &str) -> Result<Config, Box<dyn Error>> {
    let contexts = match layout {
        "kernel-threads" => ContextKind::KernelThread,
        _ => ContextKind::Stack,
    };
    let mechanism = match mechanism {
        "compiled-probe" => MechanismKind::CompiledProbe,
        "escalation" => MechanismKind::Escalation,
        other => return Err(format!("no mechanism with compiled probes: {other}").into()),
    };
    let layout = match layout {
        "threads" | "two-runtimes" | "kernel-threads" => LayoutKind::Threads,
        "inline" => LayoutKind::Inline,
        "symmetric" | "pool" => LayoutKind::Symmetric,
        other => return Err(format!("no such layout: {other}").into()),
    };
    Ok(Config::default()
        .layout(layout)
        .workers((layout != LayoutKind::Inline).then_some(2))
        .cores(CoresConfig::default().share(true))
        .contexts(64)
        .context_kind(contexts)
        .strict(true)
        .preemption(PreemptionConfig::new(mechanism)))
}

fn token() -> HardPreemption {
    // SAFETY: the operations rely on nothing that the token's contract excludes.
    unsafe { HardPreemption::allow() }
}

/// Two runtimes with one gate, at the same time.
fn in_two_runtimes(config: &Config, bound: Bound) -> Result<Vec<Run>, Box<dyn Error>> {
    std::thread::scope(|scope| {
        let start = || {
            let run = || in_a_runtime(config.clone(), bound).map_err(|error| error.to_string());
            scope.spawn(run)
        };
        let both = [start(), start()];
        let panicked = |_| Err("a runtime's thread panicked".to_owned());
        let runs = both.map(|run| run.join().unwrap_or_else(panicked));
        Ok(runs.into_iter().collect::<Result<_, String>>()?)
    })
}

fn in_a_runtime(config: Config, bound: Bound) -> Result<Run, Box<dyn Error>> {
    let runtime = Runtime::builder(handler_fn(serve))
        .config(config)
        .allow_hard_preemption(token())
        .start()?;
    println!("{}", runtime.description());
    let handle = runtime.handle();
    let counts = drive(
        bound,
        || runtime.statistics().preemptions.by_compiled_probe,
        |seed| Ok(handle.submit(ClassId(0), seed)?),
        |ticket| Ok(ticket.wait()?),
    )?;
    Ok((counts, runtime.shutdown(DRAIN)))
}

fn in_a_pool(config: Config, bound: Bound) -> Result<Run, Box<dyn Error>> {
    let pool = Pool::builder(["only"])
        .config(config)
        .allow_hard_preemption(token())
        .start()?;
    println!("{}", pool.description());
    let counts = drive(
        bound,
        || pool.statistics().preemptions.by_compiled_probe,
        |seed| Ok(pool.run("only", move || serve(seed))),
        |job| Ok(job.wait()?),
    )?;
    Ok((counts, pool.shutdown(DRAIN)))
}

/// Keeps requests outstanding until there were enough preemptions, or the time is over.
fn drive<Ticket>(
    bound: Bound,
    preempted: impl Fn() -> u64,
    submit: impl Fn(u64) -> Result<Ticket, Box<dyn Error>>,
    wait: impl Fn(Ticket) -> Result<u64, Box<dyn Error>>,
) -> Result<Counts, Box<dyn Error>> {
    let undisturbed: Vec<u64> = (0..SEEDS).map(operate).collect();
    let start = Instant::now();
    let (mut counts, mut tickets, mut next) = (Counts::default(), VecDeque::new(), 0);
    let mut told = start;
    let mut take = |seed: u64, ticket| -> Result<(), Box<dyn Error>> {
        counts.done += 1;
        counts.wrong += u64::from(wait(ticket)? != undisturbed[seed as usize]);
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            eprintln!(
                "{:4} s: {} of {} preemptions at entries, {} operations, {} wrong",
                start.elapsed().as_secs(),
                preempted(),
                bound.wanted,
                counts.done,
                counts.wrong
            );
        }
        Ok(())
    };
    while next == 0 || preempted() < bound.wanted && start.elapsed() < bound.limit {
        while tickets.len() < OUTSTANDING {
            tickets.push_back((next % SEEDS, submit(next % SEEDS)?));
            next += 1;
        }
        for (seed, ticket) in tickets.drain(..OUTSTANDING / 2) {
            take(seed, ticket)?;
        }
    }
    for (seed, ticket) in tickets {
        take(seed, ticket)?;
    }
    Ok(counts)
}
