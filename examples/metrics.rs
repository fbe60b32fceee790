//! A pool's metrics on a page that Prometheus reads.
//!
//! Run: `cargo run --release --example metrics -- 127.0.0.1:9187`, then
//! `curl http://127.0.0.1:9187/metrics`. Port 0 takes a free one. Without an address the example
//! serves a moment's load and prints the page once.
//!
//! Expect: lines such as `shinjuku_latency_seconds_bucket{class="short",le="0.0005"} 991`.
//! `docs/watching.md` explains them, and `docs/grafana-dashboard.json` draws them.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use shinjuku::metrics::Publisher;
use shinjuku::{Pool, preemptible};

#[preemptible]
fn triangle(n: u64) -> u64 {
    let mut sum = 0;
    for i in 1..=n {
        sum = std::hint::black_box(sum + i);
    }
    sum
}

/// The page, whose statistics are read when a client asks for it.
struct Page {
    publisher: Publisher,
    exporter: PrometheusHandle,
}

impl Page {
    fn text(&self) -> String {
        self.publisher.publish();
        self.exporter.render()
    }

    /// Answers one request, whatever its path.
    fn answer(&self, connection: TcpStream) -> std::io::Result<()> {
        connection.set_read_timeout(Some(Duration::from_secs(5)))?;
        connection.set_write_timeout(Some(Duration::from_secs(5)))?;
        let mut lines = BufReader::new(&connection).lines().take(100);
        while lines
            .next()
            .transpose()?
            .is_some_and(|line| !line.is_empty())
        {}
        let text = self.text();
        write!(
            &connection,
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{text}",
            text.len()
        )
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let exporter = PrometheusBuilder::new().install_recorder()?;
    let pool = Pool::new(["short", "long"])?;
    let page = Page {
        publisher: Publisher::new(pool.observer()),
        exporter,
    };
    for _ in 0..10 {
        let long = pool.run("long", || triangle(300_000));
        for n in 0..100 {
            pool.run("short", move || triangle(n)).wait()?;
        }
        long.wait()?;
    }
    let Some(address) = std::env::args().nth(1) else {
        print!("{}", page.text());
        return Ok(());
    };
    let listener = TcpListener::bind(&address)
        .map_err(|error| format!("cannot listen on {address}: {error}"))?;
    println!("http://{}/metrics", listener.local_addr()?);
    for connection in listener.incoming() {
        // A client that has gone is no reason to end.
        if let Err(error) = connection.and_then(|connection| page.answer(connection)) {
            eprintln!("a scrape failed: {error}");
        }
    }
    Ok(())
}
