//! The stream of events: the numbered events of the store, starting after the last one that the client has seen, and
//! the progress of running jobs in between.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, State as Shared};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use hyper::body::{Bytes, Frame};
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, broadcast, mpsc};

use crate::connections::listen::Visitor;
use crate::hub::{Message, encode_event, numbered};
use crate::problem::Problem;
use crate::state::Api;

/// Streams events as server-sent events.
///
/// The first event is `hello`: `{"last": N, "reset": false}`. `reset` is true if the stream cannot continue after the
/// last event that the client has seen. That is the case if `Last-Event-ID` is missing, does not exist yet, or is too
/// old. The client must then read the lists again.
///
/// `job` contains `{"event": …, "job": …}` and has the event's number as `id`. A `job` event without `id` reports that
/// the pending request for the job has changed. `progress` is an array with the progress of running jobs, at most four
/// times a second. `counts` has the number of jobs in each state. `daemon` has the content of `/api/v1/daemon`.
#[utoipa::path(
    get,
    path = "/api/v1/events",
    params(("Last-Event-ID" = Option<i64>, Header, description = "The number of the last event that was seen.")),
    responses(
        (status = 200, body = String, content_type = "text/event-stream"),
        (status = 401, body = Problem),
        (
            status = 503,
            body = Problem,
            description = "There are too many streams. `Retry-After` says when to ask again."
        )
    )
)]
pub(super) async fn events(
    Shared(api): Shared<Api>,
    Extension(visitor): Extension<Arc<Visitor>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let seen = match headers.get("last-event-id").map(|value| value.to_str()) {
        None | Some(Ok("")) => None,
        Some(Ok(text)) => Some(text.parse().map_err(|_| no_number())?),
        Some(Err(_)) => return Err(no_number()),
    };
    let too_many = |_| Problem::new(StatusCode::SERVICE_UNAVAILABLE, TOO_MANY);
    let streams = Arc::clone(&visitor.streams);
    let permit = streams.try_acquire_owned().map_err(too_many)?;
    // Subscribe before the store is read, so that no event is missed in between.
    let messages = api.hub.subscribe();
    let last = api.stores.with(|_, store| Ok(store.last_event()?)).await?;
    let from = seen.filter(|seen| (last.saturating_sub(CATCH_UP_MAX)..=last).contains(seen));
    let hello = encode_event(
        "hello",
        Some(from.unwrap_or(last)),
        &json!({ "last": last, "reset": from.is_none() }),
    );
    let (sender, receiver) = mpsc::channel(TAKEN_AHEAD);
    let feeder = Feeder {
        api,
        messages,
        sender,
        sent: from.unwrap_or(last),
        _permit: permit,
    };
    tokio::spawn(feeder.feed(hello));
    Ok((
        [(CONTENT_TYPE, "text/event-stream")],
        Body::new(Stream(receiver)),
    )
        .into_response())
}

fn no_number() -> Problem {
    Problem::new(
        StatusCode::BAD_REQUEST,
        "Last-Event-ID is not the number of an event",
    )
}

/// The task that feeds one stream.
struct Feeder {
    api: Api,
    messages: broadcast::Receiver<Message>,
    sender: mpsc::Sender<Bytes>,
    /// The number of the last event that was sent.
    sent: i64,
    _permit: OwnedSemaphorePermit,
}

/// The client has disconnected, or the store cannot be read.
struct Ended;

impl Feeder {
    /// Feeds the stream until the client disconnects.
    async fn feed(mut self, hello: Bytes) {
        let ended = async {
            self.send(hello).await?;
            self.catch_up().await?;
            self.tell_daemon().await?;
            loop {
                match tokio::time::timeout(SILENCE_MAX, self.messages.recv()).await {
                    Ok(Ok(Message::Numbered(number, words))) if number > self.sent => {
                        self.sent = number;
                        self.send(words).await?;
                    }
                    // The event was already sent when the store was read.
                    Ok(Ok(Message::Numbered(..))) => {}
                    Ok(Ok(Message::Snapshot(words))) => self.send(words).await?,
                    Ok(Ok(Message::Begin)) => self.catch_up().await?,
                    Ok(Err(RecvError::Lagged(_))) => {
                        self.catch_up().await?;
                        self.tell_daemon().await?;
                    }
                    Ok(Err(RecvError::Closed)) => return Err::<(), _>(Ended),
                    // Sending a comment detects a client that has disconnected.
                    Err(_silent) => self.send(Bytes::from_static(b":\n\n")).await?,
                }
            }
        };
        let _ended = ended.await;
    }

    async fn send(&self, words: Bytes) -> Result<(), Ended> {
        self.sender.send(words).await.map_err(|_| Ended)
    }

    /// Sends the last status of the daemon, because the hub sends it only when it changes.
    async fn tell_daemon(&self) -> Result<(), Ended> {
        match self.api.hub.daemon() {
            Some(words) => self.send(words).await,
            None => Ok(()),
        }
    }

    /// Sends the events that were added to the store since the last one sent.
    async fn catch_up(&mut self) -> Result<(), Ended> {
        loop {
            let after = self.sent;
            let read = self
                .api
                .stores
                .with(move |place, store| Ok(numbered(place, store, after, AT_ONCE)?));
            let events = read.await.map_err(|_| Ended)?;
            let Some((last, _)) = events.last() else {
                return Ok(());
            };
            self.sent = *last;
            for (_, words) in events {
                self.send(words).await?;
            }
        }
    }
}

/// The body of the response.
struct Stream(mpsc::Receiver<Bytes>);

impl hyper::body::Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0
            .poll_recv(context)
            .map(|words| words.map(|words| Ok(Frame::data(words))))
    }
}

const TOO_MANY: &str = "too many event streams are open";
/// Maximum number of missed events to send. A client that has missed more must read the lists again.
const CATCH_UP_MAX: i64 = 10_000;
/// Maximum number of events to read from the store at a time.
const AT_ONCE: u32 = 100;
/// Maximum number of encoded messages that wait for the connection.
const TAKEN_AHEAD: usize = 4;
/// Time without a message after which a comment is sent.
const SILENCE_MAX: Duration = Duration::from_secs(15);
