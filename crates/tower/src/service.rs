//! The layer, and the service that it makes of a function.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use shinjuku::{Job, Pool, RunError};
use tower_layer::Layer;
use tower_service::Service;

use crate::classify::Classify;

/// Makes services of functions: each call runs in a pool, in the class that `C` says.
pub struct PoolLayer<C> {
    pool: Arc<Pool>,
    classify: Arc<C>,
}

impl<C> PoolLayer<C> {
    /// Makes a layer whose services run in `pool`. `classify`, a [`Classify`] of the requests, says
    /// how each is to be treated.
    pub fn new(pool: Arc<Pool>, classify: C) -> Self {
        Self {
            pool,
            classify: Arc::new(classify),
        }
    }
}

impl<H, C> Layer<H> for PoolLayer<C> {
    type Service = PoolService<H, C>;

    fn layer(&self, handler: H) -> PoolService<H, C> {
        PoolService {
            pool: Arc::clone(&self.pool),
            classify: Arc::clone(&self.classify),
            handler: Arc::new(handler),
        }
    }
}

impl<C> Clone for PoolLayer<C> {
    fn clone(&self) -> Self {
        Self {
            pool: Arc::clone(&self.pool),
            classify: Arc::clone(&self.classify),
        }
    }
}

impl<C> fmt::Debug for PoolLayer<C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PoolLayer({:?})", self.pool)
    }
}

/// A function as a service; see [`PoolLayer`]. Its clones share the function.
pub struct PoolService<H, C> {
    pool: Arc<Pool>,
    classify: Arc<C>,
    handler: Arc<H>,
}

impl<H, C, Request, Response> Service<Request> for PoolService<H, C>
where
    H: Fn(Request) -> Response + Send + Sync + 'static,
    C: Classify<Request>,
    Request: Send + 'static,
    Response: Send + 'static,
{
    type Response = Response;
    type Error = RunError;
    type Future = Job<Response>;

    /// Always ready: the pool's queue is bounded, and refuses requests beyond its bound.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), RunError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Job<Response> {
        let options = self.classify.classify(&request);
        let handler = Arc::clone(&self.handler);
        self.pool.run(options, move || handler(request))
    }
}

impl<H, C> Clone for PoolService<H, C> {
    fn clone(&self) -> Self {
        Self {
            pool: Arc::clone(&self.pool),
            classify: Arc::clone(&self.classify),
            handler: Arc::clone(&self.handler),
        }
    }
}

impl<H, C> fmt::Debug for PoolService<H, C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PoolService({:?})", self.pool)
    }
}
