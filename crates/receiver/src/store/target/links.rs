//! Hard links: further names of files that this transfer has published or found equal. Also handles files that have
//! more names at the target than at the source.
//!
//! For each of its files, a sender asks the receiver about one name. It sends the other names after the file has been
//! published under that name. Two names about which the sender asks therefore belong to two different files. If both
//! names lead to the same file at the target, only the first name may keep that file. For the second name, a new file
//! is created. Names about which the sender does not ask are ignored, so that users can keep older states of a tree as
//! hard links. A file with such names is never changed, not even its metadata (see
//! [`Comparator`](crate::comparison::entries::Comparator)).
//!
//! A link is sent with the size and time of its file. No link is created if the first name leads to a different file,
//! or to no file because that file has failed. The sender then sends the file itself.

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
