//! What a client has done: jobs submitted, held, ended and done again.

use axum::Json;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use zmove_jobs::{JobId, Moment, Place, Store, StoreError, wake};

use super::extract::{Body, Id};
use crate::problem::Problem;
use crate::program::{Plan, Submission};
use crate::state::Api;
use crate::view::JobView;

/// Submits a transfer as a job, as `zmove submit` does.
#[utoipa::path(
    post,
    path = "/api/v1/jobs",
    request_body = Submission,
    responses(
        (status = 201, body = JobView),
        (status = 409, body = Problem, description = "The submission's id is another job's."),
        (status = 422, body = Problem, description = "It makes no sense, or a host's key is not known.")
    )
)]
pub(super) async fn submit(
    Shared(api): Shared<Api>,
    Body(submission): Body<Submission>,
) -> Result<(StatusCode, Json<JobView>), Problem> {
    let id = JobId(submission.submit(&api).await?);
    let job = api
        .stores
        .with(move |place, store| Ok(JobView::of(place, &store.job(id)?)))
        .await?;
    Ok((StatusCode::CREATED, Json(job)))
}

/// Tells what a transfer would do, and does nothing, as `zmove copy --dry-run` does. What concerns the job alone does
/// not matter here.
#[utoipa::path(
    post,
    path = "/api/v1/plans",
    request_body = Submission,
    responses((status = 200, body = Plan), (status = 422, body = Problem), (status = 504, body = Problem))
)]
pub(super) async fn plan(
    Shared(api): Shared<Api>,
    Body(submission): Body<Submission>,
) -> Result<Json<Plan>, Problem> {
    Ok(Json(submission.plan(&api).await?))
}

/// Holds a job; what is at the target stays, and it goes on from there.
#[utoipa::path(
    post,
    path = "/api/v1/jobs/{id}/pause",
    params(Id),
    responses((status = 200, body = JobView), (status = 404, body = Problem), (status = 409, body = Problem))
)]
pub(super) async fn pause(Shared(api): Shared<Api>, Id(id): Id) -> Result<Json<JobView>, Problem> {
    order(&api, move |store| {
        store.pause(id, Moment::now()).map(|_| id)
    })
    .await
}

/// Lets a job go on.
#[utoipa::path(
    post,
    path = "/api/v1/jobs/{id}/resume",
    params(Id),
    responses((status = 200, body = JobView), (status = 404, body = Problem), (status = 409, body = Problem))
)]
pub(super) async fn resume(Shared(api): Shared<Api>, Id(id): Id) -> Result<Json<JobView>, Problem> {
    order(&api, move |store| {
        store.resume(id, Moment::now()).map(|_| id)
    })
    .await
}

/// Ends a job, and its schedule; what is at the target stays.
#[utoipa::path(
    post,
    path = "/api/v1/jobs/{id}/cancel",
    params(Id),
    responses((status = 200, body = JobView), (status = 404, body = Problem), (status = 409, body = Problem))
)]
pub(super) async fn cancel(Shared(api): Shared<Api>, Id(id): Id) -> Result<Json<JobView>, Problem> {
    order(&api, move |store| {
        store.cancel(id, Moment::now()).map(|_| id)
    })
    .await
}

/// Submits once more what a job has done that has ended. The answer is the new job.
#[utoipa::path(
    post,
    path = "/api/v1/jobs/{id}/rerun",
    params(Id),
    responses((status = 200, body = JobView), (status = 404, body = Problem), (status = 409, body = Problem))
)]
pub(super) async fn rerun(Shared(api): Shared<Api>, Id(id): Id) -> Result<Json<JobView>, Problem> {
    order(&api, move |store| store.rerun(id, Moment::now())).await
}

/// Changes a job, wakes the runner, and returns the job.
async fn order(
    api: &Api,
    change: impl FnOnce(&mut Store) -> Result<JobId, StoreError> + Send + 'static,
) -> Result<Json<JobView>, Problem> {
    let changed = move |place: &Place, store: &mut Store| {
        let id = change(store)?;
        // Without one the next runner finds it; this process becomes it if it is not.
        let _woken = wake(place);
        Ok(Json(JobView::of(place, &store.job(id)?)))
    };
    api.stores.with(changed).await
}
