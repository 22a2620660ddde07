//! The sender's half of the control conversation: from the greeting to the receiver's last message.

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

use crate::control::relay::{Beside, HeardMessage, Last, NoQuota, Relay, inbox};
use crate::error::SessionError;

/// Greets the receiver, and opens a conversation without lanes. Does not wait for a turn in the queue: a user waits for
/// the answer.
pub(crate) async fn open_now(
    greeting: Greeting,
    mut reader: ControlReader,
    writer: &mut ControlWriter,
    open: Open,
) -> Result<(Inbox<HeardMessage>, Opened), SessionError> {
    writer.send(&greeting.encode()).await?;
    let greeted = async {
        reader.greeting().await?;
        // A receiver that refuses need not have read the opening: its answer has the reason.
        let _refused_early = writer.send(&encode_message(&ToReceiver::Open(open))).await;
        Ok(inbox(reader, Arc::new(NoQuota)))
    };
    permission(greeted, Duration::ZERO, |_said| ()).await
}

/// Waits until the receiver, once it has `greeted`, opens the transfer. Where the transfer has to wait in the queue, it
/// waits for `patience`. `hear` hears what the receiver says meanwhile.
pub(crate) async fn permission(
    greeted: impl Future<Output = Result<Inbox<HeardMessage>, SessionError>>,
    patience: Duration,
    hear: impl Fn(&ToSender),
) -> Result<(Inbox<HeardMessage>, Opened), SessionError> {
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
                // it may take long, and a receiver that is lost meanwhile is noticed otherwise
                receive(&mut inbox).await?
            }
            answer => return Err(not_opened(answer)),
        }
    }
}

async fn next_answer(inbox: &mut Inbox<HeardMessage>) -> Result<ToSender, SessionError> {
    let next = timeout(PERMISSION_TIMEOUT, receive(inbox)).await;
    next.unwrap_or(Err(SessionError::Silent))
}

/// The error for a first answer by which the transfer is not opened now.
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

/// The next message; the end of the connection is an error here.
pub(crate) async fn receive(inbox: &mut Inbox<HeardMessage>) -> Result<ToSender, SessionError> {
    Ok(inbox.recv().await.ok_or(ControlError::Closed)??.message)
}

/// All that is said to the receiver.
pub(crate) struct Speaker {
    /// To be called with the end, where the receiver has dialled.
    last: Option<Last>,
    /// Ends when all has been written.
    writing: JoinHandle<()>,
    /// The error by which no more can be sent.
    pub(crate) unsayable: mpsc::Receiver<ControlError>,
}

impl Speaker {
    /// Writes messages until all senders are gone, then ends the connection in order. A task of its own, so that two
    /// peers who both have much to send never wait for each other. Words beside the transfer end it when they end,
    /// since their last is the end of the session.
    pub(crate) fn start(
        writer: ControlWriter,
        outgoing: mpsc::UnboundedReceiver<ToReceiver>,
        relay: Option<Relay>,
    ) -> Self {
        let (beside, last) = relay.map(|Relay { words, last }| (words, last)).unzip();
        let (failed, unsayable) = mpsc::channel(1);
        let writing = tokio::spawn(async move {
            if let Err(error) = write(writer, outgoing, beside).await {
                // Sending fails only when the session is over.
                let _over = failed.try_send(error);
            }
        });
        Self {
            last,
            writing,
            unsayable,
        }
    }

    /// Whether the receiver has dialled, and has greeted before.
    pub(crate) fn was_dialled(&self) -> bool {
        self.last.is_some()
    }

    /// Tells how the session has ended to a receiver that has dialled, and waits a little until the connection has
    /// ended. After a bad end any other receiver sees the end of the connection at once.
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
    mut beside: Option<mpsc::UnboundedReceiver<Beside>>,
) -> Result<(), ControlError> {
    while let Some(Beside { bytes, held }) = next_said(&mut outgoing, &mut beside).await {
        writer.send(&bytes).await?;
        drop(held);
    }
    let _goodbye = writer.finish().await;
    Ok(())
}

/// The next thing to be said: messages before words beside the transfer, which would delay it.
async fn next_said(
    outgoing: &mut mpsc::UnboundedReceiver<ToReceiver>,
    beside: &mut Option<mpsc::UnboundedReceiver<Beside>>,
) -> Option<Beside> {
    let message = |message: ToReceiver| Beside {
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
const PERMISSION_TIMEOUT: Duration = Duration::from_secs(120);
const EXPLANATION_TIMEOUT: Duration = Duration::from_secs(2);
pub(crate) const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);
