//! The control connection: whole messages over any ordered byte stream, and pings between them.
//!
//! A task reads the stream and answers the peer's pings ([`frames`]), so no session sees one. **Invariant:**
//! a message's
//! length is checked against the limit before its bytes are awaited.

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

use frames::Listening;

/// Receives messages.
pub struct ControlReader {
    /// The connection, while nothing but the greeting has been read.
    unheard: Option<Unheard>,
    listening: Option<Listening>,
    /// The peer's, once it has been read.
    greeting: Option<Greeting>,
    /// Whether a message came together with the greeting.
    message_came: bool,
}

/// A connection whose messages are not read yet.
struct Unheard {
    stream: BufReader<Box<dyn AsyncRead + Send + Unpin>>,
    answers: Answers,
    /// The sending direction, by which pings are answered; it ends with the writer.
    sending: Weak<Mutex<Sending>>,
    /// Whether the writer has sent something.
    begun: watch::Receiver<bool>,
    /// The greatest value of a ping that is to be sent.
    asked: watch::Receiver<Option<u64>>,
    /// The value of the newest pong, for the [`Pinger`]s.
    pongs: watch::Sender<Option<u64>>,
}

/// Whether a ping is to be answered now.
pub(crate) type Answers = Arc<dyn Fn() -> bool + Send + Sync>;

/// Pings the peer of a control connection, from any task and without waiting.
#[derive(Clone, Debug)]
pub struct Pinger {
    asked: watch::Sender<Option<u64>>,
    pongs: watch::Receiver<Option<u64>>,
}

impl Pinger {
    /// Sends a ping, whose value the peer echoes, as soon as both sides have greeted and the connection takes it. Of
    /// several pings that wait, the one with the greatest value is sent. A value that is not greater than those before
    /// is not sent.
    pub fn ping(&self, value: u64) {
        self.asked.send_if_modified(|asked| {
            let is_newer = asked.is_none_or(|asked| value > asked);
            if is_newer {
                *asked = Some(value);
            }
            is_newer
        });
    }

    /// The value of the newest pong. It closes when nothing is read from the connection any more.
    #[must_use]
    pub fn pongs(&self) -> watch::Receiver<Option<u64>> {
        self.pongs.clone()
    }
}

/// Sends messages.
pub struct ControlWriter {
    sending: Arc<Mutex<Sending>>,
    /// Whether something has been sent; pings are answered from then on.
    begun: watch::Sender<bool>,
    pinger: Pinger,
}

/// The sending direction of a stream.
struct Sending {
    stream: Box<dyn AsyncWrite + Send + Unpin>,
    /// Whether a write has not come to its end: nothing may follow.
    broken: bool,
    /// The greatest value of a ping that is to be sent.
    asked: watch::Receiver<Option<u64>>,
}

/// How long the peer may take nothing of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    /// [`CONTROL_SILENCE_MAX`] for each [`PORTION_BYTES`].
    Limited,
    /// No limit while the peer is there.
    Unlimited,
}

/// The bytes of a write that have a time limit of their own: one TLS record.
const PORTION_BYTES: usize = 16 << 10;

/// How long the peer of a control connection may acknowledge or read nothing, on either side, before the connection
/// counts as lost, and its transfer with it.
pub const CONTROL_SILENCE_MAX: Duration = Duration::from_secs(60);

/// How long a peer may take to greet. A server gives each client this time too, unless its settings say otherwise.
pub const GREETING_TIMEOUT: Duration = Duration::from_secs(20);

/// Why the control connection ended early.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The other end is gone.
    #[error("control connection: the peer closed it")]
    Closed,
    /// The other end is there and does not read what it is sent.
    #[error(
        "control connection: the peer has read nothing for {} s",
        CONTROL_SILENCE_MAX.as_secs()
    )]
    Unread,
    /// The operating system or TLS has returned an error.
    #[error("control connection: {source}")]
    Io {
        /// The error.
        source: io::Error,
    },
    /// The peer has accepted the connection, and has not greeted in time.
    #[error(
        "control connection: no greeting within {} s of the connection; the program there may be stopped or overloaded",
        GREETING_TIMEOUT.as_secs()
    )]
    NoGreeting,
    /// The peer's greeting is not acceptable.
    #[error("control connection: {0}")]
    Greeting(#[from] GreetingError),
    /// The peer broke the protocol.
    #[error("control connection: {0}")]
    Wire(#[from] WireError),
}

impl ControlError {
    /// Whether the connection was lost, in contrast to a message on it that cannot be right.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Closed | Self::Unread | Self::NoGreeting => true,
            Self::Io { source } => is_loss(source),
            Self::Greeting(_) | Self::Wire(_) => false,
        }
    }
}

/// Whether an error means that the connection is lost; TLS calls a record that it cannot accept invalid data.
pub(crate) fn is_loss(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::Unsupported | io::ErrorKind::Other
    )
}

/// Whether an error only means that the other end is gone.
pub(crate) fn is_close(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

/// Splits a stream into the two directions of a control connection.
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
        unheard: Some(Unheard {
            stream: BufReader::new(Box::new(reader)),
            answers: Arc::new(|| true),
            sending: Arc::downgrade(&sending),
            begun: has_begun,
            asked,
            pongs,
        }),
        listening: None,
        greeting: None,
        message_came: false,
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
    /// The peer's greeting, which comes before any message. From then on the peer's pings are answered.
    ///
    /// # Errors
    /// [`ControlError`] when the stream ends, the greeting is not zmove's, or none comes within [`GREETING_TIMEOUT`].
    pub async fn greeting(&mut self) -> Result<Greeting, ControlError> {
        if let Some(greeting) = self.greeting {
            return Ok(greeting);
        }
        let Unheard { stream, .. } = self
            .unheard
            .as_mut()
            .expect("the greeting comes before any message");
        let mut bytes = [0; Greeting::BYTES];
        let read = tokio::time::timeout(GREETING_TIMEOUT, stream.read_exact(&mut bytes)).await;
        read.map_err(|_| ControlError::NoGreeting)??;
        self.message_came = begins_with_message(stream.buffer());
        let greeting = *self.greeting.insert(Greeting::decode(&bytes)?);
        self.listen();
        Ok(greeting)
    }

    /// Leaves pings without an answer for which `answers` says no, or anything that was set before. To be called before
    /// the greeting is read. `answers` is called for each ping that nothing set before leaves without an answer.
    pub fn answer_if(&mut self, answers: impl Fn() -> bool + Send + Sync + 'static) {
        if let Some(unheard) = &mut self.unheard {
            let before = Arc::clone(&unheard.answers);
            unheard.answers = Arc::new(move || before() && answers());
        }
    }

    /// Answers the peer's pings from now on, whether messages are asked for or not. The greeting has been read.
    pub fn listen(&mut self) -> &mut Self {
        if let Some(unheard) = self.unheard.take() {
            self.listening = Some(Listening::begin(unheard));
        }
        self
    }

    /// Whether a message came together with the greeting, as what the peer has written at once does.
    #[must_use]
    pub const fn has_message(&self) -> bool {
        self.message_came
    }

    /// The next message's bytes without their length; `None` when the peer ended the connection between messages. Safe
    /// to cancel.
    ///
    /// # Errors
    /// [`ControlError`] when the stream breaks or a length is over the limit.
    pub async fn receive(&mut self) -> Result<Option<Vec<u8>>, ControlError> {
        self.receive_within(MESSAGE_BYTES_MAX).await
    }

    /// The next message, like [`receive`](Self::receive), of one that is no longer than `longest`.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub async fn receive_within(
        &mut self,
        longest: usize,
    ) -> Result<Option<Vec<u8>>, ControlError> {
        self.messages().receive(longest).await
    }

    fn messages(&mut self) -> &mut Listening {
        self.listen();
        self.listening.as_mut().expect("it listens")
    }
}

/// Whether the first of these frames is a message, and no ping.
fn begins_with_message(frames: &[u8]) -> bool {
    frames.first_chunk().is_some_and(|header| {
        !matches!(
            ControlHeader::decode(*header),
            Ok(ControlHeader::Ping | ControlHeader::Pong)
        )
    })
}

/// Messages as they arrive, or the error after which there are no more.
pub type Inbox<M> = mpsc::Receiver<Result<M, ControlError>>;

impl ControlReader {
    /// Decodes messages in a task of its own; at most `waiting_max` wait. The task ends, and drops the connection, when
    /// the inbox is dropped.
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
    /// The writer of a stream on which this side has greeted already.
    #[must_use]
    pub fn greeted(self) -> Self {
        self.begun.send_replace(true);
        self
    }

    /// Sends this side's greeting, unless that has been done.
    ///
    /// # Errors
    /// [`ControlError`] when the stream is gone.
    pub async fn greet(&mut self, greeting: &Greeting) -> Result<(), ControlError> {
        if *self.begun.borrow() {
            return Ok(());
        }
        self.greet_with(greeting, &[]).await
    }

    /// Sends this side's greeting together with messages.
    ///
    /// # Errors
    /// [`ControlError`] when the stream is gone.
    pub async fn greet_with(
        &mut self,
        greeting: &Greeting,
        messages: &[u8],
    ) -> Result<(), ControlError> {
        self.send(&[&greeting.encode()[..], messages].concat())
            .await
    }

    /// Sends bytes that are a greeting or messages with their lengths.
    ///
    /// # Errors
    /// [`ControlError`] when the stream is gone, or the peer reads nothing for [`CONTROL_SILENCE_MAX`].
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), ControlError> {
        self.send_with(Patience::Limited, bytes).await
    }

    /// Sends an order, like [`send`](Self::send), to a peer that may take any time to read it: in its queue it does not
    /// read a long one.
    ///
    /// # Errors
    /// [`ControlError`] when the stream is gone.
    pub async fn send_order(&mut self, bytes: &[u8]) -> Result<(), ControlError> {
        self.send_with(Patience::Unlimited, bytes).await
    }

    async fn send_with(&mut self, patience: Patience, bytes: &[u8]) -> Result<(), ControlError> {
        let mut sending = self.sending.lock().await;
        match sending.take_ping() {
            Some(ping) => sending.write(&[bytes, &ping].concat(), patience).await?,
            None => sending.write(bytes, patience).await?,
        }
        self.begun
            .send_if_modified(|begun| !std::mem::replace(begun, true));
        Ok(())
    }

    /// A handle to ping the peer, also when the writer has been handed over to another task.
    #[must_use]
    pub fn pinger(&self) -> Pinger {
        self.pinger.clone()
    }

    /// Ends this direction in order.
    ///
    /// # Errors
    /// [`ControlError`] when the stream is gone, or the peer reads nothing for [`CONTROL_SILENCE_MAX`].
    pub async fn finish(&mut self) -> Result<(), ControlError> {
        let mut sending = self.sending.lock().await;
        Patience::Limited.wait(sending.stream.shutdown()).await
    }
}

impl Sending {
    /// The ping that is to be sent, once.
    fn take_ping(&mut self) -> Option<Vec<u8>> {
        let is_new = self.asked.has_changed().unwrap_or(false);
        (*self.asked.borrow_and_update())
            .filter(|_| is_new)
            .map(|value| encode_ping(value).to_vec())
    }

    /// Writes bytes whole. After a write that failed or was cancelled nothing is written any more.
    async fn write(&mut self, bytes: &[u8], patience: Patience) -> Result<(), ControlError> {
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

impl Patience {
    /// Waits for the peer to take what `written` writes.
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
