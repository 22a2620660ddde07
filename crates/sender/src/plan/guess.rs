//! The part of the plan that is made before the state of the target is known, and the files that wait for that state.
//! The planner consults this module for each file until the receiver has reported the state.
//!
//! The first files are sent as a guess. Readers also read the next small files, but these are not sent yet
//! ([`ReadAhead`](crate::read::read_ahead::ReadAhead)). Every file after those waits here, and so does the scan. An
//! empty target needs all of them, so everything that was read is sent immediately. At a populated target, guessed
//! files that already exist stay unchanged. Batches that were only read are discarded, and the receiver is asked about
//! their files as about all others.
//!
//! A file that cannot be read during this time has not failed yet. Once the state of the target is known, the file is
//! read again or the receiver is asked about it. Its failure is reported only if the target needs it.

use crossbeam_channel::Sender;
use zmove_scan::Entry;
use zmove_types::GROUP_BYTES;
use zmove_wire::Compare;
use zmove_wire::limits::{GUESSED_BYTES_MAX, GUESSED_ENTRIES_MAX};

use crate::plan::pack::{PlanBasis, UnreadFile};
use crate::read::source::SourceDirectory;

/// The planning state while the state of the target is unknown.
pub(super) struct TargetGuess {
    /// The basis on which packs are currently planned: [`PlanBasis::Guessed`] or [`PlanBasis::ReadAhead`].
    pub(super) basis: PlanBasis,
    /// Number of files, and of their bytes, that may still be sent as a guess.
    sent: GuessAllowance,
    /// Number of files, and of their bytes, that may still be read ahead.
    read: GuessAllowance,
    pub(super) held: Vec<(SourceDirectory, Entry)>,
    /// The channel on which readers return files that they cannot read while the state of the target is unknown.
    pub(super) unread: Sender<UnreadFile>,
}

#[derive(Clone, Copy, Default)]
struct GuessAllowance {
    entries: usize,
    bytes: u64,
}

impl TargetGuess {
    /// Creates the state. With [`Compare::Checksum`], no file is sent or read as a guess, because each file must be
    /// read and compared before it may be sent.
    pub(super) fn new(compare: Compare, unread: Sender<UnreadFile>) -> Self {
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
            basis: PlanBasis::Guessed,
            sent,
            read,
            held: Vec::new(),
            unread,
        }
    }

    /// Charges a file of this size to the allowances. Returns the basis on which the file is planned. Returns `None` if
    /// the file must wait, and then all later files wait too.
    pub(super) fn admit(&mut self, bytes: u64) -> Option<PlanBasis> {
        if !self.held.is_empty() {
            None
        } else if self.basis == PlanBasis::Guessed && self.sent.charge(bytes) {
            Some(PlanBasis::Guessed)
        } else {
            (bytes <= GROUP_BYTES && self.read.charge(bytes)).then_some(PlanBasis::ReadAhead)
        }
    }

    /// Keeps an entry until the state of the target is known. All later files must then wait too.
    pub(super) fn hold(&mut self, directory: &SourceDirectory, entry: Entry) {
        self.held.push((directory.closed(), entry));
    }
}

impl GuessAllowance {
    /// Charges a file to the allowance. Returns whether the allowance was large enough for the file.
    fn charge(&mut self, bytes: u64) -> bool {
        let has_room = self.entries > 0 && self.bytes >= bytes;
        if has_room {
            self.entries -= 1;
            self.bytes -= bytes;
        }
        has_room
    }
}

/// Maximum number of entries that are read before the state of the target is known. One core can read about this many
/// entries during a long round trip. Maximum memory: `READ_AHEAD_BYTES_MAX` plus the names of the entries.
const READ_AHEAD_ENTRIES_MAX: usize = 24_576;
/// Maximum number of bytes that are read before the state of the target is known; see [`READ_AHEAD_ENTRIES_MAX`].
const READ_AHEAD_BYTES_MAX: u64 = 32 << 20;
