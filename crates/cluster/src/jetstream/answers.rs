//! Requests to a broker to make something, and the answers of a broker.

use std::error::Error;
use std::time::Duration;

use async_nats::jetstream::context::{CreateStreamError, CreateStreamErrorKind};
use async_nats::jetstream::kv::Store;
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType, Stream};
use async_nats::jetstream::{self, ErrorCode};

use futures_util::TryFutureExt;

use super::connection::Connection;
use crate::error::WorkError;

/// Why a request to the broker was not done.
#[derive(Debug)]
pub(super) enum BrokerError {
    /// The broker does not have what was asked for.
    Missing,
    /// The job is over.
    Over,
    /// The broker refuses.
    Refused(jetstream::Error),
    /// The broker could not be asked, or has not answered; later it may.
    Unanswered(Box<dyn Error + Send + Sync>),
}

impl<E: Error + Send + Sync + 'static> From<E> for BrokerError {
    fn from(error: E) -> Self {
        match answer_in(&error) {
            None => Self::Unanswered(error.into()),
            Some(answer) => match answer.error_code() {
                ErrorCode::STREAM_NOT_FOUND | ErrorCode::CONSUMER_NOT_FOUND => Self::Missing,
                // the server starts, or the servers have no leader
                _ if answer.code() == UNAVAILABLE => Self::Unanswered(answer.into()),
                _ => Self::Refused(answer),
            },
        }
    }
}

/// The answer of the broker that led to an error.
pub(super) fn answer_in(error: &(dyn Error + 'static)) -> Option<jetstream::Error> {
    let of_creation = error.downcast_ref().map(CreateStreamError::kind);
    match (error.downcast_ref::<jetstream::Error>(), of_creation) {
        (Some(answer), _) => Some(answer.clone()),
        (None, Some(CreateStreamErrorKind::JetStream(answer))) => Some(answer),
        _ => answer_in(error.source()?),
    }
}

impl Connection {
    /// The reason of an error, for messages.
    pub(super) fn explain(&self, error: BrokerError) -> Box<dyn Error + Send + Sync> {
        match error {
            BrokerError::Missing => NOT_THERE.into(),
            BrokerError::Over => WorkError::Over.into(),
            BrokerError::Refused(error) => error.into(),
            // a server reports apart from its answers that something is not allowed
            BrokerError::Unanswered(error) => self.refusal().map_or(error, Into::into),
        }
    }

    /// Makes a stream with three replicas, or with one if the broker has too few servers.
    pub(super) async fn make_stream(&self, config: Config) -> Result<Stream, BrokerError> {
        let make = |num_replicas| {
            self.context.create_stream(Config {
                num_replicas,
                ..config.clone()
            })
        };
        if self.client.server_info().cluster.is_some() {
            match make(3).err_into().await {
                Err(BrokerError::Refused(_)) => {}
                made => return made,
            }
        }
        Ok(make(1).await?)
    }

    /// A bucket, which is made if the broker does not have it.
    pub(super) async fn bucket(
        &self,
        bucket: &str,
        max_age: Duration,
        storage: StorageType,
    ) -> Result<Store, BrokerError> {
        self.check()?;
        if let Ok(found) = self.context.get_key_value(bucket).await {
            return Ok(found);
        }
        // the crate cannot make a bucket at nats-server 2.9, whose account information it does not understand
        self.make_stream(Config {
            name: format!("KV_{bucket}"),
            subjects: vec![format!("$KV.{bucket}.>")],
            max_messages_per_subject: 1,
            discard: DiscardPolicy::New,
            allow_rollup: true,
            allow_direct: true,
            max_age,
            storage,
            ..Config::default()
        })
        .await?;
        Ok(self.context.get_key_value(bucket).await?)
    }
}

const NOT_THERE: &str = "the broker knows nothing of the job";

/// The code by which a broker reports that it cannot do something now.
const UNAVAILABLE: usize = 503;
