//! The objects of a job at its broker, and the individual requests for them. The queue repeats a request that fails.
//!
//! **Invariant:** an acknowledgment contains the name of the consumer that delivered the item, and the name of a
//! consumer is never reused. If an item was taken before the broker lost its files, its acknowledgment therefore
//! removes nothing from the recreated queue.

use std::time::Duration;

use async_nats::Subscriber;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use bytes::Bytes;
use futures_util::TryStreamExt;
use tokio::time::Instant;
use zmove_types::Hex;

use super::JetStream;
use super::answers::{BrokerError, answer_in};
use super::connection::BrokerState;
use crate::queue::WorkItem;

/// Detects a silence: a period in which the number of items has not changed.
#[derive(Debug)]
pub(super) struct Silence {
    left: u64,
    /// When the number of items last changed, or when the silence was last investigated.
    since: Instant,
}

impl Default for Silence {
    fn default() -> Self {
        Self {
            left: 0,
            since: Instant::now(),
        }
    }
}

/// The losses of the stream.
#[derive(Debug, Default)]
pub(super) struct Losses {
    count: u64,
    /// The highest sequence number that was acknowledged before the last loss.
    stored_before: u64,
}

impl Losses {
    /// Counts a loss. `stored` is the highest sequence number that was acknowledged before.
    const fn add(&mut self, stored: u64) {
        self.count += 1;
        self.stored_before = stored;
    }
}

/// The refusals of items since the last item that was accepted.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    since: Option<Instant>,
    /// Whether the stream was deleted because of refusals. It is deleted once, because the reason may be another one.
    has_deleted: bool,
}

impl Refusals {
    /// Records that an item was accepted.
    pub(super) const fn clear(&mut self) {
        self.since = None;
    }
}

/// The broker's answer to an item.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    Stored,
    /// The broker received the same item within the last two minutes.
    Known,
    NoRoom,
}

impl JetStream {
    fn subject(&self) -> String {
        format!("{STREAM}.{}", self.seal.job_name())
    }

    /// Creates the stream and the consumer if they are missing. If this process has created the consumer before, the
    /// broker may have lost items: either the stream is new, or the server was restarted.
    pub(super) async fn make(&self) -> Result<(), BrokerError> {
        let mut has_made = self.has_made.lock().await;
        let found = match self.find_consumer().await {
            Err(BrokerError::Missing) => {
                self.make_stream().await?;
                None
            }
            found => found?,
        };
        self.require_subjects().await?;
        if found.is_none() {
            if *has_made {
                self.losses.lock().add(self.stored());
            }
            self.make_consumer().await?;
        }
        *has_made = true;
        Ok(())
    }

    /// Checks that the stream accepts the items of jobs. Another program, or an administrator, may have created it.
    async fn require_subjects(&self) -> Result<(), BrokerError> {
        let subjects = self.stream.get_info().await?.config.subjects;
        if subjects.contains(&format!("{STREAM}.*")) {
            return Ok(());
        }
        let has = subjects.join(", ");
        Err(BrokerError::Unusable(format!(
            "the stream '{STREAM}' at the broker {} accepts '{has}' instead of '{STREAM}.*'; remove it with 'nats stream \
             rm {STREAM}' if nobody needs it",
            self.connection.status.broker
        )))
    }

    async fn make_stream(&self) -> Result<(), BrokerError> {
        let making = self.connection.make_stream(Config {
            name: STREAM.to_owned(),
            subjects: vec![format!("{STREAM}.*")],
            retention: RetentionPolicy::WorkQueue,
            discard: DiscardPolicy::New,
            max_messages_per_subject: self.settings.items_max,
            discard_new_per_subject: true,
            // nats-server 2.9 removes the oldest items of a stream that reaches this limit.
            max_bytes: -1,
            max_age: KEPT_FOR,
            ..Config::default()
        });
        making.await.map(drop)
    }

    /// Creates the consumer of the job. The server keeps the consumer only in memory. The consumer is therefore gone
    /// after a restart, in which the server may have lost items.
    async fn make_consumer(&self) -> Result<(), BrokerError> {
        let mut random = [0; 8];
        aws_lc_rs::rand::fill(&mut random).expect("the kernel has random numbers");
        let name = format!("{}-{}", self.seal.job_name(), Hex(&random));
        let config = pull::Config {
            durable_name: Some(name),
            filter_subject: self.subject(),
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.settings.lease,
            inactive_threshold: self.settings.lease + INACTIVE_BEYOND,
            max_deliver: -1,
            max_ack_pending: -1,
            max_waiting: PULLS_MAX,
            memory_storage: true,
            ..pull::Config::default()
        };
        Ok(self.stream.create_consumer(config).await.map(drop)?)
    }

    /// Returns the name of the job's consumer, or `None` if there is none. Fails with `Missing` if there is no stream.
    async fn find_consumer(&self) -> Result<Option<String>, BrokerError> {
        let names: Vec<String> = self.stream.consumer_names().try_collect().await?;
        let prefix = self.seal.job_name();
        Ok(names.into_iter().find(|name| name.starts_with(&prefix)))
    }

    /// Returns the name of the job's consumer. Fails with `Missing` if there is none.
    async fn consumer_name(&self) -> Result<String, BrokerError> {
        self.find_consumer().await?.ok_or(BrokerError::Missing)
    }

    /// Returns the job's consumer.
    pub(super) async fn consumer(&self) -> Result<PullConsumer, BrokerError> {
        let name = self.consumer_name().await?;
        let found = self.stream.get_consumer(&name).await;
        found.map_err(BrokerError::Unanswered)
    }

    /// Returns the number of items that are not done. Fails with `Missing` if there are items but no consumer that
    /// delivers them.
    pub(super) async fn left(&self) -> Result<u64, BrokerError> {
        let left = self.count().await?;
        let is_silent = self.is_silent(left);
        if left == 0 {
            return Ok(0);
        }
        let consumer = self.consumer_name().await?;
        if is_silent && !self.has_items(&consumer).await? && self.count().await? == left {
            self.connection.context.delete_stream(STREAM).await?;
            return Err(BrokerError::Missing);
        }
        Ok(left)
    }

    /// Returns the number of the job's items in the stream. A server whose files were truncated may count items that it
    /// no longer has.
    async fn count(&self) -> Result<u64, BrokerError> {
        let counts = self.stream.info_with_subjects(self.subject()).await?;
        let count = counts.try_fold(0, async |sum, (_, count)| Ok(sum + count as u64));
        Ok(count.await?)
    }

    /// Returns whether the number of items has stayed at `left` for the time of a silence. Returns `true` only once in
    /// each such period.
    fn is_silent(&self, left: u64) -> bool {
        let mut silence = self.silence.lock();
        let is_other = std::mem::replace(&mut silence.left, left) != left;
        if is_other {
            self.connection
                .change_state(BrokerState::Silent, BrokerState::Ready);
        }
        let is_silent = !is_other && silence.since.elapsed() >= self.settings.silence;
        if is_other || is_silent {
            silence.since = Instant::now();
        }
        is_silent
    }

    /// Returns whether the consumer has an item that is taken, or that it delivers. If no item is taken, the state of
    /// the broker changes to silent.
    async fn has_items(&self, consumer: &str) -> Result<bool, BrokerError> {
        let info = self.stream.consumer_info(consumer).await?;
        if info.num_ack_pending == 0 {
            self.connection
                .change_state(BrokerState::Ready, BrokerState::Silent);
        }
        // A consumer delivers an item as soon as a node asks. If nodes are waiting, it does not have the items that it
        // counts.
        let delivers = info.num_pending > 0 && info.num_waiting == 0;
        Ok(info.num_ack_pending > 0 || delivers)
    }

    /// Deletes the stream if all items have been refused for the time of a silence although the stream is empty. The
    /// server has then lost the files of the stream.
    pub(super) async fn delete_if_damaged(&self) -> Result<(), BrokerError> {
        if self.stream.get_info().await?.state.messages > 0 {
            return Ok(());
        }
        {
            let mut refusals = self.refusals.lock();
            let since = *refusals.since.get_or_insert_with(Instant::now);
            if refusals.has_deleted || since.elapsed() < self.settings.silence {
                return Ok(());
            }
            refusals.has_deleted = true;
        }
        self.connection.context.delete_stream(STREAM).await?;
        self.make().await
    }

    /// Puts an item into the queue. The broker stores the item only once if it has received the same item within the
    /// last two minutes.
    pub(super) async fn put_item(&self, item: &WorkItem) -> Result<Put, BrokerError> {
        let message = PublishMessage::build()
            .message_id(self.seal.message_id(item))
            .payload(self.seal.seal(item).into());
        let context = &self.connection.context;
        let stored = async { context.send_publish(self.subject(), message).await?.await }.await;
        let error = match stored {
            Ok(stored) => {
                self.note_stored(stored.sequence);
                return Ok(if stored.duplicate {
                    Put::Known
                } else {
                    Put::Stored
                });
            }
            Err(error) => error,
        };
        let is_full =
            answer_in(&error).is_some_and(|answer| NO_ROOM.contains(&answer.error_code()));
        match error.kind() {
            _ if is_full => Ok(Put::NoRoom),
            PublishErrorKind::MaxPayloadExceeded => Ok(Put::NoRoom),
            PublishErrorKind::StreamNotFound => Err(BrokerError::Missing),
            _ => Err(error.into()),
        }
    }

    /// Returns how often the stream has lost items or may have lost them. A loss is assumed if the consumer was created
    /// again, if the last sequence number is lower than an acknowledged one, or if items may have expired by age. Fails
    /// with `Missing` if the consumer is missing.
    pub(super) async fn count_losses(&self) -> Result<u64, BrokerError> {
        self.consumer_name().await?;
        let stored = self.stored();
        let info = self.stream.get_info().await?;
        let mut losses = self.losses.lock();
        if stored > info.state.last_sequence.max(losses.stored_before) {
            losses.add(stored);
        }
        Ok(losses.count + self.began.elapsed().as_secs() / KEPT_FOR.as_secs())
    }

    /// Records that the job is over, and removes its items and its consumer.
    pub(super) async fn end(&self) -> Result<(), BrokerError> {
        let ended = self.connection.bucket(ENDED, KEPT_FOR, StorageType::File);
        let record = self.seal.end_record().into();
        ended.await?.put(self.seal.job_name(), record).await?;
        let client = &self.connection.client;
        client.publish(self.end_subject(), Bytes::new()).await?;
        let found = match self.find_consumer().await {
            Err(BrokerError::Missing) => return Ok(()),
            found => found?,
        };
        if let Some(consumer) = found {
            self.stream.delete_consumer(&consumer).await?;
        }
        self.stream.purge().filter(self.subject()).await?;
        Ok(())
    }

    /// Subscribes to the message that reports the end of the job. Without the message, takers would have to wait until
    /// their pull requests expire.
    pub(super) async fn subscribe_to_end(&self) -> Result<Subscriber, BrokerError> {
        let client = &self.connection.client;
        Ok(client.subscribe(self.end_subject()).await?)
    }

    fn end_subject(&self) -> String {
        format!("{}.ended", self.subject())
    }

    /// Returns whether the job is over.
    pub(super) async fn has_ended(&self) -> Result<bool, BrokerError> {
        let Ok(ended) = self.connection.context.get_key_value(ENDED).await else {
            return Ok(false);
        };
        let record = ended.get(self.seal.job_name()).await?;
        Ok(record.is_some_and(|record| record == self.seal.end_record()))
    }
}

/// Name of the stream of all jobs, and first token of its subjects.
pub(super) const STREAM: &str = "zmove";

/// Name of the bucket that records the ends of jobs.
const ENDED: &str = "zmove-ended";

/// How long items and records of ends are kept.
const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long a consumer may be idle beyond the duration of a lease before the broker removes it. The time is long
/// because movers with a low rate limit take no items for a long time, and because a job scans its sources again if its
/// consumer is removed.
const INACTIVE_BEYOND: Duration = Duration::from_secs(24 * 3600);

/// Maximum number of waiting pulls of a consumer.
const PULLS_MAX: i64 = 4096;

/// Error codes with which a broker reports that the stream or subject, the account, or the server's storage is full.
const NO_ROOM: [ErrorCode; 5] = [
    ErrorCode::STREAM_STORE_FAILED,
    ErrorCode::ACCOUNT_RESOURCES_EXCEEDED,
    ErrorCode::INSUFFICIENT_RESOURCES,
    ErrorCode::STORAGE_RESOURCES_EXCEEDED,
    ErrorCode::MEMORY_RESOURCES_EXCEEDED,
];
