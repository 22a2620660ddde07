//! Routes that list and show jobs and their events.

use axum::Json;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use zmove_jobs::{JobId, Page, State, TransferTotals, read_tail, samples_of};

use super::extract::{Id, QueryParameters};
use crate::problem::Problem;
use crate::state::Api;
use crate::view::{EventView, JobView, ProgressView};

/// Selects jobs.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Only jobs in these states, separated by commas: `running,queued`.
    state: Option<String>,
    /// Only jobs with lower numbers: the `next` of an earlier response.
    before: Option<JobId>,
    /// Maximum number of jobs, up to 500. The default is 100.
    limit: Option<u32>,
}

/// One page of the list of jobs.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Jobs {
    /// The jobs, newest first.
    jobs: Vec<JobView>,
    /// The value of `before` for the next page. Null if there are no older jobs.
    next: Option<i64>,
}

/// Lists jobs, newest first, in pages.
#[utoipa::path(
    get,
    path = "/api/v1/jobs",
    params(Which),
    responses((status = 200, body = Jobs), (status = 401, body = Problem), (status = 422, body = Problem))
)]
pub(super) async fn list(
    Shared(api): Shared<Api>,
    QueryParameters(which): QueryParameters<Which>,
) -> Result<Json<Jobs>, Problem> {
    let words = which
        .state
        .iter()
        .flat_map(|states| states.split(','))
        .filter(|word| !word.is_empty());
    let states: Result<Vec<State>, String> = words.map(str::parse).collect();
    let length_max = which.limit.unwrap_or(LENGTH_DEFAULT).clamp(1, LENGTH_MAX);
    let mut states = states.map_err(Problem::bad)?;
    states.sort_by_cached_key(ToString::to_string);
    states.dedup();
    let page = Page {
        states,
        before: which.before,
        length_max,
    };
    let read = move |place: &_, store: &mut zmove_jobs::Store| {
        let jobs = store.page(&page)?;
        let is_full = u32::try_from(jobs.len()).unwrap_or(u32::MAX) >= length_max;
        let next = jobs.last().filter(|_| is_full).map(|job| job.id.0);
        Ok(Json(Jobs {
            jobs: jobs.iter().map(|job| JobView::of(place, job)).collect(),
            next,
        }))
    };
    api.stores.with(read).await
}

/// Shows a job.
#[utoipa::path(
    get,
    path = "/api/v1/jobs/{id}",
    params(Id),
    responses((status = 200, body = JobView), (status = 404, body = Problem))
)]
pub(super) async fn show(Shared(api): Shared<Api>, Id(id): Id) -> Result<Json<JobView>, Problem> {
    api.stores
        .with(move |place, store| Ok(Json(JobView::of(place, &store.job(id)?))))
        .await
}

/// Selects events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Since {
    /// Only events with higher numbers: the `next` of an earlier response.
    #[serde(default)]
    after: i64,
    /// Maximum number of events, up to 500. The default is 100.
    limit: Option<u32>,
}

/// One page of a job's events.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Events {
    /// The events, oldest first.
    events: Vec<EventView>,
    /// The value of `after` for the next page. Null if there are no more events yet.
    next: Option<i64>,
}

/// Lists the events of a job.
#[utoipa::path(
    get,
    path = "/api/v1/jobs/{id}/events",
    params(Id, Since),
    responses((status = 200, body = Events), (status = 404, body = Problem))
)]
pub(super) async fn events(
    Shared(api): Shared<Api>,
    Id(id): Id,
    QueryParameters(since): QueryParameters<Since>,
) -> Result<Json<Events>, Problem> {
    let length_max = since.limit.unwrap_or(LENGTH_DEFAULT).clamp(1, LENGTH_MAX);
    let read = move |_: &_, store: &mut zmove_jobs::Store| {
        store.job(id)?;
        // One additional event shows whether there are more.
        let mut events = store.events(id, since.after, length_max + 1)?;
        let length_max = usize::try_from(length_max).unwrap_or(usize::MAX);
        let is_more = events.len() > length_max;
        events.truncate(length_max);
        let next = events.last().filter(|_| is_more).map(|event| event.number);
        Ok(Json(Events {
            events: events.into_iter().map(EventView::from).collect(),
            next,
        }))
    };
    api.stores.with(read).await
}

/// Progress samples of an attempt.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Samples {
    /// The number of the attempt.
    attempt: u32,
    /// Samples from the start of the attempt to its end or the present.
    samples: Vec<ProgressView>,
}

/// Shows up to 240 progress samples of the latest attempt that has at least two.
#[utoipa::path(
    get,
    path = "/api/v1/jobs/{id}/samples",
    params(Id),
    responses((status = 200, body = Samples), (status = 404, body = Problem))
)]
pub(super) async fn samples(
    Shared(api): Shared<Api>,
    Id(id): Id,
) -> Result<Json<Samples>, Problem> {
    let read = move |place: &_, store: &mut zmove_jobs::Store| {
        let last = store.job(id)?.attempt;
        let of = |attempt| (attempt, samples_of(place, id, attempt, SAMPLES_MAX));
        let attempts = (1..=last).rev().take(ATTEMPTS_MAX).map(of);
        let found = attempts.into_iter().find(|(_, samples)| samples.len() > 1);
        let (attempt, samples) = found.unwrap_or((last, Vec::new()));
        // The chart shows this attempt only, so earlier attempts do not count.
        let nothing = TransferTotals::default();
        let samples = samples
            .iter()
            .map(|sample| ProgressView::new(id, &nothing, sample))
            .collect();
        Ok(Json(Samples { attempt, samples }))
    };
    api.stores.with(read).await
}

/// Shows the end of the job's log, at most 64 KiB.
#[utoipa::path(
    get,
    path = "/api/v1/jobs/{id}/log",
    params(Id),
    responses((status = 200, body = String, content_type = "text/plain"), (status = 404, body = Problem))
)]
pub(super) async fn log(Shared(api): Shared<Api>, Id(id): Id) -> Result<Response, Problem> {
    let read = move |place: &zmove_jobs::JobsDirectory, store: &mut zmove_jobs::Store| {
        store.job(id)?;
        let fail = |error: std::io::Error| {
            Problem::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("read the log: {error}"),
            )
        };
        let said = read_tail(&place.log(id), LOG_BYTES_MAX).map_err(fail)?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    };
    let said = api.stores.with(read).await?;
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], said).into_response())
}

const LENGTH_DEFAULT: u32 = 100;
const LENGTH_MAX: u32 = 500;
const SAMPLES_MAX: usize = 240;
/// Maximum number of attempts to search for samples.
const ATTEMPTS_MAX: usize = 5;
const LOG_BYTES_MAX: u64 = 64 << 10;
