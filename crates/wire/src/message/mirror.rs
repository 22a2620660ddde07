//! The messages that make a target a mirror: names to keep in a directory, what else is there, and names to remove.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use zmove_types::{Name, RelPath};

use super::fault::FaultCode;
use super::{bytes, list};
use crate::error::WireError;
use crate::limits::{KEEP_NAMES_MAX, KEEP_RANGES_MAX, REMOVE_NAMES_MAX, within};

/// Whether entries below a directory of the target that are not in its source may be removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Extraneous {
    /// The entry stays.
    #[default]
    Stays,
    /// The entry may be removed.
    Goes,
}

/// Names that are at the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// The number of the message, for its answer.
    pub keep: u64,
    /// The names by directory, at most [`KEEP_RANGES_MAX`] directories with [`KEEP_NAMES_MAX`] names in all.
    #[serde(deserialize_with = "list::at_most::<{ KEEP_RANGES_MAX }, _, _>")]
    pub ranges: Vec<KeptRange>,
}

/// All names of one directory that lie in a range, in the order of their bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptRange {
    /// The directory's path from the target root.
    #[serde(with = "bytes")]
    pub directory: RelPath,
    /// The name behind which the range begins; `None` for the beginning of the directory.
    pub after: Option<ListedName>,
    /// The names.
    #[serde(deserialize_with = "list::at_most::<{ KEEP_NAMES_MAX }, _, _>")]
    pub names: Vec<ListedName>,
    /// Whether the range has no end; otherwise it ends with the last of the names.
    pub open: bool,
}

/// A name in a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ListedName(#[serde(with = "bytes")] pub Name);

/// Names in the ranges of a [`Keep`] that are not at the source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraneousNames {
    /// The number of the message that this answers.
    pub keep: u64,
    /// The names, range by range and in order within one, at most
    /// [`EXTRANEOUS_NAMES_MAX`](crate::limits::EXTRANEOUS_NAMES_MAX).
    #[serde(deserialize_with = "list::at_most::<{ crate::limits::EXTRANEOUS_NAMES_MAX }, _, _>")]
    pub names: Vec<ExtraneousName>,
    /// The range, and the name in it, behind which the answer ends unfinished; `None` if it is complete.
    pub rest: Option<(u32, ListedName)>,
    /// Ranges whose directory could not be listed.
    #[serde(deserialize_with = "list::at_most::<{ KEEP_RANGES_MAX }, _, _>")]
    pub faults: Vec<(u32, FaultCode)>,
}

/// One name that is not at the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraneousName {
    /// The number of the name's range in the message that is answered.
    pub range: u32,
    /// The name.
    pub name: ListedName,
    /// Whether the name is that of a directory.
    pub directory: bool,
}

/// Names to be removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remove {
    /// The number of the message, for its answer.
    pub remove: u64,
    /// The names by directory, at most [`REMOVE_NAMES_MAX`] in all.
    #[serde(deserialize_with = "list::at_most::<{ REMOVE_NAMES_MAX }, _, _>")]
    pub groups: Vec<RemoveGroup>,
}

/// Names to be removed from one directory, with all below them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveGroup {
    /// The directory's path from the target root.
    #[serde(with = "bytes")]
    pub directory: RelPath,
    /// The names.
    #[serde(deserialize_with = "list::at_most::<{ REMOVE_NAMES_MAX }, _, _>")]
    pub names: Vec<ListedName>,
}

impl Keep {
    /// Checks the message against its limits and its order.
    ///
    /// # Errors
    /// [`WireError`] when the message has too much in it, a directory comes twice, which would be listed twice, or
    /// names are not in order.
    pub fn check(&self) -> Result<(), WireError> {
        within("kept directories", self.ranges.len(), KEEP_RANGES_MAX)?;
        within(
            "kept names",
            self.ranges.iter().map(|range| range.names.len()).sum(),
            KEEP_NAMES_MAX,
        )?;
        let mut directories = HashSet::new();
        if !self
            .ranges
            .iter()
            .all(|range| directories.insert(&range.directory))
        {
            return Err(WireError::OutOfOrder {
                what: "a kept directory that comes twice in a message",
            });
        }
        let ordered = |range: &KeptRange| {
            let behind = range
                .after
                .as_ref()
                .zip(range.names.first())
                .is_none_or(|(after, first)| after < first);
            behind && range.names.is_sorted_by(|one, next| one < next)
        };
        if self.ranges.iter().all(ordered) {
            Ok(())
        } else {
            Err(WireError::OutOfOrder {
                what: "a kept name",
            })
        }
    }
}

impl KeptRange {
    /// Whether a name lies in the range and is none of those that stay.
    #[must_use]
    pub fn is_extra(&self, name: &Name) -> bool {
        let after = self.after.as_ref().is_none_or(|after| *name > after.0);
        let before = self.open || self.names.last().is_some_and(|last| *name <= last.0);
        after
            && before
            && self
                .names
                .binary_search_by(|kept| kept.0.cmp(name))
                .is_err()
    }
}

impl Remove {
    /// Checks the message against its limits.
    ///
    /// # Errors
    /// [`WireError`] when the message has too much in it.
    pub fn check(&self) -> Result<(), WireError> {
        within(
            "directories to remove from",
            self.groups.len(),
            REMOVE_NAMES_MAX,
        )?;
        within(
            "names to remove",
            self.groups.iter().map(|group| group.names.len()).sum(),
            REMOVE_NAMES_MAX,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ListedName {
        ListedName(Name::from_bytes(text.as_bytes()).unwrap())
    }

    fn range(after: Option<&str>, names: &[&str], open: bool) -> KeptRange {
        let names = names.iter().map(|text| name(text)).collect();
        KeptRange {
            directory: RelPath::root(),
            after: after.map(name),
            names,
            open,
        }
    }

    #[test]
    fn a_range_tells_what_is_extra_in_it_alone() {
        let extra =
            |range: &KeptRange| ["a", "b", "c", "d", "e"].map(|text| range.is_extra(&name(text).0));
        assert_eq!(
            extra(&range(None, &["b", "d"], false)),
            [true, false, true, false, false]
        );
        assert_eq!(
            extra(&range(Some("b"), &["d"], false)),
            [false, false, true, false, false]
        );
        assert_eq!(
            extra(&range(Some("d"), &[], true)),
            [false, false, false, false, true]
        );
        assert_eq!(extra(&range(Some("b"), &[], false)), [false; 5]);
    }

    #[test]
    fn names_out_of_order_and_directories_that_come_twice_are_refused() {
        let check = |range| {
            Keep {
                keep: 0,
                ranges: vec![range],
            }
            .check()
        };
        assert_eq!(check(range(Some("a"), &["b", "c"], true)), Ok(()));
        for bad in [
            range(None, &["b", "a"], true),
            range(None, &["b", "b"], true),
            range(Some("b"), &["b"], true),
        ] {
            assert_eq!(
                check(bad),
                Err(WireError::OutOfOrder {
                    what: "a kept name"
                })
            );
        }
        let twice = Keep {
            keep: 0,
            ranges: vec![range(None, &["a"], false), range(Some("a"), &[], true)],
        };
        let what = "a kept directory that comes twice in a message";
        assert_eq!(twice.check(), Err(WireError::OutOfOrder { what }));
        let many = Keep {
            keep: 0,
            ranges: vec![range(None, &[], true); KEEP_RANGES_MAX + 1],
        };
        assert!(matches!(
            many.check(),
            Err(WireError::OverLimit {
                what: "kept directories",
                ..
            })
        ));
    }
}
