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
//! preempted. Without `--preempt-anywhere` only code with probes is: a login holds its worker.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use shinjuku::{HardPreemption, Pool};
use shinjuku_web::{Data, router};

#[derive(Parser)]
struct Options {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Workers of the pool. Default: as many as cores.
    #[arg(long)]
    workers: Option<usize>,
    /// Lets code without probes be preempted, too.
    #[arg(long)]
    preempt_anywhere: bool,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let mut pool = Pool::builder(["interactive", "batch"]).workers(options.workers);
    if options.preempt_anywhere {
        // SAFETY: what runs in the pool is in `work.rs`: regex, redb, argon2, image and the
        // standard library. None of it relies on the kernel's thread identity, on priority
        // inheritance, on GS base, or on system calls that no signal interrupts.
        pool = pool.allow_hard_preemption(unsafe { HardPreemption::allow() });
    }
    let pool = Arc::new(pool.start()?);
    println!("{}", pool.description());
    let app = router(Arc::clone(&pool), Data::generate(100_000)?);

    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(options.listen).await?;
        println!("listening on {}", listener.local_addr()?);
        let stop = async { drop(tokio::signal::ctrl_c().await) };
        axum::serve(listener, app)
            .with_graceful_shutdown(stop)
            .await
    })?;
    // Connections that outlived the server may still have the pool; it ends with them.
    drop(runtime);
    if let Some(pool) = Arc::into_inner(pool) {
        let report = pool.shutdown(Duration::from_secs(5));
        if let Some(statistics) = &report.statistics {
            println!("{statistics}");
        }
        println!("{report}");
    }
    Ok(())
}
