//! What is known of the runner and its host.

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

/// The runner at this moment.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Status {
    /// The release.
    version: String,
    /// The process that answers.
    pid: u32,
    /// This host's name.
    host: String,
    /// The present by this host's clock, in seconds since 1970.
    time: Moment,
    /// How many jobs are in each state that has some.
    jobs: BTreeMap<String, u64>,
    /// The number of the last event.
    last_event: i64,
}

/// Shows the runner, and how many jobs there are.
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

/// The daemon of this host, which takes transfers of others.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Daemon {
    /// The status, as in `docs/schema/status.json`; null: it is not known.
    #[schema(value_type = Option<Object>)]
    status: Option<Value>,
    /// Why it is not known.
    why: Option<String>,
}

/// Shows the transfers of this host's daemon, where its socket can be opened.
#[utoipa::path(get, path = "/api/v1/daemon", responses((status = 200, body = Daemon), (status = 401, body = Problem)))]
pub(super) async fn daemon(Shared(api): Shared<Api>) -> Result<Json<Daemon>, Problem> {
    let asked = tokio::task::spawn_blocking(api.host.daemon).await;
    let broken = |_| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the daemon was not asked",
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
