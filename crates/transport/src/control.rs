//! The control connection: complete messages over any ordered byte stream, and pings between them.
//!
//! A task reads the stream and answers the peer's pings ([`frames`]), so sessions never see pings. **Invariant:** the
//! length of a message is checked against the limit before its bytes are awaited.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{Mutex, mpsc, watch};
use zmove_wire::limits::MESSAGE_BYTES_MAX;
use zmove_wire::{ControlHeader, Greeting, GreetingError, WireError, encode_ping};

pub(crate) mod frames;

use frames::MessageReader;

/// Receives messages.
pub struct ControlReader {
    /// The connection, until the first message is read. Before that, only the greeting may have been read.
    pending: Option<PendingReader>,
    message_reader: Option<MessageReader>,
    /// The peer's greeting, once it has been read.
    greeting: Option<Greeting>,
    /// Whether a message arrived together with the greeting.
    has_early_message: bool,
}

/// A connection whose messages are not being read yet.
struct PendingReader {
    stream: BufReader<Box<dyn AsyncRead + Send + Unpin>>,
    answers: PingCondition,
    /// The sending direction, which sends the answers to pings. It ends when the writer is dropped.
    sending: Weak<Mutex<Sending>>,
    /// Whether the writer has sent anything.
    begun: watch::Receiver<bool>,
    /// The greatest value for which a ping was requested.
    asked: watch::Receiver<Option<u64>>,
    /// The value of the most recent pong, for the [`Pinger`]s.
    pongs: watch::Sender<Option<u64>>,
}

/// A function that returns whether a ping must be answered now.
pub(crate) type PingCondition = Arc<dyn Fn() -> bool + Send + Sync>;

/// Pings the peer of a control connection, from any task and without blocking.
#[derive(Clone, Debug)]
pub struct Pinger {
    asked: watch::Sender<Option<u64>>,
    pongs: watch::Receiver<Option<u64>>,
}

impl Pinger {
    /// Sends a ping with `value`, which the peer echoes, as soon as both sides have sent their greetings. If several
    /// pings are waiting to be sent, only the one with the greatest value is sent. A value that does not exceed all
    /// previous values is ignored.
    pub fn ping(&self, value: u64) {
        self.asked.send_if_modified(|asked| {
            let is_newer = asked.is_none_or(|asked| value > asked);
            if is_newer {
                *asked = Some(value);
            }
            is_newer
        });
    }

    /// Returns a watch channel with the value of the most recent pong. It closes when the connection is no longer read.
    #[must_use]
    pub fn pongs(&self) -> watch::Receiver<Option<u64>> {
        self.pongs.clone()
    }
}

/// Sends messages.
pub struct ControlWriter {
    sending: Arc<Mutex<Sending>>,
    /// Whether anything has been sent. Before that, pings are not answered.
    begun: watch::Sender<bool>,
    pinger: Pinger,
}

/// The sending direction of a stream.
struct Sending {
    stream: Box<dyn AsyncWrite + Send + Unpin>,
    /// True if a write was not completed. Nothing may be written afterwards.
    broken: bool,
    /// The greatest value for which a ping was requested.
    asked: watch::Receiver<Option<u64>>,
}

/// The time limit for the peer to accept the bytes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteTimeout {
    /// [`CONTROL_SILENCE_MAX`] for each [`PORTION_BYTES`].
    Limited,
    /// No limit while the peer is connected.
    Unlimited,
}

/// Number of bytes of a write that share a time limit: one TLS record.
const PORTION_BYTES: usize = 16 << 10;

/// Maximum time for which the peer of a control connection may neither acknowledge nor read data. After that, the
/// connection and its transfer count as lost.
pub const CONTROL_SILENCE_MAX: Duration = Duration::from_secs(60);

/// Maximum time for a peer to send its greeting. A server gives each client the same time by default.
pub const GREETING_TIMEOUT: Duration = Duration::from_secs(20);

/// The reason why a control connection ended early.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The peer has closed the connection.
    #[error("control connection: the peer closed it")]
    Closed,
    /// The peer is connected but does not read.
    #[error(
        "control connection: the peer has not read for {} s",
        CONTROL_SILENCE_MAX.as_secs()
    )]
    Unread,
    /// The operating system or TLS has returned an error.
    #[error("control connection: {source}")]
    Io {
        /// The underlying error.
        source: io::Error,
    },
    /// The peer has accepted the connection but has not sent its greeting in time.
    #[error(
        "control connection: no greeting within {} s of the connection; the program there may be stopped or overloaded",
        GREETING_TIMEOUT.as_secs()
    )]
    NoGreeting,
    /// The peer's greeting is not acceptable.
    #[error("control connection: {0}")]
    Greeting(#[from] GreetingError),
    /// The peer has violated the protocol.
    #[error("control connection: {0}")]
    Wire(#[from] WireError),
}

impl ControlError {
    /// Returns whether the connection was lost. Returns false if the peer sent something invalid.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Closed | Self::Unread | Self::NoGreeting => true,
            Self::Io { source } => is_loss(source),
            Self::Greeting(_) | Self::Wire(_) => false,
        }
    }
}

/// Returns whether an error means that the connection is lost. Invalid data counts as a loss, because TLS reports a
/// rejected record as invalid data.
pub(crate) fn is_loss(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::Unsupported | io::ErrorKind::Other
    )
}

/// Returns whether an error only means that the peer has closed the connection.
pub(crate) fn is_close(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

/// Splits a stream into the reader and the writer of a control connection.
pub fn control_pair(
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
) -> (ControlReader, ControlWriter) {
    let (reader, writer) = tokio::io::split(stream);
    let (ask, asked) = watch::channel(None);
    let sending = Arc::new(Mutex::new(Sending {
        stream: Box::new(writer),
        broken: false,
        asked: asked.clone(),
    }));
    let (begun, has_begun) = watch::channel(false);
    let (pongs, answered) = watch::channel(None);
    let reader = ControlReader {
        pending: Some(PendingReader {
            stream: BufReader::new(Box::new(reader)),
            answers: Arc::new(|| true),
            sending: Arc::downgrade(&sending),
            begun: has_begun,
            asked,
            pongs,
        }),
        message_reader: None,
        greeting: None,
        has_early_message: false,
    };
    let writer = ControlWriter {
        sending,
        begun,
        pinger: Pinger {
            asked: ask,
            pongs: answered,
        },
    };
    (reader, writer)
}

impl ControlReader {
    /// Reads the peer's greeting, which precedes all messages. From then on, the peer's pings are answered.
    ///
    /// # Errors
    /// Returns [`ControlError`] if the stream ends, if the greeting is not a zmove greeting, or if none arrives in
    /// [`GREETING_TIMEOUT`].
    pub async fn greeting(&mut self) -> Result<Greeting, ControlError> {
        if let Some(greeting) = self.greeting {
            return Ok(greeting);
        }
        let PendingReader { stream, .. } = self
            .pending
            .as_mut()
            .expect("the greeting comes before any message");
        let mut bytes = [0; Greeting::BYTES];
        let read = tokio::time::timeout(GREETING_TIMEOUT, stream.read_exact(&mut bytes)).await;
        read.map_err(|_| ControlError::NoGreeting)??;
        self.has_early_message = begins_with_message(stream.buffer());
        let greeting = *self.greeting.insert(Greeting::decode(&bytes)?);
        self.listen();
        Ok(greeting)
    }

    /// Adds a condition for answering pings. A ping is answered only if all conditions hold. `answers` is not called if
    /// an earlier condition fails. This function must be called before the greeting is read.
    pub fn answer_if(&mut self, answers: impl Fn() -> bool + Send + Sync + 'static) {
        if let Some(pending) = &mut self.pending {
            let before = Arc::clone(&pending.answers);
            pending.answers = Arc::new(move || before() && answers());
        }
    }

    /// Starts to answer the peer's pings, even while no messages are requested. The greeting must have been read.
    pub fn listen(&mut self) -> &mut Self {
        if let Some(pending) = self.pending.take() {
            self.message_reader = Some(MessageReader::begin(pending));
        }
        self
    }

    /// Returns whether a message was received together with the greeting. This is the case if the peer wrote both in
    /// one call.
    #[must_use]
    pub const fn has_message(&self) -> bool {
        self.has_early_message
    }

    /// Returns the bytes of the next message without its length prefix, or `None` if the peer ended the connection
    /// between messages. Cancellation safe.
    ///
    /// # Errors
    /// Returns [`ControlError`] if the stream breaks or a length exceeds the limit.
    pub async fn receive(&mut self) -> Result<Option<Vec<u8>>, ControlError> {
        self.receive_within(MESSAGE_BYTES_MAX).await
    }

    /// Returns the next message like [`receive`](Self::receive), but limits its length to `longest`.
    ///
    /// # Errors
    /// Same as [`receive`](Self::receive).
    pub async fn receive_within(
        &mut self,
        longest: usize,
    ) -> Result<Option<Vec<u8>>, ControlError> {
        self.messages().receive(longest).await
    }

    fn messages(&mut self) -> &mut MessageReader {
        self.listen();
        self.message_reader.as_mut().expect("it listens")
    }
}

/// Returns whether the first frame in `frames` is a message and not a ping or a pong.
fn begins_with_message(frames: &[u8]) -> bool {
    frames.first_chunk().is_some_and(|header| {
        !matches!(
            ControlHeader::decode(*header),
            Ok(ControlHeader::Ping | ControlHeader::Pong)
        )
    })
}

/// A queue of received messages. If the connection fails, the error is the last item.
pub type Inbox<M> = mpsc::Receiver<Result<M, ControlError>>;

impl ControlReader {
    /// Decodes messages in a separate task and queues at most `waiting_max` of them. When the inbox is dropped, the
    /// task ends and drops the connection.
    pub fn into_inbox<M: Send + 'static>(
        mut self,
        decode: impl Fn(&[u8]) -> Result<M, WireError> + Send + 'static,
        waiting_max: usize,
    ) -> Inbox<M> {
        let (sender, inbox) = mpsc::channel(waiting_max);
        tokio::spawn(async move {
            loop {
                let received = tokio::select! {
                    received = self.receive() => received,
                    () = sender.closed() => break,
                };
                let message = match received {
                    Ok(Some(bytes)) => decode(&bytes).map_err(ControlError::from),
                    Ok(None) => break,
                    Err(error) => Err(error),
                };
                let failed = message.is_err();
                if sender.send(message).await.is_err() || failed {
                    break;
                }
            }
        });
        inbox
    }
}

impl ControlWriter {
    /// Marks the greeting as sent. For a stream on which this side has already sent its greeting.
    #[must_use]
    pub fn greeted(self) -> Self {
        self.begun.send_replace(true);
        self
    }

    /// Sends this side's greeting, unless it has already been sent.
    ///
    /// # Errors
    /// Returns [`ControlError`] if the stream is closed.
    pub async fn greet(&mut self, greeting: &Greeting) -> Result<(), ControlError> {
        if *self.begun.borrow() {
            return Ok(());
        }
        self.greet_with(greeting, &[]).await
    }

    /// Sends this side's greeting together with messages.
    ///
    /// # Errors
    /// Returns [`ControlError`] if the stream is closed.
    pub async fn greet_with(
        &mut self,
        greeting: &Greeting,
        messages: &[u8],
    ) -> Result<(), ControlError> {
        self.send(&[&greeting.encode()[..], messages].concat())
            .await
    }

    /// Sends a greeting, or messages with their length prefixes.
    ///
    /// # Errors
    /// Returns [`ControlError`] if the stream is closed, or if the peer reads nothing for [`CONTROL_SILENCE_MAX`].
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), ControlError> {
        self.send_with(WriteTimeout::Limited, bytes).await
    }

    /// Sends an order like [`send`](Self::send), but without a time limit, because a peer does not read a long order
    /// while the transfer is queued.
    ///
    /// # Errors
    /// Returns [`ControlError`] if the stream is closed.
    pub async fn send_order(&mut self, bytes: &[u8]) -> Result<(), ControlError> {
        self.send_with(WriteTimeout::Unlimited, bytes).await
    }

    async fn send_with(
        &mut self,
        patience: WriteTimeout,
        bytes: &[u8],
    ) -> Result<(), ControlError> {
        let mut sending = self.sending.lock().await;
        match sending.take_ping() {
            Some(ping) => sending.write(&[bytes, &ping].concat(), patience).await?,
            None => sending.write(bytes, patience).await?,
        }
        self.begun
            .send_if_modified(|begun| !std::mem::replace(begun, true));
        Ok(())
    }

    /// Returns a handle for sending pings, which remains usable when the writer is moved to another task.
    #[must_use]
    pub fn pinger(&self) -> Pinger {
        self.pinger.clone()
    }

    /// Shuts down this direction gracefully.
    ///
    /// # Errors
    /// Returns [`ControlError`] if the stream is closed, or if the peer reads nothing for [`CONTROL_SILENCE_MAX`].
    pub async fn finish(&mut self) -> Result<(), ControlError> {
        let mut sending = self.sending.lock().await;
        WriteTimeout::Limited.wait(sending.stream.shutdown()).await
    }
}

impl Sending {
    /// Returns the next ping to send, or `None` if none was requested since the previous call.
    fn take_ping(&mut self) -> Option<Vec<u8>> {
        let is_new = self.asked.has_changed().unwrap_or(false);
        (*self.asked.borrow_and_update())
            .filter(|_| is_new)
            .map(|value| encode_ping(value).to_vec())
    }

    /// Writes all bytes. After a write that has failed or was canceled, every further write fails.
    async fn write(&mut self, bytes: &[u8], patience: WriteTimeout) -> Result<(), ControlError> {
        if std::mem::replace(&mut self.broken, true) {
            return Err(ControlError::Closed);
        }
        for portion in bytes.chunks(PORTION_BYTES) {
            let written = async {
                self.stream.write_all(portion).await?;
                self.stream.flush().await
            };
            patience.wait(written).await?;
        }
        self.broken = false;
        Ok(())
    }
}

impl WriteTimeout {
    /// Waits for the write `written` to complete. Fails if the peer does not accept the bytes within this time limit.
    async fn wait(self, written: impl Future<Output = io::Result<()>>) -> Result<(), ControlError> {
        match self {
            Self::Limited => tokio::time::timeout(CONTROL_SILENCE_MAX, written)
                .await
                .map_err(|_| ControlError::Unread)??,
            Self::Unlimited => written.await?,
        }
        Ok(())
    }
}

impl From<io::Error> for ControlError {
    fn from(source: io::Error) -> Self {
        if is_close(&source) {
            Self::Closed
        } else {
            Self::Io { source }
        }
    }
}

impl fmt::Debug for ControlReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControlReader")
    }
}

impl fmt::Debug for ControlWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControlWriter")
    }
}

#[cfg(test)]
mod tests;
