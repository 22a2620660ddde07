//! One request to a consumer for one item that is there now.
//!
//! Requests do not wait at the broker, since none of them can be taken back: an item that is sent to one that nobody
//! wants any more is lost until its lease ends. Takers wait for news instead ([`super::take`]).
//!
//! **Invariant:** an item that comes when nobody waits for it any more is given back at once.

use async_nats::{Client, Message, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::timeout;

use super::Lease;
use super::connection::{ANSWER_MAX, BrokerError};

/// What a consumer says.
#[derive(Debug)]
pub(super) enum Answer {
    /// An item.
    Item(Message),
    /// There is none.
    Nothing,
    /// The consumer cannot tell, or is no more.
    Gone,
}

/// A request.
#[derive(Debug)]
pub(super) struct Pull {
    /// `None` once there is an answer: a request has one. The lease is for an item that comes when nobody waits any
    /// more.
    unanswered: Option<(Subscriber, Lease)>,
}

impl Pull {
    /// Asks a consumer, with a lease of nothing yet.
    pub(super) async fn begin(
        client: &Client,
        subject: String,
        lease: Lease,
    ) -> Result<Self, BrokerError> {
        let unsent =
            |error: &dyn std::fmt::Display| BrokerError::Unanswered(error.to_string().into());
        let inbox = Subject::from(client.new_inbox());
        let subscriber = client
            .subscribe(inbox.clone())
            .await
            .map_err(|error| unsent(&error))?;
        let pull = Self {
            unanswered: Some((subscriber, lease)),
        };
        let request = Bytes::from_static(br#"{"batch":1,"no_wait":true}"#);
        client
            .publish_with_reply(subject, inbox, request)
            .await
            .map_err(|error| unsent(&error))?;
        Ok(pull)
    }

    /// What the consumer says; never when it is silent.
    pub(super) async fn answer(&mut self) -> Answer {
        let Some((subscriber, _)) = &mut self.unanswered else {
            return std::future::pending().await;
        };
        let answer = subscriber.next().await.map_or(Answer::Gone, Answer::from);
        self.unanswered = None;
        answer
    }

    /// Gives up a request that has not been answered for long: without a subscriber the broker forgets it.
    pub(super) fn forget(mut self) {
        self.unanswered = None;
    }
}

impl Drop for Pull {
    fn drop(&mut self) {
        let Some((mut subscriber, mut lease)) = self.unanswered.take() else {
            return;
        };
        tokio::spawn(async move {
            let answer = timeout(ANSWER_MAX, subscriber.next()).await;
            if let Ok(Some(Answer::Item(message))) = answer.map(|message| message.map(Answer::from))
            {
                lease.delivery = message.reply;
            }
            drop(lease);
        });
    }
}

impl From<Message> for Answer {
    fn from(message: Message) -> Self {
        match message.status {
            None | Some(StatusCode::OK) => Self::Item(message),
            Some(StatusCode::NOT_FOUND | StatusCode::TIMEOUT) => Self::Nothing,
            Some(_) => Self::Gone,
        }
    }
}
