//! Sweeps of this host's storage that are saved in the user's zmove home directory.

use std::path::Path;

use zmove_tools::sweep::{SavedSweeps, Sweep};

use crate::settings::{self, Role};

/// Returns the directory of saved sweeps.
pub(crate) fn in_home() -> Option<SavedSweeps> {
    let home = settings::home(Role::Client).ok()?;
    Some(SavedSweeps {
        directory: home.join("sweeps"),
    })
}

/// Returns the saved sweep of the storage of these paths. Returns `None` if the paths are on different storage, or if
/// no sweep of this storage was saved.
pub(crate) fn of_paths<'p>(paths: impl IntoIterator<Item = &'p Path>) -> Option<Sweep> {
    in_home()?.of_paths(paths)
}
