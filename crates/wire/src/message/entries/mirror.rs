//! The messages that make a target a mirror: names to remove, beside the request for
//! [extraneous names](crate::Question::Extraneous).

use serde::{Deserialize, Serialize};
use zmove_types::{Name, RelPath, list};

use crate::error::WireError;
use crate::limits::{REMOVE_NAMES_MAX, within};

/// Whether entries below a directory of the target that are not in its source may be removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Extraneous {
    /// The entry stays.
    #[default]
    Stays,
    /// The entry may be removed.
    Goes,
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
    pub directory: RelPath,
    /// The names.
    #[serde(deserialize_with = "list::at_most::<{ REMOVE_NAMES_MAX }, _, _>")]
    pub names: Vec<Name>,
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
