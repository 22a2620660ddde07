//! Identifiers that are sent over the wire: transfers, lanes, work items and large files.
//!
//! The client chooses all of them. The receiver treats them as opaque keys of one transfer.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::hex::Hex;

/// A transfer, identified by 128 random bits with which lanes find their control connection.
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

/// A job with several senders and receivers, identified by 128 random bits.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct SharedJobId(pub [u8; 16]);

impl fmt::Display for SharedJobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0).fmt(f)
    }
}

/// Whether a session is allowed to start a shared job at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Beginning {
    /// The session is refused unless the job is already running.
    UnderWay,
    /// The session starts the job if it is not running yet.
    Allowed,
}

/// A work item of a shared job. Work that is assigned again keeps its id, so that it is counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkId(pub [u8; 16]);

/// The number of a data connection (lane) of a transfer, starting at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub u16);

/// A unit of work that is acknowledged as a whole: a batch of small files or one chunk. Damaged or lost data is sent
/// again as a new item. A late chunk keeps its id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ItemId(pub u64);

/// A large file, which is sent in chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64);
