//! The sender's half of the control conversation: from the greeting to the receiver's last message.

pub(crate) mod link;
pub(crate) mod relay;
pub(crate) mod replies;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{timeout, timeout_at};
use zmove_transport::{ControlError, ControlReader, ControlWriter, Inbox};
use zmove_types::{Event, Observer, RateLimit};
use zmove_wire::{
    Opened, Refusal, RefusalCode, ToReceiver, ToSender, Waiting, WireError, encode_message,
};

use crate::account::summary::Summary;
use crate::control::relay::{Beside, DialledBy, Heard, Last, PeerQuota, inbox};
use crate::error::SessionError;

/// Receives the receiver's greeting, unless the receiver has dialled: it has greeted before. What it says is booked on
/// `quota`.
pub(crate) async fn greeted(
    mut reader: ControlReader,
    dialled_by: DialledBy,
    quota: Option<Arc<dyn PeerQuota>>,
) -> Result<Inbox<Heard>, SessionError> {
    if dialled_by == DialledBy::Sender {
        reader.greeting().await?;
    }
    Ok(inbox(reader, quota))
}

/// Waits until the receiver, once it has `greeted`, opens the transfer. Where the transfer has to wait in the queue, it
/// waits for `patience` and tells `waits`; `told_rate` hears the rate of the key, if it has one.
pub(crate) async fn permission(
    greeted: impl Future<Output = Result<Inbox<Heard>, SessionError>>,
    patience: Duration,
    waits: mpsc::UnboundedSender<Waiting>,
    told_rate: impl Fn(RateLimit),
) -> Result<(Inbox<Heard>, Opened), SessionError> {
    let first = async {
        let mut inbox = greeted.await?;
        let answer = receive(&mut inbox).await?;
        Ok((inbox, answer))
    };
    let answered = timeout(PERMISSION_TIMEOUT, first).await;
    let (mut inbox, mut answer) = answered.unwrap_or(Err(SessionError::Silent))?;
    let due = Instant::now() + patience;
    loop {
        answer = match answer {
            ToSender::Opened(opened) => return Ok((inbox, opened)),
            ToSender::Refused(refusal) => return Err(SessionError::Refused(refusal)),
            ToSender::Waiting(Waiting { text, .. }) if patience.is_zero() => {
                return Err(SessionError::Refused(Refusal {
                    code: RefusalCode::Full,
                    text,
                }));
            }
            ToSender::Waiting(waiting) => {
                let reason = waiting.text.clone();
                // Sending fails only when the session is over.
                let _over = waits.send(waiting);
                let next = timeout_at(due.into(), receive(&mut inbox)).await;
                next.unwrap_or(Err(SessionError::StillInLine {
                    reason,
                    waited: patience,
                }))?
            }
            ToSender::RateMax { bytes_per_second } => {
                told_rate(RateLimit::nearest(bytes_per_second));
                let next = timeout(PERMISSION_TIMEOUT, receive(&mut inbox)).await;
                next.unwrap_or(Err(SessionError::Silent))?
            }
            _ => {
                return Err(WireError::OutOfOrder {
                    what: "the first answer",
                }
                .into());
            }
        }
    }
}

/// Reports a wait to the user.
pub(crate) fn tell_waiting(observer: &dyn Observer, waiting: &Waiting) {
    observer.on(&Event::Waiting {
        message: waiting.to_string(),
    });
}

/// The next message; the end of the connection is an error here.
pub(crate) async fn receive(inbox: &mut Inbox<Heard>) -> Result<ToSender, SessionError> {
    Ok(inbox.recv().await.ok_or(ControlError::Closed)??.message)
}

/// The channel for the error by which no more can be sent to the receiver.
pub(crate) type Unsayable = mpsc::Receiver<ControlError>;

/// Writes messages until all senders are gone, then ends the connection in order. A task of its own, so that two peers
/// who both have much to send never wait for each other. Words `beside` the transfer end it when they end, since their
/// last is the end of the session.
pub(crate) fn write_all(
    writer: ControlWriter,
    outgoing: mpsc::UnboundedReceiver<ToReceiver>,
    beside: Option<mpsc::UnboundedReceiver<Beside>>,
) -> (JoinHandle<()>, Unsayable) {
    let (failed, unsayable) = mpsc::channel(1);
    let writing = tokio::spawn(async move {
        if let Err(error) = write(writer, outgoing, beside).await {
            // Sending fails only when the session is over.
            let _over = failed.try_send(error);
        }
    });
    (writing, unsayable)
}

async fn write(
    mut writer: ControlWriter,
    mut outgoing: mpsc::UnboundedReceiver<ToReceiver>,
    mut beside: Option<mpsc::UnboundedReceiver<Beside>>,
) -> Result<(), ControlError> {
    while let Some(said) = next_said(&mut outgoing, &mut beside).await {
        match said {
            Said::Message(message) => writer.send(&encode_message(&message)).await?,
            Said::Beside(Beside { bytes, held }) => {
                writer.send(&bytes).await?;
                drop(held);
            }
        }
    }
    let _goodbye = writer.finish().await;
    Ok(())
}

/// What is said next.
enum Said {
    Message(ToReceiver),
    Beside(Beside),
}

/// The next thing to be said: messages before words beside the transfer, which would delay it.
async fn next_said(
    outgoing: &mut mpsc::UnboundedReceiver<ToReceiver>,
    beside: &mut Option<mpsc::UnboundedReceiver<Beside>>,
) -> Option<Said> {
    let Some(beside) = beside else {
        return outgoing.recv().await.map(Said::Message);
    };
    tokio::select! {
        biased;
        Some(message) = outgoing.recv() => Some(Said::Message(message)),
        word = beside.recv() => word.map(Said::Beside),
    }
}

/// Tells the end of the session to a receiver that has dialled, and waits a little until the connection has ended.
pub(crate) async fn tell_end(
    last: Option<Last>,
    ended: Result<&Summary, &SessionError>,
    writer: &mut JoinHandle<()>,
) {
    if let Some(last) = last {
        last(ended);
    }
    let _goodbye = timeout(GOODBYE_TIMEOUT, &mut *writer).await;
    writer.abort();
}

/// Tells a receiver that has dialled why the session ends; any other sees the end of the connection.
pub(crate) async fn break_off(
    last: Option<Last>,
    error: &SessionError,
    writer: &mut JoinHandle<()>,
) {
    match last {
        Some(last) => tell_end(Some(last), Err(error), writer).await,
        None => writer.abort(),
    }
}

/// Waits a little for the receiver's last message before `error` ends the session: a lost connection is often only the
/// first sign of what the receiver has just sent.
pub(crate) async fn explained<T>(
    said: impl Future<Output = Result<T, SessionError>>,
    error: SessionError,
) -> Result<T, SessionError> {
    timeout(EXPLANATION_TIMEOUT, said)
        .await
        .unwrap_or(Err(error))
}

pub(crate) const INBOX_MESSAGES_MAX: usize = 8;
/// The longest wait for `Opened`: a receiver that looks at its target for longer will not come back to it.
pub(crate) const PERMISSION_TIMEOUT: Duration = Duration::from_secs(120);
const EXPLANATION_TIMEOUT: Duration = Duration::from_secs(2);
pub(crate) const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);
