//! The hash values received for the groups of a large file. They are needed to read the file back
//! ([`proving`](crate::store::proving)) or to compute its root hash.

use std::collections::HashMap;

use zmove_chunk::{RootMerger, sparse_group_cv};
use zmove_types::{Cv, GroupSpan, Root};
use zmove_wire::WireError;

use crate::rights::quota::{Charge, Quota};

/// The received hash values of a large file, by group index, with the memory charged for them.
#[derive(Debug)]
pub(crate) struct ReceivedHashes {
    pub(crate) values: HashMap<u32, Cv>,
    pub(crate) held: Charge,
}

impl ReceivedHashes {
    /// Creates an empty set. `quota` is charged for its memory.
    pub(crate) fn new(quota: &Quota) -> Self {
        Self {
            values: HashMap::new(),
            held: quota.empty_charge(),
        }
    }

    /// Records the hash value of a group.
    ///
    /// # Errors
    /// Returns an error if there is no memory for the value.
    pub(crate) fn note(&mut self, index: u32, cv: Cv) -> Result<(), WireError> {
        if self.values.insert(index, cv).is_none() {
            self.held.grow(GROUP_KEPT_BYTES)?;
        }
        Ok(())
    }

    /// Forgets the hash value of a group.
    pub(crate) fn forget(&mut self, index: u32) {
        if self.values.remove(&index).is_some() {
            self.held.shrink(GROUP_KEPT_BYTES);
        }
    }

    /// Returns the root hash of a file of `bytes` bytes. Groups without a recorded hash value count as holes. Returns
    /// `None` if there are too many holes to hash.
    pub(crate) fn root(&self, bytes: u64) -> Option<Root> {
        let groups = GroupSpan::count(bytes)?;
        if groups as usize > self.values.len() + HOLES_MAX {
            return None;
        }
        let mut merger = RootMerger::default();
        for index in 0..groups {
            let zeros = || {
                GroupSpan::of(bytes, index)
                    .map(|span| sparse_group_cv(span, std::iter::empty(), &[]))
            };
            merger.push(self.values.get(&index).copied().or_else(zeros)?);
        }
        Some(merger.finish())
    }
}

/// Memory for one group whose hash value is kept, in bytes. The group may belong to a file that is being received, to
/// its temporary file, or to the old version of a file.
pub(crate) const GROUP_KEPT_BYTES: usize = 64;
/// Maximum number of groups without data to hash for a root, which takes about a second. A file may have a billion of
/// them.
const HOLES_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_chunk::group_cv;
    use zmove_types::GROUP_BYTES;

    #[test]
    fn what_has_come_has_the_hash_of_the_file() {
        let group = usize::try_from(GROUP_BYTES).unwrap();
        let mut file = vec![0; 2 * group + 5];
        file[7] = 1;
        file[2 * group] = 1;
        let mut came = ReceivedHashes::new(&Quota::default());
        for index in [2, 0] {
            let from = index as usize * group;
            came.note(
                index,
                group_cv(index, &file[from..file.len().min(from + group)]),
            )
            .unwrap();
        }
        assert_eq!(
            came.root(file.len() as u64),
            Some(zmove_chunk::file_root(&file))
        );
    }
}
