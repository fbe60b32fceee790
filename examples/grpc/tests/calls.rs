//! The service over loopback, with tonic's own client.
#![allow(missing_docs)]

use std::sync::Arc;
use std::time::Duration;

use shinjuku::{LayoutKind, Pool};
use shinjuku_grpc::{Search, ask};
use tonic::Code;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};

const PATIENCE: Duration = Duration::from_secs(120);

/// A server for a text, whose pool has this class.
async fn serve(class: &str, text: String) -> (Channel, Arc<Pool>) {
    let pool = Pool::builder([class]).layout(LayoutKind::Symmetric);
    let pool = Arc::new(pool.contexts(16).start().unwrap());
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap();
    let search = Search::new(Arc::clone(&pool), text);
    let server = Server::builder().add_service(search);
    tokio::spawn(server.serve_with_incoming(incoming));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let channel = endpoint.timeout(PATIENCE).connect().await.unwrap();
    (channel, pool)
}

#[tokio::test]
async fn many_calls_at_once_are_answered() {
    let text: String = (0..2_000).map(|line| format!("line {line}\n")).collect();
    let (channel, pool) = serve("search", text).await;
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

#[tokio::test]
async fn a_class_that_the_pool_does_not_have_is_the_servers_fault() {
    let (channel, _pool) = serve("other", String::new()).await;
    let status = ask(channel, "x").await.unwrap_err();
    assert_eq!(status.code(), Code::Internal, "{status}");
}
