//! The answers of a broker.

use std::error::Error;

use async_nats::jetstream::context::{CreateStreamError, CreateStreamErrorKind};
use async_nats::jetstream::{self, ErrorCode};

/// The reason why a request to the broker failed.
#[derive(Debug)]
pub(super) enum BrokerError {
    /// The broker does not have the requested object.
    Missing,
    /// The job is over.
    Over,
    /// The broker refused the request.
    Refused(jetstream::Error),
    /// The broker has an object that does not fit.
    Unusable(String),
    /// The broker could not be reached or did not answer. A later attempt may succeed.
    Unanswered(Box<dyn Error + Send + Sync>),
}

impl<E: Error + Send + Sync + 'static> From<E> for BrokerError {
    fn from(error: E) -> Self {
        match answer_in(&error) {
            None => Self::Unanswered(error.into()),
            Some(answer) => match answer.error_code() {
                ErrorCode::STREAM_NOT_FOUND | ErrorCode::CONSUMER_NOT_FOUND => Self::Missing,
                // The server is starting, or the servers have no leader.
                _ if answer.code() == UNAVAILABLE => Self::Unanswered(answer.into()),
                _ => Self::Refused(answer),
            },
        }
    }
}

/// Returns the broker's answer that caused an error.
pub(super) fn answer_in(error: &(dyn Error + 'static)) -> Option<jetstream::Error> {
    let of_creation = error.downcast_ref().map(CreateStreamError::kind);
    match (error.downcast_ref::<jetstream::Error>(), of_creation) {
        (Some(answer), _) => Some(answer.clone()),
        (None, Some(CreateStreamErrorKind::JetStream(answer))) => Some(answer),
        _ => answer_in(error.source()?),
    }
}

/// The code with which a broker reports that it is temporarily unavailable.
const UNAVAILABLE: usize = 503;
