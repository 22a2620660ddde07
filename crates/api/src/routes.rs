//! The routes of the API.

mod extract;
mod host;
#[expect(
    unused_qualifications,
    reason = "what utoipa writes for the parameters has some"
)]
mod jobs;
mod orders;
mod stream;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Request};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use http_body_util::BodyExt as _;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::connections::guard::guard;
use crate::connections::listen::{ApiListener, Visitor, serve_listener};
use crate::options::{SubmitOption, describe};
use crate::page;
use crate::problem::Problem;
use crate::state::Api;

#[derive(OpenApi)]
#[openapi(info(
    title = "zmove jobs",
    version = "1",
    description = "What a runner with '--http' answers: over the socket 'api.sock' in the directory of the jobs, and \
            over an address of the loopback with 'Authorization: Bearer' and the word in the file 'token' there. \
            Fields are added without a new number; the number in the path grows when a field goes or means something \
            else.",
    license(name = "MIT OR Apache-2.0")
))]
struct Description;

fn api_routes() -> OpenApiRouter<Api> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(jobs::list, orders::submit))
        .routes(routes!(jobs::show))
        .routes(routes!(jobs::events))
        .routes(routes!(jobs::samples))
        .routes(routes!(jobs::log))
        .routes(routes!(stream::events))
        .routes(routes!(orders::plan))
        .routes(routes!(orders::order))
        .routes(routes!(host::status))
        .routes(routes!(host::daemon))
        .routes(routes!(host::openapi))
}

/// Returns the OpenAPI description of the API, as in `docs/schema/openapi.json`.
#[must_use]
pub fn description(options: &[SubmitOption]) -> String {
    let mut described = api_routes().to_openapi();
    describe(&mut described, "Submission", options);
    let described = described.to_pretty_json();
    described.expect("what is described has only names for keys") + "\n"
}

/// Serves the API on all listeners. Returns only after an error.
///
/// # Errors
/// A listener fails.
pub async fn serve(api: Api, listeners: Vec<ApiListener>) -> io::Result<()> {
    let (routes, _) = api_routes().split_for_parts();
    let routes = routes
        .merge(page::routes())
        .fallback(nothing)
        .method_not_allowed_fallback(no_method);
    let routes = routes
        .layer(from_fn(at_work))
        .layer(from_fn(in_time))
        .with_state(api);
    let guarded = move |proof| -> Router { routes.clone().layer(from_fn_with_state(proof, guard)) };
    let mut served = tokio::task::JoinSet::new();
    for listener in listeners {
        served.spawn(serve_listener(listener, guarded.clone()));
    }
    while let Some(ended) = served.join_next().await {
        ended.map_err(io::Error::other)??;
    }
    Ok(())
}

/// Aborts a request whose body does not arrive or whose response takes too long.
async fn in_time(request: Request, next: Next) -> Response {
    let late =
        || Problem::new(StatusCode::REQUEST_TIMEOUT, "the request took too long").into_response();
    tokio::time::timeout(REQUEST_TIME_MAX, next.run(request))
        .await
        .unwrap_or_else(|_| late())
}

/// Reads the body of a request, and then protects the connection from being replaced until the whole response is sent.
/// A client that has not sent its complete request counts as idle, like one that has sent nothing.
pub(crate) async fn at_work(
    Extension(visitor): Extension<Arc<Visitor>>,
    request: Request,
    next: Next,
) -> Response {
    let (head, body) = request.into_parts();
    let Ok(body) = to_bytes(body, BODY_BYTES_MAX).await else {
        return Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the request body is too long",
        )
        .into_response();
    };
    let work = visitor.slot.work();
    let answer = next.run(Request::from_parts(head, body.into())).await;
    // The body of the response holds the guard, and is dropped once it was passed on completely.
    answer.map(|body| {
        Body::new(body.map_err(move |error| {
            let _held = &work;
            error
        }))
    })
}

async fn nothing() -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "no such resource: see /api/v1/openapi.json",
    )
}

async fn no_method() -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method not allowed here: see /api/v1/openapi.json",
    )
}

/// Maximum size of a request's body, in bytes.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Maximum time for a request. It is a little longer than the maximum time for a plan.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(150);
