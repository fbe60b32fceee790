//! [tower](https://docs.rs/tower) services whose handlers are ordinary functions, run in a
//! [`Pool`](shinjuku::Pool).
//!
//! ```
//! use std::sync::Arc;
//!
//! use shinjuku::Pool;
//! use shinjuku_tower::{PoolLayer, Rules};
//! use tower::{Layer, ServiceExt};
//!
//! /// Computes, and could block: it is not async.
//! fn handle(request: http::Request<String>) -> http::Response<usize> {
//!     http::Response::new(request.body().matches("needle").count())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = Arc::new(Pool::new(["interactive", "batch"])?);
//! let rules = Rules::otherwise("batch").path("/health", "interactive");
//! let service = PoolLayer::new(Arc::clone(&pool), rules).layer(handle);
//!
//! let request = http::Request::new("a needle in a haystack".to_owned());
//! assert_eq!(*service.oneshot(request).await?.body(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! - A request's class comes from [`Rules`] (path, method, header) or from a closure, which may
//!   also set priority, deadline and span: see [`Classify`].
//! - The service's future is the pool's [`Job`](shinjuku::Job). Dropping it cancels the handler.
//!   So tower's `TimeoutLayer` around the service removes a late request from the queue, or asks
//!   its handler to stop at a [`cancellation_point`](shinjuku::cancellation_point).
//! - The pool shuts down when its last owner drops it, and then refuses requests. So keep an `Arc`
//!   of it beside the service.
//! - The service is always ready: a request for which the pool's queue has no room is answered with
//!   [`RunError::Refused`]. With tower's `ConcurrencyLimitLayer` around it the service is not ready
//!   at the limit, and `LoadShedLayer` around both sheds the requests beyond it.
//! - [`status`] gives the HTTP status for an error.
#![forbid(unsafe_code)]

mod classify;
mod service;

use http::StatusCode;
use shinjuku::RunError;
use shinjuku::net::Refusal;

pub use classify::{Classify, Rules};
pub use service::{PoolLayer, PoolService};

/// The HTTP status of a request whose handler has no result: 500 if the handler panicked or the
/// pool has no such class, 504 if the request's deadline passed, else 503, since another attempt
/// may succeed.
#[must_use]
pub fn status(error: &RunError) -> StatusCode {
    match error {
        RunError::Panicked(_) | RunError::Refused(Refusal::UnknownClass) => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
        RunError::Refused(Refusal::DeadlinePassed) => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_whose_fault_it_is() {
        for (cause, expected) in [
            (Refusal::QueueFull, 503),
            (Refusal::ShuttingDown, 503),
            (Refusal::UnknownClass, 500),
            (Refusal::DeadlinePassed, 504),
        ] {
            assert_eq!(status(&cause.into()).as_u16(), expected, "{cause}");
        }
    }
}
