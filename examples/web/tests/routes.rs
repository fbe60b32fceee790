//! The service over loopback, with a client of the ecosystem's.
#![allow(missing_docs)]

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use shinjuku::{LayoutKind, Pool};
use shinjuku_web::{Class, Compute, Data, router};

const PATIENCE: Duration = Duration::from_secs(120);

struct Service {
    address: String,
    client: Client<HttpConnector, Body>,
    compute: Arc<Compute>,
}

fn in_a_pool() -> Compute {
    let pool = Pool::builder(Class::NAMES).layout(LayoutKind::Symmetric);
    Compute::Pool(pool.contexts(32).start().unwrap())
}

impl Service {
    async fn start(compute: Compute) -> Self {
        let compute = Arc::new(compute);
        let app = router(compute.clone(), Data::generate(5_000).unwrap());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async { axum::serve(listener, app).await });
        Self {
            address,
            client: Client::builder(TokioExecutor::new()).build_http(),
            compute,
        }
    }

    async fn ask(&self, method: Method, path: &str, body: &str) -> (StatusCode, Vec<u8>) {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.address))
            .header("content-type", "application/x-www-form-urlencoded")
            .body(Body::from(body.to_owned()))
            .unwrap();
        let response = tokio::time::timeout(PATIENCE, self.client.request(request));
        let response = response.await.expect("it hangs").unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, body.into())
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        let (status, body) = self.ask(Method::GET, path, "").await;
        (status, String::from_utf8(body).unwrap())
    }
}

#[tokio::test]
async fn every_route_answers() {
    every_route_answers_by(in_a_pool()).await;
}

#[tokio::test]
async fn every_route_answers_wherever_it_is_computed() {
    let rayon = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    let second = tokio::runtime::Runtime::new().unwrap();
    for compute in [
        Compute::Inline,
        Compute::SpawnBlocking,
        Compute::Rayon(rayon.unwrap()),
        Compute::SecondRuntime(second.handle().clone()),
    ] {
        every_route_answers_by(compute).await;
    }
    second.shutdown_background();
}

async fn every_route_answers_by(compute: Compute) {
    let service = Service::start(compute).await;
    let ok = |text: &str| (StatusCode::OK, text.to_owned());
    assert_eq!(service.get("/health").await, ok("ok\n"));
    assert_eq!(service.get("/search?q=%5E4999%20").await, ok("1\n"));
    let (status, why) = service.get("/search?q=(").await;
    assert!(
        status == StatusCode::BAD_REQUEST && why.contains("unclosed group"),
        "{why}"
    );
    let (status, rows) = service.get("/range?from=key-000100&count=1000").await;
    assert_eq!((status, rows.lines().count()), (StatusCode::OK, 1000));
    assert!(rows.starts_with("key-000100 10000\nkey-000101 10201\n"));

    for (body, expected) in [
        ("user=alice&password=wonderland", StatusCode::NO_CONTENT),
        ("user=alice&password=wrong", StatusCode::UNAUTHORIZED),
        ("user=bob&password=wonderland", StatusCode::UNAUTHORIZED),
    ] {
        let (status, _) = service.ask(Method::POST, "/login", body).await;
        assert_eq!(status, expected, "{body}");
    }

    let (status, png) = service.ask(Method::GET, "/image?width=64", "").await;
    assert!(status == StatusCode::OK && png.starts_with(b"\x89PNG"));
    assert_eq!(
        service.get("/image?width=0").await.0,
        StatusCode::BAD_REQUEST
    );
    assert_eq!(service.get("/nothing").await.0, StatusCode::NOT_FOUND);
}

/// Many at once, short and long, over several connections.
#[tokio::test]
async fn short_and_long_ones_are_all_answered() {
    let service = Arc::new(Service::start(in_a_pool()).await);
    let tasks: Vec<_> = (0..60)
        .map(|n| {
            let service = service.clone();
            tokio::spawn(async move {
                match n % 4 {
                    0 => service.get("/search?q=(ab)%2Bc").await.0,
                    1 => service.get("/range?from=key-000000&count=500").await.0,
                    _ => service.get("/health").await.0,
                }
            })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), StatusCode::OK);
    }
    let Compute::Pool(pool) = &*service.compute else {
        unreachable!("it was started with one")
    };
    let statistics = pool.statistics();
    assert!(
        statistics.refused.total() == 0 && statistics.failed() == 0,
        "{statistics}"
    );
    assert!(statistics.finished() > 0, "{statistics}");
}
