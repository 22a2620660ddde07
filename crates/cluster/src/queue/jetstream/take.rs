//! Takes items.
//!
//! A taker leaves a pull request at the consumer of the job until an item arrives.
//!
//! **Invariant:** a pull request cannot be canceled, so each request has a time limit. If an item arrives after the
//! taker has stopped waiting, the item is returned to the queue immediately.

use std::time::Duration;

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::{AckKind, Message};
use async_nats::{Subscriber, header};
use futures_util::{StreamExt, TryStreamExt};
use tokio::time::timeout;

use super::answers::BrokerError;
use super::{JetStream, Lease};
use crate::job::NodeRole;
use crate::queue::{LEASE, Taken};

/// The state of taking items.
#[derive(Debug, Default)]
pub(super) struct Taker {
    consumer: Option<PullConsumer>,
    /// Receives a message when the head has ended the job.
    ended: Option<Subscriber>,
}

impl Taker {
    /// Takes the next item.
    pub(super) async fn take(&mut self, queue: &JetStream) -> Result<Taken<Lease>, BrokerError> {
        loop {
            let next = self.next(queue).await;
            if next.is_err() {
                self.consumer = None;
            }
            if let Some(pulled) = next?
                && let Some(taken) = open(queue, pulled, self.lease()).await
            {
                return Ok(taken);
            }
        }
    }

    /// Returns the duration of leases, which the head has set at the broker.
    fn lease(&self) -> Duration {
        self.consumer
            .as_ref()
            .map_or(LEASE, |consumer| consumer.cached_info().config.ack_wait)
    }

    /// Returns the next message, or `None` if the connection was lost and restored or the pull request expires first.
    async fn next(&mut self, queue: &JetStream) -> Answer {
        let consumer = match &mut self.consumer {
            Some(consumer) => consumer,
            none => none.insert(queue.consumer().await?),
        };
        let ended = match &mut self.ended {
            Some(ended) => ended,
            none => none.insert(queue.subscribe_to_end().await?),
        };
        let mut state = queue.state();
        tokio::select! {
            biased;
            pulled = pull(queue, consumer) => pulled,
            _ = ended.next() => Err(BrokerError::Missing),
            // A pull request that was sent before the connection was lost gets no answer.
            _ = state.changed() => queue.connection.check().map(|()| None),
        }
    }
}

type Answer = Result<Option<Pulled>, BrokerError>;

/// A message with an item. If this value is dropped, the item is returned.
struct Pulled {
    message: Message,
    lease: Lease,
}

/// Requests one item. A task waits for the answer, even if this future is dropped. Returns `None` if no item arrives in
/// time. Fails with `Missing` if the consumer refuses.
async fn pull(queue: &JetStream, consumer: &PullConsumer) -> Answer {
    let batch = consumer.batch().max_messages(1).expires(PULL_MAX);
    let mut batch = batch.messages().await?;
    let mut lease = queue.lease(None);
    let answered = tokio::spawn(async move {
        // A consumer that was removed does not answer.
        let answer = timeout(ANSWER_MAX, batch.try_next()).await?;
        let message = answer.map_err(|_refused| BrokerError::Missing)?;
        Ok(message.map(|message| {
            lease.delivery = Some(message.clone().split().1);
            Pulled { message, lease }
        }))
    });
    answered.await?
}

/// Decrypts the item in a message. If decryption fails, the head removes the message, but a mover returns it. A mover
/// with a wrong key would otherwise empty the queue.
async fn open(queue: &JetStream, pulled: Pulled, leased_for: Duration) -> Option<Taken<Lease>> {
    let Pulled { message, mut lease } = pulled;
    let id = message.headers.as_ref();
    let id = id.and_then(|headers| headers.get(header::NATS_MESSAGE_ID));
    let item = id.and_then(|id| queue.seal.open(id.as_str(), &message.payload));
    if let Some(item) = item {
        return Some(Taken {
            item,
            lease: leased_for,
            delivery: lease,
        });
    }
    lease.delivery = None;
    let answer = match queue.settings.role {
        NodeRole::Head => AckKind::Ack,
        NodeRole::Follower => AckKind::Nak(Some(UNREADABLE_PAUSE)),
    };
    // If the broker does not receive the answer, it delivers the message again.
    let _best_effort = message.double_ack_with(answer).await;
    None
}

/// How long a pull request waits at the broker. With a longer time, a process that exits waits longer for its last
/// requests. With a shorter time, an idle node sends more requests.
const PULL_MAX: Duration = Duration::from_secs(1);

/// Time limit for the answer to a pull request.
const ANSWER_MAX: Duration = Duration::from_secs(2);
const _: () = assert!(PULL_MAX.as_millis() < ANSWER_MAX.as_millis());

/// How long the broker holds back a message that a mover could not decrypt. Another node may take it afterwards.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(2);
