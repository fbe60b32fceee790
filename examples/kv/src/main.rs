//! The program `kv`. The library describes it, and `kv --help` its options.

use std::time::Duration;

use clap::Parser;
use shinjuku::HardPreemption;
use shinjuku_kv::options::Options;
use shinjuku_kv::run::Running;
use shinjuku_kv::stop::Stop;

/// How long requests may take to finish at shutdown.
const PATIENCE: Duration = Duration::from_secs(5);

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let stop = Stop::listen()?;
    // SAFETY: the handlers' code is ordinary and stores nothing of its kernel thread: Rust's
    // allocator, formatting, papaya and scc, whose thread-local state follows the context; std's
    // locks, which are no priority-inheriting futexes. With the feature `rocksdb`, RocksDB's reads
    // and writes, too: its locks are plain mutexes, its thread-local state is found through the
    // thread control block, it repeats interrupted system calls, and it uses the core's number
    // (`sched_getcpu`) only as a hint. None of this code uses GS, io_uring (Debian's is built
    // without), or other stacks.
    let token = unsafe { HardPreemption::allow() };
    let running = Running::start(options.configuration()?, token, stop.stopper())?;
    println!("listening on {}", running.address());
    println!("{}", running.description());

    stop.wait();
    let (report, counts) = running.end(PATIENCE);
    if let Some(statistics) = &report.statistics {
        println!("{statistics}");
    }
    println!("{counts:?}\n{report}");
    Ok(())
}
