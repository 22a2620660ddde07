//! Reads the frames of a control connection in one task, while a second task sends pings and pongs.
//!
//! The reading task starts after the greeting and runs independently of the session, so pings are answered in every
//! phase. It reads one short message ahead. A longer message, and the pings after it, are read only when the session
//! requests the message. **Invariant:** reading never waits for writing, so two peers that both send much data cannot
//! deadlock.

use std::sync::Weak;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use zmove_wire::limits::{MESSAGE_BYTES_MAX, within};
use zmove_wire::{ControlHeader, encode_pong};

use super::{ControlError, PendingReader, PingCondition, Sending, WriteTimeout};

/// Maximum length of a message that is read ahead of a request. Nearly all openings are shorter.
const AHEAD_BYTES_MAX: usize = 64 << 10;

/// The messages of a connection that is being read.
pub(super) struct MessageReader {
    messages: mpsc::Receiver<Result<Vec<u8>, ControlError>>,
    /// Maximum length in bytes of the message that the session has requested, or 0 if the session is not waiting for a
    /// message.
    wanted: watch::Sender<usize>,
}

impl MessageReader {
    /// Starts a task that reads the connection. The task ends when the returned reader is dropped. It ends with an
    /// error if the peer does not read the answers to its pings. Pings are not answered before this side has sent
    /// something.
    pub(super) fn begin(pending: PendingReader) -> Self {
        let (messages_in, messages) = mpsc::channel(1);
        let wanted = watch::Sender::new(0);
        let (pings, to_answer) = watch::channel(None);
        let (unread_in, unread) = oneshot::channel();
        tokio::spawn(answer_pings(
            pending.sending,
            pending.begun,
            to_answer,
            pending.asked,
            unread_in,
        ));
        let reading = FrameReader {
            stream: pending.stream,
            wanted: wanted.clone(),
            pings,
            pongs: pending.pongs,
            answers: pending.answers,
        };
        tokio::spawn(async move {
            tokio::select! {
                () = reading.run(&messages_in) => {}
                // The session has dropped the reader, so a message in progress is discarded.
                () = messages_in.closed() => {}
                // If sending fails, received messages are still passed on. Only the error in this branch ends the
                // reading.
                Ok(error) = unread => drop(messages_in.send(Err(error)).await),
            }
        });
        Self { messages, wanted }
    }

    /// Returns the next message of at most `longest` bytes, or `None` if the peer ended the connection between
    /// messages.
    pub(super) async fn receive(
        &mut self,
        longest: usize,
    ) -> Result<Option<Vec<u8>>, ControlError> {
        let received = match self.messages.try_recv() {
            Ok(received) => Some(received),
            Err(_) => {
                self.wanted.send_replace(longest);
                self.messages.recv().await
            }
        };
        let message = received.transpose()?;
        if let Some(message) = &message {
            within("message", message.len(), longest)?;
        }
        Ok(message)
    }
}

/// One frame.
#[derive(Debug)]
pub(crate) enum ControlFrame {
    /// A message with this length in bytes. Its body has not been read yet.
    Message(usize),
    Ping(u64),
    Pong(u64),
}

/// Reads the next frame. Of a message, reads only the header. Returns `None` if the stream ends between frames.
pub(crate) async fn next_frame(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Option<ControlFrame>, ControlError> {
    let mut header = [0; ControlHeader::BYTES];
    if stream.read(&mut header[..1]).await? == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut header[1..]).await?;
    Ok(Some(match ControlHeader::decode(header)? {
        ControlHeader::Message { bytes } => ControlFrame::Message(bytes),
        ControlHeader::Ping => ControlFrame::Ping(stream.read_u64_le().await?),
        ControlHeader::Pong => ControlFrame::Pong(stream.read_u64_le().await?),
    }))
}

/// Reads the body of a message.
pub(crate) async fn body(
    stream: &mut (impl AsyncRead + Unpin),
    bytes: usize,
) -> Result<Vec<u8>, ControlError> {
    let mut message = vec![0; bytes];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

struct FrameReader<R> {
    stream: R,
    wanted: watch::Sender<usize>,
    pings: watch::Sender<Option<u64>>,
    pongs: watch::Sender<Option<u64>>,
    answers: PingCondition,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads until the stream ends or breaks, or until the messages are no longer needed.
    async fn run(mut self, messages: &mpsc::Sender<Result<Vec<u8>, ControlError>>) {
        loop {
            let message = match self.next_message().await {
                Ok(Some(message)) => Ok(message),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            let failed = message.is_err();
            if messages.send(message).await.is_err() || failed {
                return;
            }
        }
    }

    async fn next_message(&mut self) -> Result<Option<Vec<u8>>, ControlError> {
        loop {
            match next_frame(&mut self.stream).await? {
                None => return Ok(None),
                Some(ControlFrame::Ping(value)) if (self.answers)() => {
                    self.pings.send_replace(Some(value));
                }
                Some(ControlFrame::Ping(_)) => {}
                Some(ControlFrame::Pong(value)) => drop(self.pongs.send_replace(Some(value))),
                Some(ControlFrame::Message(bytes)) => {
                    self.wait_until_wanted(bytes).await?;
                    let message = body(&mut self.stream, bytes).await?;
                    self.wanted.send_replace(0);
                    return Ok(Some(message));
                }
            }
        }
    }

    /// If a message is too long to be read ahead, waits until the session requests a message.
    async fn wait_until_wanted(&mut self, bytes: usize) -> Result<(), ControlError> {
        if bytes <= AHEAD_BYTES_MAX {
            return Ok(());
        }
        let mut wanted = self.wanted.subscribe();
        let wanted = wanted.wait_for(|longest| *longest > 0).await;
        let longest = wanted.map_or(MESSAGE_BYTES_MAX, |longest| *longest);
        Ok(within("message", bytes, longest)?)
    }
}

/// Answers the peer's pings and sends requested pings, until the writer is dropped. If several pings are waiting, sends
/// or answers only the most recent one. Sends an error to `unread` if the peer does not read.
async fn answer_pings(
    sending: Weak<Mutex<Sending>>,
    mut begun: watch::Receiver<bool>,
    mut pings: watch::Receiver<Option<u64>>,
    mut asked: watch::Receiver<Option<u64>>,
    unread: oneshot::Sender<ControlError>,
) {
    let mut writer = begun.clone();
    let exchanging = async {
        // Nothing may be sent before the greeting of this side.
        if begun.wait_for(|begun| *begun).await.is_err() {
            return;
        }
        loop {
            let pong = tokio::select! {
                Ok(()) = pings.changed() => (*pings.borrow_and_update()).map(encode_pong),
                Ok(()) = asked.changed() => None,
                else => return,
            };
            let Some(sending) = sending.upgrade() else {
                return;
            };
            let mut sending = sending.lock().await;
            let frame = pong.map(Vec::from).or_else(|| sending.take_ping());
            match sending
                .write(&frame.unwrap_or_default(), WriteTimeout::Limited)
                .await
            {
                Ok(()) => {}
                Err(error @ ControlError::Unread) => {
                    // This fails only if the connection is no longer read.
                    let _over = unread.send(error);
                    return;
                }
                Err(_) => return,
            }
        }
    };
    let writer_gone = async { while writer.changed().await.is_ok() {} };
    tokio::select! {
        () = exchanging => {}
        () = writer_gone => {}
    }
}
