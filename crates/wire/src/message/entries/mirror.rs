//! The messages that make a target a mirror, in addition to the request for [extraneous
//! names](crate::Question::Extraneous).

use serde::{Deserialize, Serialize};
use zmove_types::{Name, RelPath, list};

use crate::error::WireError;
use crate::limits::{REMOVE_NAMES_MAX, within};

/// Whether entries of the target that do not exist at the source may be removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Extraneous {
    /// The entries stay.
    #[default]
    Stays,
    /// The entries may be removed.
    Goes,
}

/// Names to remove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remove {
    /// The number of the message, for its answer.
    pub remove: u64,
    /// The names by directory, at most [`REMOVE_NAMES_MAX`] in total.
    #[serde(deserialize_with = "list::at_most::<{ REMOVE_NAMES_MAX }, _, _>")]
    pub groups: Vec<RemoveGroup>,
}

/// Names to remove from one directory, including everything below them.
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
    /// [`WireError`] if the message exceeds a limit.
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
