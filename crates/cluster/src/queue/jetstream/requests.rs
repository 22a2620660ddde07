//! Requests that create objects at a broker.

use std::time::Duration;

use async_nats::jetstream::kv::Store;
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType, Stream};
use futures_util::TryFutureExt;

use super::answers::BrokerError;
use super::connection::Connection;

impl Connection {
    /// Creates a stream with three replicas, or with one if the broker has too few servers.
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

    /// Returns a bucket. Creates it if the broker does not have it.
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
        // `async_nats` cannot create a bucket on nats-server 2.9, because it cannot parse that server's account
        // information.
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
