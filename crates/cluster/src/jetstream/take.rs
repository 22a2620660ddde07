//! Takes items, as long as there is a broker or may be one again.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::jetstream::AckKind;
use async_nats::{HeaderMap, Message, Subscriber, header, jetstream};
use futures_util::{FutureExt, StreamExt};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::broker::{AGAIN, Consumers};
use super::connection::{BrokerError, BrokerState};
use super::pull::{Answer, Pull};
use super::{JetStream, Lease, NOT_THERE, Role, WALKS_FIRST_EVERY};
use crate::error::WorkError;
use crate::work_queue::Taken;

/// What whoever takes knows of the consumers.
#[derive(Debug, Default)]
pub(super) struct Taker {
    consumers: Option<Consumers>,
    /// What others tell when they have put in work.
    news: Option<Subscriber>,
    empty_since: Option<Instant>,
    /// Whether the last question which consumers there are was not answered.
    is_in_doubt: bool,
    takes: u64,
}

/// Which line is asked for first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FirstLine {
    Data,
    Walks,
}

impl Taker {
    pub(super) async fn take(
        &mut self,
        queue: &JetStream,
    ) -> Result<Option<Taken<Lease>>, WorkError> {
        self.takes += 1;
        loop {
            let error = match self.next(queue).await {
                Ok(Some(message)) => match open(queue, message).await {
                    Some(taken) => return Ok(Some(taken)),
                    None => continue,
                },
                Ok(None) => continue,
                Err(error) => error,
            };
            self.consumers = None;
            let error = match error {
                BrokerError::Missing => match queue.restore().await {
                    Ok(()) => continue,
                    Err(error) => error,
                },
                error => error,
            };
            match error {
                BrokerError::Over => return Ok(None),
                BrokerError::Refused(error) => return Err(failed(error)),
                BrokerError::Missing if self.has_waited_enough(queue) => {
                    return Err(failed(NOT_THERE));
                }
                BrokerError::Missing => queue.broker.connection.pause(AGAIN_AFTER_MAX).await,
                BrokerError::Unanswered(_) => self.doubt(queue).await,
            }
        }
    }

    fn has_waited_enough(&mut self, queue: &JetStream) -> bool {
        self.empty_since.get_or_insert_with(Instant::now).elapsed() > queue.settings.empty_max
    }

    /// The next message, if there is one before anything changes.
    async fn next(&mut self, queue: &JetStream) -> Result<Option<Message>, BrokerError> {
        let mut state = queue.state();
        wait_for_connection(&mut state).await;
        let consumers = match self.consumers.take() {
            Some(consumers) => consumers,
            None => queue.broker.consumers().await?,
        };
        self.empty_since = None;
        self.is_in_doubt = false;
        queue.broker.connection.tell(BrokerState::Ready);
        state.mark_unchanged();
        let walks_are_due = self.takes.is_multiple_of(WALKS_FIRST_EVERY);
        let first = if walks_are_due {
            FirstLine::Walks
        } else {
            FirstLine::Data
        };
        let news = match &mut self.news {
            Some(news) => news,
            none => none.insert(queue.broker.news().await?),
        };
        // what is told from here on is not missed
        while news.next().now_or_never().flatten().is_some() {}
        let answer = tokio::select! {
            biased;
            answer = ask(queue, &consumers, first) => answer?,
            // what was asked before a connection was lost is never answered
            _ = state.changed() => return Ok(None),
        };
        match answer {
            Answer::Item(message) => {
                self.consumers = Some(consumers);
                return Ok(Some(message));
            }
            Answer::Nothing => {
                self.consumers = Some(consumers);
                tokio::select! {
                    told = news.next() => if told.is_none() { self.news = None },
                    () = sleep(queue.settings.ask_again_after) => {}
                    _ = state.changed() => {}
                }
            }
            // then the next question is which consumers there are
            Answer::Gone => sleep(GONE_PAUSE).await,
        }
        Ok(None)
    }

    /// Makes the connection anew if the broker has been silent before.
    async fn doubt(&mut self, queue: &JetStream) {
        if std::mem::replace(&mut self.is_in_doubt, true) {
            // if that fails, the connection is made anew already
            let _best_effort = queue.broker.connection.client.force_reconnect().await;
        }
        queue.broker.connection.pause(AGAIN_AFTER_MAX).await;
    }
}

/// Asks both consumers for an item.
async fn ask(
    queue: &JetStream,
    consumers: &Consumers,
    first: FirstLine,
) -> Result<Answer, BrokerError> {
    let mut names = [&consumers.data, &consumers.walks];
    if first == FirstLine::Walks {
        names.reverse();
    }
    let mut is_sure = true;
    for name in names {
        let subject = queue.broker.next_subject(name);
        let pull = Pull::begin(&queue.broker.connection.client, subject, queue.lease(None)).await?;
        match answer(queue, pull).await? {
            Answer::Item(message) => return Ok(Answer::Item(message)),
            Answer::Nothing => {}
            Answer::Gone => is_sure = false,
        }
    }
    Ok(if is_sure {
        Answer::Nothing
    } else {
        Answer::Gone
    })
}

/// What a consumer says. There are two reasons to say nothing: it is no more, or as much of it as may be has been
/// taken.
async fn answer(queue: &JetStream, mut pull: Pull) -> Result<Answer, BrokerError> {
    if let Ok(answer) = timeout(DOUBT_AFTER, pull.answer()).await {
        return Ok(answer);
    }
    queue.broker.consumers().await?;
    match timeout(SILENCE_MAX, pull.answer()).await {
        Ok(answer) => Ok(answer),
        Err(_) => {
            pull.forget();
            Ok(Answer::Gone)
        }
    }
}

/// Waits until a broker is there, for ever if need be.
async fn wait_for_connection(state: &mut watch::Receiver<BrokerState>) {
    // an error would be that the connection has been dropped, which this queue holds
    let _always_there = state.wait_for(|state| *state != BrokerState::Lost).await;
}

/// The item in a message; what is none is taken out of the queue by the head. A mover gives it back: one that has a
/// wrong key would empty the queue.
async fn open(queue: &JetStream, message: Message) -> Option<Taken<Lease>> {
    let id = message
        .headers
        .as_ref()
        .and_then(|headers: &HeaderMap| headers.get(header::NATS_MESSAGE_ID));
    let item = id.and_then(|id| queue.broker.seal.open(id.as_str(), &message.payload));
    let message = jetstream::Message {
        message,
        context: queue.broker.connection.context.clone(),
    };
    let deliveries = message.info().ok().and_then(|info| {
        let before = u64::from(info.consumer.contains(AGAIN));
        Some(before + u64::try_from(info.delivered).ok()?)
    });
    let delivery = message.message.reply?;
    if let (Some(item), Some(deliveries)) = (item, deliveries) {
        return Some(Taken {
            item,
            deliveries,
            delivery: queue.lease(Some(delivery)),
        });
    }
    queue.unreadable.fetch_add(1, Ordering::Relaxed);
    let what = match queue.settings.role {
        Role::Head => AckKind::Ack,
        Role::Mover => AckKind::Nak(Some(UNREADABLE_AGAIN_AFTER)),
    };
    // if the broker does not hear it, the message comes again
    let _best_effort = queue.broker.acknowledge(&delivery, what).await;
    None
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> WorkError {
    WorkError::Queue {
        operation: "take work from the queue",
        source: error.into(),
    }
}

/// Keeps a consumer that is there and always refuses from being asked without a rest.
const GONE_PAUSE: Duration = Duration::from_millis(50);

/// How long a message that a mover cannot read is left to others.
const UNREADABLE_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// How long a consumer may take to answer before it is asked for whether it is there, and then.
const DOUBT_AFTER: Duration = Duration::from_millis(250);
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// How long whoever waits for a broker waits before it looks what else there is.
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(1);
