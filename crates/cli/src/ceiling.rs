//! The sweeps of this host's storage that are kept in the home directory of the user.

use std::path::Path;

use zmove_tools::sweep::{SavedSweeps, Sweep};

use crate::settings::{self, Role};

/// The directory of kept sweeps.
pub(crate) fn kept() -> Option<SavedSweeps> {
    settings::home(Role::Client).ok().map(|home| SavedSweeps {
        directory: home.join("sweeps"),
    })
}

/// The sweep of the storage of these paths, if they are all on one that has been swept.
pub(crate) fn known<'p>(paths: impl IntoIterator<Item = &'p Path>) -> Option<Sweep> {
    kept()?.of_paths(paths)
}
