//! Extractors whose rejections are error responses of the API.

use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;
use zmove_jobs::JobId;

use crate::problem::Problem;

/// The job id in the path.
#[derive(IntoParams)]
#[into_params(names("id"), parameter_in = Path)]
pub(super) struct Id(
    /// The job's number.
    #[param(value_type = i64)]
    pub(super) JobId,
);

impl<State: Send + Sync> FromRequestParts<State> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, Problem> {
        let Path(id) = Path::from_request_parts(parts, state).await?;
        Ok(Self(id))
    }
}

/// The parameters of the query string.
pub(super) struct QueryParameters<T>(pub(super) T);

impl<T: DeserializeOwned, State: Send + Sync> FromRequestParts<State> for QueryParameters<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, Problem> {
        let Query(asked) = Query::from_request_parts(parts, state).await?;
        Ok(Self(asked))
    }
}

/// The JSON body of the request.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned, State: Send + Sync> FromRequest<State> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &State) -> Result<Self, Problem> {
        let Json(body) = Json::from_request(request, state).await?;
        Ok(Self(body))
    }
}
