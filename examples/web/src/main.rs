//! A web service with short and long requests: axum, and a pool for all that computes.
//!
//! Run: `cargo run --release -p shinjuku-web -- --preempt-anywhere`
//!
//! Try: `curl localhost:8080/health`, `curl 'localhost:8080/search?q=(ab)%2Bc'`,
//! `curl 'localhost:8080/range?from=key-000100&count=1000'`,
//! `curl -d 'user=alice&password=wonderland' localhost:8080/login`,
//! `curl -o small.png 'localhost:8080/image?width=300'`
//!
//! Expect: `/health` answers at once while logins and searches are computed, since these are
//! preempted. Without `--preempt-anywhere` only code with probes is preempted, and a login holds
//! its worker. `--compute` selects other ways to compute, to compare: `spawn-blocking`, say.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use rayon::ThreadPoolBuilder;
use rustix::process::set_parent_process_death_signal;
use shinjuku::{ContextKind, HardPreemption, LayoutKind, PolicyConfig, Pool};
use shinjuku_web::{Class, Compute, Data, router};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

#[derive(Parser)]
struct Options {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Where to compute.
    #[arg(long, value_enum, default_value_t = Way::Pool)]
    compute: Way,
    /// Threads that compute. Default: as many as cores; a second runtime has half of them.
    #[arg(long)]
    workers: Option<usize>,
    /// The pool: lets code without probes be preempted, too.
    #[arg(long)]
    preempt_anywhere: bool,
    /// The pool: closures run on kernel threads of their own, so that any code may be preempted.
    #[arg(long, conflicts_with = "preempt_anywhere")]
    kernel_threads: bool,
    /// The pool: one of the cores only dispatches, which compiled probes take.
    #[arg(long)]
    dispatcher: bool,
    /// The pool's policy, such as `c-pre-mq` or `priority`. Default: the pool's own.
    #[arg(long)]
    policy: Option<String>,
    /// The pool: where `shinjuku top` and `shinjuku trace` find it.
    #[arg(long, value_name = "PATH")]
    watch: Option<PathBuf>,
    /// Rows of the database, and lines of the text.
    #[arg(long, default_value_t = 100_000)]
    rows: u64,
    /// Ends when the thread that started it ends, even while it is stopped.
    #[arg(long)]
    ends_with_parent: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Way {
    /// In a preemptive pool.
    Pool,
    /// In the handler.
    Inline,
    /// By tokio's `spawn_blocking`.
    SpawnBlocking,
    /// Short requests in the handler, long ones by `spawn_blocking`.
    SpawnBlockingLong,
    /// On rayon's threads.
    Rayon,
    /// In a second tokio runtime, with half of the cores.
    TwoRuntimes,
}

/// A tokio runtime with so many threads.
fn tokio_runtime(threads: usize) -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
}

fn start_pool(options: &Options) -> anyhow::Result<Pool> {
    let mut pool = Pool::builder(Class::NAMES)
        .workers(options.workers)
        .watch(options.watch.clone());
    if options.preempt_anywhere {
        // SAFETY: what runs in the pool is in `work.rs`: regex, redb, argon2, image and the
        // standard library. None of it relies on the kernel's thread identity, on priority
        // inheritance, on GS base, or on system calls that no signal interrupts.
        pool = pool.allow_hard_preemption(unsafe { HardPreemption::allow() });
    }
    if options.kernel_threads {
        pool = pool.context_kind(ContextKind::KernelThread);
    }
    if options.dispatcher {
        pool = pool.layout(LayoutKind::Threads);
    }
    if let Some(policy) = &options.policy {
        pool = pool.policy(PolicyConfig::new(policy.clone()));
    }
    let pool = pool.start()?;
    println!("{}", pool.description());
    Ok(pool)
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    if options.ends_with_parent {
        set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    }
    let cores = available_parallelism()?.get();
    let workers = options.workers.unwrap_or(cores);
    let half = (cores / 2).max(1);
    let (threads, second) = match options.compute {
        Way::TwoRuntimes => {
            let others = options.workers.unwrap_or((cores - half).max(1));
            (half, Some(tokio_runtime(others)?))
        }
        _ => (cores, None),
    };
    let compute = match (options.compute, &second) {
        (_, Some(second)) => Compute::SecondRuntime(second.handle().clone()),
        (Way::SpawnBlocking, _) => Compute::SpawnBlocking,
        (Way::SpawnBlockingLong, _) => Compute::SpawnBlockingLong,
        // Without a handler, rayon would end the process when a job panics.
        (Way::Rayon, _) => Compute::Rayon(
            (ThreadPoolBuilder::new().num_threads(workers))
                .panic_handler(|_| ())
                .build()?,
        ),
        (Way::Pool, _) => Compute::Pool(Arc::new(start_pool(&options)?)),
        (Way::Inline | Way::TwoRuntimes, _) => Compute::Inline,
    };
    let compute = Arc::new(compute);
    let app = router(Arc::clone(&compute), Data::generate(options.rows)?);

    let runtime = tokio_runtime(threads)?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(options.listen).await?;
        println!("listening on {}", listener.local_addr()?);
        let mut terminate = signal(SignalKind::terminate())?;
        let stop = async move {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        };
        axum::serve(listener, app)
            .with_graceful_shutdown(stop)
            .await
    })?;
    // Connections that outlived the server may still own the pool, which then ends with them.
    drop(runtime);
    if let Some(Compute::Pool(pool)) = Arc::into_inner(compute)
        && let Some(pool) = Arc::into_inner(pool)
    {
        let report = pool.shutdown(Duration::from_secs(5));
        if let Some(statistics) = &report.statistics {
            println!("{statistics}");
        }
        println!("{report}");
    }
    Ok(())
}
