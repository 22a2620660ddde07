//! Orders to hash groups of a file, and the values that answer them.

use std::fs::File;
use std::io;

use zmove_disk::{StoredFile, Turn};
use zmove_types::GroupSpan;
use zmove_wire::limits::{HASHED_GROUPS_MAX, within};
use zmove_wire::{HashOrder, WireError};

use crate::storage_reader::StorageReader;

impl StorageReader {
    /// Adds the values of the groups of a file that are ordered, as far as it goes.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn hash_into(
        &self,
        values: &mut Vec<Option<[u8; 32]>>,
        turn: &Turn<'_>,
        file: File,
        CheckedOrder(HashOrder { first, groups, .. }): &CheckedOrder,
    ) -> io::Result<()> {
        let file = StoredFile::new(file)?;
        for index in *first..first.saturating_add(*groups) {
            let Some(span) = GroupSpan::of(file.bytes(), index) else {
                break;
            };
            if turn.is_over() {
                break;
            }
            values.push(self.value_of(&file, span)?.map(|cv| cv.0));
        }
        Ok(())
    }
}

/// An order to hash that may be given.
#[derive(Debug)]
pub(super) struct CheckedOrder(HashOrder);

impl CheckedOrder {
    /// Refuses an order of a conversation that verifies nothing, and one for more groups than an answer may have.
    pub(super) fn new(
        order: HashOrder,
        storage: Option<&StorageReader>,
    ) -> Result<Self, WireError> {
        if storage.is_none() {
            return Err(WireError::OutOfOrder {
                what: "an order to hash, without a verification",
            });
        }
        within("groups to hash", order.groups as usize, HASHED_GROUPS_MAX)?;
        Ok(Self(order))
    }

    pub(super) fn order(&self) -> &HashOrder {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use zmove_types::RelPath;

    use super::*;
    use crate::config::ReceiverConfig;

    #[test]
    fn orders_are_bounded_and_need_a_verification() {
        let order = |groups| HashOrder {
            order: 1,
            path: RelPath::root(),
            first: 0,
            groups,
        };
        let most = u32::try_from(HASHED_GROUPS_MAX).unwrap();
        let storage = StorageReader::new(&ReceiverConfig::default().file_io, 1);
        assert!(CheckedOrder::new(order(most), Some(&storage)).is_ok());
        assert!(CheckedOrder::new(order(most + 1), Some(&storage)).is_err());
        assert!(CheckedOrder::new(order(1), None).is_err());
    }
}
