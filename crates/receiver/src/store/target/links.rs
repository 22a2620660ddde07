//! Hard links: another name for a file that this transfer has published or found equal, and files at the target that
//! have more names than their sources.
//!
//! A sender asks about one name of each of its files, and names the others when that has been published. So two names
//! that it asks about are two files, and where they lead to the same one at the target only the first may keep it: the
//! other is needed, and made anew. Names that it does not ask about do not count: whoever keeps older states of a tree
//! as hard links goes on with them. A file that has such names is never changed, in its metadata neither (see
//! [`View`](crate::comparison::entries::View)).
//!
//! A link comes with size and time of its file. A first name that leads to another file, or to none since it has
//! failed, gets no other name, and the sender then sends the file itself.

use std::collections::HashSet;
use std::os::fd::OwnedFd;

use zmove_disk::{FileIdentity, number_at};
use zmove_types::{FileNumber, Name};

use crate::rights::quota::{Booking, Quota};
use zmove_types::Lock;

/// The files with several names that names of requests have been found to lead to. Each takes a few bytes, which are
/// booked, until the end of the transfer.
#[derive(Debug)]
pub(crate) struct Claims(Lock<State>);

#[derive(Debug)]
struct State {
    files: HashSet<FileNumber>,
    held: Booking,
}

/// The memory of a file in the set, with the set's spare room.
const FILE_BYTES: usize = 2 * size_of::<FileNumber>() + 2;

impl Claims {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self(Lock::new(State {
            files: HashSet::new(),
            held: quota.book_nothing(),
        }))
    }

    /// Whether a name leads to a file that another name has claimed; if not, it is this one's from now on. Where there
    /// is no room to remember it, it counts as another's.
    pub(crate) fn is_of_another(
        &self,
        directory: &OwnedFd,
        name: &Name,
        there: &FileIdentity,
    ) -> bool {
        if there.names < 2 {
            return false;
        }
        let Ok(number) = number_at(directory, name) else {
            return true;
        };
        let mut state = self.0.lock();
        if state.files.contains(&number) || state.held.grow(FILE_BYTES).is_err() {
            return true;
        }
        state.files.insert(number);
        false
    }
}
