//! What a transfer tells the outside while it runs.
//!
//! Bars, JSON lines and tests are all [`Observer`]s of the same [`Event`]s. Bytes are told per batch or
//! chunk, never per write, so an observer may be slow without being in the way.

use std::fmt;
use std::time::Duration;

use crate::rel_path::RelPath;

/// The two roles; every error names the one it arose on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The side that reads the source.
    Sender,
    /// The side that writes the target.
    Receiver,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The scan found files that may have to move.
    Found {
        /// How many regular files.
        files: u64,
        /// Their sizes together.
        bytes: u64,
    },
    /// The scan has ended: what was [`Found`](Self::Found) is all there is.
    ScanEnded,
    /// The first data byte was handed to a lane, this long after the start.
    FirstByte(Duration),
    /// A data lane is up.
    LaneUp {
        /// How many are up now.
        lanes: usize,
    },
    /// The receiver has verified and stored data.
    Stored {
        /// How many files became whole.
        files: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// Files were found equal at the target and did not move.
    Skipped {
        /// How many files.
        files: u64,
        /// Their sizes together.
        bytes: u64,
    },
    /// Data arrived damaged and will be sent again.
    Resent {
        /// Which file or batch.
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
        /// In one line.
        message: String,
    },
    /// The receiver is busy, and the push waits for its turn.
    Waiting {
        /// Why, in one line.
        message: String,
    },
    /// What limits the rate right now, as far as the sender can tell.
    Limited {
        /// The stage.
        by: &'static str,
    },
    /// How far each stage is; only where samples were asked for.
    Sampled(Sample),
    /// What a push would do with some entries; only where that was asked for.
    Listed {
        /// One for each entry.
        changes: Vec<Change>,
    },
    /// Everything has been sent; the receiver is flushing and closing.
    Flushing,
    /// The receiver has answered to what it was given in this session.
    Answered,
}

/// What a push would do with one entry of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What.
    pub kind: ChangeKind,
    /// Where, below the target.
    pub path: RelPath,
    /// What the entry is, or will be.
    pub form: EntryForm,
}

/// What becomes of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The entry is made.
    Added,
    /// The entry is changed or replaced, for the reason given here.
    Changed(String),
    /// The entry is removed, with all below it.
    Removed,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryForm {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A link, and where it points.
    Symlink(Box<[u8]>),
}

/// How far the stages of a push are at one moment. Bytes are of payload and count from the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Since the start.
    pub elapsed: Duration,
    /// Read and hashed.
    pub bytes_read: u64,
    /// Handed to lanes.
    pub bytes_handed_over: u64,
    /// Acknowledged by the receiver's kernel, with everything that lanes add; where the sender's kernel tells.
    pub bytes_acked: Option<u64>,
    /// Stored and verified.
    pub bytes_stored: u64,
    /// Batches that wait to be read.
    pub packs_waiting: usize,
    /// Frames that wait for a lane.
    pub frames_waiting: usize,
    /// Batches and groups on their way, without a receipt.
    pub items_outstanding: usize,
    /// How many lanes are up.
    pub lanes: usize,
    /// Segments sent again; where the sender's kernel tells.
    pub segments_retransmitted: Option<u64>,
}

/// Anything that wants to know. Called from many threads.
pub trait Observer: Send + Sync {
    /// Takes one event; must not block for long.
    fn on(&self, event: &Event);
}

/// Ignores everything.
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
