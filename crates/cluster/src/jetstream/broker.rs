//! The streams of a job at its broker, and each single request about them.
//!
//! **Invariant:** acknowledgements name the consumer that has delivered, and a consumer that is made anew has another
//! name. So what was taken from a broker that has lost all since takes nothing away from what is there now.

use std::collections::VecDeque;
use std::error::Error as _;

use async_nats::jetstream::context::{PublishError, PublishErrorKind, RequestError};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{Request, RequestErrorKind, Subject, Subscriber};
use bytes::Bytes;
use futures_util::future::join_all;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use zmove_types::{Hex, SharedJobId, from_hex};

use super::connection::{ANSWER_MAX, BrokerError, BrokerState, Connection};
use super::seal::{JobKey, MessageId, Seal};
use super::{OtherQueue, Settings};
use crate::work::WorkItem;

/// The items at the broker.
pub(super) struct Counted {
    pub(super) waiting: u64,
    pub(super) taken: u64,
}

/// The broker of one epoch of a job.
#[derive(Debug)]
pub(super) struct Broker {
    pub(super) connection: Connection,
    pub(super) seal: Seal,
    settings: Settings,
    /// Id of the server process at which this process last made or found the consumers. Locked while the stream and
    /// its consumers are made, because a broker refuses a second consumer of a line.
    made_at: Mutex<Option<String>>,
}

/// The names of the two consumers.
#[derive(Clone, Debug)]
pub(super) struct Consumers {
    pub(super) data: String,
    pub(super) walks: String,
}

/// An item on its way to the broker.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) item: WorkItem,
    subject: String,
    id: MessageId,
    body: Vec<u8>,
}

#[derive(Deserialize)]
struct StreamInfo {
    state: StreamState,
}

#[derive(Deserialize)]
struct StreamState {
    messages: u64,
}

#[derive(Deserialize)]
struct ConsumerInfo {
    num_ack_pending: u64,
    num_pending: u64,
}

#[derive(Deserialize)]
struct ConsumerNames {
    /// `null` where there are none.
    consumers: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Streams {
    streams: Option<Vec<Stream>>,
}

#[derive(Deserialize)]
struct Stream {
    config: StreamConfig,
}

#[derive(Deserialize)]
struct StreamConfig {
    name: String,
    #[serde(default)]
    description: String,
}

#[derive(Deserialize)]
struct StreamNames {
    streams: Option<Vec<String>>,
}

/// What becomes of an item that is put in.
enum Put {
    Stored,
    NoRoom,
}

impl Broker {
    pub(super) fn new(connection: Connection, settings: &Settings) -> Self {
        let seal = Seal::new(&settings.key, settings.job, settings.epoch);
        Self {
            connection,
            seal,
            settings: settings.clone(),
            made_at: Mutex::default(),
        }
    }

    fn stream(&self) -> String {
        format!("zmove-{}-{}", self.settings.job, self.settings.epoch)
    }

    fn subject(&self, line: &str) -> String {
        format!("zmove.{}.{}.{line}", self.settings.job, self.settings.epoch)
    }

    /// What is told when there may be work, or none any more. Whoever does not hear it asks again by itself.
    pub(super) async fn news(&self) -> Result<Subscriber, BrokerError> {
        let news = self.connection.client.subscribe(self.subject(NEWS)).await;
        news.map_err(|error| BrokerError::Unanswered(error.into()))
    }

    pub(super) async fn tell(&self) {
        let _best_effort = self
            .connection
            .client
            .publish(self.subject(NEWS), Bytes::new())
            .await;
    }

    fn end_subject(&self) -> String {
        format!("zmove.{}.ended", self.settings.job)
    }

    /// Makes the stream and the consumers that are missing. After a restart of the server, it replaces both consumers.
    ///
    /// A killed server may keep finished items that no consumer counts. It may also lose items that its consumers still
    /// count. With both faults, the queue would never be idle. A new consumer counts only the items that exist, and
    /// delivers them again as repeats ([`AGAIN`]).
    pub(super) async fn make(&self) -> Result<(), BrokerError> {
        let mut made_at = self.made_at.lock().await;
        let server = self.server();
        let is_another = is_another(made_at.as_deref(), &server);
        let again = made_at.as_ref().map_or("", |_| AGAIN);
        let stream = json!({
            "name": self.stream(),
            "description": self.settings.key.queue_tag(),
            "subjects": [self.subject(DATA), self.subject(WALKS)],
            "retention": "workqueue",
            "storage": "file",
            "num_replicas": 1,
            "discard": "new",
            "max_msgs": self.settings.items_max,
            "max_bytes": self.settings.bytes_max,
            "max_consumers": -1,
            "duplicate_window": nanos(DOUBLES_WITHIN),
            "max_age": nanos(KEPT_FOR),
        });
        match self
            .api(format!("STREAM.CREATE.{}", self.stream()), &stream)
            .await
        {
            Ok::<Value, _>(_) => {}
            // with other bounds: those stay
            Err(BrokerError::Refused(error))
                if error.error_code() == ErrorCode::STREAM_NAME_EXIST => {}
            Err(error) => return Err(error),
        }
        let names = self.consumer_names().await?;
        for line in [DATA, WALKS] {
            let found = named(&names, line);
            if let Some(name) = found.as_ref().filter(|_| is_another) {
                let subject = format!("CONSUMER.DELETE.{}.{name}", self.stream());
                self.api::<Value>(subject, &json!({})).await?;
            }
            if found.is_none() || is_another {
                self.make_consumer(line, again).await?;
            }
        }
        *made_at = Some(server);
        self.connection.tell(BrokerState::Ready);
        self.tell().await;
        Ok(())
    }

    /// Whether the server was restarted since this process made or found the consumers.
    pub(super) async fn is_another_server(&self) -> bool {
        is_another(self.made_at.lock().await.as_deref(), &self.server())
    }

    /// Id of the server process. Each start gives a new one.
    fn server(&self) -> String {
        self.connection.client.server_info().server_id
    }

    async fn make_consumer(&self, line: &str, again: &str) -> Result<(), BrokerError> {
        let mut random = [0; 4];
        aws_lc_rs::rand::fill(&mut random).expect("the kernel has random numbers");
        let name = format!("{line}{again}-{}", Hex(&random));
        let config = json!({
            "name": name,
            "durable_name": name,
            "filter_subject": self.subject(line),
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "replay_policy": "instant",
            "ack_wait": nanos(self.settings.lease),
            // an item that was delivered too often would otherwise stay, be seen by nobody, and take room
            "max_deliver": -1,
            // set once: where it is raised later, items get stuck (nats-server#7680)
            "max_ack_pending": self.settings.taken_max,
        });
        let subject = format!(
            "CONSUMER.CREATE.{}.{name}.{}",
            self.stream(),
            self.subject(line)
        );
        let request = json!({ "stream_name": self.stream(), "config": config });
        self.api::<Value>(subject, &request).await.map(drop)
    }

    /// The consumers of the job. `Missing` unless both are there.
    pub(super) async fn consumers(&self) -> Result<Consumers, BrokerError> {
        let names = self.consumer_names().await?;
        match (named(&names, DATA), named(&names, WALKS)) {
            (Some(data), Some(walks)) => Ok(Consumers { data, walks }),
            _ => Err(BrokerError::Missing),
        }
    }

    async fn consumer_names(&self) -> Result<Vec<String>, BrokerError> {
        let subject = format!("CONSUMER.NAMES.{}", self.stream());
        let names: ConsumerNames = self.api(subject, &json!({ "offset": 0 })).await?;
        Ok(names.consumers.unwrap_or_default())
    }

    /// Where a consumer is asked for its next item.
    pub(super) fn next_subject(&self, consumer: &str) -> String {
        format!("$JS.API.CONSUMER.MSG.NEXT.{}.{consumer}", self.stream())
    }

    pub(super) async fn waiting(&self) -> Result<Counted, BrokerError> {
        let Consumers { data, walks } = self.consumers().await?;
        let (mut taken, mut waiting) = (0, 0);
        for consumer in [data, walks] {
            let subject = format!("CONSUMER.INFO.{}.{consumer}", self.stream());
            let info: ConsumerInfo = self.api(subject, &json!({})).await?;
            taken += info.num_ack_pending;
            waiting += info.num_pending;
        }
        // Until the head replaces the consumers of a killed server, they may count items that are lost.
        let info: StreamInfo = self
            .api(format!("STREAM.INFO.{}", self.stream()), &json!({}))
            .await?;
        let all = info.state.messages.min(waiting + taken);
        Ok(Counted {
            waiting: all.saturating_sub(taken),
            taken: taken.min(all),
        })
    }

    pub(super) fn outgoing(&self, item: WorkItem) -> Outgoing {
        let subject = self.subject(if item.work.is_walk() { WALKS } else { DATA });
        Outgoing {
            subject,
            id: self.seal.message_id(&item),
            body: self.seal.seal(&item),
            item,
        }
    }

    /// Puts in items in their order; those that are stored are taken out of the list, and those for which there is
    /// no room go to `refused`. What is left may go again: the broker drops doubles.
    pub(super) async fn publish(
        &self,
        outgoing: &mut VecDeque<Outgoing>,
        refused: &mut Vec<WorkItem>,
    ) -> Result<(), BrokerError> {
        while !outgoing.is_empty() {
            self.connection.check()?;
            let mut left = Vec::new();
            let mut error = None;
            for answer in self.publish_some(outgoing).await {
                let first = outgoing
                    .pop_front()
                    .expect("only what is there has an answer");
                match stored(answer) {
                    Ok(Put::Stored) => {}
                    Ok(Put::NoRoom) => refused.push(first.item),
                    Err(why) => {
                        error = Some(why);
                        left.push(first);
                    }
                }
            }
            self.tell().await;
            left.into_iter()
                .rev()
                .for_each(|item| outgoing.push_front(item));
            error.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Sends as many of the first as may be on their way at once.
    async fn publish_some(
        &self,
        outgoing: &VecDeque<Outgoing>,
    ) -> Vec<Result<PublishAck, PublishError>> {
        let mut sent = Vec::new();
        for next in outgoing
            .iter()
            .take(at_once(outgoing.iter().map(|next| next.body.len())))
        {
            let message = PublishMessage::build().payload(next.body.clone().into());
            let message = message.message_id(next.id.to_string());
            sent.push(
                self.connection
                    .context
                    .send_publish(next.subject.clone(), message)
                    .await,
            );
        }
        join_all(sent.into_iter().map(|sent| async { sent?.await })).await
    }

    async fn publish_message(
        &self,
        subject: String,
        message: PublishMessage,
    ) -> Result<(), PublishError> {
        self.connection
            .context
            .send_publish(subject, message)
            .await?
            .await
            .map(drop)
    }

    /// Tells the broker what becomes of a delivery, and waits until it knows. A delivery of which it knows nothing is
    /// no error: then it holds no lease.
    pub(super) async fn acknowledge(
        &self,
        delivery: &Subject,
        what: jetstream::AckKind,
    ) -> Result<(), BrokerError> {
        self.connection.check()?;
        let request = Request::new()
            .payload(what.into())
            .timeout(Some(ANSWER_MAX));
        match self
            .connection
            .client
            .send_request(delivery.clone(), request)
            .await
        {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == RequestErrorKind::NoResponders => Ok(()),
            Err(error) => Err(BrokerError::Unanswered(error.into())),
        }
    }

    /// Up to which epoch the job is over.
    pub(super) async fn ended(&self) -> Result<Option<u64>, BrokerError> {
        Ok(self.last_end().await?.and_then(|(_, epoch)| epoch))
    }

    /// The number of the last record, and what it says if it is one of this job.
    async fn last_end(&self) -> Result<Option<(u64, Option<u64>)>, BrokerError> {
        self.connection.check()?;
        let stream = self.connection.context.get_stream_no_info(ENDED).await;
        let stream = stream.map_err(|error| BrokerError::Unanswered(error.into()))?;
        match stream
            .get_last_raw_message_by_subject(&self.end_subject())
            .await
        {
            Ok(message) => Ok(Some((
                message.sequence,
                self.seal.open_end(&message.payload),
            ))),
            Err(error) => match error.kind() {
                LastRawMessageErrorKind::NoMessageFound => Ok(None),
                LastRawMessageErrorKind::JetStream(error)
                    if error.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    Ok(None)
                }
                LastRawMessageErrorKind::JetStream(error) => Err(BrokerError::Refused(error)),
                _ => Err(BrokerError::Unanswered(error.into())),
            },
        }
    }

    /// Records that the epochs of the job up to this one are over. A record never goes back.
    pub(super) async fn end(&self, epoch: u64) -> Result<(), BrokerError> {
        loop {
            let (number, ended) = self.last_end().await?.unwrap_or_default();
            if ended >= Some(epoch) {
                return Ok(());
            }
            let message = PublishMessage::build().payload(self.seal.seal_end(epoch).into());
            let message = message.expected_last_subject_sequence(number);
            match self.publish_message(self.end_subject(), message).await {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == PublishErrorKind::StreamNotFound => {
                    self.make_ended().await?
                }
                // another has recorded something meanwhile
                Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn make_ended(&self) -> Result<(), BrokerError> {
        let stream = json!({
            "name": ENDED,
            "subjects": ["zmove.*.ended"],
            "retention": "limits",
            "storage": "file",
            "num_replicas": 1,
            "discard": "old",
            "max_msgs": ENDED_MAX,
            "max_bytes": -1,
            "max_msgs_per_subject": 1,
            "max_consumers": -1,
            "max_age": nanos(KEPT_FOR),
        });
        self.api::<Value>(format!("STREAM.CREATE.{ENDED}"), &stream)
            .await
            .map(drop)
    }

    /// Removes the stream of this epoch.
    pub(super) async fn remove(&self) -> Result<(), BrokerError> {
        self.remove_stream(&self.stream()).await
    }

    /// Removes the streams of all other epochs.
    pub(super) async fn remove_others(&self) -> Result<(), BrokerError> {
        let filter = json!({ "offset": 0, "subject": format!("zmove.{}.>", self.settings.job) });
        let names: StreamNames = self.api("STREAM.NAMES".to_owned(), &filter).await?;
        let prefix = format!("zmove-{}-", self.settings.job);
        for name in names.streams.unwrap_or_default() {
            if name.starts_with(&prefix) && name != self.stream() {
                self.remove_stream(&name).await?;
            }
        }
        Ok(())
    }

    /// The queues of other jobs of a cluster that has this key.
    pub(super) async fn others(&self, cluster: &JobKey) -> Result<Vec<OtherQueue>, BrokerError> {
        let filter = json!({ "offset": 0, "subject": "zmove.>" });
        let found: Streams = self.api("STREAM.LIST".to_owned(), &filter).await?;
        let of_cluster = |found: Stream| {
            let StreamConfig { name, description } = found.config;
            let (job, _epoch) = name.strip_prefix("zmove-")?.split_once('-')?;
            let job = from_hex::<16>(job.as_bytes()).map(SharedJobId)?;
            let is_own = description == cluster.of_job(job).queue_tag();
            let stream = name.clone();
            (is_own && job != self.settings.job).then_some(OtherQueue { job, stream })
        };
        let streams = found.streams.unwrap_or_default().into_iter();
        Ok(streams.filter_map(of_cluster).collect())
    }

    pub(super) async fn remove_stream(&self, name: &str) -> Result<(), BrokerError> {
        match self
            .api::<Value>(format!("STREAM.DELETE.{name}"), &json!({}))
            .await
        {
            Ok(_) | Err(BrokerError::Missing) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn api<T: DeserializeOwned>(
        &self,
        subject: String,
        request: &Value,
    ) -> Result<T, BrokerError> {
        self.connection.check()?;
        match self.connection.context.request(subject, request).await {
            Ok(Response::Ok(answer)) => Ok(answer),
            Ok(Response::Err { error }) => Err(error.into()),
            Err(error) => Err(error.into()),
        }
    }
}

/// How many of the first items, of so many bytes each, may be on their way at once.
fn at_once(items: impl Iterator<Item = usize>) -> usize {
    let mut bytes = 0;
    let fit = items.take(ITEMS_IN_FLIGHT_MAX).take_while(|item| {
        bytes += item;
        bytes <= BYTES_IN_FLIGHT_MAX
    });
    fit.count().max(1)
}

/// Whether consumers were made at a server process with another id than `server`.
fn is_another(made_at: Option<&str>, server: &str) -> bool {
    made_at.is_some_and(|before| before != server)
}

fn named(names: &[String], line: &str) -> Option<String> {
    names
        .iter()
        .find(|name| {
            name.strip_prefix(line)
                .is_some_and(|rest| rest.starts_with('-'))
        })
        .cloned()
}

fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn stored(answer: Result<PublishAck, PublishError>) -> Result<Put, BrokerError> {
    match answer {
        Ok(_) => Ok(Put::Stored),
        Err(error) => match code_of(&error) {
            Some(code) if NO_ROOM.contains(&code) => Ok(Put::NoRoom),
            _ if error.kind() == PublishErrorKind::MaxPayloadExceeded => Ok(Put::NoRoom),
            _ => Err(error.into()),
        },
    }
}

fn code_of(error: &PublishError) -> Option<ErrorCode> {
    Some(
        error
            .source()?
            .downcast_ref::<jetstream::Error>()?
            .error_code(),
    )
}

impl From<jetstream::Error> for BrokerError {
    fn from(error: jetstream::Error) -> Self {
        match error.error_code() {
            ErrorCode::STREAM_NOT_FOUND | ErrorCode::CONSUMER_NOT_FOUND => Self::Missing,
            // it starts, or has just lost something
            _ if error.code() == UNAVAILABLE => Self::Unanswered(error.into()),
            _ => Self::Refused(error),
        }
    }
}

impl From<RequestError> for BrokerError {
    fn from(error: RequestError) -> Self {
        Self::Unanswered(error.into())
    }
}

impl From<PublishError> for BrokerError {
    fn from(error: PublishError) -> Self {
        if error.kind() == PublishErrorKind::StreamNotFound {
            return Self::Missing;
        }
        match error
            .source()
            .and_then(|source| source.downcast_ref::<jetstream::Error>())
        {
            Some(refusal) => refusal.clone().into(),
            None => Self::Unanswered(error.into()),
        }
    }
}

/// The line of items that move data, and that of walks.
const DATA: &str = "data";
const WALKS: &str = "walk";

/// Where it is told that there is something new.
const NEWS: &str = "news";

/// The stream with the ends of all jobs.
const ENDED: &str = "zmove-ended";

/// How long an end is kept, at least as long as any mover may be away and come back; and an item, of which a push that
/// was killed has left a gigabyte at the most. One that is still wanted by then is walked again.
const KEPT_FOR: std::time::Duration = std::time::Duration::from_secs(7 * 24 * 3600);

/// The most ends that are kept, about 300 bytes each.
const ENDED_MAX: u32 = 65_536;

/// How long the broker knows what it has had: longer than an item that is handed out again takes to announce its own.
/// Costs it about 100 bytes of memory for each item of that time.
const DOUBLES_WITHIN: std::time::Duration = std::time::Duration::from_secs(2 * 60);

/// What may be on its way to the broker at once.
const ITEMS_IN_FLIGHT_MAX: usize = 256;
const BYTES_IN_FLIGHT_MAX: usize = 8 << 20;

/// By what a broker tells that it cannot do something now.
const UNAVAILABLE: usize = 503;

/// By what a broker tells that it is full: the stream, the account, or the server's storage. The first is also told
/// when its disk is, or fails.
const NO_ROOM: [ErrorCode; 5] = [
    ErrorCode::STREAM_STORE_FAILED,
    ErrorCode::ACCOUNT_RESOURCES_EXCEEDED,
    ErrorCode::INSUFFICIENT_RESOURCES,
    ErrorCode::STORAGE_RESOURCES_EXCEEDED,
    ErrorCode::MEMORY_RESOURCES_EXCEEDED,
];

/// Part of the name of a consumer that replaced another one, and may repeat its deliveries.
pub(super) const AGAIN: &str = "-again";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_on_its_way_to_the_broker_than_may_be_and_one_item_always() {
        let at_once = |items: &[usize]| at_once(items.iter().copied());
        assert_eq!(at_once(&[1; 3]), 3);
        assert_eq!(at_once(&[1; 1000]), ITEMS_IN_FLIGHT_MAX);
        assert_eq!(at_once(&[BYTES_IN_FLIGHT_MAX / 4; 9]), 4);
        assert_eq!(at_once(&[BYTES_IN_FLIGHT_MAX + 1, 1]), 1);
    }
}
