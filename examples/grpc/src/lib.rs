//! The service: what is waited for is tonic's, what is computed is the pool's, by the layer of
//! `shinjuku-tower` around an ordinary function.
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
use shinjuku::{Pool, RunError, cancellation_point_or_unwind};
use shinjuku_tower::PoolLayer;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::server::NamedService;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceExt};

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
    count: BoxCloneSyncService<Request<CountRequest>, Response<CountReply>, Status>,
}

impl Search {
    /// Searches this text.
    pub fn new(pool: Arc<Pool>, text: impl Into<Arc<str>>) -> Self {
        let text = text.into();
        let in_text = move |request: Request<CountRequest>| count(&text, &request.get_ref().word);
        let class = |_: &Request<CountRequest>| "search";
        // A client that hangs up, or whose time is over, drops the call, and with it the search.
        let in_pool = PoolLayer::new(pool, class).layer(in_text);
        let answered = in_pool
            .map_response(|lines| Response::new(CountReply { lines }))
            .map_err(|error: RunError| status(&error));
        Self {
            count: BoxCloneSyncService::new(answered),
        }
    }
}

fn count(text: &str, word: &str) -> u64 {
    let mut lines = 0;
    for line in text.lines() {
        // Also a probe: short requests get past this one here.
        cancellation_point_or_unwind();
        lines += u64::from(line.contains(word));
    }
    lines
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
        let count = self.count.clone();
        Box::pin(async move {
            if request.uri().path() != COUNT {
                return Ok(Status::unimplemented("there is Count").into_http());
            }
            let mut server = tonic::server::Grpc::new(ProstCodec::default());
            Ok(server.unary(count, request).await)
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
