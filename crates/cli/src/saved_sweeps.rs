//! The sweeps of this host's storage that are kept in the home directory of the user.

use std::path::Path;

use zmove_tools::sweep::{SavedSweeps, Sweep};

use crate::settings::{self, Role};

/// The directory of kept sweeps.
pub(crate) fn in_home() -> Option<SavedSweeps> {
    let home = settings::home(Role::Client).ok()?;
    Some(SavedSweeps {
        directory: home.join("sweeps"),
    })
}

/// The sweep of the storage of these paths, if they are all on one that has been swept.
pub(crate) fn of_paths<'p>(paths: impl IntoIterator<Item = &'p Path>) -> Option<Sweep> {
    in_home()?.of_paths(paths)
}
