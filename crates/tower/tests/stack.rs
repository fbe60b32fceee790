//! The service within tower's own layers.
#![allow(missing_docs)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{Request, Response, StatusCode};
use shinjuku::net::Refusal;
use shinjuku::{Config, LayoutKind, Pool, RunError};
use shinjuku_tower::{PoolLayer, Rules, status};
use tower::limit::ConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower::load_shed::error::Overloaded;
use tower::timeout::TimeoutLayer;
use tower::timeout::error::Elapsed;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

const PATIENCE: Duration = Duration::from_secs(60);

/// Two classes and one worker. No spare runs beside the worker while it computes.
fn pool() -> Arc<Pool> {
    let mut config = Config::default()
        .layout(LayoutKind::Threads)
        .workers(1)
        .contexts(8)
        .rescue_after_ms(60_000.0);
    config.cores.share = true;
    let pool = Pool::builder(["interactive", "batch"]).config(config);
    Arc::new(pool.start().unwrap())
}

fn request(path: &str) -> Request<()> {
    Request::builder().uri(path).body(()).unwrap()
}

fn rules() -> Rules {
    Rules::otherwise("batch").path("/health", "interactive")
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what} never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A handler that tells that it runs, and runs until it is told to end.
#[derive(Clone, Default)]
struct Held(Arc<(AtomicUsize, AtomicBool)>);

impl Held {
    fn handler(&self) -> impl Fn(Request<()>) -> Response<()> + Send + Sync + 'static {
        let held = self.0.clone();
        move |_| {
            held.0.fetch_add(1, Ordering::Release);
            let start = Instant::now();
            while !held.1.load(Ordering::Acquire) && start.elapsed() < PATIENCE {
                std::hint::spin_loop();
            }
            Response::new(())
        }
    }

    fn calls(&self) -> usize {
        self.0.0.load(Ordering::Acquire)
    }

    fn release(&self) {
        self.0.1.store(true, Ordering::Release);
    }
}

#[tokio::test]
async fn requests_run_in_the_class_that_the_rules_say() {
    let pool = pool();
    let handler = |request: Request<()>| Response::new(request.uri().path().len());
    let service = PoolLayer::new(pool.clone(), rules()).layer(handler);
    for (path, times) in [("/health", 3), ("/search", 2)] {
        for _ in 0..times {
            let response = service.clone().oneshot(request(path)).await.unwrap();
            assert_eq!(*response.body(), 7);
        }
    }
    wait_for("the count", || {
        let classes = pool.statistics().classes;
        (classes[0].finished, classes[1].finished) == (3, 2)
    });
    let by_closure = PoolLayer::new(pool.clone(), |_: &Request<()>| "bathc");
    let refused = by_closure.layer(handler).oneshot(request("/")).await;
    let error = refused.unwrap_err();
    assert!(matches!(error, RunError::Refused(Refusal::UnknownClass)));
    assert_eq!(status(&error), StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn a_panic_is_an_error_of_its_request() {
    let service = PoolLayer::new(pool(), rules());
    let service = service.layer(|request: Request<()>| match request.uri().path() {
        "/bad" => panic!("on purpose"),
        path => Response::new(path.len()),
    });
    let error = service.clone().oneshot(request("/bad")).await.unwrap_err();
    assert_eq!(status(&error), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(error.to_string(), "the closure panicked: on purpose");
    assert!(service.oneshot(request("/good")).await.is_ok());
}

#[tokio::test]
async fn what_is_over_the_limit_is_shed() {
    let (pool, held) = (pool(), Held::default());
    let mut service = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(1))
        .layer(PoolLayer::new(pool.clone(), rules()))
        .service(held.handler());
    let first = service.ready().await.unwrap().call(request("/search"));
    let first = tokio::spawn(first);
    let shed = service
        .ready()
        .await
        .unwrap()
        .call(request("/health"))
        .await;
    assert!(shed.unwrap_err().is::<Overloaded>());
    held.release();
    assert!(first.await.unwrap().is_ok());
    service.oneshot(request("/health")).await.unwrap();
    assert_eq!(held.calls(), 2);
}

#[tokio::test]
async fn a_time_limit_takes_what_is_queued_out_of_the_queue() {
    let (pool, held) = (pool(), Held::default());
    let layer = PoolLayer::new(pool.clone(), rules());
    let holds = tokio::spawn(layer.layer(held.handler()).oneshot(request("/search")));
    while held.calls() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let ran = Arc::new(Mutex::new(0));
    let runs = ran.clone();
    let limited = ServiceBuilder::new()
        .layer(TimeoutLayer::new(Duration::from_millis(5)))
        .layer(layer)
        .service(move |_: Request<()>| *runs.lock().unwrap() += 1);
    for _ in 0..3 {
        let late = limited.clone().oneshot(request("/health")).await;
        assert!(late.unwrap_err().is::<Elapsed>());
    }
    held.release();
    assert!(holds.await.unwrap().is_ok());
    wait_for("the count", || {
        pool.statistics().refused.of(Refusal::Cancelled) == 3
    });
    assert_eq!(*ran.lock().unwrap(), 0);
}
