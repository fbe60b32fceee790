//! The service: tonic's tasks wait for clients, and the pool computes.
//!
//! Messages and routes are written by hand, so that the example needs no `protoc`. They are the
//! same as from this file:
//!
//! ```proto
//! syntax = "proto3";
//! package example;
//! message CountRequest { string word = 1; }
//! message CountReply { uint64 lines = 1; }
//! service Search { rpc Count(CountRequest) returns (CountReply); }
//! ```
#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::uri::PathAndQuery;
use shinjuku::net::Refusal;
use shinjuku::{Cancelled, Pool, RunError, cancellation_point};
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::server::NamedService;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

/// Asks how many lines have a word.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CountRequest {
    /// The word.
    #[prost(string, tag = "1")]
    pub word: String,
}

/// The answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CountReply {
    /// Lines that have it.
    #[prost(uint64, tag = "1")]
    pub lines: u64,
}

const COUNT: &str = "/example.Search/Count";

/// Searches a text. The pool has the class `search`.
#[derive(Clone, Debug)]
pub struct Search {
    pool: Arc<Pool>,
    text: Arc<str>,
}

impl Search {
    /// Searches this text.
    pub fn new(pool: Arc<Pool>, text: impl Into<Arc<str>>) -> Self {
        Self {
            pool,
            text: text.into(),
        }
    }

    async fn count(self, request: Request<CountRequest>) -> Result<Response<CountReply>, Status> {
        let (text, word) = (self.text, request.into_inner().word);
        // A client that hangs up, or whose time is over, drops this future, and with it the search.
        let counted = self.pool.run("search", move || count(&text, &word));
        let lines = counted.await.map_err(|error| status(&error))?;
        let lines = lines.map_err(|error| Status::cancelled(error.to_string()))?;
        Ok(Response::new(CountReply { lines }))
    }
}

fn count(text: &str, word: &str) -> Result<u64, Cancelled> {
    let mut lines = 0;
    for line in text.lines() {
        // This is also a probe, where short requests overtake this one.
        cancellation_point()?;
        lines += u64::from(line.contains(word));
    }
    Ok(lines)
}

/// The status that a client gets if the closure has no result.
fn status(error: &RunError) -> Status {
    let why = error.to_string();
    match error {
        RunError::Refused(Refusal::QueueFull) => Status::resource_exhausted(why),
        RunError::Refused(Refusal::DeadlinePassed) => Status::deadline_exceeded(why),
        RunError::Refused(Refusal::ShuttingDown) => Status::unavailable(why),
        RunError::Cancelled => Status::cancelled(why),
        RunError::RuntimeEnded => Status::unavailable(why),
        _ => Status::internal(why),
    }
}

impl NamedService for Search {
    const NAME: &'static str = "example.Search";
}

impl Service<http::Request<Body>> for Search {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let search = self.clone();
        Box::pin(async move {
            if request.uri().path() != COUNT {
                return Ok(Status::unimplemented("there is Count").into_http());
            }
            let method = service_fn(move |request| search.clone().count(request));
            let mut server = tonic::server::Grpc::new(ProstCodec::default());
            Ok(server.unary(method, request).await)
        })
    }
}

/// Asks a server.
///
/// # Errors
/// The server's error status, or `unavailable` if it cannot be reached.
pub async fn ask(channel: Channel, word: &str) -> Result<u64, Status> {
    let mut client = Grpc::new(channel);
    let ready = client.ready().await;
    ready.map_err(|error| Status::unavailable(error.to_string()))?;
    let request = Request::new(CountRequest {
        word: word.to_owned(),
    });
    let codec = ProstCodec::<CountRequest, CountReply>::default();
    let path = PathAndQuery::from_static(COUNT);
    let reply = client.unary(request, path, codec).await?;
    Ok(reply.into_inner().lines)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn every_refusal_has_the_code_of_its_cause() {
        for (cause, code) in [
            (Refusal::QueueFull, Code::ResourceExhausted),
            (Refusal::DeadlinePassed, Code::DeadlineExceeded),
            (Refusal::ShuttingDown, Code::Unavailable),
            (Refusal::UnknownClass, Code::Internal),
        ] {
            assert_eq!(status(&cause.into()).code(), code, "{cause}");
        }
        assert_eq!(status(&RunError::RuntimeEnded).code(), Code::Unavailable);
    }
}
