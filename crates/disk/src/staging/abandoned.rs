//! Removes entries that ended processes have left in a directory. See [`hidden`](crate::staging::hidden).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::Mode;
use rustix::io::Errno;
use zmove_types::{Name, RelPath, SharedJobId};

use crate::metadata::entry::xattrs::Descriptor;
use crate::metadata::entry::{FileIdentity, set_file_mtime};
use crate::opening::by_name::unlink_at;
use crate::opening::tree::Tree;
use crate::publishing::remove::remove_entries_of;
use crate::staging::hidden::{HiddenEntries, ParentIdentity, list_hidden};

/// Removes the entries that ended processes have left in `directory`, which is `path` of `tree`. Returns the shared
/// jobs whose directories are in `directory`. Entries that cannot be removed are kept, and a later call tries again.
///
/// # Errors
/// Returns the system's error if the directory cannot be listed.
pub fn remove_abandoned(
    tree: &Tree,
    path: &RelPath,
    directory: BorrowedFd<'_>,
) -> io::Result<Vec<SharedJobId>> {
    let HiddenEntries { left, jobs, .. } = list_hidden(directory, |_not_hidden| {})?;
    if !left.is_empty() {
        let _counted = remove_leftovers(tree, path, directory, &left, |_path, _another_time| {});
    }
    Ok(jobs)
}

/// Removes an entry of the directory `path` of `tree`. A directory is removed with its contents, but only if no other
/// user could have given it this name. The parent keeps its mode and time. Returns the number of removed entries.
/// `failed` receives the path in `tree` of each entry that could not be removed.
///
/// # Errors
/// Returns the system's error if the directory cannot be opened or no permit is issued.
pub fn remove_leftover(
    tree: &Tree,
    path: &RelPath,
    name: &Name,
    failed: impl FnMut(RelPath, io::Error),
) -> io::Result<u64> {
    let directory = tree.open_directory(path)?;
    let before = FileIdentity::of(&directory)?;
    // One permit covers the whole change, so the mode is always restored.
    let permit = tree.lease().permit()?;
    let names = std::slice::from_ref(name);
    let removed = remove_leftovers(tree, path, directory.as_fd(), names, failed);
    if FileIdentity::of(&directory)?.mode != before.mode {
        let mode = Mode::from_raw_mode(before.mode);
        Descriptor::Open(directory.as_fd()).set_mode(&permit, mode)?;
    }
    let _best_effort = set_file_mtime(permit, &directory, before.mtime);
    Ok(removed)
}

/// Removes entries that ended processes have left in `directory`, which is `path` of `tree`. Returns the number of
/// removed entries, including the contents of directories. Keeps a directory if another user could have given it its
/// name, or could give that name to another directory now.
pub(crate) fn remove_leftovers(
    tree: &Tree,
    path: &RelPath,
    directory: BorrowedFd<'_>,
    names: &[Name],
    mut failed: impl FnMut(RelPath, io::Error),
) -> u64 {
    let guarded = ParentIdentity::of(directory).guarded();
    let (own, other): (Vec<_>, Vec<_>) = names
        .iter()
        .partition(|name| guarded.covers(directory, name));
    let mut removed = remove_entries_of(tree, path, directory, own.into_iter(), &mut failed);
    for name in other {
        match unlink_at(directory, name) {
            Ok(()) => removed += 1,
            Err(Errno::NOENT) => {}
            Err(error) => failed(path.join(name).unwrap_or(path.clone()), error.into()),
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::staging::hidden::tests::of_a_dead_process;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::time::Duration;

    /// Creates a file, and a directory that contains a file, with names of an ended process.
    fn leave(home: &Path, directory: BorrowedFd<'_>) -> [Name; 2] {
        let names = [(); 2].map(|()| of_a_dead_process(directory, Duration::ZERO));
        std::fs::write(home.join(names[0].as_os_str()), "x").unwrap();
        std::fs::create_dir(home.join(names[1].as_os_str())).unwrap();
        std::fs::write(home.join(names[1].as_os_str()).join("f"), "x").unwrap();
        names
    }

    #[test]
    fn a_directory_only_goes_where_nobody_else_can_have_given_it_its_name() {
        for (mode, goes) in [
            (0o755, true),
            (0o1777, true),
            (0o775, false),
            (0o757, false),
            (0o2775, false),
        ] {
            let home = tempfile::tempdir().unwrap();
            std::fs::set_permissions(home.path(), PermissionsExt::from_mode(mode)).unwrap();
            let tree = Tree::open(home.path()).unwrap();
            let [file, directory] = leave(home.path(), tree.fd());
            remove_abandoned(&tree, &RelPath::root(), tree.fd()).unwrap();
            assert!(!home.path().join(file.as_os_str()).exists(), "{mode:o}");
            let left = home.path().join(directory.as_os_str()).join("f");
            assert_eq!(left.exists(), !goes, "{mode:o}");
        }
    }

    /// The entry was a file when the directory was listed.
    #[test]
    fn a_directory_that_takes_the_name_of_a_file_meanwhile_stays() {
        let home = tempfile::tempdir().unwrap();
        std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let tree = Tree::open(home.path()).unwrap();
        let [file, directory] = leave(home.path(), tree.fd());
        let mut stays = Vec::new();
        let failed = |path: RelPath, _error| stays.push(path.file_name());
        let names = [file, directory];
        let removed = remove_leftovers(&tree, &RelPath::root(), tree.fd(), &names, failed);
        assert_eq!((removed, stays), (1, vec![Some(names[1].clone())]));
        assert!(home.path().join(names[1].as_os_str()).join("f").exists());
    }

    /// Another process replaces a directory while it is open here.
    #[test]
    fn leftovers_go_from_the_directory_that_was_listed() {
        let home = tempfile::tempdir().unwrap();
        let tree = Tree::open(home.path()).unwrap();
        let path = RelPath::from_bytes(b"d").unwrap();
        std::fs::create_dir(home.path().join("d")).unwrap();
        let opened = tree.open_directory(&path).unwrap();
        let [_file, directory] = leave(&home.path().join("d"), opened.as_fd());
        std::fs::rename(home.path().join("d"), home.path().join("moved")).unwrap();
        let theirs = home.path().join("d").join(directory.as_os_str());
        std::fs::create_dir_all(&theirs).unwrap();
        std::fs::write(theirs.join("precious"), "x").unwrap();
        remove_abandoned(&tree, &path, opened.as_fd()).unwrap();
        assert!(theirs.join("precious").exists());
        assert_eq!(
            std::fs::read_dir(home.path().join("moved"))
                .unwrap()
                .count(),
            0
        );
    }
}
