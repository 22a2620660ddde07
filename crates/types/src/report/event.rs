//! The events that a transfer reports to the outside while it runs.
//!
//! Bars, JSON lines and tests are all [`Observer`]s of the same [`Event`]s. Bytes are reported per batch or chunk,
//! never per write, so an observer may be slow without being in the way.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::entry::rel_path::RelPath;
use crate::{bytes, list};

/// The most changes in one [`Event::Listed`] that a peer sends.
pub const LISTED_MAX: usize = 1024;

/// The two roles; every error names the one it arose on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The side that reads the source.
    Sender,
    /// The side that writes the target.
    Receiver,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Event {
    /// The scan found files that may have to move.
    Found {
        /// The number of regular files.
        files: u64,
        /// The sum of the files' sizes.
        bytes: u64,
    },
    /// The scan has ended: no more files will be [`Found`](Self::Found).
    ScanEnded,
    /// The first data byte was handed to a lane, this long after the start.
    FirstByte(Duration),
    /// A data lane is up.
    LaneUp {
        /// The number of lanes that are up now.
        lanes: usize,
    },
    /// The receiver has verified and stored data.
    Stored {
        /// The number of files that became whole.
        files: u64,
        /// The number of bytes stored.
        bytes: u64,
    },
    /// Files were found equal at the target and did not move.
    Skipped {
        /// The number of files.
        files: u64,
        /// The sum of the files' sizes.
        bytes: u64,
    },
    /// Data arrived damaged and will be sent again.
    Resent {
        /// The file or batch that arrived damaged.
        what: String,
    },
    /// One file or directory failed; the transfer goes on.
    Failed {
        /// The side, the path, the operation and the cause in one line.
        message: String,
    },
    /// An entry has not got all that was to be kept of it; only where that was asked for.
    NotKept {
        /// What, of which entry, and why, in one line.
        message: String,
    },
    /// Something that the user should know and that is no failure of its own.
    Warned {
        /// The warning, in one line.
        message: String,
    },
    /// The receiver is busy, and the push waits for its turn.
    Waiting {
        /// The reason, in one line.
        message: String,
    },
    /// The receiver waits for something else than its turn. Each of several sessions may say so.
    HeldUp {
        /// What it waits for, in one line.
        by: String,
    },
    /// The current limit of the rate, as far as the sender knows it.
    Limited {
        /// The stage's name.
        by: Cow<'static, str>,
    },
    /// The progress of each stage; only where samples were asked for.
    Sampled(Sample),
    /// The changes that a push would make to some entries; only where a preview was asked for.
    Listed {
        /// The changes, one for each entry: at most [`LISTED_MAX`] in an event that comes from a peer.
        #[serde(deserialize_with = "list::at_most::<LISTED_MAX, _, _>")]
        changes: Vec<Change>,
    },
    /// Everything has been sent; the receiver is flushing and closing.
    Flushing,
    /// The receiver has answered everything that it was sent in this session.
    Answered,
}

/// The change that a push would make to one entry of the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The entry's path below the target.
    pub path: RelPath,
    /// The kind of change.
    pub kind: ChangeKind,
    /// The kind of entry that it is, or will be.
    pub form: EntryForm,
}

/// A kind of change to an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeKind {
    /// The entry is made.
    Added,
    /// The entry is changed or replaced, for the reason given here.
    Changed(String),
    /// The entry is removed, with all below it.
    Removed,
}

/// A kind of entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryForm {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, and the path it points to.
    Symlink(#[serde(with = "bytes")] Box<[u8]>),
    /// A further name of a file, and the path of the first one below the target.
    Link(RelPath),
}

/// The progress of a push's stages at one moment. Bytes are of payload and count from the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The time since the start.
    pub elapsed: Duration,
    /// Bytes that were read and hashed.
    pub bytes_read: u64,
    /// Bytes that were handed to lanes.
    pub bytes_handed_over: u64,
    /// Bytes acknowledged by the receiver's kernel, lanes' overhead included; `None` where the sender's kernel does not
    /// report them.
    pub bytes_acked: Option<u64>,
    /// Bytes that were verified and stored.
    pub bytes_stored: u64,
    /// Batches that wait to be read.
    pub packs_waiting: usize,
    /// Frames that wait for a lane.
    pub frames_waiting: usize,
    /// Batches and groups that were sent and have no receipt yet.
    pub items_outstanding: usize,
    /// The number of lanes that are up.
    pub lanes: usize,
    /// Segments sent again; `None` where the sender's kernel does not report them.
    pub segments_retransmitted: Option<u64>,
}

/// A consumer of events, called from many threads.
pub trait Observer: Send + Sync {
    /// Takes one event; must not block for long.
    fn on(&self, event: &Event);
}

/// An observer that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn on(&self, _event: &Event) {}
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sender => "sender",
            Self::Receiver => "receiver",
        })
    }
}
