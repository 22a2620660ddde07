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
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::answers::BrokerError;
use super::connection::BrokerState;
use super::{JetStream, Lease, QueueRole};
use crate::queue::{LEASE, Taken};

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
            if let Some(pulled) = next?
                && let Some(taken) = open(queue, pulled).await
            {
                return Ok(taken);
            }
        }
    }

    /// The next message, if one comes before the connection is lost and before the pulls end.
    async fn next(&mut self, queue: &JetStream) -> Answer {
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
            pulled = pull_next(queue, consumers, walks_are_due) => pulled,
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
) -> Answer {
    let mut lines = [data, walks];
    if walks_are_due {
        lines.reverse();
    }
    for line in lines {
        let batch = line.fetch().max_messages(1).messages();
        if let Some(pulled) = pull(queue, batch.await?).await?? {
            return Ok(Some(pulled));
        }
    }
    let open = async |line: &PullConsumer| {
        let batch = line.batch().max_messages(1).expires(PULL_MAX).messages();
        Ok::<_, BrokerError>(pull(queue, batch.await?))
    };
    let data = open(data).await?;
    let walks = open(walks).await?;
    tokio::select! {
        biased;
        pulled = data => pulled?,
        pulled = walks => pulled?,
    }
}

type Answer = Result<Option<Pulled>, BrokerError>;

/// A message with an item, which is given back when this is dropped.
struct Pulled {
    message: Message,
    lease: Lease,
}

/// Waits for the answer to a request for one item, also when the handle is dropped. `None` if no item comes in time. A
/// consumer that refuses is `Missing`.
fn pull(queue: &JetStream, mut batch: Batch) -> JoinHandle<Answer> {
    let mut lease = queue.lease(None);
    tokio::spawn(async move {
        // a consumer that was removed is silent
        let answer = timeout(ANSWER_MAX, batch.try_next()).await?;
        let message = answer.map_err(|_refused| BrokerError::Missing)?;
        Ok(message.map(|message| {
            lease.delivery = Some(message.clone().split().1);
            Pulled { message, lease }
        }))
    })
}

/// The item in a message. The head removes a message that does not open. A mover gives it back, because one that has a
/// wrong key would empty the queue.
async fn open(queue: &JetStream, pulled: Pulled) -> Option<Taken<Lease>> {
    let Pulled { message, mut lease } = pulled;
    let id = message.headers.as_ref();
    let id = id.and_then(|headers| headers.get(header::NATS_MESSAGE_ID));
    let item = id.and_then(|id| queue.broker.seal.open(id.as_str(), &message.payload));
    if let Some(item) = item {
        return Some(Taken {
            item,
            lease: LEASE,
            delivery: lease,
        });
    }
    lease.delivery = None;
    let answer = match queue.broker.settings.role {
        QueueRole::Head => AckKind::Ack,
        QueueRole::Mover => AckKind::Nak(Some(UNREADABLE_PAUSE)),
    };
    // if the broker does not receive the answer, the message comes again
    let _best_effort = message.double_ack_with(answer).await;
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
