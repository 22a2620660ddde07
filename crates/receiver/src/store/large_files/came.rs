//! What has come of a large file: to be found again on the storage ([`proving`](crate::store::proving)), or for its
//! root.

use std::collections::HashMap;

use zmove_chunk::{RootMerger, sparse_group_cv};
use zmove_types::{Cv, GroupSpan, Root};
use zmove_wire::WireError;

use crate::rights::quota::{Booking, Quota};

/// The values by which the groups of a large file came, to be found again on the storage.
#[derive(Debug)]
pub(crate) struct Came {
    pub(crate) values: HashMap<u32, Cv>,
    pub(crate) held: Booking,
}

impl Came {
    /// Nothing yet, whose memory is booked on `quota`.
    pub(crate) fn new(quota: &Quota) -> Self {
        Self {
            values: HashMap::new(),
            held: quota.book_nothing(),
        }
    }

    /// Notes the value of a group.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn note(&mut self, index: u32, cv: Cv) -> Result<(), WireError> {
        if self.values.insert(index, cv).is_none() {
            self.held.grow(GROUP_KEPT_BYTES)?;
        }
        Ok(())
    }

    /// Takes back what was noted of a group.
    pub(crate) fn forget(&mut self, index: u32) {
        if self.values.remove(&index).is_some() {
            self.held.shrink(GROUP_KEPT_BYTES);
        }
    }

    /// The root of a file of which all that is no hole has come, unless there are too many holes to be hashed.
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

/// The memory of a group that is kept by its value: of a part, of the old version of a file, of what has come.
pub(crate) const GROUP_KEPT_BYTES: usize = 64;
/// The most groups of holes that are hashed for a root, which takes about a second: a file may have a billion.
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
        let mut came = Came::new(&Quota::default());
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
