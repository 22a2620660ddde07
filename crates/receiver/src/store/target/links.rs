//! Hard links: additional names for files that this transfer has published or found equal, and files that have more
//! names at the target than at the source.
//!
//! A sender asks about one name of each of its files, and sends the other names after that one has been published. Two
//! names that it asks about are therefore two files. If both lead to the same file at the target, only the first name
//! may keep it. The second is needed and created anew. Names that the sender does not ask about do not count, so that
//! users can keep older states of a tree as hard links. A file with such names is never changed, not even its metadata
//! (see [`Comparator`](crate::comparison::entries::Comparator)).
//!
//! A link is sent with the size and time of its file. If its first name leads to another file, or to none because the
//! file has failed, no link is created, and the sender then sends the file itself.

use std::collections::HashSet;
use std::os::fd::OwnedFd;

use zmove_disk::{FileIdentity, number_at};
use zmove_types::{FileNumber, Name};

use crate::rights::quota::{Charge, Quota};
use zmove_types::Lock;

/// The files with several names at the target that a name of the transfer has claimed. The record of a file uses a few
/// bytes, which are charged to the quota until the end of the transfer.
#[derive(Debug)]
pub(crate) struct Claims(Lock<State>);

#[derive(Debug)]
struct State {
    files: HashSet<FileNumber>,
    held: Charge,
}

/// Memory in bytes for one file in the set, including the set's spare capacity.
const FILE_BYTES: usize = 2 * size_of::<FileNumber>() + 2;

impl Claims {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self(Lock::new(State {
            files: HashSet::new(),
            held: quota.empty_charge(),
        }))
    }

    /// Claims the file to which a name leads. Returns `true` if another name has already claimed the file, or if there
    /// is no memory for the claim. A file with only one name needs no claim.
    pub(crate) fn is_claimed(
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
