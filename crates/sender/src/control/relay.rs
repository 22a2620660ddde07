//! Support for a transfer whose receiver has dialed and asked this side to send. Relay messages are all messages to
//! that receiver that do not belong to the transfer. The quota covers the memory of the receiver's messages and the
//! threads that read files for the receiver.
//!
//! **Invariant:** a message from a receiver is decoded only if the quota has room for it. The memory of replies that
//! wait for the planner remains charged to the quota.

use std::fmt;
use std::sync::Arc;

use tokio::sync::mpsc;
use zmove_transport::{ControlReader, Inbox};
use zmove_wire::{Summary, ToSender, WireError, decode_message_within};

use crate::control::INBOX_MESSAGES_MAX;
use crate::error::SessionError;

/// Messages to a receiver that has dialed, other than those of the transfer.
pub struct Relay {
    /// The messages to send. When this channel closes, the connection is closed gracefully.
    pub words: mpsc::UnboundedReceiver<RelayMessage>,
    /// Called once with the result of the session. The channel of messages closes afterwards.
    pub last: SessionEndCallback,
}

/// The callback for the end of a session.
pub type SessionEndCallback = Box<dyn FnOnce(Result<&Summary, &SessionError>) + Send>;

/// An encoded relay message, and the reservation to release when it has been written.
#[derive(Debug)]
pub struct RelayMessage {
    /// The message, preceded by its length.
    pub bytes: Vec<u8>,
    /// The reservation, released when the message has been written.
    pub held: Reservation,
}

/// A reservation on a quota, released when dropped.
pub type Reservation = Box<dyn fmt::Debug + Send>;

/// The quota of a receiver that has dialed: its limits for memory and threads on this host.
pub trait PeerQuota: fmt::Debug + Send + Sync {
    /// Reserves `bytes` bytes of memory.
    ///
    /// # Errors
    /// The limit would be exceeded.
    fn charge_memory(&self, bytes: usize) -> Result<Reservation, WireError>;

    /// Reserves a helper thread for reading, and its file descriptors. Returns `None` if a limit would be exceeded.
    fn charge_helper(&self) -> Option<Reservation>;
}

/// A quota without limits beyond those of the protocol, for a sender that works for its own user.
#[derive(Clone, Copy, Debug)]
pub struct NoQuota;

impl PeerQuota for NoQuota {
    fn charge_memory(&self, _bytes: usize) -> Result<Reservation, WireError> {
        Ok(Box::new(()))
    }

    fn charge_helper(&self) -> Option<Reservation> {
        Some(Box::new(()))
    }
}

/// A message from the receiver, and the reservation for it.
pub(crate) struct ReceivedMessage {
    pub(crate) message: ToSender,
    /// The reservation of memory for the message, released when the message has been processed.
    _held: Reservation,
}

/// Returns the messages of a receiver. Their memory is charged to `quota`.
pub(crate) fn inbox(reader: ControlReader, quota: Arc<dyn PeerQuota>) -> Inbox<ReceivedMessage> {
    let decode = move |bytes: &[u8]| {
        // The decoded data takes at most this number of bytes for each received byte.
        let held = quota.charge_memory(bytes.len() * DECODED_BYTES_PER_BYTE)?;
        let mut strings = Vec::new();
        let room = |count: usize| {
            quota
                .charge_memory(count * ELEMENT_BYTES)
                .map(|held| strings.push(held))
        };
        let message = decode_message_within(bytes, room)?;
        Ok(ReceivedMessage {
            message,
            _held: Box::new((held, strings)),
        })
    };
    reader.into_inbox(decode, INBOX_MESSAGES_MAX)
}

/// Maximum number of decoded bytes per received byte. A verdict takes 40 bytes in memory and may be encoded in one
/// byte. An element of most other lists is encoded in two or three bytes.
const DECODED_BYTES_PER_BYTE: usize = 40;
/// Memory of a list element with a name or a path, in addition to the bytes of the name or path.
const ELEMENT_BYTES: usize = 136;

const _: () = assert!(size_of::<zmove_wire::Verdict>() <= DECODED_BYTES_PER_BYTE);

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").finish_non_exhaustive()
    }
}
