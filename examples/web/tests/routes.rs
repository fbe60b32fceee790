//! The service over loopback, with a client of the ecosystem's.
#![allow(missing_docs)]

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustix::process::{Pid, Signal, kill_process};
use shinjuku::{LayoutKind, PolicyConfig, Pool, PoolBuilder, cancellation_point};
use shinjuku_web::{Class, Compute, Data, router};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(120);

/// A client of a service, in this process or another.
struct Asks {
    address: String,
    client: Client<HttpConnector, Body>,
}

/// A service in this process.
struct Service {
    asks: Asks,
    compute: Arc<Compute>,
}

fn in_a_pool() -> Compute {
    start(|pool| pool)
}

fn start(configure: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Compute {
    let pool = Pool::builder(Class::NAMES).layout(LayoutKind::Symmetric);
    Compute::Pool(Arc::new(configure(pool.contexts(32)).start().unwrap()))
}

impl Service {
    async fn start(compute: Compute) -> Self {
        let compute = Arc::new(compute);
        let app = router(compute.clone(), Data::generate(5_000).unwrap());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let asks = Asks::new(listener.local_addr().unwrap());
        tokio::spawn(async { axum::serve(listener, app).await });
        Self { asks, compute }
    }
}

impl Asks {
    fn new(address: impl std::fmt::Display) -> Self {
        Self {
            address: format!("http://{address}"),
            client: Client::builder(TokioExecutor::new()).build_http(),
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
    let service = Service::start(in_a_pool()).await;
    every_route_answers_to(&service.asks).await;
    let lines = |path| service.asks.get(path);
    let found = lines("/lines?q=ab").await;
    assert!(found.0 == StatusCode::OK && found.1 != "0\n", "{found:?}");
    assert_eq!(lines("/lines?q=no-such-word").await.1, "0\n");
    assert_eq!(lines("/lines").await.0, StatusCode::BAD_REQUEST);
}

/// The layer's route answers a request that the pool refuses, as any other route does.
#[tokio::test]
async fn what_the_pool_refuses_is_an_answer() {
    let pool = Pool::builder(["interactive"]).layout(LayoutKind::Symmetric);
    let pool = pool.contexts(16).start().unwrap();
    let service = Service::start(Compute::Pool(Arc::new(pool))).await;
    for path in ["/lines?q=ab", "/search?q=ab"] {
        let (status, why) = service.asks.get(path).await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{path}");
        assert!(why.contains("no such request class"), "{path}: {why}");
    }
}

#[tokio::test]
async fn every_route_answers_wherever_it_is_computed() {
    let rayon = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    let second = tokio::runtime::Runtime::new().unwrap();
    for compute in [
        Compute::Inline,
        Compute::SpawnBlocking,
        Compute::SpawnBlockingLong,
        Compute::Rayon(rayon.unwrap()),
        Compute::SecondRuntime(second.handle().clone()),
    ] {
        every_route_answers_to(&Service::start(compute).await.asks).await;
    }
    second.shutdown_background();
}

async fn every_route_answers_to(service: &Asks) {
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

/// Many requests at once, short and long, over several connections.
#[tokio::test]
async fn short_and_long_ones_are_all_answered() {
    let service = Arc::new(Service::start(in_a_pool()).await);
    let tasks: Vec<_> = (0..60)
        .map(|n| {
            let service = service.clone();
            tokio::spawn(async move {
                match n % 4 {
                    0 => service.asks.get("/search?q=(ab)%2Bc").await.0,
                    1 => service.asks.get("/range?from=key-000000&count=500").await.0,
                    _ => service.asks.get("/health").await.0,
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
    let is_counted = |pool: &Pool| pool.statistics().finished() > 0;
    wait_for(pool, "nothing is counted", is_counted).await;
    let statistics = pool.statistics();
    assert!(
        statistics.refused.total() == 0 && statistics.failed() == 0,
        "{statistics}"
    );
}

/// A connection that is closed in mid-request takes its running search with it.
#[tokio::test]
async fn a_client_that_hangs_up_stops_its_search() {
    // What keeps the workers busy has a search take long: all take turns, whatever their class.
    let in_turns = start(|pool| pool.policy(PolicyConfig::new("c-pre-sq")));
    let service = Service::start(in_turns).await;
    let Compute::Pool(pool) = &*service.compute else {
        unreachable!("it was started with one")
    };
    let spin = || while cancellation_point().is_ok() {};
    let crowd: Vec<_> = (0..24).map(|_| pool.run("interactive", spin)).collect();
    for (number, path) in ["/search?q=(ab)%2Bc", "/lines?q=ab"]
        .into_iter()
        .enumerate()
    {
        let request = format!("GET {path} HTTP/1.1\r\nhost: here\r\n\r\n");
        let address = service.asks.address.strip_prefix("http://").unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(request.as_bytes()).await.unwrap();
        let runs = |pool: &Pool| {
            let oldest = pool.observer().oldest_requests(32);
            oldest.iter().any(|request| request.class == "batch")
        };
        wait_for(pool, "the search does not start", runs).await;
        drop(client);
        let has_stopped = |pool: &Pool| pool.statistics().failed() == number as u64 + 1;
        wait_for(pool, "the search goes on without a client", has_stopped).await;
        // It is counted a moment before its note is gone, which the next one's would be taken for.
        let is_gone = |pool: &Pool| !runs(pool);
        wait_for(pool, "the search that has stopped still shows", is_gone).await;
        assert_eq!(
            pool.statistics().classes[1].finished,
            0,
            "{path} came to its end"
        );
    }
    drop(crowd);
}

async fn wait_for(pool: &Pool, what: &str, is_so: impl Fn(&Pool) -> bool) {
    let start = Instant::now();
    while !is_so(pool) {
        assert!(start.elapsed() < PATIENCE, "{what}: {}", pool.statistics());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The program as `cargo xtask bench service` starts it, once for each contender.
#[tokio::test]
async fn every_contender_serves_and_ends_when_it_is_told_to() {
    for arguments in [
        &["--compute", "inline"][..],
        &["--compute", "spawn-blocking"],
        &["--compute", "spawn-blocking-long"],
        &["--compute", "rayon"],
        &["--compute", "two-runtimes"],
        &[],
        &["--preempt-anywhere"],
        &["--kernel-threads"],
        &["--dispatcher"],
        &["--preempt-anywhere", "--dispatcher"],
    ] {
        let mut server = Process::start(arguments);
        every_route_answers_to(&Asks::new(&server.address)).await;
        server.end();
    }
}

/// A bench that is killed leaves no server behind, even one that it had stopped.
#[test]
fn a_stopped_server_ends_with_the_thread_that_started_it() {
    let started = std::thread::spawn(|| {
        let server = Process::start(&["--compute", "inline", "--ends-with-parent"]);
        server.signal(Signal::STOP);
        server
    });
    let mut server = started.join().unwrap();
    assert_eq!(server.wait().signal(), Some(Signal::KILL.as_raw()));
}

/// A running program, which is killed when this is dropped.
struct Process {
    child: Child,
    address: String,
    arguments: String,
}

impl Process {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_web"))
            .args(["--listen", "127.0.0.1:0", "--rows", "5000"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let told = BufReader::new(child.stdout.take().unwrap());
        let mut server = Self {
            child,
            address: String::new(),
            arguments: arguments.join(" "),
        };
        let mut lines = told.lines().map(|line| line.unwrap());
        let address = lines.find_map(|line| Some(line.strip_prefix("listening on ")?.to_owned()));
        server.address = address.unwrap_or_else(|| panic!("{} ended", server.arguments));
        // The program's last output needs a reader.
        std::thread::spawn(move || lines.for_each(drop));
        server
    }

    /// Sends SIGTERM, after which the program must end without an error.
    fn end(&mut self) {
        self.signal(Signal::TERM);
        let status = self.wait();
        assert!(status.success(), "{}: {status}", self.arguments);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "{} goes on", self.arguments);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
