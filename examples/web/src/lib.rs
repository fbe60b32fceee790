//! The routes: tokio's tasks wait for clients, and the pool computes.
#![forbid(unsafe_code)]

mod compute;
mod work;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::error_handling::HandleError;
use axum::extract::{Form, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use shinjuku::{Pool, RunError};
use shinjuku_tower::{PoolLayer, Rules};
use tower::Layer;

pub use compute::{Class, Compute, NoResult};
pub use work::Data;

/// A search that has not started within this time is refused.
const SEARCH_DEADLINE: Duration = Duration::from_secs(2);
/// Up to so many rows, a range takes microseconds.
const FEW_ROWS: usize = 100;

#[derive(Clone)]
struct App {
    compute: Arc<Compute>,
    data: Arc<Data>,
}

/// The service's routes.
pub fn router(compute: Arc<Compute>, data: Data) -> Router {
    let data = Arc::new(data);
    let by_function = match &*compute {
        Compute::Pool(pool) => computed_by_function(pool, &data),
        _ => Router::new(),
    };
    Router::new()
        .route("/health", get(health))
        .route("/search", get(search))
        .route("/range", get(range))
        .route("/login", post(login))
        .route("/image", get(image))
        .with_state(App { compute, data })
        .merge(by_function)
}

/// `/lines?q=WORD`: a handler that is no async code, made into a service by the layer.
fn computed_by_function(pool: &Arc<Pool>, data: &Arc<Data>) -> Router {
    let data = Arc::clone(data);
    let layer = PoolLayer::new(Arc::clone(pool), Rules::otherwise(Class::Batch.name()));
    let service = layer.layer(move |request: Request| lines(&data, &request));
    let answer = |error: RunError| async move { Failed::from(NoResult::from(error)) };
    Router::new().route_service("/lines", HandleError::new(service, answer))
}

fn lines(data: &Data, request: &Request) -> Response {
    match Query::<Search>::try_from_uri(request.uri()) {
        Ok(Query(Search { q })) => format!("{}\n", data.lines_with(&q)).into_response(),
        Err(why) => why.into_response(),
    }
}

/// A healthy service computes something in time, and does not only accept connections.
async fn health(State(app): State<App>) -> Result<&'static str, Failed> {
    Ok(app.compute.run(Class::Interactive, || "ok\n").await?)
}

#[derive(Deserialize)]
struct Search {
    q: String,
}

async fn search(
    State(app): State<App>,
    Query(Search { q }): Query<Search>,
) -> Result<String, Failed> {
    let data = app.data;
    let search = move || data.search(&q);
    let hits = (app.compute)
        .run_within(Class::Batch, SEARCH_DEADLINE, search)
        .await?;
    Ok(format!("{}\n", hits.map_err(Failed::Bad)?))
}

#[derive(Deserialize)]
struct Range {
    from: String,
    count: usize,
}

async fn range(State(app): State<App>, Query(range): Query<Range>) -> Result<String, Failed> {
    let data = app.data;
    let class = match range.count <= FEW_ROWS {
        true => Class::Interactive,
        false => Class::Batch,
    };
    let rows = move || data.range(&range.from, range.count);
    app.compute
        .run(class, rows)
        .await?
        .map_err(Failed::Internal)
}

#[derive(Deserialize)]
struct Login {
    user: String,
    password: String,
}

async fn login(State(app): State<App>, Form(login): Form<Login>) -> Result<StatusCode, Failed> {
    let data = app.data;
    let verify = move || data.knows(&login.user, &login.password);
    let known = app.compute.run(Class::Batch, verify).await?;
    Ok(match known {
        true => StatusCode::NO_CONTENT,
        false => StatusCode::UNAUTHORIZED,
    })
}

#[derive(Deserialize)]
struct Image {
    width: u32,
}

async fn image(State(app): State<App>, Query(image): Query<Image>) -> Result<Response, Failed> {
    let data = app.data;
    let resize = move || data.picture(image.width);
    let png = app.compute.run(Class::Batch, resize).await?;
    let png = png.map_err(Failed::Bad)?;
    Ok(([(header::CONTENT_TYPE, "image/png")], png).into_response())
}

/// Why there is no good answer.
enum Failed {
    Run(NoResult),
    Bad(String),
    Internal(redb::Error),
}

impl From<NoResult> for Failed {
    fn from(error: NoResult) -> Self {
        Self::Run(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        match self {
            Self::Run(error) => {
                let status = match &error {
                    NoResult::Pool(error) => shinjuku_tower::status(error),
                    NoResult::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
                    NoResult::Late => StatusCode::GATEWAY_TIMEOUT,
                };
                (status, format!("{error}\n"))
            }
            Self::Bad(why) => (StatusCode::BAD_REQUEST, format!("{why}\n")),
            Self::Internal(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
        .into_response()
    }
}
