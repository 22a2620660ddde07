//! The sender's half of the control conversation, from the greeting to the receiver's last message.

pub(crate) mod admission;
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
use zmove_wire::{
    Greeting, Open, Opened, Refusal, RefusalCode, Summary, ToReceiver, ToSender, Waiting,
    WireError, encode_message,
};

use crate::control::relay::{
    NoQuota, ReceivedMessage, Relay, RelayMessage, SessionEndCallback, inbox,
};
use crate::error::SessionError;

/// Greets the receiver and opens a conversation without lanes. Fails if the transfer would have to wait in the queue,
/// because a user waits for the answer.
pub(crate) async fn open_without_queue(
    greeting: Greeting,
    mut reader: ControlReader,
    writer: &mut ControlWriter,
    open: Open,
) -> Result<(Inbox<ReceivedMessage>, Opened), SessionError> {
    writer.send(&greeting.encode()).await?;
    let greeted = async {
        reader.greeting().await?;
        // A receiver may refuse before it reads the opening, so a failure to send is ignored here. The receiver's
        // answer contains the reason for the refusal.
        let _refused_early = writer.send(&encode_message(&ToReceiver::Open(open))).await;
        Ok(inbox(reader, Arc::new(NoQuota)))
    };
    await_opened(greeted, Duration::ZERO, |_said| ()).await
}

/// Waits until the receiver has greeted and opened the transfer. A transfer that is queued waits for up to `patience`.
/// Messages received during the wait are passed to `hear`.
pub(crate) async fn await_opened(
    greeted: impl Future<Output = Result<Inbox<ReceivedMessage>, SessionError>>,
    patience: Duration,
    hear: impl Fn(&ToSender),
) -> Result<(Inbox<ReceivedMessage>, Opened), SessionError> {
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
            ToSender::Waiting(ref waiting) if !patience.is_zero() => {
                hear(&answer);
                let next = timeout_at(due.into(), receive(&mut inbox)).await;
                next.unwrap_or_else(|_elapsed| {
                    Err(SessionError::StillInLine {
                        reason: waiting.text.clone(),
                        waited: patience,
                    })
                })?
            }
            ToSender::RateMax { .. } => {
                hear(&answer);
                next_answer(&mut inbox).await?
            }
            ToSender::HeldUp { .. } => {
                hear(&answer);
                // The wait may be long. The loss of the receiver is detected by other means.
                receive(&mut inbox).await?
            }
            answer => return Err(not_opened(answer)),
        }
    }
}

async fn next_answer(inbox: &mut Inbox<ReceivedMessage>) -> Result<ToSender, SessionError> {
    let next = timeout(PERMISSION_TIMEOUT, receive(inbox)).await;
    next.unwrap_or(Err(SessionError::Silent))
}

/// Returns the error for a first answer other than the opening of the transfer.
pub(crate) fn not_opened(answer: ToSender) -> SessionError {
    match answer {
        ToSender::Waiting(Waiting { text, .. }) => SessionError::Refused(Refusal {
            code: RefusalCode::Full,
            text,
        }),
        ToSender::Refused(refusal) => SessionError::Refused(refusal),
        _ => WireError::OutOfOrder {
            what: "the first answer",
        }
        .into(),
    }
}

/// Receives the next message. The end of the connection is an error here.
pub(crate) async fn receive(inbox: &mut Inbox<ReceivedMessage>) -> Result<ToSender, SessionError> {
    Ok(inbox.recv().await.ok_or(ControlError::Closed)??.message)
}

/// The outgoing half of the control conversation.
pub(crate) struct MessageWriter {
    /// Callback for the result of the session, if the receiver has dialed.
    last: Option<SessionEndCallback>,
    /// The task that writes messages. It ends when all messages have been written.
    writing: JoinHandle<()>,
    /// Delivers the error after which no more messages can be sent.
    pub(crate) write_error: mpsc::Receiver<ControlError>,
}

impl MessageWriter {
    /// Starts a task that writes messages until all senders are dropped. The task then closes the connection
    /// gracefully. A separate task prevents a deadlock between two peers that both have much to send. If there are
    /// relay messages, the task also ends when their channel closes, because the last relay message reports the end of
    /// the session.
    pub(crate) fn start(
        writer: ControlWriter,
        outgoing: mpsc::UnboundedReceiver<ToReceiver>,
        relay: Option<Relay>,
    ) -> Self {
        let (beside, last) = relay.map(|Relay { words, last }| (words, last)).unzip();
        let (failed, write_error) = mpsc::channel(1);
        let writing = tokio::spawn(async move {
            if let Err(error) = write(writer, outgoing, beside).await {
                // Sending fails only when the session is over.
                let _over = failed.try_send(error);
            }
        });
        Self {
            last,
            writing,
            write_error,
        }
    }

    /// Returns whether the receiver has dialed this sender, and both have already exchanged greetings.
    pub(crate) fn was_dialled(&self) -> bool {
        self.last.is_some()
    }

    /// Reports the result of the session to a receiver that has dialed, and closes the connection. After a successful
    /// session, or if the receiver has dialed, waits up to `GOODBYE_TIMEOUT` until all queued messages are written.
    /// After any other failure, closes the connection immediately.
    pub(crate) async fn end(&mut self, ended: Result<&Summary, &SessionError>) {
        let ends_in_order = ended.is_ok() || self.was_dialled();
        if let Some(last) = self.last.take() {
            last(ended);
        }
        if ends_in_order {
            let _goodbye = timeout(GOODBYE_TIMEOUT, &mut self.writing).await;
        }
        self.writing.abort();
    }
}

async fn write(
    mut writer: ControlWriter,
    mut outgoing: mpsc::UnboundedReceiver<ToReceiver>,
    mut beside: Option<mpsc::UnboundedReceiver<RelayMessage>>,
) -> Result<(), ControlError> {
    while let Some(RelayMessage { bytes, held }) = next_outgoing(&mut outgoing, &mut beside).await {
        writer.send(&bytes).await?;
        drop(held);
    }
    let _goodbye = writer.finish().await;
    Ok(())
}

/// Returns the next message to write. Transfer messages go before relay messages, which would delay the transfer.
async fn next_outgoing(
    outgoing: &mut mpsc::UnboundedReceiver<ToReceiver>,
    beside: &mut Option<mpsc::UnboundedReceiver<RelayMessage>>,
) -> Option<RelayMessage> {
    let message = |message: ToReceiver| RelayMessage {
        bytes: encode_message(&message),
        held: Box::new(()),
    };
    let Some(beside) = beside else {
        return outgoing.recv().await.map(message);
    };
    tokio::select! {
        biased;
        Some(said) = outgoing.recv() => Some(message(said)),
        word = beside.recv() => word,
    }
}

/// Waits up to `EXPLANATION_TIMEOUT` for the receiver's last message before `error` ends the session. A lost connection
/// is often only the first sign of a message that the receiver has just sent.
pub(crate) async fn await_explanation<T>(
    said: impl Future<Output = Result<T, SessionError>>,
    error: SessionError,
) -> Result<T, SessionError> {
    timeout(EXPLANATION_TIMEOUT, said)
        .await
        .unwrap_or(Err(error))
}

pub(crate) const INBOX_MESSAGES_MAX: usize = 8;
/// Maximum wait for `Opened`. If the receiver examines its target for longer than this, it counts as silent.
const PERMISSION_TIMEOUT: Duration = Duration::from_secs(120);
const EXPLANATION_TIMEOUT: Duration = Duration::from_secs(2);
pub(crate) const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);
