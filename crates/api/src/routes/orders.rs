//! What a client has done: jobs submitted, held, ended and done again.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::ToSchema;
use zmove_jobs::{JobId, Moment, Place, Store, wake};

use super::extract::Body;
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

/// What is to become of a job.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum JobOrder {
    /// The job is held. What is at the target stays, and the job goes on from there later.
    Pause,
    /// The job goes on.
    Resume,
    /// The job ends, and its schedule. What is at the target stays.
    Cancel,
    /// What the job has done is submitted once more if the job has ended. The answer is the new job.
    Rerun,
}

/// Holds a job (`pause`), lets it go on (`resume`), ends it with its schedule (`cancel`), or submits once more what it
/// has done (`rerun`, the answer is the new job). What is at the target stays.
#[utoipa::path(
    post,
    path = "/api/v1/jobs/{id}/{order}",
    params(
        ("id" = i64, Path, description = "The job's number."),
        ("order" = inline(JobOrder), Path, description = "What is to become of the job.")
    ),
    responses((status = 200, body = JobView), (status = 404, body = Problem), (status = 409, body = Problem))
)]
pub(super) async fn order(
    Shared(api): Shared<Api>,
    path: Result<Path<(JobId, JobOrder)>, PathRejection>,
) -> Result<Json<JobView>, Problem> {
    let Path((id, order)) = path?;
    let changed = move |place: &Place, store: &mut Store| {
        let now = Moment::now();
        let id = match order {
            JobOrder::Pause => store.pause(id, now).map(|_| id),
            JobOrder::Resume => store.resume(id, now).map(|_| id),
            JobOrder::Cancel => store.cancel(id, now).map(|_| id),
            JobOrder::Rerun => store.rerun(id, now),
        }?;
        // Without one the next runner finds it; this process becomes it if it is not.
        let _woken = wake(place);
        Ok(Json(JobView::of(place, &store.job(id)?)))
    };
    api.stores.with(changed).await
}
