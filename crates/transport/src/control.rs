//! The control connection: whole messages over any ordered byte stream.
//!
//! **Invariant:** a message's length is checked against the limit before its bytes are awaited.

use std::fmt;
use std::io;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;
use zmove_wire::limits::{MESSAGE_BYTES_MAX, within};
use zmove_wire::{Greeting, GreetingError, WireError};

/// Receives messages.
pub struct ControlReader {
    stream: BufReader<Box<dyn AsyncRead + Send + Unpin>>,
    /// The peer's, once it has been read.
    greeting: Option<Greeting>,
}

/// Sends messages.
pub struct ControlWriter {
    stream: Box<dyn AsyncWrite + Send + Unpin>,
    greeted: bool,
}

/// How long the peer of a control connection may acknowledge nothing, on either side, before the connection counts as
/// lost, and its transfer with it.
pub const CONTROL_SILENCE_MAX: Duration = Duration::from_secs(60);

/// Why the control connection ended early.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The other end is gone.
    #[error("control connection: the peer closed it in mid-transfer")]
    Closed,
    /// The operating system or TLS has returned an error.
    #[error("control connection: {source}")]
    Io {
        /// The error.
        source: io::Error,
    },
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
            Self::Closed => true,
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
    let reader = ControlReader {
        stream: BufReader::new(Box::new(reader)),
        greeting: None,
    };
    (
        reader,
        ControlWriter {
            stream: Box::new(writer),
            greeted: false,
        },
    )
}

impl ControlReader {
    /// The peer's greeting, which comes before any message.
    ///
    /// # Errors
    /// [`ControlError`] when the stream ends or the greeting is not zmove's.
    pub async fn greeting(&mut self) -> Result<Greeting, ControlError> {
        if let Some(greeting) = self.greeting {
            return Ok(greeting);
        }
        let mut bytes = [0; Greeting::BYTES];
        self.stream.read_exact(&mut bytes).await?;
        Ok(*self.greeting.insert(Greeting::decode(&bytes)?))
    }

    /// Whether more has come together with what was read last, as what the peer has written at once does.
    #[must_use]
    pub fn has_more(&self) -> bool {
        !self.stream.buffer().is_empty()
    }

    /// The next message's bytes without their length; `None` when the peer ended the connection between messages.
    ///
    /// # Errors
    /// [`ControlError`] when the stream breaks or a length is over the limit. Not safe to cancel.
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
        let mut length = [0; 4];
        if self.stream.read(&mut length[..1]).await? == 0 {
            return Ok(None);
        }
        self.stream.read_exact(&mut length[1..]).await?;
        let len = u32::from_le_bytes(length) as usize;
        within("message", len, longest)?;
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).await?;
        Ok(Some(bytes))
    }
}

/// Messages as they arrive, or the error after which there are no more.
pub type Inbox<M> = mpsc::Receiver<Result<M, ControlError>>;

impl ControlReader {
    /// Reads messages in a task of its own, since a read must not be cancelled half-way; at most `waiting_max` wait.
    /// The task ends, and drops the connection, when the inbox is dropped.
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
                    // The inbox is dropped: a message that is cut off is of no use.
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
        Self {
            greeted: true,
            ..self
        }
    }

    /// Sends this side's greeting, unless that has been done.
    ///
    /// # Errors
    /// [`ControlError`] when the stream is gone.
    pub async fn greet(&mut self, greeting: &Greeting) -> Result<(), ControlError> {
        if !std::mem::replace(&mut self.greeted, true) {
            self.send(&greeting.encode()).await?;
        }
        Ok(())
    }

    /// Sends bytes that are a greeting or messages with their lengths.
    ///
    /// # Errors
    /// [`ControlError`] when the stream is gone.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), ControlError> {
        self.stream.write_all(bytes).await?;
        Ok(self.stream.flush().await?)
    }

    /// Ends this direction in order.
    ///
    /// # Errors
    /// [`ControlError`] when the stream is gone.
    pub async fn finish(&mut self) -> Result<(), ControlError> {
        Ok(self.stream.shutdown().await?)
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
