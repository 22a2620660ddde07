//! Routes that submit jobs and change their state.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::ToSchema;
use zmove_jobs::{JobId, JobsDirectory, Moment, Store, wake};

use super::extract::JsonBody;
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
    JsonBody(submission): JsonBody<Submission>,
) -> Result<(StatusCode, Json<JobView>), Problem> {
    let id = JobId(submission.submit(&api).await?);
    let job = api
        .stores
        .with(move |place, store| Ok(JobView::of(place, &store.job(id)?)))
        .await?;
    Ok((StatusCode::CREATED, Json(job)))
}

/// Shows what a transfer would do without doing it, as `zmove copy --dry-run` does.
///
/// Options that concern only the job are ignored.
#[utoipa::path(
    post,
    path = "/api/v1/plans",
    request_body = Submission,
    responses((status = 200, body = Plan), (status = 422, body = Problem), (status = 504, body = Problem))
)]
pub(super) async fn plan(
    Shared(api): Shared<Api>,
    JsonBody(submission): JsonBody<Submission>,
) -> Result<Json<Plan>, Problem> {
    Ok(Json(submission.plan(&api).await?))
}

/// A request to change a job's state.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum JobOrder {
    /// Hold the job. Data at the target stays there, and the job can continue from it later.
    Pause,
    /// Resume the job.
    Resume,
    /// Cancel the job and its schedule. Data at the target stays there.
    Cancel,
    /// Submit the work of an ended job again. The response is the new job.
    Rerun,
}

/// Holds, resumes, cancels or repeats a job.
///
/// `pause` holds the job, `resume` resumes it, and `cancel` ends it and its schedule. `rerun` submits its work again,
/// and the response is the new job. Data at the target stays there.
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
    let changed = move |place: &JobsDirectory, store: &mut Store| {
        let now = Moment::now();
        let id = match order {
            JobOrder::Pause => store.pause(id, now).map(|_| id),
            JobOrder::Resume => store.resume(id, now).map(|_| id),
            JobOrder::Cancel => store.cancel(id, now).map(|_| id),
            JobOrder::Rerun => store.rerun(id, now),
        }?;
        // If no runner is active, this process may become the runner and finds the change. Otherwise the next runner
        // does.
        let _woken = wake(place);
        Ok(Json(JobView::of(place, &store.job(id)?)))
    };
    api.stores.with(changed).await
}
