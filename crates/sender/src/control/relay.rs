//! A transfer whose receiver has dialled, and has asked this side to send: what is said beside the transfer, and the
//! quota on which what the receiver says is booked, and the threads that read for it.
//!
//! **Invariant:** of what a receiver says nothing is decoded for which there is no room, and what waits for the
//! planner stays booked.

use std::fmt;
use std::sync::Arc;

use tokio::sync::mpsc;
use zmove_transport::{ControlReader, Inbox};
use zmove_wire::{Summary, ToSender, WireError, decode_message_within};

use crate::control::INBOX_MESSAGES_MAX;
use crate::error::SessionError;

/// What is said to a receiver that has dialled, beside the transfer.
pub struct Relay {
    /// Words to be said; when no more can come, the connection is ended in order.
    pub words: mpsc::UnboundedReceiver<Beside>,
    /// To be called once with the end of the session, after which the words come to their end.
    pub last: Last,
}

/// The call for the end of a session.
pub type Last = Box<dyn FnOnce(Result<&Summary, &SessionError>) + Send>;

/// A message beside the transfer, as it travels, and what is held until it has been written.
#[derive(Debug)]
pub struct Beside {
    /// The message behind its length.
    pub bytes: Vec<u8>,
    /// What is given back when it has been written.
    pub held: Held,
}

/// Something booked, which is given back when it is dropped.
pub type Held = Box<dyn fmt::Debug + Send>;

/// What a receiver that has dialled may hold here.
pub trait PeerQuota: fmt::Debug + Send + Sync {
    /// Books so many bytes.
    ///
    /// # Errors
    /// The limit would be exceeded.
    fn book_memory(&self, bytes: usize) -> Result<Held, WireError>;

    /// Books a thread that helps others to read, and its descriptors; `None` where a limit would be exceeded.
    fn book_helper(&self) -> Option<Held>;
}

/// The quota of a peer that may hold as much as the protocol allows: this side works for its own user.
#[derive(Clone, Copy, Debug)]
pub struct NoQuota;

impl PeerQuota for NoQuota {
    fn book_memory(&self, _bytes: usize) -> Result<Held, WireError> {
        Ok(Box::new(()))
    }

    fn book_helper(&self) -> Option<Held> {
        Some(Box::new(()))
    }
}

/// A message of the receiver, and what is held for it.
pub(crate) struct HeardMessage {
    pub(crate) message: ToSender,
    /// Given back when the message has been taken.
    _held: Held,
}

/// The messages of a receiver, booked on `quota`.
pub(crate) fn inbox(reader: ControlReader, quota: Arc<dyn PeerQuota>) -> Inbox<HeardMessage> {
    let decode = move |bytes: &[u8]| {
        // what is decoded is larger than what has come, by no more than this
        let held = quota.book_memory(bytes.len() * DECODED_BYTES_PER_BYTE)?;
        let mut strings = Vec::new();
        let room = |count: usize| {
            quota
                .book_memory(count * ELEMENT_BYTES)
                .map(|held| strings.push(held))
        };
        let message = decode_message_within(bytes, room)?;
        Ok(HeardMessage {
            message,
            _held: Box::new((held, strings)),
        })
    };
    reader.into_inbox(decode, INBOX_MESSAGES_MAX)
}

/// A verdict of 40 bytes may come as one byte, and an element of most other lists as two or three.
const DECODED_BYTES_PER_BYTE: usize = 40;
/// The memory of an element of a list that has a name or a path, beside the bytes of that.
const ELEMENT_BYTES: usize = 136;

const _: () = assert!(size_of::<zmove_wire::Verdict>() <= DECODED_BYTES_PER_BYTE);

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").finish_non_exhaustive()
    }
}
