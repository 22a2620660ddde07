//! Identifiers that cross the wire: transfers, lanes, work items and large files.
//!
//! All are chosen by the client; the receiver treats them as opaque keys within one transfer.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::hex::Hex;

/// One job, named by 128 random bits so that lanes can find their control connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TransferId(pub [u8; 16]);

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0).fmt(f)
    }
}

impl fmt::Debug for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransferId({self})")
    }
}

/// A job that several senders and receivers work at, named by 128 random bits.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct SharedJobId(pub [u8; 16]);

impl fmt::Display for SharedJobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0).fmt(f)
    }
}

/// Whether a session may begin such a job at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Beginning {
    /// The session is refused where the job is not under way.
    UnderWay,
    /// The session begins the job where that is not under way.
    Allowed,
}

/// A work item of such a job. Work that is handed out again has the same id, so that it counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkId(pub [u8; 16]);

/// The number of a data connection within its transfer, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub u16);

/// One unit of work that is acknowledged as a whole: a batch of small files or one chunk. What is damaged or lost goes
/// again as a new item, a late chunk under its own id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ItemId(pub u64);

/// A file that is sent in chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64);
