//! Checks whether a file system accepts a name, before the data of a large file is written. vfat, exFAT and SMB refuse
//! some characters, but report this only when an entry is created or renamed.
//!
//! **Invariant:** no entry appears under the name that is checked. The check creates an entry with that name in a new
//! hidden directory.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use zmove_types::Name;

use crate::opening::by_name::{create_at, open_at, remove_directory_at, stat_at, unlink_at};
use crate::staging::hidden::make_hidden;

/// Checks that the file system of a directory can store an entry under a name. Only names that some file system refuses
/// are tried.
///
/// # Errors
/// Returns `EINVAL`, `EILSEQ` or `ENAMETOOLONG` if the file system refuses the name. Other errors are ignored here and
/// occur again when the entry is stored.
pub fn check_name(directory: &OwnedFd, name: &Name) -> io::Result<()> {
    match stat_at(directory, name) {
        Err(Errno::NOENT) if !is_portable(name.as_bytes()) => Ok(try_name(directory, name)?),
        Err(error @ (Errno::INVAL | Errno::ILSEQ | Errno::NAMETOOLONG)) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Creates a file under the name in a new hidden directory, and removes both. Ignores `ENAMETOOLONG`, because some
/// servers limit the length of the path, and the hidden directory makes it longer.
fn try_name(parent: &OwnedFd, name: &Name) -> rustix::io::Result<()> {
    let make = |hidden: &Name| rustix::fs::mkdirat(parent, hidden.as_os_str(), Mode::RWXU);
    let Ok((hidden, ())) = make_hidden(parent.as_fd(), make) else {
        return Ok(());
    };
    let mut created = Ok(());
    if let Ok(directory) = open_at(parent, &hidden, OFlags::PATH | OFlags::DIRECTORY) {
        created = create_at(&directory, name, Mode::RUSR | Mode::WUSR).map(drop);
        let _best_effort = unlink_at(&directory, name);
    }
    // If the removal fails, the next transfer to this directory removes the entry.
    let _best_effort = remove_directory_at(parent, &hidden);
    match created {
        Err(error @ (Errno::INVAL | Errno::ILSEQ)) => Err(error),
        _ => Ok(()),
    }
}

/// Returns whether every file system accepts a name.
fn is_portable(name: &[u8]) -> bool {
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !b"\"*:<>?\\|".contains(byte);
    name.iter().all(is_plain) && !name.ends_with(b".") && !name.ends_with(b" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_name_is_tried_without_a_trace() {
        let home = tempfile::tempdir().unwrap();
        let directory = OwnedFd::from(File::open(home.path()).unwrap());
        for text in [
            "plain",
            "a:b",
            "caf\u{e9}",
            "dot.",
            "n".repeat(255).as_str(),
        ] {
            let name = Name::from_bytes(text.as_bytes()).unwrap();
            check_name(&directory, &name).unwrap();
            try_name(&directory, &name).unwrap();
        }
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    }
}
