//! The objects of a job at its broker, and the individual requests for them. The queue repeats a request that fails.
//!
//! **Invariant:** an acknowledgment contains the name of the consumer that delivered the item, and the name of a
//! consumer is never reused. If an item was taken before the broker lost its files, its acknowledgment therefore
//! removes nothing from the recreated queue.

use std::time::Duration;

use async_nats::Subscriber;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::{AckPolicy, Info, PullConsumer, pull};
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use bytes::Bytes;
use futures_util::TryStreamExt;
use futures_util::future::{try_join, try_join_all};
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

/// The broker's answer to an item.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    Stored,
    /// The broker received the same item within the last two minutes.
    Known,
    NoRoom,
}

impl JetStream {
    fn subject(&self, line: &str) -> String {
        format!("{STREAM}.{}.{line}", self.seal.job_name())
    }

    /// Creates the stream and the consumers if they are missing. If this process has created the consumers before, the
    /// broker may have lost items: either the stream is new, or the server was restarted.
    pub(super) async fn make(&self) -> Result<(), BrokerError> {
        let mut has_made = self.has_made.lock().await;
        let names = match self.consumer_names().await {
            Err(BrokerError::Missing) => {
                self.make_stream().await?;
                Vec::new()
            }
            names => names?,
        };
        let lines = [DATA, WALK].into_iter();
        let missing: Vec<_> = lines.filter(|line| find(&names, line).is_none()).collect();
        if *has_made && !missing.is_empty() {
            self.losses.lock().add(self.stored());
        }
        let making = missing.iter().map(|line| self.make_consumer(line));
        try_join_all(making).await?;
        *has_made = true;
        Ok(())
    }

    async fn make_stream(&self) -> Result<(), BrokerError> {
        let making = self.connection.make_stream(Config {
            name: STREAM.to_owned(),
            subjects: [DATA, WALK].map(|line| format!("{STREAM}.*.{line}")).into(),
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

    /// Creates the consumer of a line (subject). The server keeps the consumer only in memory. The consumer is
    /// therefore missing after a restart, in which the server may have lost items.
    async fn make_consumer(&self, line: &str) -> Result<(), BrokerError> {
        let mut random = [0; 8];
        aws_lc_rs::rand::fill(&mut random).expect("the kernel has random numbers");
        let name = format!("{}-{line}-{}", self.seal.job_name(), Hex(&random));
        let config = pull::Config {
            durable_name: Some(name),
            filter_subject: self.subject(line),
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

    /// Returns the names of the job's consumers. Fails with `Missing` if there is no stream.
    async fn consumer_names(&self) -> Result<Vec<String>, BrokerError> {
        self.connection.check()?;
        let names: Vec<String> = self.stream.consumer_names().try_collect().await?;
        let prefix = self.seal.job_name();
        Ok(names
            .into_iter()
            .filter(|name| name.starts_with(&prefix))
            .collect())
    }

    /// Returns the job's consumers, starting with the one for data.
    pub(super) async fn consumers(&self) -> Result<[PullConsumer; 2], BrokerError> {
        let names = self.consumer_names().await?;
        let consumer = async |line| {
            let name = find(&names, line).ok_or(BrokerError::Missing)?;
            let found = self.stream.get_consumer(name).await;
            found.map_err(BrokerError::Unanswered)
        };
        Ok(try_join(consumer(DATA), consumer(WALK)).await?.into())
    }

    /// Returns the number of items that are not done. Fails with `Missing` if there are items but no consumers that
    /// deliver them.
    pub(super) async fn left(&self) -> Result<u64, BrokerError> {
        let left = self.count().await?;
        let is_silent = self.is_silent(left);
        if left == 0 {
            return Ok(0);
        }
        let names = self.consumer_names().await?;
        if names.len() < 2 {
            return Err(BrokerError::Missing);
        }
        if is_silent && !self.has_items(&names).await? && self.count().await? == left {
            self.connection.context.delete_stream(STREAM).await?;
            return Err(BrokerError::Missing);
        }
        Ok(left)
    }

    /// Returns the number of the job's items in the stream. A server whose files were truncated may count items that it
    /// no longer has.
    async fn count(&self) -> Result<u64, BrokerError> {
        self.connection.check()?;
        let counts = self.stream.info_with_subjects(self.subject("*")).await?;
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

    /// Returns whether any of these consumers has an item, taken or not. If no item is taken, the state of the broker
    /// changes to silent.
    async fn has_items(&self, consumers: &[String]) -> Result<bool, BrokerError> {
        let infos = consumers.iter().map(|name| self.stream.consumer_info(name));
        let infos = try_join_all(infos).await?;
        if infos.iter().all(|info| info.num_ack_pending == 0) {
            self.connection
                .change_state(BrokerState::Ready, BrokerState::Silent);
        }
        let items = |info: &Info| info.num_ack_pending as u64 + info.num_pending;
        Ok(infos.iter().map(items).sum::<u64>() > 0)
    }

    /// Puts an item into the queue. The broker stores the item only once if it has received the same item within the
    /// last two minutes.
    pub(super) async fn put_item(&self, item: &WorkItem) -> Result<Put, BrokerError> {
        self.connection.check()?;
        let line = if item.work.is_walk() { WALK } else { DATA };
        let message = PublishMessage::build()
            .message_id(self.seal.message_id(item))
            .payload(self.seal.seal(item).into());
        let context = &self.connection.context;
        let stored = async {
            context
                .send_publish(self.subject(line), message)
                .await?
                .await
        }
        .await;
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

    /// Returns how often the stream has lost items or may have lost them. A loss is assumed if consumers were created
    /// again, if the last sequence number is lower than an acknowledged one, or if items may have expired by age. Fails
    /// with `Missing` if consumers are missing.
    pub(super) async fn count_losses(&self) -> Result<u64, BrokerError> {
        if self.consumer_names().await?.len() < 2 {
            return Err(BrokerError::Missing);
        }
        let stored = self.stored();
        let info = self.stream.get_info().await?;
        let mut losses = self.losses.lock();
        if stored > info.state.last_sequence.max(losses.stored_before) {
            losses.add(stored);
        }
        Ok(losses.count + self.began.elapsed().as_secs() / KEPT_FOR.as_secs())
    }

    /// Records that the job is over, and removes its items and consumers.
    pub(super) async fn end(&self) -> Result<(), BrokerError> {
        let ended = self.connection.bucket(ENDED, KEPT_FOR, StorageType::File);
        let record = self.seal.end_record().into();
        ended.await?.put(self.seal.job_name(), record).await?;
        let subject = self.subject(ENDED);
        self.connection
            .client
            .publish(subject, Bytes::new())
            .await?;
        let names = match self.consumer_names().await {
            Err(BrokerError::Missing) => return Ok(()),
            names => names?,
        };
        let removing = names.iter().map(|name| self.stream.delete_consumer(name));
        let purging = self.stream.purge().filter(self.subject("*"));
        tokio::try_join!(
            async { Ok::<_, BrokerError>(try_join_all(removing).await?) },
            async { Ok(purging.await?) },
        )?;
        Ok(())
    }

    /// Subscribes to the message that reports the end of the job. Without the message, takers would have to wait until
    /// their pull requests expire.
    pub(super) async fn subscribe_to_end(&self) -> Result<Subscriber, BrokerError> {
        Ok(self
            .connection
            .client
            .subscribe(self.subject(ENDED))
            .await?)
    }

    /// Returns whether the job is over.
    pub(super) async fn has_ended(&self) -> Result<bool, BrokerError> {
        self.connection.check()?;
        let Ok(ended) = self.connection.context.get_key_value(ENDED).await else {
            return Ok(false);
        };
        let record = ended.get(self.seal.job_name()).await?;
        Ok(record.is_some_and(|record| record == self.seal.end_record()))
    }
}

/// Returns the name of the consumer of a line.
fn find<'n>(names: &'n [String], line: &str) -> Option<&'n str> {
    let part = format!("-{line}-");
    let name = names.iter().find(|name| name.contains(&part))?;
    Some(name)
}

/// Name of the stream of all jobs, and first token of its subjects.
pub(super) const STREAM: &str = "zmove";

/// The lines of items that move data, and of items that scan.
const DATA: &str = "data";
const WALK: &str = "walk";

/// Name of the bucket that records the ends of jobs, and of the subject on which an end is announced.
const ENDED: &str = "zmove-ended";

/// How long items and records of ends are kept.
const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long a consumer may be idle beyond the duration of a lease before the broker removes it. The time is long
/// because movers with a low rate limit take no items for a long time, and because a job scans its sources again if its
/// consumers are removed.
const INACTIVE_BEYOND: Duration = Duration::from_secs(24 * 3600);

/// Maximum number of waiting pulls per consumer: two per node.
const PULLS_MAX: i64 = 4096;

/// Error codes with which a broker reports that the stream or subject, the account, or the server's storage is full.
const NO_ROOM: [ErrorCode; 5] = [
    ErrorCode::STREAM_STORE_FAILED,
    ErrorCode::ACCOUNT_RESOURCES_EXCEEDED,
    ErrorCode::INSUFFICIENT_RESOURCES,
    ErrorCode::STORAGE_RESOURCES_EXCEEDED,
    ErrorCode::MEMORY_RESOURCES_EXCEEDED,
];
