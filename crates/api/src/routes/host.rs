//! Routes that show the status of the runner and of its host.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use zmove_jobs::{Moment, host_name};

use super::description;
use crate::problem::Problem;
use crate::state::Api;

/// The status of the runner.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Status {
    /// The version of the program.
    version: String,
    /// The process id of the runner.
    pid: u32,
    /// The name of this host.
    host: String,
    /// The current time of this host, in seconds since the Unix epoch.
    time: Moment,
    /// The number of jobs in each state that occurs.
    jobs: BTreeMap<String, u64>,
    /// The number of the latest event.
    last_event: i64,
}

/// Shows the status of the runner and the number of jobs.
#[utoipa::path(get, path = "/api/v1/status", responses((status = 200, body = Status), (status = 401, body = Problem)))]
pub(super) async fn status(Shared(api): Shared<Api>) -> Result<Json<Status>, Problem> {
    let version = api.host.version.clone();
    let read = move |_: &_, store: &mut zmove_jobs::Store| {
        Ok(Json(Status {
            version,
            pid: std::process::id(),
            host: host_name(),
            time: Moment::now(),
            last_event: store.last_event()?,
            jobs: store
                .counts()?
                .into_iter()
                .map(|(state, count)| (state.to_string(), count))
                .collect(),
        }))
    };
    api.stores.with(read).await
}

/// The daemon of this host, which receives transfers from other hosts.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Daemon {
    /// The status, as in `docs/schema/status.json`. Null if it is unknown.
    #[schema(value_type = Option<Object>)]
    status: Option<Value>,
    /// The reason why the status is unknown.
    why: Option<String>,
}

/// Shows the status of this host's daemon, if its socket can be opened.
#[utoipa::path(get, path = "/api/v1/daemon", responses((status = 200, body = Daemon), (status = 401, body = Problem)))]
pub(super) async fn daemon(Shared(api): Shared<Api>) -> Result<Json<Daemon>, Problem> {
    let asked = tokio::task::spawn_blocking(api.host.daemon).await;
    let broken = |_| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the daemon could not be queried",
        )
    };
    Ok(Json(match asked.map_err(broken)? {
        Ok(status) => Daemon {
            status: Some(status),
            why: None,
        },
        Err(why) => Daemon {
            status: None,
            why: Some(why),
        },
    }))
}

/// Shows this description.
#[utoipa::path(get, path = "/api/v1/openapi.json", responses((status = 200, body = Object)))]
pub(super) async fn openapi(Shared(api): Shared<Api>) -> impl IntoResponse {
    (
        [(CONTENT_TYPE, "application/json")],
        description(&api.host.options),
    )
}
