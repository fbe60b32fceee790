//! The service over loopback, with tonic's own client.
#![allow(missing_docs)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shinjuku::{Job, LayoutKind, Pool, Statistics, cancellation_point};
use shinjuku_grpc::{Search, ask};
use tonic::Code;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};

const PATIENCE: Duration = Duration::from_secs(120);

/// A server for a text, whose pool has this class.
async fn serve(class: &str, text: String) -> (SocketAddr, Arc<Pool>) {
    let pool = Pool::builder([class]).layout(LayoutKind::Symmetric);
    let pool = Arc::new(pool.contexts(16).start().unwrap());
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap();
    let search = Search::new(Arc::clone(&pool), text);
    let server = Server::builder().add_service(search);
    tokio::spawn(server.serve_with_incoming(incoming));
    (address, pool)
}

async fn connect(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    endpoint.timeout(PATIENCE).connect().await.unwrap()
}

#[tokio::test]
async fn many_calls_at_once_are_answered() {
    let text: String = (0..2_000).map(|line| format!("line {line}\n")).collect();
    let (address, pool) = serve("search", text).await;
    let channel = connect(address).await;
    let calls: Vec<_> = (0..40)
        .map(|n| {
            let channel = channel.clone();
            tokio::spawn(async move { (n, ask(channel, &format!("line {n}x")).await) })
        })
        .collect();
    for call in calls {
        let (n, lines) = call.await.unwrap();
        assert_eq!(lines.unwrap(), 0, "{n}");
    }
    assert_eq!(ask(channel, "line 19").await.unwrap(), 111);
    assert_eq!(pool.statistics().refused.total(), 0);
}

/// Keeps a pool's workers busy, so that what runs beside takes long; until it is dropped.
fn crowd(pool: &Pool) -> Vec<Job<()>> {
    let spin = || while cancellation_point().is_ok() {};
    (0..12).map(|_| pool.run("search", spin)).collect()
}

/// Waits until the pool has done as many closures as said.
async fn wait_for(pool: &Pool, what: &str, is_so: impl Fn(&Statistics) -> bool) {
    let start = Instant::now();
    while !is_so(&pool.statistics()) {
        assert!(start.elapsed() < PATIENCE, "{what}: {}", pool.statistics());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// One that gives the call up, and one that closes its connection.
#[tokio::test]
async fn a_client_that_hangs_up_stops_its_search() {
    let text = "a line of some words\n".repeat(300_000);
    let (address, pool) = serve("search", text).await;
    let channel = connect(address).await;
    let crowd = crowd(&pool);
    let started = |number: u64| move |now: &Statistics| now.started == 12 + number;
    wait_for(&pool, "the crowd does not start", started(0)).await;

    let call = tokio::spawn(ask(channel, "some words"));
    wait_for(&pool, "the search does not start", started(1)).await;
    call.abort();
    let stopped = |number: u64| move |now: &Statistics| now.failed() == number;
    wait_for(&pool, "the search given up goes on", stopped(1)).await;
    // It is counted a moment before the gauge forgets it.
    wait_for(&pool, "the search given up still shows", started(0)).await;

    let client = tokio::runtime::Runtime::new().unwrap();
    let own = client.spawn(connect(address)).await.unwrap();
    client.spawn(ask(own, "some words"));
    wait_for(&pool, "the second search does not start", started(1)).await;
    client.shutdown_background();
    wait_for(&pool, "the search goes on without a client", stopped(2)).await;
    assert_eq!(pool.statistics().finished(), 0, "nothing came to its end");
    drop(crowd);
}

#[tokio::test]
async fn a_class_that_the_pool_does_not_have_is_the_servers_fault() {
    let (address, _pool) = serve("other", String::new()).await;
    let status = ask(connect(address).await, "x").await.unwrap_err();
    assert_eq!(status.code(), Code::Internal, "{status}");
}
