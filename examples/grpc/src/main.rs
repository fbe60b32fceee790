//! A gRPC service on tonic that computes in a pool.
//!
//! Run: `cargo run --release -p shinjuku-grpc -- 127.0.0.1:50051`
//!
//! Try: `grpcurl -plaintext -import-path . -proto search.proto -d '{"word": "ab"}'
//! localhost:50051 example.Search/Count`, with the file that stands at the head of `lib.rs`.
//!
//! Expect: the number of lines. Many requests at once share the workers. A request that its client
//! gives up is cancelled.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use shinjuku::Pool;
use shinjuku_grpc::Search;
use tokio::signal::unix::{SignalKind, signal};
use tonic::transport::Server;

fn main() -> anyhow::Result<()> {
    let address = std::env::args().nth(1);
    let address: SocketAddr = (address.as_deref().unwrap_or("127.0.0.1:50051"))
        .parse()
        .context("the argument is an address to listen on")?;
    let pool = Arc::new(Pool::new(["search"])?);
    println!("{}", pool.description());
    let text: String = (0..1_000_000_u64)
        .map(|line| format!("{line} {:x}\n", line.wrapping_mul(2_654_435_761)))
        .collect();
    let search = Search::new(Arc::clone(&pool), text);
    let runtime = tokio::runtime::Runtime::new()?;
    println!("listening on {address}");
    let server = Server::builder().add_service(search);
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let stop = async move {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        };
        anyhow::Ok(server.serve_with_shutdown(address, stop).await?)
    })?;
    drop(runtime);
    if let Some(pool) = Arc::into_inner(pool) {
        println!("{}", pool.shutdown(Duration::from_secs(5)));
    }
    Ok(())
}
