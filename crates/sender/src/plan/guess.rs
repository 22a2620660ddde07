//! The part of the plan that is made before the target is known, and the files that wait until then. The planner asks
//! for each file, until the receiver has reported the state of the target.
//!
//! The first files leave as a guess. Readers go on with the next small ones, but these are not sent
//! ([`ReadAhead`](crate::read::read_ahead::ReadAhead)); every file after those waits here, and the scan with it. An
//! empty target needs all of them: everything that was read leaves at once. In a populated target the guessed files
//! that are there stay, batches that were only read are thrown away, and the receiver is asked about their files as
//! about all others.
//!
//! A file that cannot be read in this time has not failed yet. When the target is known it is read again, or the
//! receiver is asked about it, and its failure is reported only if the target needs it.

use crossbeam_channel::Sender;
use zmove_scan::Entry;
use zmove_types::GROUP_BYTES;
use zmove_wire::Compare;
use zmove_wire::limits::{GUESSED_BYTES_MAX, GUESSED_ENTRIES_MAX};

use crate::plan::pack::{Basis, Unread};
use crate::read::source::SourceDirectory;

/// The state of planning before the target is known.
pub(super) struct Guess {
    /// The basis of what is planned now.
    pub(super) basis: Basis,
    /// The files that may still be sent.
    sent: GuessAllowance,
    /// The files that may still be read.
    read: GuessAllowance,
    pub(super) held: Vec<(SourceDirectory, Entry)>,
    /// Where readers send the files of this part of the plan that they cannot read.
    pub(super) unread: Sender<Unread>,
}

#[derive(Clone, Copy, Default)]
struct GuessAllowance {
    entries: usize,
    bytes: u64,
}

impl Guess {
    /// With [`Compare::Checksum`] nothing is guessed: each file must be read and compared before it may be sent.
    pub(super) fn new(compare: Compare, unread: Sender<Unread>) -> Self {
        let (sent, read) = match compare {
            Compare::Quick => (
                GuessAllowance {
                    entries: GUESSED_ENTRIES_MAX,
                    bytes: GUESSED_BYTES_MAX,
                },
                GuessAllowance {
                    entries: READ_AHEAD_ENTRIES_MAX,
                    bytes: READ_AHEAD_BYTES_MAX,
                },
            ),
            Compare::Checksum => Default::default(),
        };
        Self {
            basis: Basis::Guessed,
            sent,
            read,
            held: Vec::new(),
            unread,
        }
    }

    /// Books a file of this size; returns its basis, or `None` where it is kept for later, as are all after it.
    pub(super) fn admit(&mut self, bytes: u64) -> Option<Basis> {
        if !self.held.is_empty() {
            None
        } else if self.basis == Basis::Guessed && self.sent.book(bytes) {
            Some(Basis::Guessed)
        } else {
            (bytes <= GROUP_BYTES && self.read.book(bytes)).then_some(Basis::ReadAhead)
        }
    }

    /// Keeps an entry until the receiver is known, and what follows it as well.
    pub(super) fn hold(&mut self, directory: &SourceDirectory, entry: Entry) {
        self.held.push((directory.closed(), entry));
    }
}

impl GuessAllowance {
    /// Books a file, if there is room for it.
    fn book(&mut self, bytes: u64) -> bool {
        let has_room = self.entries > 0 && self.bytes >= bytes;
        if has_room {
            self.entries -= 1;
            self.bytes -= bytes;
        }
        has_room
    }
}

/// The most entries that are read before the target is known: as much as a core reads in a long round trip. Memory at
/// worst: these bytes and the entries' names.
const READ_AHEAD_ENTRIES_MAX: usize = 24_576;
/// The most bytes that are read before the target is known; see [`READ_AHEAD_ENTRIES_MAX`].
const READ_AHEAD_BYTES_MAX: u64 = 32 << 20;
