//! What a thread needs for listing directories of any size: a turn at the cores, and a booking of memory.
//!
//! **Invariant:** no more than [`ENTRIES_PER_TURN`] entries are looked at before others of the key may have the core,
//! and before it is noticed that the session has ended.

use std::io;

use rustix::io::Errno;
use zmove_disk::Turn;

use crate::rights::quota::Booking;

/// The turn and the booking of one thread; see the module.
#[derive(Debug)]
pub(crate) struct WorkBudget<'a> {
    turn: Turn<'a>,
    /// The memory booked for what has been found.
    held: &'a mut Booking,
    entries: usize,
}

/// Entries in one turn: some 100 µs of work where each is looked up.
const ENTRIES_PER_TURN: usize = 256;

impl<'a> WorkBudget<'a> {
    pub(crate) fn new(turn: Turn<'a>, held: &'a mut Booking) -> Self {
        Self {
            turn,
            held,
            entries: 0,
        }
    }

    /// Whether the session has ended; waits for its turn.
    pub(super) fn is_over(&self) -> bool {
        self.turn.is_over()
    }

    /// Counts an entry, and now and then checks whether the session has ended.
    ///
    /// # Errors
    /// `ECANCELED` when the session has ended.
    pub(super) fn go_on(&mut self) -> io::Result<()> {
        self.entries += 1;
        let is_over = self.entries.is_multiple_of(ENTRIES_PER_TURN) && self.is_over();
        if is_over {
            Err(Errno::CANCELED.into())
        } else {
            Ok(())
        }
    }

    /// Books memory.
    ///
    /// # Errors
    /// `ENOMEM` where there is no room.
    pub(super) fn grow(&mut self, bytes: usize) -> io::Result<()> {
        self.held
            .grow(bytes)
            .map_err(|_no_room| Errno::NOMEM.into())
    }

    /// Gives back a part of what is booked.
    pub(super) fn shrink(&mut self, bytes: usize) {
        self.held.shrink(bytes);
    }

    /// How many bytes are booked.
    pub(super) fn booked(&self) -> usize {
        self.held.amount()
    }

    /// Gives back all that is booked beyond `booked` bytes.
    pub(super) fn shrink_to(&mut self, booked: usize) {
        self.held.shrink(self.held.amount() - booked);
    }
}
