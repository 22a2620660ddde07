//! Takes items, as long as there is a broker or may be one again.
//!
//! A taker asks the consumers one after the other for an item that is there now. If there is none, it leaves a pull at
//! each until an item comes.
//!
//! **Invariant:** a pull cannot be taken back, so it ends by itself. An item that comes when nobody waits for it any
//! more is given back at once.

use std::time::Duration;

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::consumer::pull::Batch;
use async_nats::jetstream::{AckKind, Message};
use async_nats::{Subscriber, header};
use futures_util::{StreamExt, TryStreamExt};
use tokio::time::timeout;

use super::answers::BrokerError;
use super::connection::BrokerState;
use super::{JetStream, Lease, Role};
use crate::work_queue::{LEASE, Taken};

/// The state of whoever takes.
#[derive(Debug, Default)]
pub(super) struct Taker {
    consumers: Option<[PullConsumer; 2]>,
    /// Receives a message when the head has ended the job.
    ended: Option<Subscriber>,
    takes: u64,
}

impl Taker {
    /// The next item.
    pub(super) async fn take(&mut self, queue: &JetStream) -> Result<Taken<Lease>, BrokerError> {
        self.takes += 1;
        loop {
            let next = self.next(queue).await;
            if next.is_err() {
                self.consumers = None;
            }
            if let Some(message) = next?
                && let Some(taken) = open(queue, message).await
            {
                return Ok(taken);
            }
        }
    }

    /// The next message, if one comes before the connection is lost and before the pulls end.
    async fn next(&mut self, queue: &JetStream) -> Result<Option<Message>, BrokerError> {
        let mut state = queue.state();
        // waits without end for a broker that is away
        drop(state.wait_for(|state| *state != BrokerState::Lost).await);
        let consumers = match &mut self.consumers {
            Some(consumers) => consumers,
            none => none.insert(queue.broker.consumers().await?),
        };
        let ended = match &mut self.ended {
            Some(ended) => ended,
            none => none.insert(queue.broker.subscribe_to_end().await?),
        };
        state.mark_unchanged();
        let walks_are_due = self.takes.is_multiple_of(WALKS_FIRST_EVERY);
        tokio::select! {
            biased;
            message = pull_next(queue, consumers, walks_are_due) => message,
            _ = ended.next() => Err(BrokerError::Missing),
            // a pull from before a connection was lost gets no answer
            _ = state.changed() => Ok(None),
        }
    }
}

async fn pull_next(
    queue: &JetStream,
    [data, walks]: &[PullConsumer; 2],
    walks_are_due: bool,
) -> Result<Option<Message>, BrokerError> {
    let mut lines = [data, walks];
    if walks_are_due {
        lines.reverse();
    }
    for line in lines {
        let batch = line.fetch().max_messages(1).messages();
        if let Some(message) = Pull::new(queue, batch.await?).next().await? {
            return Ok(Some(message));
        }
    }
    let open = async |line: &PullConsumer| {
        let batch = line.batch().max_messages(1).expires(PULL_MAX).messages();
        Ok::<_, BrokerError>(Pull::new(queue, batch.await?))
    };
    let mut data = open(data).await?;
    let mut walks = open(walks).await?;
    tokio::select! {
        biased;
        message = data.next() => message,
        message = walks.next() => message,
    }
}

/// A request to a consumer for one item.
struct Pull {
    /// `None` after the answer.
    batch: Option<Batch>,
    /// Gives back an item that comes when nobody waits any more.
    lease: Option<Lease>,
}

impl Pull {
    fn new(queue: &JetStream, batch: Batch) -> Self {
        Self {
            batch: Some(batch),
            lease: Some(queue.lease(None)),
        }
    }

    /// The item; `None` if none comes in time. A consumer that refuses is `Missing`.
    async fn next(&mut self) -> Result<Option<Message>, BrokerError> {
        let Some(batch) = &mut self.batch else {
            return Ok(None);
        };
        // a consumer that was removed is silent
        let answer = timeout(ANSWER_MAX, batch.try_next()).await;
        self.batch = None;
        answer?.map_err(|_refused| BrokerError::Missing)
    }
}

impl Drop for Pull {
    fn drop(&mut self) {
        if let (Some(mut batch), Some(mut lease)) = (self.batch.take(), self.lease.take()) {
            tokio::spawn(async move {
                if let Ok(Ok(Some(message))) = timeout(ANSWER_MAX, batch.try_next()).await {
                    lease.delivery = Some(message.split().1);
                }
                drop(lease);
            });
        }
    }
}

/// The item in a message. The head removes a message that does not open. A mover gives it back, because one that has a
/// wrong key would empty the queue.
async fn open(queue: &JetStream, message: Message) -> Option<Taken<Lease>> {
    let id = message.headers.as_ref();
    let id = id.and_then(|headers| headers.get(header::NATS_MESSAGE_ID));
    let item = id.and_then(|id| queue.broker.seal.open(id.as_str(), &message.payload));
    let deliveries = message.info().ok();
    let deliveries = deliveries.and_then(|info| u64::try_from(info.delivered).ok());
    let delivery = message.split().1;
    if let (Some(item), Some(deliveries)) = (item, deliveries) {
        return Some(Taken {
            item,
            deliveries,
            lease: LEASE,
            delivery: queue.lease(Some(delivery)),
        });
    }
    let answer = match queue.broker.settings.role {
        Role::Head => AckKind::Ack,
        Role::Mover => AckKind::Nak(Some(UNREADABLE_PAUSE)),
    };
    // if the broker does not receive the answer, the message comes again
    let _best_effort = delivery.double_ack_with(answer).await;
    None
}

/// How often walks are asked for before data, so that data does not run out on all nodes at once.
const WALKS_FIRST_EVERY: u64 = 8;

/// How long a pull waits at the broker. Longer, and a process that ends waits longer for its last pulls; shorter, and
/// an idle node asks more often.
const PULL_MAX: Duration = Duration::from_secs(1);

/// How long the answer to a pull may take.
const ANSWER_MAX: Duration = Duration::from_secs(2);
const _: () = assert!(PULL_MAX.as_millis() < ANSWER_MAX.as_millis());

/// How long a message that a mover cannot read is left to others.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(2);
