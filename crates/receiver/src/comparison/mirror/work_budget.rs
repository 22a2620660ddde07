//! The resources of a thread that lists directories of any size: its turn (permission to run) and its reserved memory.
//!
//! **Invariant:** after at most [`ENTRIES_PER_TURN`] entries, the thread lets other threads of the same key run, and
//! checks whether the session has ended.

use std::io;

use rustix::io::Errno;
use zmove_disk::Turn;

use crate::rights::quota::Charge;

/// The turn (permission to run) and the memory reservation of one thread.
#[derive(Debug)]
pub(crate) struct WorkBudget<'a> {
    turn: Turn<'a>,
    /// Memory reserved for the results.
    held: &'a mut Charge,
    entries: usize,
}

/// Number of entries that a thread processes per turn (permission to run). This takes about 100 µs if each entry is
/// looked up.
const ENTRIES_PER_TURN: usize = 256;

impl<'a> WorkBudget<'a> {
    pub(crate) fn new(turn: Turn<'a>, held: &'a mut Charge) -> Self {
        Self {
            turn,
            held,
            entries: 0,
        }
    }

    /// Waits for a turn (permission to run). Returns whether the session has ended.
    pub(super) fn is_over(&self) -> bool {
        self.turn.is_over()
    }

    /// Counts an entry. After every [`ENTRIES_PER_TURN`] entries, checks whether the session has ended.
    ///
    /// # Errors
    /// `ECANCELED` if the session has ended.
    pub(super) fn count_entry(&mut self) -> io::Result<()> {
        self.entries += 1;
        let is_over = self.entries.is_multiple_of(ENTRIES_PER_TURN) && self.is_over();
        if is_over {
            Err(Errno::CANCELED.into())
        } else {
            Ok(())
        }
    }

    /// Reserves memory.
    ///
    /// # Errors
    /// `ENOMEM` if the quota is exceeded.
    pub(super) fn grow(&mut self, bytes: usize) -> io::Result<()> {
        self.held
            .grow(bytes)
            .map_err(|_no_room| Errno::NOMEM.into())
    }

    /// Releases part of the reserved memory.
    pub(super) fn shrink(&mut self, bytes: usize) {
        self.held.shrink(bytes);
    }

    /// Returns the number of reserved bytes.
    pub(super) fn charged(&self) -> usize {
        self.held.amount()
    }

    /// Releases all memory beyond `charged` bytes.
    pub(super) fn shrink_to(&mut self, charged: usize) {
        self.held.shrink(self.held.amount() - charged);
    }
}
