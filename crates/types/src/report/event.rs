//! The events that a transfer reports while it runs.
//!
//! Progress bars, JSON lines and tests are all [`Observer`]s of the same [`Event`]s. Bytes are reported per batch or
//! chunk rather than per write, so that a slow observer does not slow down the transfer.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::entry::rel_path::RelPath;
use crate::{bytes, list};

/// Maximum number of changes in an [`Event::Listed`] that a peer sends.
pub const LISTED_MAX: usize = 1024;

/// The two roles of a transfer. Each error names the side where it occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The side that reads the source.
    Sender,
    /// The side that writes the target.
    Receiver,
}

/// An event of a transfer. Counts are increments since the previous event of the same kind unless noted otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Event {
    /// The scan found files that may need to be sent.
    Found {
        /// Number of regular files.
        files: u64,
        /// Total size of the files, in bytes.
        bytes: u64,
    },
    /// The scan ended. No more files will be [`Found`](Self::Found).
    ScanEnded,
    /// The first data byte was passed to a lane. The value is the time since the start.
    FirstByte(Duration),
    /// A data lane was connected.
    LaneUp {
        /// Number of lanes that are connected now.
        lanes: usize,
    },
    /// The receiver has verified and stored data.
    Stored {
        /// Number of files that were completed.
        files: u64,
        /// Number of bytes stored.
        bytes: u64,
    },
    /// Files were equal at the target and were not sent.
    Skipped {
        /// Number of files.
        files: u64,
        /// Total size of the files, in bytes.
        bytes: u64,
    },
    /// Data arrived damaged and will be sent again.
    Resent {
        /// The damaged file or batch.
        what: String,
    },
    /// A file or directory failed. The transfer continues.
    Failed {
        /// Side, path, operation and cause in one line.
        message: String,
    },
    /// Metadata of an entry could not be preserved. Reported only if it was requested explicitly.
    NotKept {
        /// The metadata, the entry and the cause in one line.
        message: String,
    },
    /// A warning that is not a failure.
    Warned {
        /// The warning in one line.
        message: String,
    },
    /// The receiver is busy, and the push waits in its queue.
    Waiting {
        /// The reason in one line.
        message: String,
    },
    /// The receiver waits for something other than its turn. Each of several sessions may report this event.
    HeldUp {
        /// The cause of the wait, in one line.
        by: String,
    },
    /// The stage that currently limits the rate, as far as the sender can tell.
    Limited {
        /// Name of the stage.
        by: Cow<'static, str>,
    },
    /// The progress of each stage. Reported only if samples were requested.
    Sampled(Sample),
    /// Changes that a push would make to some entries. Reported only for a preview.
    Listed {
        /// One change per entry. An event from a peer has at most [`LISTED_MAX`].
        #[serde(deserialize_with = "list::at_most::<LISTED_MAX, _, _>")]
        changes: Vec<Change>,
    },
    /// All data was sent. The receiver is flushing and closing files.
    Flushing,
    /// The receiver has answered all messages of this session.
    Answered,
}

/// The change that a push would make to one entry of the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Path of the entry, relative to the target.
    pub path: RelPath,
    /// Kind of change.
    pub kind: ChangeKind,
    /// Kind of entry before a removal, or after any other change.
    pub form: EntryForm,
}

/// A kind of change to an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeKind {
    /// The entry is created.
    Added,
    /// The entry is changed or replaced, for the given reason.
    Changed(String),
    /// The entry is removed, including its contents if it is a directory.
    Removed,
}

/// A kind of entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryForm {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, with the path that it points to.
    Symlink(#[serde(with = "bytes")] Box<[u8]>),
    /// A further hard link to a file, with the path of the first one relative to the target.
    Link(RelPath),
}

/// The progress of a push's stages at one point in time. Byte counts are payload since the start unless noted
/// otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Time since the start.
    pub elapsed: Duration,
    /// Bytes read and hashed.
    pub bytes_read: u64,
    /// Bytes passed to lanes.
    pub bytes_handed_over: u64,
    /// Bytes acknowledged by the receiver's kernel, including protocol overhead of the lanes. `None` if the sender's
    /// kernel does not report them.
    pub bytes_acked: Option<u64>,
    /// Bytes verified and stored.
    pub bytes_stored: u64,
    /// Batches waiting to be read.
    pub packs_waiting: usize,
    /// Frames waiting for a lane.
    pub frames_waiting: usize,
    /// Batches and groups that were sent but not yet acknowledged by a receipt.
    pub items_outstanding: usize,
    /// Number of connected lanes.
    pub lanes: usize,
    /// Segments retransmitted. `None` if the sender's kernel does not report them.
    pub segments_retransmitted: Option<u64>,
}

/// A consumer of events. Many threads call it concurrently.
pub trait Observer: Send + Sync {
    /// Handles an event. Must not block for long.
    fn on(&self, event: &Event);
}

/// An observer that ignores all events.
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
